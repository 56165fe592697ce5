"""Idle gaps of a device, and what the thread that ended each was doing meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.accounting.busy import Busy
from nsysparse.accounting.grouping import number_rows, over
from nsysparse.accounting.host import ACTIVITIES, NOTHING, Activity, Host
from nsysparse.intervals import Index, Intervals, Times, pairs, times
from nsysparse.joins.order import rows_of
from nsysparse.joins.work import GPU_TABLES, Work
from nsysparse.nulls import filled, given, masked

CLASSES_NS = (0, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
CLASS_NAMES = (
    "< 10 us",
    "10 us - 100 us",
    "100 us - 1 ms",
    "1 ms - 10 ms",
    "10 ms - 100 ms",
    "100 ms - 1 s",
    ">= 1 s",
)
UNKNOWN_THREAD = "unknown thread"
NEVER = np.iinfo(np.int64).min
Bools = npt.NDArray[np.bool_]
Small = npt.NDArray[np.integer[Any]]


def find_gaps(work: Work, busy: Busy, host: Host, activity: Activity) -> pl.DataFrame:
    """Every gap of the device in the window.

    The thread of a gap is the one whose call sent the operation that ended it; of the gap before the window's end, the
    thread that sent the most.

    Returns:
        ``start_ns``, ``end_ns``, ``gap_ns``, ``late`` (the call that sent what ended it had not returned when it began,
        or is not known), ``waited`` (such a call waits), ``thread`` (NULL: unknown), ``next`` (kind of the operation
        that ended it, NULL at the window's end), and one column an activity with its ns; these add up to ``gap_ns``
        where the thread is known.
    """
    idle = busy.idle
    thread, known, following, late, waited = _ended_by(work, idle)
    inside = idle.end < busy.window.end_ns
    if host.threads.height:
        thread = np.where(inside, thread, host.threads["thread"][0])
        known |= ~inside
    else:
        known &= inside
    return pl.DataFrame(
        {
            "start_ns": idle.start,
            "end_ns": idle.end,
            "gap_ns": idle.end - idle.start,
            "late": late,
            "waited": waited,
            "thread": masked("thread", thread, known),
            "next": pl.select(pl.when(pl.Series(inside)).then(following)).to_series(),
            **_activity(idle, thread, known, activity),
        }
    )


def _ended_by(work: Work, idle: Intervals) -> tuple[Times, Bools, pl.Series, Bools, Bools]:
    """What ended each gap: thread and whether it is known, ``next``, ``late`` and ``waited`` of :func:`find_gaps`.

    What no call sent (a unified-memory migration) can end a gap, too: then its thread is unknown.
    """
    n = len(idle)
    kind, thread, known = np.full(n, len(GPU_TABLES), np.int8), np.zeros(n, np.int64), np.zeros(n, np.bool_)
    returned, waited = np.full(n, NEVER), np.zeros(n, np.bool_)
    for number, name in enumerate(GPU_TABLES):
        frame: pl.DataFrame = getattr(work, name)
        gap, row = _starting_at(times(frame["start_ns"]), idle.end)
        if not gap.size:
            continue
        sender, call = (frame[c][row] for c in ("thread", "call"))
        sent = np.flatnonzero(given(call))
        call_row = filled(call)[sent]
        np.maximum.at(returned, gap[sent], work.calls.end[call_row])
        waited[gap[sent[work.calls["waits"][call_row].to_numpy()]]] = True
        # Of operations that start together the first of the first kind names the thread.
        first = np.flatnonzero((np.diff(gap, prepend=-1) > 0) & (kind[gap] == len(GPU_TABLES)))
        kind[gap[first]] = number
        thread[gap[first]] = filled(sender)[first]
        known[gap[first]] = given(sender)[first]
    nothing_sent = all(getattr(work, name).is_empty() for name in GPU_TABLES)
    last = None if nothing_sent else "migrations"
    following = pl.Series("next", [*GPU_TABLES, last], pl.Enum([*GPU_TABLES, "migrations"]))[kind]
    return thread, known, following, (returned == NEVER) | (returned > idle.start), waited


def _starting_at(starts: Times, instants: Times) -> tuple[Index, Index]:
    """The rows (ascending starts) that start at each of some ascending instants: the instant's number, and the row."""
    if starts.size < instants.size:  # fewer to look up
        at = np.searchsorted(instants, starts)
        at = at[: np.searchsorted(at, instants.size)]  # later rows start at none
        row = np.flatnonzero(instants[at] == starts[: at.size])
        return at[row], row
    low = np.searchsorted(starts, instants, side="left")
    low = low[: np.searchsorted(low, starts.size)]  # later instants have none
    high = low + (starts[low] == instants[: low.size])
    several = np.flatnonzero((high > low) & (high < starts.size))
    several = several[starts[high[several]] == instants[several]]
    high[several] = np.searchsorted(starts, instants[several], side="right")
    return pairs(low, high)


def _activity(idle: Intervals, thread: Times, known: Bools, activity: Activity) -> dict[str, Small]:
    """What the threads did, in the columns of :func:`find_gaps`."""
    took = idle.end - idle.start
    if known.all() and known.size and (thread[1:] == thread[:-1]).all():  # mostly one thread feeds a device
        spent = activity.during(int(thread[0]), idle.start, idle.end)
        return {**spent, UNKNOWN_THREAD: np.zeros(took.size, np.int8)}
    columns: dict[str, Small] = {name: np.zeros(took.size, np.int64) for name in (*ACTIVITIES, NOTHING)}
    for one, rows in rows_of(thread):  # threads, not gaps
        here = np.arange(took.size)[rows] if isinstance(rows, slice) else rows
        here = here[known[here]]
        if here.size:
            for name, ns in activity.during(one, idle.start[here], idle.end[here]).items():
                columns[name][here] = ns
    return {**columns, UNKNOWN_THREAD: np.where(known, 0, took)}


@dataclass(frozen=True)
class Gaps:
    """Idle gaps, small enough to be kept: when they are is known from what is busy.

    Attributes:
        facts: The columns of :func:`find_gaps` without times, in the smallest integers that hold them, so that they
            must be widened to be added up; ``thread`` is a row of ``threads``.
        threads: The threads, once each.
    """

    facts: pl.DataFrame
    threads: pl.Series

    @classmethod
    def of(cls, gaps: pl.DataFrame) -> Gaps:
        """Of what :func:`find_gaps` returns."""
        number, first = number_rows(gaps, ["thread"])
        small = [pl.Series("thread", number), *(gaps[c] for c in (*ACTIVITIES, NOTHING, UNKNOWN_THREAD))]
        return cls(gaps[["late", "waited", "next"]].hstack([c.shrink_dtype() for c in small]), gaps["thread"][first])

    @property
    def height(self) -> int:
        """How many there are."""
        return self.facts.height

    def frame(self, idle: Intervals) -> pl.DataFrame:
        """All columns of :func:`find_gaps`, the activities still small; ``idle`` as it was when the gaps were found."""
        when = {"start_ns": idle.start, "end_ns": idle.end, "gap_ns": idle.end - idle.start}
        thread = self.threads[self.facts["thread"].to_numpy()]
        return pl.DataFrame(when).hstack([thread, *(c for c in self.facts if c.name != "thread")])


def class_of(lengths: pl.Series) -> Index:
    """The number of the class (CLASSES_NS) of each length."""
    return np.searchsorted(CLASSES_NS, lengths.to_numpy(), side="right") - 1


def class_gaps(gaps: pl.DataFrame, busy: Busy) -> pl.DataFrame:
    """Gaps by length.

    Returns:
        ``length`` (class), ``count``, ``idle_ns``, ``idle_ratio`` (of the window), one column an activity (ns).
    """
    number = class_of(gaps["gap_ns"])
    count = np.bincount(number, minlength=len(CLASSES_NS))
    there = np.flatnonzero(count)
    order = np.argsort(number.astype(np.uint8), kind="stable")  # few classes: numpy counts them
    first = (np.cumsum(count) - count)[there]

    def total(values: Small) -> Times:
        return np.add.reduceat(values[order], first, dtype=np.int64) if values.any() else np.zeros_like(first)

    sums = {c: total(gaps[c].to_numpy()) for c in ("gap_ns", *ACTIVITIES, NOTHING, UNKNOWN_THREAD)}
    idle = sums.pop("gap_ns")
    return pl.DataFrame(
        {
            "length": pl.Series([CLASS_NAMES[i] for i in there], dtype=pl.String),
            "count": count[there],
            "idle_ns": idle,
            "idle_ratio": over(idle, busy.window.length_ns),
            **sums,
        }
    )


def total_activity(gaps: pl.DataFrame, busy: Busy) -> pl.DataFrame:
    """What the host was doing while the device was idle: ``activity``, ``idle_ns``, ``idle_ratio`` (of the window)."""
    activities = [*ACTIVITIES, NOTHING, UNKNOWN_THREAD]
    totals = [(a, total) for a in activities if (total := int(gaps[a].sum())) > 0]
    totals.sort(key=lambda t: (-t[1], t[0]))
    table = pl.DataFrame(totals, schema={"activity": pl.String, "idle_ns": pl.Int64}, orient="row")
    return table.hstack([pl.Series("idle_ratio", over(times(table["idle_ns"]), busy.window.length_ns))])
