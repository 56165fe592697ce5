"""Busy but not full.

What it means: kernels run nearly all the time, and utilization looks high, but they have so few blocks that most
multiprocessors have nothing to do. The finding weighs two estimates by time: reach, the share of the multiprocessors
that get a block at all, and fill, the resident blocks over all that the device could hold.

Why it costs: a kernel that uses a tenth of the multiprocessors takes as long as one that does ten times the work. How
much could be won cannot be said from a trace: it depends on what limits each kernel.

What to do: raise the batch size, run independent work side by side on several streams (or under MPS), fuse small
kernels, or choose another algorithm or tile size for the named kernels. GPU metrics (``--gpu-metrics-devices``)
measure what is estimated here.

When to accept it: at batch size one, where latency matters and there is no more work to give.

When it may be wrong: a kernel of few blocks can be bound by memory or by its own sequence and be as fast as it gets; a
block on each multiprocessor says nothing of how well it computes. Kernels that run at the same time on other streams
use what one leaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.accounting.busy import clipped
from nsysparse.accounting.grouping import over
from nsysparse.findings import Finding, Severity, Skipped
from nsysparse.intervals import Index, Intervals, Times
from nsysparse.nulls import filled
from nsysparse.rules._evidence import Found, slice_around, window_phrase, worst_spans
from nsysparse.rules._scene import Scene
from nsysparse.rules.settings import Threshold
from nsysparse.units import count, duration, percent

Rates = npt.NDArray[np.float64]
ID = "low_fill"
NEEDS = ("visible kernels", "kernels")
THRESHOLDS = {
    "busy_ratio": Threshold(
        0.6,
        "ratio",
        "Share of the window with a kernel from which the device passes for well used: nvidia-smi shows it.",
    ),
    "low": Threshold(0.25, "ratio", "Reach below which three quarters of the multiprocessors have no block: low."),
    "medium": Threshold(0.10, "ratio", "Reach below which nine tenths have none: medium."),
}


def check(scene: Scene) -> Iterable[Found | Skipped]:
    """Hold kernel-busy time against the multiprocessors that the kernels reach."""
    account = scene.account
    reached = _reached(scene)
    if reached is None:
        yield Skipped(ID, account.number, "the device's limits or the launch shapes are not in this export")
        return
    ratio, took, rows = reached
    time = int(took.sum())
    reach = float(pl.Series(ratio * took).sum()) / time
    ran = account.busy.by_kind["kernels"].clip(scene.begin_ns, account.window.end_ns).length
    busy = min(ran / scene.wall_ns, 1.0)
    if busy < scene.settings[f"{ID}.busy_ratio"] or reach >= scene.settings[f"{ID}.low"]:
        return
    kernels = account.ran[["start_ns", "end_ns", "stream", "short_name_id"]]
    kernels = kernels if rows is None else kernels[rows]
    kernels = kernels.hstack([pl.Series("reach", ratio), pl.Series("took_ns", took)])
    streams = kernels["stream"].n_unique()
    worst = _worst(kernels, scene)
    names = ", ".join(f"{r['short_name']} ({percent(r['reach_ratio'])})" for r in worst[:3])
    few = kernels.filter(pl.col("reach") < scene.settings[f"{ID}.low"])
    instances = worst_spans(few["start_ns"], few["end_ns"])
    finding = Finding(
        ID,
        Severity.MEDIUM if reach < scene.settings[f"{ID}.medium"] else Severity.LOW,
        "low" if streams > 1 else "medium",
        account.number,
        f"Busy {percent(busy)} {window_phrase(scene)} with kernels that reach {percent(reach)} of the multiprocessors",
        f"{count(kernels.height)} kernels ran for {duration(account.busy.by_kind['kernels'].length)} and fill"
        f" {percent(account.sm_fill)} of what the device can hold; those that leave most multiprocessors without"
        f" work: {names}.",
        "Raise the batch size, run independent work on several streams or under MPS, or fuse; measure with"
        " --gpu-metrics-devices before changing kernels.",
        None,
        {
            "kernels_busy_ratio": busy,
            "sm_reach_ratio": reach,
            "sm_fill_ratio": account.sm_fill,
            "kernels": worst,
            "streams": streams,
        },
        instances,
        slice_around(scene, instances),
    )
    yield Found(finding, Intervals.none())


def _reached(scene: Scene) -> tuple[Rates, Times, Index | None] | None:
    """The share of multiprocessors that each kernel reaches, its time in the window, and which kernels are meant.

    Returns:
        Of the kernels of which both are known (rows None: of all); None where they took no time.
    """
    kernels, sms = scene.account.ran, scene.account.device.get("sm_count")
    if not sms:
        return None
    blocks = np.ones(kernels.height, np.int64)
    for side in ("grid_x", "grid_y", "grid_z"):
        blocks *= filled(kernels[side])  # what is not known is 0 blocks
    took, ratio = clipped(kernels, scene.account.window), np.minimum(over(blocks, sms), 1)
    rows = None
    if not (blocks > 0).all():
        rows = np.flatnonzero(blocks > 0)
        took, ratio = took[rows], ratio[rows]
    return (ratio, took, rows) if took.any() else None


def _worst(kernels: pl.DataFrame, scene: Scene) -> list[dict[str, Any]]:
    """Kernels with the most time in which multiprocessors have no block."""
    names = scene.recording.texts(kernels["short_name_id"]).select("id", short_name="value")
    took = pl.col("took_ns")
    return (
        kernels.group_by("short_name_id")
        .agg(
            pl.len().alias("count"),
            took.sum().alias("time_ns"),
            ((pl.col("reach") * took).sum() / took.sum()).alias("reach_ratio"),
            ((1 - pl.col("reach")) * took).sum().round().cast(pl.Int64).alias("unreached_ns"),
        )
        .join(names, left_on="short_name_id", right_on="id", how="left")
        .sort("unreached_ns", "short_name", descending=[True, False])
        .head(5)
        .select("short_name", "count", "time_ns", "reach_ratio", "unreached_ns")
        .to_dicts()
    )
