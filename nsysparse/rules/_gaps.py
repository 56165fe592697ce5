"""Idle gaps sorted by what the device waited for."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysparse.accounting.busy import union_by_thread
from nsysparse.intervals import Intervals, times
from nsysparse.nulls import given
from nsysparse.rules._scene import Scene

ELSEWHERE = 0.5  # share of a gap in waits of the host from which the gap is theirs


def gaps_of(scene: Scene) -> pl.DataFrame:
    """As :func:`launch_gaps`, worked out once a device."""
    if "gaps" not in scene.found:
        scene.found["gaps"] = launch_gaps(scene)
    gaps: pl.DataFrame = scene.found["gaps"]
    return gaps


def claims_by_thread(gaps: pl.DataFrame, claim: Intervals) -> dict[int, Intervals]:
    """The instants of a claim on some gaps that are each thread's, by the thread whose call ended the gap."""
    unions = union_by_thread(gaps)
    if len(unions) == 1 and not gaps["thread"].null_count():  # mostly one thread feeds a device: all is its
        return dict.fromkeys(unions, claim)
    return {thread: union & claim for thread, union in unions.items()}


def queued_time(scene: Scene) -> Intervals:
    """Idle time in which the next operation had been sent already: the device waits for another device or stream."""
    gaps = gaps_of(scene)
    queued = ~gaps["late"]
    return Intervals.union_of(gaps["start_ns"].filter(queued), gaps["end_ns"].filter(queued))


def launch_gaps(scene: Scene) -> pl.DataFrame:
    """The device's idle gaps, each with how it ended.

    Returns:
        Columns of ``account.gaps`` (``late``: the device waited for the host; otherwise the work was queued and the gap
        is the device's own) plus ``launching`` (late, no longer than ``launch_bound.gap_ns``, ended by work that its
        thread did not wait for, and not mostly spent in synchronizations, allocations or the operating system).
    """
    gaps, longest = scene.account.gaps, scene.settings["launch_bound.gap_ns"]
    took = times(gaps["gap_ns"])
    elsewhere = np.zeros(took.size, np.int64)
    for activity in ("synchronize call", "allocation call", "OS runtime call"):
        elsewhere += gaps[activity].to_numpy()
    ended = gaps["late"].to_numpy() & given(gaps["next"]) & ~gaps["waited"].to_numpy()
    return gaps.hstack([pl.Series("launching", ended & (took <= longest) & (elsewhere < ELSEWHERE * took))])
