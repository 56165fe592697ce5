"""Idle gaps of a device, and what the thread that ended each was doing meanwhile."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysparse.accounting.busy import Busy
from nsysparse.accounting.host import ACTIVITIES, NOTHING, Activity, Host
from nsysparse.intervals import times
from nsysparse.joins.work import Work

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
    ops = work.all().sort("start_ns", maintain_order=True)
    at = np.searchsorted(ops["start_ns"].to_numpy(), idle.end, side="left")
    ended = idle.end < busy.window.end_ns
    following = ops[np.minimum(at, max(ops.height - 1, 0))] if ops.height else ops
    # What no call sent (a unified-memory migration) can end a gap, too: then its thread is unknown.
    sent = following["start_ns"].to_numpy() == idle.end if ops.height else np.zeros(len(idle), np.bool_)
    feeder = host.threads["thread"][0] if host.threads.height else None
    gaps = pl.DataFrame({"start_ns": idle.start, "end_ns": idle.end, "ended": ended, "sent": sent}).with_columns(
        gap_ns=pl.col("end_ns") - pl.col("start_ns")
    )
    if ops.height and gaps.height:
        gaps = gaps.with_columns(
            thread=pl.when("sent").then(following["thread"]),
            next=pl.when("sent").then(following["kind"].cast(pl.String)).otherwise(pl.lit("migrations")),
        )
    else:
        gaps = gaps.with_columns(thread=pl.lit(None, pl.Int64), next=pl.lit(None, pl.String))
    gaps = gaps.with_columns(
        thread=pl.when("ended").then("thread").otherwise(pl.lit(feeder, pl.Int64)),
        next=pl.when("ended").then("next"),
    ).drop("ended", "sent")
    return _with_activity(gaps, work, activity)


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
