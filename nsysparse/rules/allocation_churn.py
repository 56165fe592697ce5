"""Allocation churn in the loop.

What it means: the threads that feed the device allocate or free memory in every step: ``cudaMalloc``, ``cudaFree``,
``cudaMallocHost``, ``cudaHostAlloc``, registering host memory, mapping.

Why it costs: each such call takes tens of microseconds to milliseconds, ``cudaFree`` and most of the others wait for
the device, and pinning memory takes as long as touching it. The bound is the time without a kernel in which the host
was inside these calls, and of the idle time right after at most as much as it had waited for kernels.

What to do: allocate once, before the loop, and reuse. In PyTorch the caching allocator does so unless memory is short:
repeated ``cudaMalloc`` and ``cudaFree`` mean that it gives back and takes again (``torch.cuda.empty_cache()`` in the
loop, fragmentation; try ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``). In CUDA use ``cudaMallocAsync`` and a
pool; pin host buffers once.

When to accept it: while a program warms up and its pools grow; calls that all lie at the beginning are not counted.

When it may be wrong: a call that waits may wait for something that another call would have waited for just after.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from nsysparse.rules._evidence import Found, judge, make, of_wall, thread_name, worst_spans
from nsysparse.rules._frameworks import CUDA, CUPY, PYTORCH, worded
from nsysparse.rules._periods import cadence
from nsysparse.rules._price import price, waits_at
from nsysparse.rules._scene import Scene
from nsysparse.rules.settings import Threshold, shares
from nsysparse.units import count, duration

ID = "allocation_churn"
NEEDS = ("calls", "kernels")
THRESHOLDS = {
    **shares(),
    "calls": Threshold(10, "number", "Fewer allocations are set-up."),
    "deciles": Threshold(
        5, "number", "Tenths of the device's operations that must hold one: warm-up fills one or two."
    ),
}
REMEDY = {
    PYTORCH: "Remove torch.cuda.empty_cache() from the loop, leave room for the caching allocator, try"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and allocate pinned buffers once.",
    CUPY: "Use CuPy's memory pools (cupy.get_default_memory_pool(), cupy.get_default_pinned_memory_pool()) and do"
    " not free their blocks in the loop.",
    CUDA: "Allocate before the loop and reuse, or use cudaMallocAsync with a pool whose release threshold is raised;"
    " pin host buffers once.",
}


def check(scene: Scene) -> Iterable[Found]:
    """Price allocations and frees that go on through the loop."""
    window, marks = scene.account.window, scene.marks
    rows = marks.allocations[marks.feeds[marks.allocations]]
    rows = rows[(marks.start_ns[rows] >= window.start_ns) & (marks.start_ns[rows] < window.end_ns)]
    if rows.size < scene.settings[f"{ID}.calls"]:
        return
    rows = rows[~scene.turns["failed"].to_numpy()[rows]]
    tenths = scene.seen_in(marks.start_ns[rows])
    if rows.size < scene.settings[f"{ID}.calls"] or tenths < scene.settings[f"{ID}.deciles"]:
        return
    waits = waits_at(scene, rows)
    calls = waits.calls
    cost = price(scene, waits)
    judged = judge(scene, ID, cost.share(scene), "high")
    if judged is None:
        return
    figures: dict[str, Any] = {
        "calls": calls.height,
        "calls_per_request": calls.height / scene.requests if scene.requests else None,
        "by_function": _by_function(scene, calls),
        "cadence": cadence(calls["start_ns"], scene.beats),
    }
    names = ", ".join(f"{count(r['calls'])} {r['api']}" for r in figures["by_function"][:3])
    yield make(
        scene,
        ID,
        judged,
        title=f"{count(calls.height)} allocations and frees in the loop cost at most {of_wall(scene, cost)}",
        detail=f"{names} held the host for {duration(cost.waited_ns)}; nothing ran in"
        f" {duration(cost.idle_while_ns)} of it, and"
        f" the GPU was idle for another {duration(cost.after_ns)} right after.",
        remedy=worded(scene, REMEDY),
        price=cost,
        figures=figures,
        instances=worst_spans(calls["start_ns"], calls["end_ns"]),
    )


def _by_function(scene: Scene, calls: pl.DataFrame) -> list[dict[str, Any]]:
    """Functions and threads, most time first."""
    by = (
        calls.group_by("name", "thread")
        .agg(pl.len().alias("calls"), (pl.col("end_ns") - pl.col("start_ns")).sum().alias("in_call_ns"))
        .with_columns(pl.col("name").cast(pl.String))
        .sort("in_call_ns", "name", "thread", descending=[True, False, False])
    )
    return [
        {"api": r["name"], "thread": thread_name(scene, r["thread"])} | {k: r[k] for k in ("calls", "in_call_ns")}
        for r in by.head(8).to_dicts()
    ]
