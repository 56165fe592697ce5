"""Idle gaps sorted by what the device waited for."""

from __future__ import annotations

import polars as pl

from nsysparse.intervals import Intervals
from nsysparse.rules._scene import Scene

ELSEWHERE = 0.5  # share of a gap in waits of the host from which the gap is theirs


def gaps_of(scene: Scene) -> pl.DataFrame:
    """As :func:`launch_gaps`, worked out once a device."""
    if scene.gaps is None:
        scene.gaps = launch_gaps(scene)
    return scene.gaps


def queued_time(scene: Scene) -> Intervals:
    """Idle time in which the next operation had been sent already: the device waits for another device or stream."""
    gaps = gaps_of(scene).filter(~pl.col("late"))
    return Intervals.union_of(gaps["start_ns"], gaps["end_ns"])


def launch_gaps(scene: Scene) -> pl.DataFrame:
    """The device's idle gaps, each with how it ended.

    Returns:
        Columns of ``account.gaps`` plus ``late`` (the call that ended it had not returned when the device went idle,
        so the device waited for the host; otherwise the work was queued and the gap is the device's own) and
        ``launching`` (late, no longer than ``launch_bound.gap_ns``, ended by work that its thread did not wait for,
        and not mostly spent in synchronizations, allocations or the operating system).
    """
    gaps = scene.account.gaps
    ended = gaps.select("end_ns").join(_calls_at(scene, gaps["end_ns"]), on="end_ns", how="left", maintain_order="left")
    gaps = gaps.with_columns(call_end_ns=ended["call_end_ns"], waits=ended["waits"].fill_null(False))
    late = pl.col("call_end_ns").is_null() | (pl.col("call_end_ns") > pl.col("start_ns"))
    elsewhere = pl.sum_horizontal(pl.col("synchronize call", "allocation call", "OS runtime call").cast(pl.Int64))
    return gaps.with_columns(late=late).with_columns(
        launching=pl.col("late")
        & pl.col("next").is_not_null()
        & ~pl.col("waits")
        & (pl.col("gap_ns") <= scene.settings["launch_bound.gap_ns"])
        & (elsewhere < ELSEWHERE * pl.col("gap_ns"))
    )


def _calls_at(scene: Scene, instants: pl.Series) -> pl.DataFrame:
    """Of operations that start at these instants: ``end_ns`` (the instant), ``call_end_ns``, ``waits`` of the call."""
    work = scene.work
    frames = [
        f.filter(pl.col("start_ns").is_in(instants.implode())).select("start_ns", "call", "call_end_ns")
        for f in (work.kernels, work.copies, work.memsets, work.graphs)
    ]
    ops = pl.concat(frames)
    ops = ops.with_columns(waits=work.calls["waits"].gather(ops["call"]))
    return ops.group_by(end_ns="start_ns").agg(pl.col("call_end_ns").max(), pl.col("waits").any())
