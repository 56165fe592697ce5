"""What rules read of a recording beyond the accounts: stacks, samples and OS runtime calls, when first asked."""

from __future__ import annotations

from functools import cached_property

import polars as pl

from nsysparse.intervals import Intervals
from nsysparse.joins.work import Work
from nsysparse.rules import _stacks
from nsysparse.source import Trace


class Recording:
    """The rest of a recording, for all devices."""

    def __init__(self, trace: Trace, work: Work) -> None:
        self._trace = trace
        self._work = work

    @cached_property
    def chains(self) -> pl.DataFrame:
        """Stacks of CUDA calls, see :func:`nsysparse.rules._stacks.load_cuda_chains`."""
        return _stacks.load_cuda_chains(self._trace, self._work)

    @cached_property
    def samples(self) -> pl.DataFrame:
        """CPU samples: ``sample``, ``time_ns``, ``thread``."""
        return self._trace.frame("samples")

    def sample_chains(self, samples: pl.Series) -> pl.DataFrame:
        """Stacks of some CPU samples."""
        return _stacks.load_sample_chains(self._trace, samples)

    @cached_property
    def osrt(self) -> pl.DataFrame:
        """OS runtime calls: ``start_ns``, ``end_ns``, ``thread``, ``name``."""
        calls = self._trace.frame("osrt").filter(pl.col("end_ns") > pl.col("start_ns"))
        names = self._trace.strings(calls["name_id"])
        return calls.join(names, left_on="name_id", right_on="id", how="left").select(
            "start_ns", "end_ns", "thread", name=pl.col("value").fill_null("(unnamed)")
        )

    def os_waits(self, thread: int) -> Intervals:
        """When a thread was inside an OS runtime call that was long enough to be recorded."""
        mine = self.osrt.filter(pl.col("thread") == thread)
        return Intervals.union_of(mine["start_ns"], mine["end_ns"])
