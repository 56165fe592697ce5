"""Idle gaps of a device, and what the thread that ended each was doing meanwhile."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysparse.accounting.busy import Busy
from nsysparse.accounting.host import ACTIVITIES, NOTHING, Activity, Host
from nsysparse.intervals import Times, times
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


def find_gaps(work: Work, busy: Busy, host: Host, activity: Activity) -> pl.DataFrame:
    """Every gap of the device in the window.

    The thread of a gap is the one whose call sent the operation that ended it; of the gap before the window's end, the
    thread that sent the most.

    Returns:
        ``start_ns``, ``end_ns``, ``gap_ns``, ``thread`` (NULL: unknown), ``path`` (its NVTX path when the gap began),
        ``next`` (kind of the operation that ended it, NULL at the window's end), and one column an activity with its
        ns; these add up to ``gap_ns`` where the thread is known.
    """
    idle = busy.idle
    thread, following = _ended_by(work, idle.end)
    feeder = host.threads["thread"][0] if host.threads.height else None
    ended = pl.Series(idle.end < busy.window.end_ns)
    gaps = pl.DataFrame({"start_ns": idle.start, "end_ns": idle.end, "ended": ended}).with_columns(
        gap_ns=pl.col("end_ns") - pl.col("start_ns"),
        thread=pl.when("ended").then(thread).otherwise(pl.lit(feeder, pl.Int64)),
        next=pl.when("ended").then(following),
    )
    gaps = gaps.drop("ended")
    return _with_activity(gaps, work, activity)


def _ended_by(work: Work, instants: Times) -> tuple[pl.Series, pl.Series]:
    """The thread that sent the operation that starts at each instant, and the kind of this operation.

    What no call sent (a unified-memory migration) can end a gap, too: then its thread is unknown.
    """
    kind, row = np.full(instants.size, len(GPU_TABLES)), np.zeros(instants.size, np.int64)
    thread = pl.Series("thread", [None], pl.Int64).new_from_index(0, instants.size)
    for number, name in enumerate(GPU_TABLES):  # of operations that start together the first kind is taken
        starts = getattr(work, name)["start_ns"].to_numpy()
        at = np.searchsorted(starts, instants, side="left")
        here = np.flatnonzero((kind == len(GPU_TABLES)) & (at < starts.size))
        here = here[starts[at[here]] == instants[here]]
        kind[here], row[here] = number, at[here]
        if here.size:
            thread = thread.scatter(here, getattr(work, name)["thread"].gather(row[here]))
    nothing_sent = all(getattr(work, name).is_empty() for name in GPU_TABLES)
    last = None if nothing_sent else "migrations"
    return thread, pl.Series("next", [*GPU_TABLES, last], pl.Enum([*GPU_TABLES, "migrations"])).gather(kind)


def _with_activity(gaps: pl.DataFrame, work: Work, activity: Activity) -> pl.DataFrame:
    columns = {name: np.zeros(gaps.height, np.int64) for name in (*ACTIVITIES, NOTHING, UNKNOWN_THREAD)}
    path = np.zeros(gaps.height, np.int32)
    start, end = times(gaps["start_ns"]), times(gaps["end_ns"])
    for thread in gaps["thread"].unique().to_list():  # threads, not gaps
        here = np.flatnonzero(
            (gaps["thread"].is_null() if thread is None else gaps["thread"] == thread).fill_null(False).to_numpy()
        )
        if thread is None:
            columns[UNKNOWN_THREAD][here] = end[here] - start[here]
            continue
        for name, spent in activity.during(thread, start[here], end[here]).items():
            columns[name][here] = spent
        found, _ = work.ranges.path_of(pl.Series([thread] * here.size, dtype=pl.Int64), pl.Series(start[here]))
        path[here] = found
    return gaps.with_columns(path=pl.Series(path), **{n: pl.Series(v) for n, v in columns.items()})


def slim(gaps: pl.DataFrame) -> pl.DataFrame:
    """The gaps with their activities in the smallest integers that hold them, to be kept."""
    small = [gaps[name].shrink_dtype() for name in (*ACTIVITIES, NOTHING, UNKNOWN_THREAD)]
    return gaps.with_columns(c for c in small if c.dtype in (pl.Int8, pl.Int16))  # larger ones would not add up


def class_gaps(gaps: pl.DataFrame, busy: Busy) -> pl.DataFrame:
    """Gaps by length.

    Returns:
        ``length`` (class), ``count``, ``idle_ns``, ``idle_ratio`` (of the window), one column an activity (ns).
    """
    activities = [*ACTIVITIES, NOTHING, UNKNOWN_THREAD]
    classed = gaps.with_columns(
        number=pl.sum_horizontal([(pl.col("gap_ns") >= c).cast(pl.Int64) for c in CLASSES_NS]) - 1
    )
    return (
        classed.group_by("number")
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
