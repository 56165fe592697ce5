"""The host's side: which threads feed a device, how long calls held them, what they did while the device was idle."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse import schema
from nsysparse.accounting.busy import Busy, union_of_rows
from nsysparse.accounting.windows import Window
from nsysparse.intervals import Index, Intervals, Times, pairs
from nsysparse.joins.calls import DOES, Calls
from nsysparse.joins.work import GPU_TABLES, Work
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
_COUNTED = {
    kind: [DOES.categories.to_list().index(f) for f in functions]
    for kind, functions in {
        "launch": ["launch", "graph launch"],
        "copy": ["copy"],
        "synchronize": ["synchronize"],
        "allocate": ["allocate"],
    }.items()
}
PIECE = 1 << 16  # intervals looked at together: what is worked out for them stays in the processor's cache
REMEMBERED = 16  # threads whose activities are kept: those of one device, as a rule
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
        feeder_in_copy_or_sync: The same of the first thread alone.
    """

    threads: pl.DataFrame
    blocked: Intervals
    in_copy_or_sync: Intervals
    feeder_in_copy_or_sync: Intervals


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


def measure_host(work: Work, busy: Busy, trace: Trace) -> Host:
    """Account for the threads that sent work to this device inside the window."""
    idle, calls = busy.idle, work.calls
    rows, unions = [], []
    for thread, operations in _feeding(work, busy.window).iter_rows():  # threads, not calls
        n, by = _by_kind(calls, thread, busy.window)
        blocked = by.pop("waits")
        unions.append((blocked, by["copy"] | by["synchronize"]))
        rows.append(
            (
                *(thread, operations, n),
                *(union.length for union in by.values()),
                *(blocked.length, blocked.length / busy.window.length_ns, blocked.shared(idle)),
            )
        )
    table = pl.DataFrame(
        rows,
        orient="row",
        schema={
            **dict.fromkeys(("thread", "operations", "calls", "launch_ns"), pl.Int64),
            **dict.fromkeys(("copy_ns", "synchronize_ns", "allocate_ns", "blocked_ns"), pl.Int64),
            "blocked_ratio": pl.Float64,
            "blocked_while_idle_ns": pl.Int64,
        },
    )
    names = thread_names(trace, table["thread"])
    return Host(
        names.join(table, on="thread", how="right", maintain_order="right").select(
            "thread", "pid", "tid", "name", *table.columns[1:]
        ),
        Intervals.any_of(b for b, _ in unions),
        Intervals.any_of(c for _, c in unions),
        unions[0][1] if unions else Intervals.none(),
    )


def _feeding(work: Work, window: Window) -> pl.DataFrame:
    """Threads by the number of their operations in a window, most first: ``thread``, ``operations``."""
    inside = (pl.col("start_ns") < window.end_ns) & (pl.col("end_ns") > window.start_ns)
    frames: list[pl.DataFrame] = [getattr(work, name).select(pl.col("thread").filter(inside)) for name in GPU_TABLES]
    feeding = pl.concat(frames).drop_nulls().group_by("thread").len("operations")
    return feeding.sort("operations", "thread", descending=[True, False])


def rows_near(start: Times, end: Times, low: int, high: int) -> slice | Index:
    """The rows of calls (by start) that overlap a window: one piece, unless an early call lasts into it."""
    after = int(np.searchsorted(start, high))
    reaches = end[:after] > low
    first = after - int(np.count_nonzero(reaches))
    return slice(first, after) if reaches[first:].all() else np.flatnonzero(reaches)


def _by_kind(calls: Calls, thread: int, window: Window) -> tuple[int, dict[str, Intervals]]:
    """Number of a thread's calls in a window; when it was in those of each kind of its table, and in such that wait."""
    low, high = window.start_ns, window.end_ns
    mine = calls.rows_of(thread)
    near = rows_near(calls.start[mine], calls.end[mine], low, high)
    start, end, does = calls.start[mine][near], calls.end[mine][near], calls.does[mine][near]
    kinds = {kind: np.flatnonzero(np.logical_or.reduce([does == f for f in _COUNTED[kind]])) for kind in _COUNTED}
    by = {kind: Intervals.union_of(start[rows], end[rows]).clip(low, high) for kind, rows in kinds.items()}
    rows = calls.waiting(thread)
    return start.size, {**by, "waits": Intervals.union_of(calls.start[rows], calls.end[rows]).clip(low, high)}


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
        for piece in (slice(at, at + PIECE) for at in range(0, start.size, PIECE)):
            spent[:, piece] = self._during(start[piece], end[piece])
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
        self._calls = work.calls
        self._osrt = trace.frame("osrt").filter(pl.col("end_ns") > pl.col("start_ns"))
        self._overheads = trace.frame("overheads").filter(pl.col("end_ns") > pl.col("start_ns"))
        self._known: dict[int, Stretches] = {}
        self._lock = Lock()

    def of(self, thread: int) -> Stretches:
        """What one thread was doing."""
        found = self._known.get(thread)
        if found is None:
            found = self._work_out(thread)
            with self._lock:  # devices are worked on side by side
                while len(self._known) >= REMEMBERED:
                    self._known.pop(next(iter(self._known)))
                self._known[thread] = found
        return found

    def forget(self) -> None:
        """Give back what was worked out."""
        self._known.clear()

    def _work_out(self, thread: int) -> Stretches:
        mine, calls, rows = pl.col("thread") == thread, self._calls, self._calls.rows_of(thread)
        overhead = union_of_rows(self._overheads.filter(mine | pl.col("thread").is_null()))
        os_runtime = union_of_rows(self._osrt.filter(mine))
        start, end, activity = calls.start[rows], calls.end[rows], _ACTIVITY[calls.does[rows]]
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

    def during(self, thread: int, start: Times, end: Times) -> dict[str, Times]:
        """For each of many disjoint intervals, how many ns a thread spent at each activity; the rest is NOTHING."""
        spent = self.of(thread).during(start, end)
        return {**dict(zip(ACTIVITIES, spent, strict=True)), NOTHING: end - start - spent.sum(axis=0)}
