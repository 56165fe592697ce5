"""Unified-memory thrash.

What it means: pages of managed memory move between host and device, both ways, more than once. The finding splits the
migrations by cause (page faults, prefetch, eviction) as far as the recording says, and sets the bytes that moved
against the bytes that had to move.

Why it costs: a kernel that touches a page on the other side stops until it has come, and pages come in small pieces.
The bound is the time in which migrations ran, whether or not a kernel ran beside them: a kernel that waits for a page
counts as running.

What to do: prefetch what the next kernel needs (``cudaMemPrefetchAsync``), tell where data should live
(``cudaMemAdvise`` with preferred location or read-mostly), keep host code from touching arrays between kernels, or use
plain device memory. If the working set is larger than the device's memory, process it in parts.

When to accept it: the first touch of each array, which moves it once, and programs that are larger than the device's
memory.

When it may be wrong: data that must be worked on by both sides in turn has to travel. The working set is the span of
distinct addresses that migrated in the whole recording, where the export has addresses; elsewhere it is unknown, and
so is what moved beyond it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from nsysparse.accounting.busy import in_window
from nsysparse.intervals import Intervals
from nsysparse.rules._evidence import Found, judge, make, of_wall, worst_spans
from nsysparse.rules._price import Price
from nsysparse.rules._roles import RECURS_IN
from nsysparse.rules._scene import Scene
from nsysparse.rules.settings import Threshold, shares
from nsysparse.units import count, duration, percent, size

ID = "unified_memory"
NEEDS = ()
THRESHOLDS = {
    **shares(floor=0.01),
    "return_ratio": Threshold(
        0.25,
        "ratio",
        "Bytes of the smaller direction over the larger's from which pages are called to go to and fro.",
    ),
}
TO_DEVICE, TO_HOST = 11, 12
# migrationCause. A speculative prefetch is the driver's, after a page fault; the program's own is "user prefetch".
CAUSES = {
    0: "unknown",
    1: "user prefetch",
    2: "page fault",
    3: "speculative prefetch",
    4: "eviction",
    5: "access counters",
}
PREFETCH = "user prefetch"
BY_FAULT = ("page fault", "speculative prefetch")


def check(scene: Scene) -> Iterable[Found]:
    """Price migrations that go both ways, again and again."""
    if not scene.work.migrations.height:
        return
    moves = in_window(scene.work.migrations, scene.account.window).filter("counted")
    if not moves.height:
        return
    into, back = (int(moves.filter(pl.col("kind") == k)["bytes"].sum()) for k in (TO_DEVICE, TO_HOST))
    returns = min(into, back) / max(into, back, 1)
    deciles = scene.seen_in(moves["start_ns"])
    if returns < scene.settings[f"{ID}.return_ratio"] or deciles < RECURS_IN:
        return
    cost = _price(scene, moves)
    judged = judge(scene, ID, cost.share(scene), "medium")
    if judged is None:
        return
    figures = _figures(scene, moves, into, back)
    yield make(
        scene,
        ID,
        judged,
        title=f"Managed memory goes to and fro: {size(into)} to the device, {size(back)} back, {of_wall(scene, cost)}",
        detail=f"{count(moves.height)} migrations ran for {duration(cost.bound_ns)}, {duration(cost.idle_while_ns)}"
        f" of it with no kernel beside them;{_beyond(figures)} {percent(figures['by_fault_ratio'])} of the bytes came"
        " by"
        f" page fault, {percent(figures['prefetched_ratio'])} because the program prefetched them.",
        remedy="Prefetch with cudaMemPrefetchAsync before the kernel that needs the data, advise preferred locations"
        " with cudaMemAdvise, keep host code from touching the arrays between kernels, or use device memory.",
        price=cost,
        figures=figures,
        instances=worst_spans(moves["start_ns"], moves["end_ns"]),
    )


def _beyond(figures: dict[str, Any]) -> str:
    distinct, beyond = figures["working_set_bytes"], figures["beyond_working_set_bytes"]
    if distinct is None:
        return ""
    return f" {size(beyond)} more than one pass each way over the {size(distinct)} that migrate at all;"


def _price(scene: Scene, moves: pl.DataFrame) -> Price:
    union = Intervals.union_of(moves["from_ns"], moves["to_ns"])
    exposed = union & scene.lost
    return Price(union.length, exposed, {}, 0, exposed.length, 0, None, 0, None)


def _working_set(scene: Scene) -> int | None:
    """Bytes of distinct addresses that migrated at any time; None where the export has no addresses."""
    moves = scene.work.migrations.filter(pl.col("address").is_not_null() & (pl.col("address") != 0))
    if moves.height < scene.work.migrations.height or not moves.height:
        return None
    return Intervals.union_of(moves["address"], moves["address"] + moves["bytes"]).length


def _figures(scene: Scene, moves: pl.DataFrame, into: int, back: int) -> dict[str, Any]:
    cause = pl.col("cause").replace_strict(CAUSES, default="unknown", return_dtype=pl.String)
    by = (
        moves.with_columns(cause=cause)
        .group_by("kind", "cause")
        .agg(pl.len().alias("migrations"), pl.col("bytes").sum())
        .sort("kind", "cause")
    )
    distinct = _working_set(scene)
    prefetched = int(by.filter(pl.col("cause") == PREFETCH)["bytes"].sum())
    return {
        "migrations": moves.height,
        "bytes_to_device": into,
        "bytes_to_host": back,
        "working_set_bytes": distinct,
        "beyond_working_set_bytes": None if distinct is None else max(0, into - distinct) + max(0, back - distinct),
        "return_ratio": min(into, back) / max(into, back, 1),
        "prefetched_ratio": prefetched / max(into + back, 1),
        "by_fault_ratio": int(by.filter(pl.col("cause").is_in(BY_FAULT))["bytes"].sum()) / max(into + back, 1),
        "by_cause": [
            {
                "direction": "to device"
                if r["kind"] == TO_DEVICE
                else "to host"
                if r["kind"] == TO_HOST
                else "between devices"
            }
            | {k: r[k] for k in ("cause", "migrations", "bytes")}
            for r in by.to_dicts()
        ],
    }
