"""Idle gaps of a device, and what the thread that ended each was doing meanwhile."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.accounting.busy import Busy
from nsysparse.accounting.host import ACTIVITIES, NOTHING, Activity, Host
from nsysparse.intervals import Index, Intervals, Times, pairs, times
from nsysparse.joins.calls import rows_by
from nsysparse.joins.work import GPU_TABLES, Work

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
    thread, following, late, waited = _ended_by(work, idle)
    feeder = host.threads["thread"][0] if host.threads.height else None
    ended = idle.end < busy.window.end_ns
    gaps = pl.DataFrame(
        {"start_ns": idle.start, "end_ns": idle.end, "gap_ns": idle.end - idle.start, "late": late, "waited": waited}
    ).with_columns(
        thread=pl.when(pl.Series(ended)).then(thread).otherwise(pl.lit(feeder, pl.Int64)),
        next=pl.when(pl.Series(ended)).then(following),
    )
    return gaps.hstack(_activity(gaps, activity))


def _ended_by(work: Work, idle: Intervals) -> tuple[pl.Series, pl.Series, Bools, Bools]:
    """What ended each gap: ``thread``, ``next``, ``late`` and ``waited`` of :func:`find_gaps`.

    What no call sent (a unified-memory migration) can end a gap, too: then its thread is unknown.
    """
    n = len(idle)
    kind, thread, known = np.full(n, len(GPU_TABLES)), np.zeros(n, np.int64), np.zeros(n, np.bool_)
    returned, waited = np.full(n, NEVER), np.zeros(n, np.bool_)
    for number, name in enumerate(GPU_TABLES):
        frame: pl.DataFrame = getattr(work, name)
        gap, row = _starting_at(times(frame["start_ns"]), idle.end)
        if not gap.size:
            continue
        ops = frame.select(pl.col("thread", "call").gather(row))
        np.maximum.at(returned, gap, work.calls["end_ns"].gather(ops["call"]).fill_null(NEVER).to_numpy())
        waited[gap[work.calls["waits"].gather(ops["call"]).fill_null(False).to_numpy()]] = True
        # Of operations that start together the first of the first kind names the thread.
        first = np.flatnonzero((np.diff(gap, prepend=-1) > 0) & (kind[gap] == len(GPU_TABLES)))
        kind[gap[first]] = number
        thread[gap[first]] = ops["thread"].fill_null(0).to_numpy()[first]
        known[gap[first]] = ops["thread"].is_not_null().to_numpy()[first]
    nothing_sent = all(getattr(work, name).is_empty() for name in GPU_TABLES)
    last = None if nothing_sent else "migrations"
    return (
        pl.select(pl.when(pl.Series(known)).then(pl.Series(thread))).to_series(),
        pl.Series("next", [*GPU_TABLES, last], pl.Enum([*GPU_TABLES, "migrations"])).gather(kind),
        (returned == NEVER) | (returned > idle.start),
        waited,
    )


def _starting_at(starts: Times, instants: Times) -> tuple[Index, Index]:
    """The rows (ascending starts) that start at each of some ascending instants: the instant's number, and the row."""
    low = np.searchsorted(starts, instants, side="left")
    low = low[: np.searchsorted(low, starts.size)]  # later instants have none
    high = low + (starts[low] == instants[: low.size])
    several = np.flatnonzero((high > low) & (high < starts.size))
    several = several[starts[high[several]] == instants[several]]
    high[several] = np.searchsorted(starts, instants[several], side="right")
    return pairs(low, high)


def _activity(gaps: pl.DataFrame, activity: Activity) -> pl.DataFrame:
    """What the threads did, in the columns of :func:`find_gaps`."""
    columns = {name: np.zeros(gaps.height, np.int64) for name in (*ACTIVITIES, NOTHING, UNKNOWN_THREAD)}
    start, end = times(gaps["start_ns"]), times(gaps["end_ns"])
    nobody = gaps["thread"].is_null().to_numpy()
    columns[UNKNOWN_THREAD][nobody] = (end - start)[nobody]
    for thread, here in rows_by(gaps["thread"]) if not nobody.all() else ():  # threads, not gaps
        for name, spent in activity.during(thread, start[here], end[here]).items():
            columns[name][here] = spent
    return pl.DataFrame(columns)


def slim(gaps: pl.DataFrame) -> pl.DataFrame:
    """The gaps with their activities in the smallest integers that hold them, to be kept."""
    small = [gaps[name].shrink_dtype() for name in (*ACTIVITIES, NOTHING, UNKNOWN_THREAD)]
    return gaps.with_columns(c for c in small if c.dtype in (pl.Int8, pl.Int16))  # larger ones would not add up


def class_of(lengths: pl.Series) -> Index:
    """The number of the class (CLASSES_NS) of each length."""
    return np.searchsorted(CLASSES_NS, lengths.to_numpy(), side="right") - 1


def class_gaps(gaps: pl.DataFrame, busy: Busy) -> pl.DataFrame:
    """Gaps by length.

    Returns:
        ``length`` (class), ``count``, ``idle_ns``, ``idle_ratio`` (of the window), one column an activity (ns).
    """
    activities = [*ACTIVITIES, NOTHING, UNKNOWN_THREAD]
    number = pl.Series("number", class_of(gaps["gap_ns"]))
    return (
        gaps.group_by(number)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("gap_ns").sum().alias("idle_ns"),
            pl.col(activities).sum(),
        )
        .sort("number")
        .select(
            pl.col("number")
            .replace_strict(range(len(CLASS_NAMES)), CLASS_NAMES, return_dtype=pl.String)
            .alias("length"),
            "count",
            "idle_ns",
            (pl.col("idle_ns") / busy.window.length_ns).alias("idle_ratio"),
            *activities,
        )
    )


def total_activity(gaps: pl.DataFrame, busy: Busy) -> pl.DataFrame:
    """What the host was doing while the device was idle: ``activity``, ``idle_ns``, ``idle_ratio`` (of the window)."""
    activities = [*ACTIVITIES, NOTHING, UNKNOWN_THREAD]
    totals = gaps.select(pl.col(activities).sum()).row(0)
    return (
        pl.DataFrame({"activity": activities, "idle_ns": totals}, schema={"activity": pl.String, "idle_ns": pl.Int64})
        .with_columns(idle_ratio=pl.col("idle_ns") / busy.window.length_ns)
        .filter(pl.col("idle_ns") > 0)
        .sort("idle_ns", "activity", descending=[True, False])
    )
