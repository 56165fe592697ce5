"""Pageable copies before the work.

What it means: once a request or step the program copies between ordinary (pageable) host memory and the device, or
calls a copy that does not return before it is done, and the next kernel waits for it: tokenizer output,
``.to('cuda')``,
``.cuda()``, results fetched with ``.cpu()``.

Why it costs: such a copy holds the host thread from call to end, goes through a staging buffer at a fraction of the
link's bandwidth, and can overlap nothing: while the thread waits it launches no kernel. The bound is the time without
a kernel in which the thread was inside these calls, and at most as much idle time after them as it had waited for
running kernels.

What to do: allocate the host buffer pinned, copy without blocking, and copy the next input on a second stream while the
device works on this one. In PyTorch: ``DataLoader(pin_memory=True)`` or ``tensor.pin_memory()``, then
``.to(device, non_blocking=True)``; results into a pinned buffer with ``copy_(..., non_blocking=True)`` and one event.

When to accept it: when the host is the limit anyway (the GPU is idle for other reasons, see launch_bound and
idle_gaps); when copies are rare; when pinning memory for each request would cost more than the copy.

When it may be wrong: a copy of up to 64 kB from pageable memory returns before it is on the device, so its call is
short and little is won. If many requests run side by side on several threads, another thread may use the time: the
bound is that of the thread that loses most, not the sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from nsysparse.rules._around import around_in_ranges
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
from nsysparse.rules._frameworks import CUDA, CUPY, JAX, PYTORCH, worded
from nsysparse.rules._price import Price, Waits, latency_ratio, price, waits_for
from nsysparse.rules._scene import Scene
from nsysparse.rules.settings import shares
from nsysparse.units import count, duration, percent, size

ID = "pageable_copies"
NEEDS = ("calls", "visible copies", "kernels")
THRESHOLDS = shares()
REMEDY = {
    PYTORCH: "Pin the host memory (DataLoader(pin_memory=True), tensor.pin_memory()), copy with .to(device,"
    " non_blocking=True), and copy the next batch on a side stream while this one runs; fetch results into a pinned"
    " buffer with copy_(..., non_blocking=True).",
    JAX: "Put the next batch on the device with jax.device_put before it is needed (it returns at once), and do not"
    " convert results with np.asarray until they are used.",
    CUPY: "Allocate host arrays with cupyx.empty_pinned and copy on a stream of its own"
    " (cupy.cuda.Stream(non_blocking=True)).",
    CUDA: "Allocate the host buffers with cudaMallocHost (or register them once), copy with cudaMemcpyAsync on a second"
    " stream, and prefetch the next input while the device works.",
}


def check(scene: Scene) -> Iterable[Found]:
    """Price recurring copies between host and device whose call waits."""
    copies = scene.role("input", "output")
    if not copies.height:
        return
    waits = waits_for(scene, copies)
    inputs = waits_for(scene, copies.filter(pl.col("role") == "input"))
    cost = price(scene, waits, copies, ahead=inputs)
    judged = judge(scene, ID, cost.share(scene), "high" if len(waits.spans) == 1 else "medium")
    if judged is None:
        return
    figures = copy_figures(scene, copies, waits)
    figures |= {"directions": _directions(copies)} | _in_ranges(scene, copies, waits)
    yield make(
        scene,
        ID,
        judged,
        title=f"{_kinds(copies)}: {percent(cost.wall_ratio(scene))}"
        f" {window_phrase(scene)}{_of_latency(cost.latency_ratio, figures['ranges_latency_ratio'])}",
        detail=_detail(scene, figures, cost),
        remedy=worded(scene, REMEDY),
        price=cost,
        figures=figures,
        instances=worst_copies(copies),
    )


def _directions(copies: pl.DataFrame) -> dict[str, Any]:
    """Number, bytes and time in calls of each direction and memory."""
    table = (
        copies.group_by("kind_name", "src", "dst")
        .agg(pl.col("copy_count").sum().alias("copies"), pl.col("bytes").sum(), pl.col("in_call_ns").sum())
        .sort("kind_name", "src", "dst")
    )
    return {f"{r.pop('kind_name')} {r.pop('src')} to {r.pop('dst')}": r for r in table.to_dicts()}


def _kinds(copies: pl.DataFrame) -> str:
    parts = []
    for role, direction in (("input", "to the device"), ("output", "to the host")):
        mine = copies.filter(pl.col("role") == role)
        if mine.height:
            pageable = (mine["src"] == "Pageable") | (mine["dst"] == "Pageable")
            word = "pageable" if pageable.all() else "blocking"
            n, moved = int(mine["copy_count"].sum()), int(mine["bytes"].sum())
            parts.append(f"{count(n)} {word} copies {direction} ({size(moved)})")
    return " and ".join(parts)


def _of_latency(ratio: float | None, ranges: float | None) -> str:
    """The share of request latency inside the calls, and that of the ranges around them where these hold no more."""
    if ratio is None:
        return ""
    if ranges is None or ranges <= ratio:
        return f", {percent(ratio)} of request latency"
    return f", {percent(ranges)} of request latency ({percent(ratio)} inside the calls)"


def _in_ranges(scene: Scene, copies: pl.DataFrame, waits: Waits) -> dict[str, Any]:
    """Share of request latency that lies in NVTX ranges that hold these copies and launch nothing."""
    around = around_in_ranges(scene, copies, waits)
    return {"ranges_latency_ratio": latency_ratio(scene, around.by_thread) if around else None}


def _detail(scene: Scene, figures: dict[str, Any], cost: Price) -> str:
    text = (
        f"{count(figures['copies'])} copies of {size(figures['median_bytes'])}{every(figures)}{from_where(figures)}"
        f" held the host for {duration(cost.waited_ns)}, {duration(cost.idle_while_ns)} of it with nothing else"
        f" running on the GPU; there they take {duration(figures['gpu_time_ns'])}."
    )
    if len(cost.by_thread) > 1:
        text += f" Threads wait side by side: the one that loses most loses {duration(cost.bound_ns)}."
    inside = figures["ranges_latency_ratio"]
    if isinstance(inside, float):
        text += f" The NVTX ranges that hold nothing but these copies are {percent(inside)} of request latency."
    idle = scene.idle.length / scene.wall_ns
    if idle > 0.5:
        text += f" The GPU is idle for {percent(idle)} {window_phrase(scene)}: the host is the limit."
        text += " These copies are part of its work."
    return text
