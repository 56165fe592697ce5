"""What several rules look at, worked out once a device: the host's turns, bursts of copies, each copy's role."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.accounting.busy import union_of_rows
from nsysparse.accounting.device import DeviceAccount
from nsysparse.integrity import Verdict
from nsysparse.intervals import Index, Intervals, Spans, Times, times
from nsysparse.joins.work import GPU_TABLES, Work
from nsysparse.rules._periods import Beats
from nsysparse.rules._recording import Recording
from nsysparse.rules._roles import assign_roles
from nsysparse.rules._turns import take_turns

DECILES = 10
UNKNOWN_KIND, NO_COPY = -2, -1  # beside the kinds of copies
HOLE_SIGNS = ("id_jumps", "empty_ranges", "tail")  # checks whose holes have a beginning and an end


def rows_among(known: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> Index:
    """The row of each wanted value among known ascending ones, -1 where it is not there."""
    at = np.minimum(np.searchsorted(known, wanted), max(known.size - 1, 0))
    return np.where(known[at] == wanted, at, -1) if known.size else np.full(wanted.size, -1)


class Scene:
    """One device's window, as the rules see it.

    Attributes:
        account: The device's account.
        work: The device's own work; calls and ranges are the whole recording's.
        integrity: Whether the recording can be trusted.
        recording: Stacks, samples and OS runtime calls.
        settings: Every threshold by its full name.
        claimed: Instants that findings with a cause of their own have claimed so far.
        found: What other modules worked out of this device for several rules, by name.
    """

    def __init__(
        self,
        account: DeviceAccount,
        work: Work,
        integrity: Verdict,
        recording: Recording,
        settings: Mapping[str, float],
    ) -> None:
        self.account = account
        self.work = work
        self.integrity = integrity
        self.recording = recording
        self.settings = settings
        self.claimed = Intervals.none()
        self.found: dict[str, Any] = {}

    def forget(self) -> None:
        """Give back what takes memory; whoever asks for it again gets it worked out again."""
        self.found.clear()
        for name in ("turns", "syncs", "allocations", "copies", "device_idle"):
            self.__dict__.pop(name, None)

    @cached_property
    def holes(self) -> Intervals:
        """Stretches of the window of which part of the recording is missing: they are neither idle nor busy."""
        window = self.account.window
        known = [h for h in self.integrity.holes if h.sign in HOLE_SIGNS]
        return Intervals.union_of([h.start_ns for h in known], [h.end_ns for h in known]).clip(
            window.start_ns, window.end_ns
        )

    @cached_property
    def lost(self) -> Intervals:
        """The time without a kernel or graph, after what leads the window: all that any rule can win back."""
        return self.account.busy.compute.gaps(self.begin_ns, self.account.window.end_ns) - self.holes

    @cached_property
    def device_idle(self) -> Intervals:
        """All of the window in which nothing ran."""
        return self.account.busy.idle

    @cached_property
    def idle(self) -> Intervals:
        """The part of ``lost`` in which nothing at all ran."""
        return self.device_idle.clip(self.begin_ns, self.account.window.end_ns) - self.holes

    def idle_in(self, gaps: pl.DataFrame) -> Intervals:
        """The part of ``idle`` that lies in some of the device's gaps."""
        window = self.account.window
        return union_of_rows(gaps).clip(self.begin_ns, window.end_ns) - self.holes

    @cached_property
    def wall_ns(self) -> int:
        """The window without holes and without what leads it: what severities are shares of."""
        begin, end = self.begin_ns, self.account.window.end_ns
        return max(end - begin - self.holes.clip(begin, end).length, 1)

    @cached_property
    def feeders(self) -> list[int]:
        """Threads that launch this device's kernels in the window; those that send anything where none does."""
        window = self.account.window
        inside = (pl.col("start_ns") < window.end_ns) & (pl.col("end_ns") > window.start_ns)
        parts = [f.select(pl.col("thread").filter(inside))["thread"] for f in (self.work.kernels, self.work.graphs)]
        launching = pl.concat(parts).drop_nulls()
        if not launching.len():
            return [int(t) for t in self.account.host.threads["thread"].to_list()]
        counts = launching.value_counts().sort("count", "thread", descending=[True, False])
        return [int(t) for t in counts["thread"].to_list()]

    @cached_property
    def turns(self) -> pl.DataFrame:
        """The calls of the threads that send this device work, see :func:`nsysparse.rules._turns.take_turns`."""
        threads = [self.account.host.threads["thread"], self.account.copies["thread"].drop_nulls().unique()]
        return take_turns(self.work, pl.concat(threads).to_list(), self.account.window)

    @cached_property
    def syncs(self) -> pl.DataFrame:
        """The synchronizations among the turns."""
        return self.turns.filter(pl.col("does") == "synchronize")

    @cached_property
    def allocations(self) -> pl.DataFrame:
        """The allocations and frees among the turns."""
        return self.turns.filter(pl.col("does") == "allocate")

    def turns_of(self, calls: pl.Series) -> pl.DataFrame:
        """The turns of some calls, in their order; calls that are no turn are left out."""
        at = rows_among(self.turns["call"].to_numpy(), calls.drop_nulls().unique().sort().to_numpy())
        found: pl.DataFrame = self.turns[at[at >= 0]]
        return found

    @cached_property
    def copies(self) -> pl.DataFrame:
        """Copies that start in the window: ``account.copies`` plus ``direct``, ``burst``, ``decile`` and ``role``."""
        copies = self.account.copies
        copies = copies if copies["counted"].all() else copies.filter("counted")
        copies = copies.with_columns(
            direct=(pl.col("does").cast(pl.String) == "copy").fill_null(False),
            waits=pl.col("waits").fill_null(False),
            decile=pl.Series(self.deciles(copies["start_ns"])),
        )
        copies = copies.join(self._bursts(), on="call", how="left", maintain_order="left")
        return assign_roles(copies, self)

    def deciles(self, instants: pl.Series) -> Times:
        """For each instant, in which tenth of the device's operations (not of its time) it lies."""
        return times(np.searchsorted(self._tenths, instants.to_numpy(), side="right"))

    def seen_in(self, instants: pl.Series) -> int:
        """In how many tenths of the device's operations some instants lie."""
        return int(np.count_nonzero(np.bincount(self.deciles(instants))))

    @cached_property
    def _tenths(self) -> Times:
        """When the second and every later tenth of the operations that start in the window begins."""
        window = self.account.window
        starts = np.concatenate([times(getattr(self.work, name)["start_ns"]) for name in GPU_TABLES])
        starts = starts[(starts >= window.start_ns) & (starts < window.end_ns)]
        rank = -(-np.arange(1, DECILES) * starts.size // DECILES) - 1
        return np.partition(starts, rank)[rank] if starts.size else starts

    def _bursts(self) -> pl.DataFrame:
        """Runs of copy calls of one direction on one thread, unbroken by a send or a pause: ``call``, ``burst``."""
        sends = self.turns.select("call", "thread", "stretch", "does").filter(
            self.turns["call"] == self.turns["last_work"]
        )
        copying = (sends["does"] == "copy").to_numpy()
        token = np.where(copying, UNKNOWN_KIND, NO_COPY)
        sent = self.account.copies.select("call", pl.col("kind").fill_null(UNKNOWN_KIND)).drop_nulls("call").reverse()
        at = rows_among(sends["call"].to_numpy(), sent["call"].to_numpy())
        known = np.flatnonzero(at >= 0)
        known = known[copying[at[known]]]
        token[at[known]] = sent["kind"].to_numpy()[known]  # of several copies the first, which comes last here
        begins = np.ones(sends.height, np.bool_)
        same = [v[1:] == v[:-1] for v in (token, *(sends[c].to_numpy() for c in ("thread", "stretch")))]
        begins[1:] = ~np.logical_and.reduce(same)
        copies = token > 0
        return pl.DataFrame({"call": sends["call"].filter(pl.Series(copies)), "burst": np.cumsum(begins)[copies]})

    def role(self, *names: str) -> pl.DataFrame:
        """The copies of some roles."""
        return self.copies.filter(pl.col("role").is_in(names))

    @cached_property
    def thread_names(self) -> dict[int, str]:
        """Name and number of the threads that feed the device."""
        return {
            thread: f"{name} ({tid})"
            for thread, name, tid in self.account.host.threads.select("thread", "name", "tid").iter_rows()
        }

    @cached_property
    def latencies(self) -> dict[int, Spans]:
        """When the requests of each thread began and ended, of those that took time."""
        requests = self.account.requests
        if requests is None or requests.frame is None:
            return {}
        took = requests.frame.filter(pl.col("latency_ns") > 0).select(
            "thread", "start_ns", end_ns=pl.col("start_ns") + pl.col("latency_ns")
        )
        return {
            int(thread): Spans(mine["start_ns"], mine["end_ns"])
            for (thread,), mine in took.group_by("thread", maintain_order=True)
        }

    @cached_property
    def beats(self) -> Beats:
        """The NVTX ranges that something recurring can be in step with."""
        return Beats(self.work, self.account.window)

    @cached_property
    def loading_end_ns(self) -> int:
        """When the phase that loads a model ends; before everything where there is none."""
        loading = self.account.loading
        return loading.end_ns if loading else self.account.window.start_ns

    @cached_property
    def begin_ns(self) -> int:
        """Where the window's subject begins: after the loading of a model and the program's start-up."""
        startup, window = self.account.startup, self.account.window
        begin = max(window.start_ns, self.loading_end_ns, startup.end_ns if startup else window.start_ns)
        return min(begin, window.end_ns - 1)

    @cached_property
    def requests(self) -> int | None:
        """Requests in the window, None when nothing says what a request is."""
        return self.account.requests.count if self.account.requests else None
