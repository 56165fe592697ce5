"""Busy but not full.

What it means: kernels run nearly all the time, and utilization looks high, but they are too small to fill the device:
few blocks, or blocks that leave most multiprocessors without work.

Why it costs: a kernel that uses a tenth of the multiprocessors takes as long as one that does ten times the work. How
much could be won cannot be said from a trace: it depends on what limits each kernel. The fill is an estimate from
launch shape and the device's limits, weighted by time.

What to do: raise the batch size, run independent work side by side on several streams (or under MPS), fuse small
kernels, or choose another algorithm or tile size for the named kernels. GPU metrics (``--gpu-metrics-devices``)
measure what is estimated here.

When to accept it: at batch size one, where latency matters and there is no more work to give.

When it may be wrong: a kernel of few blocks can be bound by memory and be as fast as it gets; a full grid says nothing
of how well it computes. Kernels that run at the same time on other streams fill what one leaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from nsysparse.findings import Finding, Severity, Skipped
from nsysparse.intervals import Intervals
from nsysparse.rules._evidence import CONFIDENCES, Found
from nsysparse.rules._scene import Scene
from nsysparse.rules.settings import Threshold
from nsysparse.units import count, duration, percent

ID = "low_fill"
NEEDS = ("visible kernels", "kernels")
THRESHOLDS = {
    "busy_ratio": Threshold(
        0.6,
        "ratio",
        "Share of the window with a kernel from which the device passes for well used: nvidia-smi shows it.",
    ),
    "low": Threshold(
        0.25, "ratio", "Fill below which three quarters of the device lie idle while it counts as busy: low."
    ),
    "medium": Threshold(0.10, "ratio", "Fill below which nine tenths lie idle: medium."),
}


def check(scene: Scene) -> Iterable[Found | Skipped]:
    """Hold kernel-busy time against the fill of the multiprocessors."""
    account = scene.account
    fill, busy = account.sm_fill, account.busy.by_kind["kernels"].length / account.window.length_ns
    if fill is None:
        yield Skipped(ID, account.number, "the device's limits or the launch shapes are not in this export")
        return
    if busy < scene.settings[f"{ID}.busy_ratio"] or fill >= scene.settings[f"{ID}.low"]:
        return
    severity = Severity.MEDIUM if fill < scene.settings[f"{ID}.medium"] else Severity.LOW
    worst = _worst(scene)
    names = ", ".join(f"{r['short_name']} ({percent(r['sm_fill'])})" for r in worst[:3])
    finding = Finding(
        ID,
        severity,
        CONFIDENCES[0] if _streams(scene) > 1 else CONFIDENCES[1],
        account.number,
        f"Busy {percent(busy)} of the window with kernels that fill {percent(fill)} of the device",
        f"{count(account.kernels.height)} kernels, {duration(account.busy.by_kind['kernels'].length)}; those with the"
        " most unfilled"
        f" time: {names}.",
        "Raise the batch size, run independent work on several streams or under MPS, or fuse; measure with"
        " --gpu-metrics-devices before changing kernels.",
        None,
        {
            "kernels_busy_ratio": busy,
            "sm_fill_ratio": fill,
            "kernels": worst,
            "streams": _streams(scene),
        },
    )
    yield Found(finding, Intervals.none())


def _streams(scene: Scene) -> int:
    return scene.account.kernels["stream"].n_unique()


def _worst(scene: Scene) -> list[dict[str, Any]]:
    """Kernels with the most time in which they leave the device unfilled."""
    table = scene.account.tables["kernels"].filter(pl.col("sm_fill").is_not_null())
    table = table.with_columns(unfilled_ns=((1 - pl.col("sm_fill")) * pl.col("time_ns")).round().cast(pl.Int64))
    return (
        table.sort("unfilled_ns", "name", "short_name", descending=[True, False, False])
        .head(5)
        .select("short_name", "count", "time_ns", "sm_fill", "unfilled_ns")
        .to_dicts()
    )
