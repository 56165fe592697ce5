"""Idle gaps sorted by what the device waited for."""

from __future__ import annotations

import polars as pl

from nsysparse.rules._scene import Scene

ELSEWHERE = 0.5  # share of a gap in waits of the host from which the gap is theirs


def launch_gaps(scene: Scene) -> pl.DataFrame:
    """The device's idle gaps, each with how it ended.

    Returns:
        Columns of ``account.gaps`` plus ``late`` (the call that ended it had not returned when the device went idle,
        so the device waited for the host; otherwise the work was queued and the gap is the device's own) and
        ``launching`` (late, no longer than ``launch_bound.gap_ns``, ended by work that its thread did not wait for,
        and not mostly spent in synchronizations, allocations or the operating system).
    """
    gaps = scene.account.gaps
    ended = pl.DataFrame({"end_ns": gaps["end_ns"]}).join(
        _calls_by_start(scene), on="end_ns", how="left", maintain_order="left"
    )
    gaps = gaps.with_columns(call_end_ns=ended["call_end_ns"], waits=ended["waits"].fill_null(False))
    late = pl.col("call_end_ns").is_null() | (pl.col("call_end_ns") > pl.col("start_ns"))
    elsewhere = pl.sum_horizontal("synchronize call", "allocation call", "OS runtime call")
    return gaps.with_columns(late=late).with_columns(
        launching=pl.col("late")
        & pl.col("next").is_not_null()
        & ~pl.col("waits")
        & (pl.col("gap_ns") <= scene.settings["launch_bound.gap_ns"])
        & (elsewhere < ELSEWHERE * pl.col("gap_ns"))
    )


def _calls_by_start(scene: Scene) -> pl.DataFrame:
    """By start of an operation, which is the end of a gap: when its call returned, and whether that call waited."""
    work = scene.work
    frames = [
        f.select("start_ns", "call", "call_end_ns") for f in (work.kernels, work.copies, work.memsets, work.graphs)
    ]
    ops = pl.concat(frames).join(work.calls.select("call", "waits"), on="call", how="left")
    return ops.group_by(end_ns="start_ns").agg(pl.col("call_end_ns").max(), pl.col("waits").any())
