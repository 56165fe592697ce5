"""What several rules look at, worked out once a device: the host's turns, bursts of copies, each copy's role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from nsysparse.accounting.busy import union_of_rows
from nsysparse.accounting.device import DeviceAccount
from nsysparse.accounting.host import feeding
from nsysparse.integrity import Verdict
from nsysparse.intervals import Index, Intervals, Spans, Times, times
from nsysparse.joins.calls import DOES
from nsysparse.joins.order import rows_among, rows_of
from nsysparse.joins.work import GPU_TABLES, Work
from nsysparse.lazy import cached_property
from nsysparse.nulls import filled, masked
from nsysparse.rules._periods import Beats
from nsysparse.rules._recording import Recording
from nsysparse.rules._roles import DECILES, assign_roles
from nsysparse.rules._turns import Marks, take_turns

UNKNOWN_KIND, NO_COPY = -2, -1  # beside the kinds of copies
COPY = DOES.categories.to_list().index("copy")
HOLE_SIGNS = ("id_jumps", "empty_ranges", "tail")  # checks whose holes have a beginning and an end


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
        """Give back what takes memory once the device is judged; whoever asks for it again gets it worked out again."""
        self.found.clear()
        self.claimed = Intervals.none()
        self.account.busy.forget()
        for name in ("turns", "marks", "copies", "lost", "device_idle", "idle"):
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
        counts = feeding((self.work.kernels, self.work.graphs), self.account.window)
        return [thread for thread, _ in counts] or [int(t) for t in self.account.host.threads["thread"].to_list()]

    @cached_property
    def turns(self) -> pl.DataFrame:
        """The calls of the threads that send this device work, see :func:`nsysparse.rules._turns.take_turns`."""
        threads = [self.account.host.threads["thread"], self.account.copies["thread"].drop_nulls().unique()]
        return take_turns(self.work, pl.concat(threads).to_list(), self.account.window)

    @cached_property
    def marks(self) -> Marks:
        """Columns of the turns."""
        return Marks(self.turns, self.feeders)

    def turns_of(self, calls: pl.Series) -> pl.DataFrame:
        """The turns of some calls, in their order; calls that are no turn are left out."""
        at = rows_among(self.marks.call, calls.drop_nulls().unique().sort().to_numpy())
        found: pl.DataFrame = self.turns[at[at >= 0]]
        return found

    @cached_property
    def copies(self) -> pl.DataFrame:
        """Copies that start in the window: ``account.copies`` plus ``direct``, ``burst``, ``decile`` and ``role``."""
        copies = self.account.copies
        copies = copies if copies["counted"].all() else copies.filter("counted")
        call, burst = self._bursts()
        at = rows_among(call, filled(copies["call"], -1))
        direct, waits = (copies["does"] == "copy"), copies["waits"]
        copies = copies.drop("waits").hstack(
            [
                (direct.fill_null(False) if direct.null_count() else direct).alias("direct"),
                waits.fill_null(False) if waits.null_count() else waits,
                pl.Series("decile", self.deciles(copies["start_ns"])),
                masked("burst", np.append(burst, 0)[at], at >= 0),
            ]
        )
        return copies.hstack([assign_roles(copies, self)])

    def deciles(self, instants: pl.Series | Times) -> Times:
        """For each instant, in which tenth of the device's operations (not of its time) it lies."""
        return times(np.searchsorted(self._tenths, times(instants), side="right"))

    def seen_in(self, instants: pl.Series | Times) -> int:
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

    def _bursts(self) -> tuple[Index, Index]:
        """Runs of copy calls of one direction on one thread, unbroken by a send or a pause: calls, and their runs."""
        marks = self.marks
        rows = np.flatnonzero(marks.call == marks.last_work)  # those that send work
        call, copying = marks.call[rows], marks.does[rows] == COPY
        token = np.where(copying, UNKNOWN_KIND, NO_COPY)
        sent, kind = filled(self.account.copies["call"], -1)[::-1], filled(self.account.copies["kind"], UNKNOWN_KIND)
        at = rows_among(call, sent)
        known = np.flatnonzero(at >= 0)
        known = known[copying[at[known]]]
        token[at[known]] = kind[::-1][known]  # of several copies the first, which comes last here
        begins = np.ones(rows.size, np.bool_)
        same = [v[1:] == v[:-1] for v in (token, marks.thread[rows], marks.stretch[rows])]
        begins[1:] = ~np.logical_and.reduce(same)
        copies = token > 0
        return call[copies], times(np.cumsum(begins)[copies])

    def role(self, *names: str) -> pl.DataFrame:
        """The copies of some roles."""
        if not self._roles.intersection(names):
            return self.copies.clear()
        if self._roles <= set(names):
            return self.copies
        return self.copies.filter(pl.col("role").is_in(names))

    @cached_property
    def _roles(self) -> set[str]:
        """The roles that there are."""
        return set(self.copies["role"].unique().to_list())

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
        thread, start = times(requests.frame["thread"]), times(requests.frame["start_ns"])
        took = filled(requests.frame["latency_ns"])
        rows = np.flatnonzero(took > 0)
        thread, start, end = thread[rows], start[rows], start[rows] + took[rows]
        return {one: Spans(start[mine], end[mine]) for one, mine in rows_of(thread)}

    @cached_property
    def beats(self) -> Beats:
        """The NVTX ranges that something recurring can be in step with."""
        return Beats(self.recording.own_ranges, self.account.window)

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
