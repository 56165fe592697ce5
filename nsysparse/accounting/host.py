"""The host's side: which threads feed a device, how long calls held them, what they did while the device was idle."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

import numpy as np
import polars as pl

from nsysparse import schema
from nsysparse.accounting.busy import Busy, union_of_rows
from nsysparse.intervals import Intervals, Times, times
from nsysparse.joins.calls import DOES
from nsysparse.joins.work import Work
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
_ACTIVITY = pl.Series([CALLS.index(_BY_FUNCTION.get(does, OTHER_CALL)) for does in DOES.categories])
# Columns of the threads' table -> which functions they add up.
_COUNTED = {
    kind: np.isin(DOES.categories.to_list(), functions)
    for kind, functions in {
        "launch": ["launch", "graph launch"],
        "copy": ["copy"],
        "synchronize": ["synchronize"],
        "allocate": ["allocate"],
    }.items()
}
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
    low, high = busy.window.start_ns, busy.window.end_ns
    sent = work.all().filter((pl.col("start_ns") < high) & (pl.col("end_ns") > low) & pl.col("thread").is_not_null())
    feeding = sent.group_by("thread").len("operations").sort("operations", "thread", descending=[True, False])
    idle = busy.idle
    rows, unions = [], []
    for thread, operations in feeding.iter_rows():  # threads, not calls
        calls = work.calls_of(thread)
        start, end, does = (times(c) for c in (*calls["start_ns", "end_ns"], calls["does"].to_physical()))
        near = (start < high) & (end > low)
        kinds = {kind: near & chosen[does] for kind, chosen in _COUNTED.items()}
        kinds["waits"] = near & calls["waits"].to_numpy()
        by = {kind: Intervals.union_of(start[rows], end[rows]).clip(low, high) for kind, rows in kinds.items()}
        blocked = by.pop("waits")
        unions.append((blocked, by["copy"] | by["synchronize"]))
        rows.append(
            (
                *(thread, operations, int(near.sum())),
                *(union.length for union in by.values()),
                *(blocked.length, blocked.length / busy.window.length_ns, (blocked & idle).length),
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
        _union([b for b, _ in unions]),
        _union([c for _, c in unions]),
        unions[0][1] if unions else Intervals.none(),
    )


def _union(parts: list[Intervals]) -> Intervals:
    if not parts:
        return Intervals.none()
    return Intervals.union_of(
        pl.concat([pl.Series(p.start) for p in parts]), pl.concat([pl.Series(p.end) for p in parts])
    )


class Activity:
    """What each thread was doing, instant by instant, by the order of ACTIVITIES."""

    def __init__(self, work: Work, trace: Trace) -> None:
        """Read what the export holds of the host; a thread is worked out when first asked for."""
        self._work = work
        self._osrt = trace.frame("osrt").filter(pl.col("end_ns") > pl.col("start_ns"))
        self._overheads = trace.frame("overheads").filter(pl.col("end_ns") > pl.col("start_ns"))
        self._known: dict[int, dict[str, Intervals]] = {}
        self._lock = Lock()

    def of(self, thread: int) -> dict[str, Intervals]:
        """Disjoint sets of instants, one an activity."""
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

    def _work_out(self, thread: int) -> dict[str, Intervals]:
        mine, calls = pl.col("thread") == thread, self._work.calls_of(thread)
        overhead = union_of_rows(self._overheads.filter(mine | pl.col("thread").is_null()))
        os_runtime = union_of_rows(self._osrt.filter(mine))
        activity, start, end = (
            times(c) for c in (_ACTIVITY.gather(calls["does"].to_physical()), *calls["start_ns", "end_ns"])
        )
        raw = {name: Intervals.union_of(start[activity == i], end[activity == i]) for i, name in enumerate(CALLS)}
        if (start[1:] >= end[:-1]).all():  # no call inside another, as it mostly is: no two share an instant
            in_calls = Intervals.union_of(start, end) if len(os_runtime) else Intervals.none()
            split = {name: union - overhead for name, union in raw.items()}
            return {ACTIVITIES[0]: overhead, **split, ACTIVITIES[-1]: os_runtime - overhead - in_calls}
        taken, split = Intervals.none(), {}
        for name in ACTIVITIES:
            union = {ACTIVITIES[0]: overhead, ACTIVITIES[-1]: os_runtime, **raw}[name]
            split[name] = union - taken
            taken = taken | union
        return split

    def during(self, thread: int | None, start: Times, end: Times) -> dict[str, Times]:
        """For each of many intervals, how many ns a thread spent at each activity; the rest is NOTHING."""
        if thread is None:
            return {**{a: times([0] * start.size) for a in ACTIVITIES}, NOTHING: times([0] * start.size)}
        spent = {a: union.covered(start, end) for a, union in self.of(thread).items()}
        rest = end - start
        for part in spent.values():
            rest = rest - part
        return {**spent, NOTHING: rest}
