"""What rules read of a recording beyond the accounts: stacks, samples and OS runtime calls, when first asked."""

from __future__ import annotations

import polars as pl

from nsysparse.accounting.busy import union_of_rows
from nsysparse.intervals import Index, Intervals
from nsysparse.joins.order import rows_by
from nsysparse.joins.work import Work
from nsysparse.lazy import cached_property
from nsysparse.rules._periods import OwnRanges
from nsysparse.rules._stacks import CallStacks
from nsysparse.source import Trace
from nsysparse.stacks.attribution import Attributed


class Recording:
    """The rest of a recording, for all devices.

    Attributes:
        call_stacks: Stacks of CUDA calls and of samples.
        own_ranges: The program's own NVTX ranges.
    """

    def __init__(self, trace: Trace, work: Work, stacks: Attributed) -> None:
        self._trace = trace
        self._os_waits: dict[int, Intervals] = {}
        self.call_stacks = CallStacks(stacks)
        self.own_ranges = OwnRanges(work)

    def texts(self, references: pl.Series) -> pl.DataFrame:
        """Texts behind string references: ``id``, ``value``."""
        return self._trace.strings(references)

    @cached_property
    def samples(self) -> pl.DataFrame:
        """CPU samples, native and Python: ``time_ns``, ``thread``, ``stack``."""
        stacks = self.call_stacks.stacks
        python = stacks.python.filter(pl.col("by") == "sampling")
        return pl.concat([f.select("time_ns", "thread", "stack") for f in (stacks.samples, python)])

    @cached_property
    def _sampled(self) -> dict[int, slice | Index]:
        """Rows of each thread's samples."""
        return dict(rows_by(self.samples["thread"]))

    def samples_in(self, silences: dict[int, Intervals]) -> pl.DataFrame:
        """The samples of some threads inside some instants of each."""
        parts = [self.samples.head(0)]
        for thread, instants in silences.items():
            if thread not in self._sampled:
                continue
            mine = self.samples[self._sampled[thread]]
            parts.append(mine.filter(pl.Series(instants.contains(mine["time_ns"].to_numpy()), dtype=pl.Boolean)))
        return pl.concat(parts)

    @cached_property
    def osrt(self) -> pl.DataFrame:
        """OS runtime calls: ``start_ns``, ``end_ns``, ``thread``, ``name``."""
        calls = self._trace.frame("osrt").filter(pl.col("end_ns") > pl.col("start_ns"))
        names = self._trace.strings(calls["name_id"])
        return calls.join(names, left_on="name_id", right_on="id", how="left").select(
            "start_ns", "end_ns", "thread", name=pl.col("value").fill_null("(unnamed)")
        )

    @cached_property
    def _in_os(self) -> dict[int, slice | Index]:
        """Rows of each thread's OS runtime calls."""
        return dict(rows_by(self.osrt["thread"]))

    def os_waits(self, thread: int) -> Intervals:
        """When a thread was inside an OS runtime call that was long enough to be recorded."""
        found = self._os_waits.get(thread)
        if found is None:
            rows = self._in_os.get(thread)
            found = Intervals.none() if rows is None else union_of_rows(self.osrt.select("start_ns", "end_ns")[rows])
            self._os_waits[thread] = found
        return found
