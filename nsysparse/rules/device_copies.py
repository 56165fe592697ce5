"""Device-to-device and peer traffic.

What it means: copies within a device's memory, or between devices, that are large in number, bytes or time. Of peer
copies the finding names the pairs.

Why it costs: a copy within the device reads and writes its memory and moves nothing forward; a peer copy takes a link
that other GPUs need as well. The bound is the time in which these copies held a submitted kernel up.

What to do: within a device, look for tensors that are made contiguous, concatenated or cloned each step, for caches
that grow by copying (allocate them once at full length), and for layouts that differ between two libraries. Between
devices, send less or send earlier, overlap with compute on a stream of its own, and let NCCL do collectives.

When to accept it: when a copy is the work (shuffling, gathering), or when it runs beside kernels.

When it may be wrong: where no kernel waits, nothing can be won and the finding is for information only. A peer copy's
bytes are counted once, on the device whose stream ran it; the other device's memory is used as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from nsysparse.findings import Severity
from nsysparse.rules._evidence import (
    Found,
    copy_figures,
    every,
    from_where,
    judge,
    make,
    window_phrase,
    worst_copies,
)
from nsysparse.rules._frameworks import CUDA, PYTORCH, worded
from nsysparse.rules._price import Waits, price
from nsysparse.rules._roles import RECURS_IN
from nsysparse.rules._scene import Scene
from nsysparse.rules.settings import Threshold, shares
from nsysparse.units import bandwidth, count, duration, percent, size

ID = "device_copies"
NEEDS = ("visible copies",)
THRESHOLDS = {
    **shares(floor=0.02),
    "traffic_ratio": Threshold(
        0.05, "ratio", "Share of the window from which such traffic is named even if no kernel waited for it."
    ),
}
REMEDY = {
    PYTORCH: "Look for .contiguous(), .clone(), torch.cat and index_select in the loop; allocate caches once and"
    " write in place; overlap peer copies on a side stream.",
    CUDA: "Avoid the copy (write results where they are needed, allocate growing buffers once), or put it on a"
    " stream of its own beside the kernels.",
}


def check(scene: Scene) -> Iterable[Found]:
    """Price copies within the device and between devices, each for itself."""
    role = scene.role("device")
    is_peer = role["kind_name"] == "PtoP"
    for peer, chosen in ((False, ~is_peer), (True, is_peer)):
        if role["decile"].filter(chosen).n_unique() >= RECURS_IN:
            yield from _found(scene, role if chosen.all() else role.filter(chosen), peer)


def _found(scene: Scene, copies: pl.DataFrame, peer: bool) -> Iterable[Found]:
    cost = price(scene, Waits.none(scene), copies)
    figures = copy_figures(scene, copies) | {"pairs": _pairs(copies) if peer else None}
    exposed = float(figures["alone_wall_ratio"])
    judged = judge(scene, ID, cost.share(scene), "medium")
    if judged is None:
        if exposed < scene.settings[f"{ID}.traffic_ratio"]:
            return
        judged = (Severity.INFO, "high")
    what = "Peer copies" if peer else "Copies within the device"
    pairs = f" ({', '.join(_pairs(copies))})" if peer else ""
    waited = "" if cost.held_up_ns else "; no kernel waited for them"
    yield make(
        scene,
        ID,
        judged,
        title=f"{what}{pairs}: {count(figures['copies'])}, {size(figures['bytes'])}, {percent(exposed)}"
        f" {window_phrase(scene)}{waited}",
        detail=f"{count(figures['copies'])} copies of"
        f" {size(figures['median_bytes'])}{every(figures)}{from_where(figures)} at"
        f" {bandwidth(figures['bandwidth'])} ran with no kernel beside them for {duration(figures['alone_ns'])}"
        f" ({percent(exposed)} {window_phrase(scene)}) and held submitted kernels up for {duration(cost.held_up_ns)}"
        f" ({percent(cost.wall_ratio(scene))}).",
        remedy=worded(scene, REMEDY),
        price=cost,
        figures=figures,
        instances=worst_copies(copies),
        key="peer" if peer else "within",
    )


def _pairs(copies: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Copies, bytes and bandwidth by pair of devices."""
    took = (pl.col("end_ns") - pl.col("start_ns")).sum()
    table = (
        copies.group_by(pl.col("peer").fill_null("n/a"))
        .agg(
            pl.col("copy_count").sum().alias("copies"),
            pl.col("bytes").sum(),
            pl.when(took > 0).then(pl.col("bytes").sum() * 1e9 / took).alias("bandwidth"),
        )
        .sort("peer")
    )
    return {str(r.pop("peer")): r for r in table.to_dicts()}
