"""Copies below the link's reach.

What it means: large copies between host and device run far below what the link can do. The reach is 85% of the link's
peak by GPU model (or the peak you give), or, where the model does not tell, the best large pinned copy of the same
recording. Pageable and pinned copies are told apart, because they are slow for different reasons.

Why it costs: a copy at a third of the bandwidth takes three times as long. For copies from pinned memory the bound is
the time beyond what the reach would take, as far as it held a kernel or the feeding thread up. For pageable copies the
cause is the staging buffer; what that costs is in the findings on those copies, and here they are only listed.

What to do: for pageable copies, pin the memory. For pinned ones, look at how the GPU is attached: ``nvidia-smi -q -d
PCIE`` or ``nvidia-smi topo -m`` show a link of fewer lanes or an older generation; bind the process to the GPU's own
NUMA node (``numactl --cpunodebind``); see whether several GPUs share a switch and copy at the same time; join small
copies.

When to accept it: on systems whose link is slow by design, when copies overlap kernels anyway, or when the other side
is not memory of this machine's CPU.

When it may be wrong: a peak by model is of the model's usual form; a card in a narrower slot has less, which is the
finding. Copies that run at the same time share the link, and each looks slow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import polars as pl

from nsysparse.findings import Severity
from nsysparse.intervals import Intervals
from nsysparse.rules._evidence import (
    Found,
    copy_figures,
    from_where,
    judge,
    make,
    to_callers,
    window_phrase,
    worst_copies,
)
from nsysparse.rules._price import Price, price, waits_for
from nsysparse.rules._reach import SlowGroup, slow_groups
from nsysparse.rules._scene import Scene
from nsysparse.rules.settings import Threshold, shares
from nsysparse.units import bandwidth, count, duration, percent, size

ID = "slow_copies"
NEEDS = ("calls", "visible copies")
THRESHOLDS = {
    **shares(),
    "large_bytes": Threshold(1_000_000, "bytes", "The size from which bandwidth rather than latency decides."),
    "reach_ratio": Threshold(
        0.5, "ratio", "Half the reach: pinned copies of a megabyte and more do better on a sound link."
    ),
}


def check(scene: Scene) -> Iterable[Found]:
    """Hold the bandwidth of large copies against the link's reach."""
    for group in slow_groups(scene):
        yield from _found(scene, group)


def _found(scene: Scene, slow: SlowGroup) -> Iterable[Found]:
    copies, pageable, speed, reach, basis = slow.copies, slow.pageable, slow.bandwidth, slow.reach, slow.basis
    whole = price(scene, waits_for(scene, copies), copies)
    excess = 1 - speed / reach
    cost = replace(whole, bound_ns=round(whole.bound_ns * excess), latency_ratio=_times(whole.latency_ratio, excess))
    judged = judge(scene, ID, cost.share(scene), "medium")
    if judged is None:
        return
    if pageable:
        judged = (Severity.INFO, judged[1])
    figures = copy_figures(scene, copies) | {
        "reach": reach,
        "reach_basis": basis,
        "of_reach_ratio": speed / reach,
        "by_size": _by_size(copies),
    }
    kind, memory = copies["kind_name"][0], "pageable" if pageable else "pinned"
    found = make(
        scene,
        ID,
        judged,
        title=f"Large {memory} {kind} copies run at {bandwidth(speed)}, {percent(speed / reach)} of the link's reach",
        detail=_detail(scene, figures, cost, pageable, reach, basis),
        remedy="Pin the memory; see the finding on these copies."
        if pageable
        else "Check the link (nvidia-smi -q -d PCIE, nvidia-smi topo -m), the NUMA node of the process, and what"
        " else copies at the same time.",
        price=cost,
        figures=figures,
        instances=worst_copies(copies),
        key=f"{kind}-{memory}",
    )
    yield _listed(found, scene, cost) if pageable else found


def _listed(found: Found, scene: Scene, cost: Price) -> Found:
    """A finding that says nothing of what can be won: pinning wins the staging, too, which other findings price."""
    bounds = {name: None for name in cost.evidence(scene) if name.startswith("bound")}
    return Found(replace(found.finding, bound_ns=None, evidence=found.finding.evidence | bounds), Intervals.none())


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _by_size(copies: pl.DataFrame) -> list[dict[str, Any]]:
    """Bandwidth by size in powers of two."""
    took = pl.col("end_ns") - pl.col("start_ns")
    table = (
        copies.group_by(
            from_bytes=pl.lit(2, pl.Int64).pow(pl.col("bytes").cast(pl.Float64).log(2).floor().cast(pl.Int64))
        )
        .agg(
            pl.col("copy_count").sum().alias("copies"),
            pl.col("bytes").sum(),
            (pl.col("bytes").sum() * 1e9 / took.sum()).alias("bandwidth"),
        )
        .sort("from_bytes")
    )
    return table.to_dicts()


def _detail(scene: Scene, figures: dict[str, Any], cost: Price, pageable: bool, reach: float, basis: str) -> str:
    text = (
        f"{count(figures['copies'])} copies, {size(figures['bytes'])}{from_where(figures)}:"
        f" {bandwidth(figures['bandwidth'])} on the GPU{to_callers(figures)}; {bandwidth(reach)} could be reached"
        f" ({basis})."
    )
    if pageable:
        return f"{text} Pageable memory is the cause; the finding on these copies says what it costs."
    share = f"{percent(cost.wall_ratio(scene))} {window_phrase(scene)}"
    return f"{text} At that speed {duration(cost.bound_ns)} would be won, {share}."
