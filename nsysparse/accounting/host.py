"""The host's side: which threads feed a device, how long calls held them, what they did while the device was idle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse import schema
from nsysparse.accounting.busy import Busy, union_of_rows
from nsysparse.accounting.grouping import add_up, counts_of
from nsysparse.accounting.windows import Window
from nsysparse.intervals import Index, Intervals, Times, pairs, times
from nsysparse.joins.calls import DOES, Calls
from nsysparse.joins.order import rows_by
from nsysparse.joins.work import GPU_TABLES, Work
from nsysparse.lazy import cached_property
from nsysparse.side_by_side import by_piece
from nsysparse.source import Trace

# What a thread can be doing, the first that applies: one instant is never counted twice.
OTHER_CALL = "other CUDA call"
CALLS = ("synchronize call", "copy call", "allocation call", "launch call", OTHER_CALL)
ACTIVITIES = ("profiler overhead", *CALLS, "OS runtime call")
NOTHING = "no traced call"
_BY_FUNCTION = {
    "synchronize": "synchronize call",
    "copy": "copy call",
    "memset": "copy call",
    "allocate": "allocation call",
    "launch": "launch call",
    "graph launch": "launch call",
}
# Number of the activity (its place in ACTIVITIES) of calls of each function.
_ACTIVITY = np.array([ACTIVITIES.index(_BY_FUNCTION.get(does, OTHER_CALL)) for does in DOES.categories], np.int8)
# Columns of the threads' table -> numbers of the functions that they add up.
_FUNCTIONS = DOES.categories.to_list()
_COUNTED = {
    kind: [_FUNCTIONS.index(f) for f in functions]
    for kind, functions in {
        "launch": ["launch", "graph launch"],
        "copy": ["copy"],
        "synchronize": ["synchronize"],
        "allocate": ["allocate"],
    }.items()
}
Kept = TypeVar("Kept")
PIECE = 1 << 14  # intervals looked at together: what is worked out for them stays in the processor's cache
REMEMBERED = 32  # threads whose activities are kept: those of one device, as a rule
NAMES_UNKNOWN = "(unnamed thread)"


@dataclass(frozen=True)
class Host:
    """The threads that fed one device in one window.

    Attributes:
        threads: One row a thread, most operations first: ``thread`` (serialized), ``pid``, ``tid``, ``name``,
            ``operations``, ``calls``, ``launch_ns``, ``copy_ns``, ``synchronize_ns``, ``allocate_ns`` (unions of its
            calls, clipped), ``blocked_ns`` (union of the calls that wait), ``blocked_ratio`` (of the window),
            ``blocked_while_idle_ns`` (the part of it in which the device was idle).
        blocked: Union of the waiting calls of these threads.
        in_copy_or_sync: Union of their copy and synchronize calls.
    """

    threads: pl.DataFrame
    blocked: Intervals
    in_copy_or_sync: Intervals


def thread_names(trace: Trace, threads: pl.Series) -> pl.DataFrame:
    """Names of some threads: ``thread``, ``pid``, ``tid``, ``name``. An export lists every thread of the machine."""
    wanted = pl.DataFrame({"thread": threads.drop_nulls().unique().sort()})
    named = trace.frame("threads").filter(pl.col("thread").is_in(wanted["thread"].implode()))
    named = named.join(trace.strings(named["name_id"]), left_on="name_id", right_on="id", how="left")
    named = named.unique("thread", keep="last", maintain_order=True)
    return wanted.join(named.select("thread", name="value"), on="thread", how="left").select(
        "thread",
        schema.pid_of(pl.col("thread")).alias("pid"),
        schema.tid_of(pl.col("thread")).alias("tid"),
        pl.col("name").fill_null(NAMES_UNKNOWN),
    )


def measure_host(work: Work, busy: Busy, activity: Activity) -> Host:
    """Account for the threads that sent work to this device inside the window."""
    idle, calls, length = busy.idle, work.calls, busy.window.length_ns
    rows, unions = [], []
    for thread, operations in feeding((getattr(work, name) for name in GPU_TABLES), busy.window):  # threads, not calls
        n, spent, copying = _by_kind(calls, thread, busy.window)
        blocked = activity.blocked(thread).clip(busy.window.start_ns, busy.window.end_ns)
        unions.append((blocked, copying))
        waited = blocked.length
        rows.append(
            (
                *(thread, *activity.names[thread], operations, n),
                *(*spent, waited, waited / length, blocked.shared(idle) if waited else 0),
            )
        )
    threads = pl.DataFrame(
        rows,
        orient="row",
        schema={
            **{"thread": pl.Int64, "pid": pl.Int64, "tid": pl.Int64, "name": pl.String},
            **dict.fromkeys(("operations", "calls", *(f"{kind}_ns" for kind in _COUNTED), "blocked_ns"), pl.Int64),
            "blocked_ratio": pl.Float64,
            "blocked_while_idle_ns": pl.Int64,
        },
    )
    return Host(
        threads,
        Intervals.any_of(b for b, _ in unions),
        Intervals.any_of(c for _, c in unions),
    )


def feeding(frames: Iterable[pl.DataFrame], window: Window) -> list[tuple[int, int]]:
    """Threads by the number of their operations in a window, most first; operations are by start."""
    found: dict[int, int] = {}
    for frame in frames:
        rows = rows_near(times(frame["start_ns"]), times(frame["end_ns"]), window.start_ns, window.end_ns)
        for thread, n in counts_of(frame["thread"][rows]):
            found[thread] = found.get(thread, 0) + n
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))


def rows_near(start: Times, end: Times, low: int, high: int) -> slice | Index:
    """The rows of calls (by start) that overlap a window: one piece, unless an early call lasts into it."""
    after = int(np.searchsorted(start, high))
    reaches = end[:after] > low
    first = after - int(np.count_nonzero(reaches))
    return slice(first, after) if reaches[first:].all() else np.flatnonzero(reaches)


def _by_kind(calls: Calls, thread: int, window: Window) -> tuple[int, list[int], Intervals]:
    """A thread's calls in a window.

    Returns:
        How many; ns that it was in those of each kind of its table; when it was in copies and synchronizations.
    """
    low, high = window.start_ns, window.end_ns
    mine = calls.rows_of(thread)
    near = rows_near(calls.start[mine], calls.end[mine], low, high)
    start, end, does = calls.start[mine][near], calls.end[mine][near], calls.does(mine)[near]
    if (start[1:] >= end[:-1]).all():  # no call inside another: what they took adds up
        took = end - start
        before, within = int(np.searchsorted(start, low)), int(np.searchsorted(end, high))  # both ascend
        took[:before] -= low - start[:before]
        took[within:] -= end[within:] - high
        total = add_up(took, does, len(_FUNCTIONS)).tolist()
        spent = [sum(total[f] for f in functions) for functions in _COUNTED.values()]
    else:
        spent = [_when(start, end, does, functions).clip(low, high).length for functions in _COUNTED.values()]
    return start.size, spent, _when(start, end, does, _COUNTED["copy"] + _COUNTED["synchronize"]).clip(low, high)


def _when(start: Times, end: Times, does: npt.NDArray[np.unsignedinteger[Any]], functions: list[int]) -> Intervals:
    """When a thread was in calls of some functions."""
    rows = np.flatnonzero(np.logical_or.reduce([does == f for f in functions]))
    return Intervals.union_of(start[rows], end[rows])


@dataclass(frozen=True)
class Stretches:
    """What a thread was doing: stretches of time by start that share no instant.

    Attributes:
        start: Starts, ns.
        end: Ends.
        activity: Number of the activity in ACTIVITIES.
    """

    start: Times
    end: Times
    activity: npt.NDArray[np.int8]

    @classmethod
    def of_sets(cls, sets: list[Intervals]) -> Stretches:
        """Of disjoint sets of instants, one an activity."""
        start = np.concatenate([s.start for s in sets])
        activity = np.repeat(np.arange(len(sets), dtype=np.int8), [len(s) for s in sets])
        order = np.argsort(start, kind="stable")
        return cls(start[order], np.concatenate([s.end for s in sets])[order], activity[order])

    def during(self, start: Times, end: Times) -> Times:
        """For each of many disjoint intervals, how many ns lie in each activity: a row an activity."""
        spent = np.zeros((len(ACTIVITIES), start.size), np.int64)

        def look(piece: slice) -> None:
            spent[:, piece] = self._during(start[piece], end[piece])

        by_piece(look, start.size, PIECE)
        return spent

    def _during(self, start: Times, end: Times) -> Times:
        low = np.searchsorted(self.end, start, side="right")
        high = np.searchsorted(self.start, end, side="left")
        interval, mine = pairs(low, high)
        inside = np.minimum(self.end[mine], end[interval]) - np.maximum(self.start[mine], start[interval])
        spent = np.zeros(len(ACTIVITIES) * start.size, np.int64)
        np.add.at(spent, self.activity[mine] * np.int64(start.size) + interval, inside)
        return spent.reshape(len(ACTIVITIES), start.size)


class Activity:
    """What each thread was doing, instant by instant, by the order of ACTIVITIES."""

    def __init__(self, work: Work, trace: Trace) -> None:
        """Read what the export holds of the host; a thread is worked out when first asked for."""
        self.calls, self._trace = work.calls, trace
        self._osrt = trace.frame("osrt").filter(pl.col("end_ns") > pl.col("start_ns"))
        self._os_rows = dict(rows_by(self._osrt["thread"]))
        self._overheads = trace.frame("overheads").filter(pl.col("end_ns") > pl.col("start_ns"))
        self._known: dict[int, Stretches] = {}
        self._blocked: dict[int, Intervals] = {}
        self._lock = Lock()

    @cached_property
    def names(self) -> dict[int, tuple[int, int, str]]:
        """Process id, thread id and name of each thread that made calls."""
        threads = pl.Series(self.calls.threads)
        return {thread: (pid, tid, name) for thread, pid, tid, name in thread_names(self._trace, threads).iter_rows()}

    @cached_property
    def _samples(self) -> dict[int, Times]:
        """When each thread was sampled."""
        frame = self._trace.frame("samples")
        when = times(frame["time_ns"])
        return {thread: when[rows] for thread, rows in rows_by(frame["thread"])}

    def samples(self, threads: pl.Series, low: int, high: int) -> dict[int, Times]:
        """When each of some threads was sampled in a window."""
        found = {thread: self._samples[thread] for thread in threads.to_list() if thread in self._samples}
        return {thread: when[(when >= low) & (when < high)] for thread, when in found.items()}

    def blocked(self, thread: int) -> Intervals:
        """When a thread was inside a call that waits."""
        found = self._blocked.get(thread)
        if found is None:
            rows = self.calls.waiting(thread)
            found = Intervals.union_of(self.calls.start[rows], self.calls.end[rows])
            self._remember(self._blocked, thread, found)
        return found

    def of(self, thread: int) -> Stretches:
        """What one thread was doing."""
        found = self._known.get(thread)
        if found is None:
            found = self._work_out(thread)
            self._remember(self._known, thread, found)
        return found

    def _remember(self, known: dict[int, Kept], thread: int, found: Kept) -> None:
        with self._lock:  # devices are worked on side by side
            while len(known) >= REMEMBERED:
                known.pop(next(iter(known)))
            known[thread] = found

    def forget_calls(self) -> None:
        """Give back what holds on to calls; when threads waited is kept."""
        self._known.clear()

    def forget(self) -> None:
        """Give back what was worked out."""
        self.forget_calls()
        self._blocked.clear()
        self.__dict__.pop("_samples", None)

    def _work_out(self, thread: int) -> Stretches:
        calls, rows, overhead, os_runtime = self.calls, self.calls.rows_of(thread), Intervals.none(), Intervals.none()
        if self._overheads.height:
            mine = pl.col("thread").is_null() | (pl.col("thread") == thread)
            overhead = union_of_rows(self._overheads.filter(mine))
        if thread in self._os_rows:
            os_runtime = union_of_rows(self._osrt.select("start_ns", "end_ns")[self._os_rows[thread]])
        start, end, activity = calls.start[rows], calls.end[rows], _ACTIVITY.take(calls.does(rows))
        apart = (start[1:] >= end[:-1]).all()  # no call inside another, as it mostly is: no two share an instant
        if apart and not len(overhead) and not len(os_runtime):
            return Stretches(start, end, activity)
        raw = [Intervals.union_of(start[activity == i], end[activity == i]) for i in range(len(ACTIVITIES))]
        raw[0], raw[-1] = overhead, os_runtime
        if apart:
            in_calls = Intervals.union_of(start, end) if len(os_runtime) else Intervals.none()
            return Stretches.of_sets(
                [overhead, *(union - overhead for union in raw[1:-1]), os_runtime - overhead - in_calls]
            )
        taken, split = Intervals.none(), []
        for union in raw:
            split.append(union - taken)
            taken = taken | union
        return Stretches.of_sets(split)

    def during(self, thread: int, start: Times, end: Times) -> dict[str, npt.NDArray[np.integer[Any]]]:
        """For each of many disjoint intervals, how many ns a thread spent at each activity; the rest is NOTHING."""
        spent, rest = self.of(thread).during(start, end), end - start
        found: dict[str, npt.NDArray[np.integer[Any]]] = dict.fromkeys(ACTIVITIES, np.zeros(start.size, np.int8))
        for name, ns in zip(ACTIVITIES, spent, strict=True):
            if ns.any():  # most threads do few things
                found[name] = ns
                rest -= ns
        return {**found, NOTHING: rest}
