"""Copy and compute in sequence that could overlap.

What it means: copies that nobody blocks on (pinned memory, asynchronous calls, copies inside CUDA graphs) alternate
with kernels: a kernel has been submitted, and does not start before the copy is done. Copy engines and multiprocessors
could work at the same time and do not.

Why it costs: the device does one thing after the other. The bound is the time in which these copies held a submitted
kernel up, and never more than the shorter of copies and kernels, because that is all that overlapping can hide.

What to do: copy on a stream of its own, one step ahead (double buffering): while step N computes, step N+1's input
comes in and step N-1's result goes out; order them with events, not by sharing a stream. For copies captured in a
graph, split copy and compute into two graphs on two streams, or give the graph two buffers.

When to accept it: when the kernel needs exactly this copy and nothing could be copied earlier (the input has only just
come), or when the copies are a few percent.

When it may be wrong: a trace shows order, not need. A copy to the host on the kernels' own stream does not have to
precede the next kernel, so that is habit, as far as the trace can tell; a copy to the device on that stream is
probably this step's input and could be made a step earlier; a copy on another stream, on which the kernel waits by an
event, is a dependency that somebody declared. The finding says which of these it saw, and how sure it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import polars as pl

from nsysparse.accounting.busy import exposed_parts
from nsysparse.rules._evidence import (
    Found,
    copy_figures,
    every,
    from_where,
    judge,
    make,
    of_wall,
    worst_copies,
)
from nsysparse.rules._frameworks import CUDA, PYTORCH, worded
from nsysparse.rules._price import Waits, price
from nsysparse.rules._reach import slow_groups
from nsysparse.rules._roles import TO_HOST
from nsysparse.rules._scene import Scene
from nsysparse.rules.settings import shares
from nsysparse.units import count, duration, percent, size

ID = "serial_copies"
NEEDS = ("calls", "visible kernels", "visible copies", "kernels")
THRESHOLDS = shares(floor=0.02)
REMEDY = {
    PYTORCH: "Copy the next batch on a side stream (with torch.cuda.stream(side): nxt = host.to(device,"
    " non_blocking=True)), make the compute stream wait for it (wait_stream) only when it is used, and fetch results"
    " on another stream.",
    CUDA: "Give copies streams of their own and two buffers each: copy N+1 in and N-1 out while N computes, ordered by"
    " cudaStreamWaitEvent.",
}


def check(scene: Scene) -> Iterable[Found]:
    """Price copies that held submitted kernels up while nobody waited for them on the host."""
    copies = scene.role("async")
    if not copies.height:
        return
    slow = [g.copies["start_ns"] for g in slow_groups(scene) if not g.pageable]
    if slow:  # what makes those slow comes first: slow_copies prices them
        copies = copies.filter(~pl.col("start_ns").is_in(pl.concat(slow).implode()))
    if not copies.height:
        return
    cost = price(scene, Waits.none(scene), copies)
    most = min(cost.held_up_ns, scene.account.busy.compute.length)
    cost = replace(cost, bound_ns=most)
    habit = _order(scene, copies)
    judged = judge(scene, ID, cost.share(scene), _confidence(habit))
    if judged is None:
        return
    figures = copy_figures(scene, copies) | {"order": habit, "kernels_ns": scene.account.busy.compute.length}
    yield make(
        scene,
        ID,
        judged,
        title=f"{count(figures['copies'])} copies in sequence with kernels that could overlap: at most"
        f" {of_wall(scene, cost)}",
        detail=f"{size(figures['bytes'])}{every(figures)}{from_where(figures)} held submitted kernels up for"
        f" {duration(cost.held_up_ns)}; kernels run for {duration(scene.account.busy.compute.length)}. {_said(habit)}",
        remedy=worded(scene, REMEDY),
        price=cost,
        figures=figures,
        instances=worst_copies(copies),
    )


def _order(scene: Scene, copies: pl.DataFrame) -> dict[str, float]:
    """Share of the exposed time by what the trace says of the order: ``habit``, ``input`` or ``declared``."""
    kernels = scene.account.ran  # by start
    at = np.searchsorted(kernels["start_ns"].to_numpy(), copies["end_ns"].to_numpy(), side="left")
    last = max(kernels.height - 1, 0)
    following = kernels["stream"].gather(np.minimum(at, last)) if kernels.height else None
    exposed = exposed_parts(copies, scene.account.busy)
    total = max(int(exposed.sum()), 1)
    same = (
        (copies["stream"] == following).fill_null(False).to_numpy()
        if following is not None
        else np.zeros(copies.height, bool)
    )
    out = copies["kind_name"].is_in(TO_HOST).to_numpy()
    return {
        "habit": float(exposed[same & out].sum() / total),
        "input": float(exposed[same & ~out].sum() / total),
        "declared": float(exposed[~same].sum() / total),
    }


def _confidence(order: dict[str, float]) -> str:
    return "low" if order["declared"] > 0.5 else "medium"


def _said(order: dict[str, float]) -> str:
    texts = {
        "habit": "copies to the host on the kernels' own stream, which the next kernel does not need",
        "input": "copies to the device on the kernels' own stream, probably inputs that could come a step earlier",
        "declared": "copies on other streams that the kernels were told to wait for",
    }
    shown = [f"{percent(share)} {texts[k]}" for k, share in order.items() if share > 0.05]
    return f"Of their time: {'; '.join(shown)}." if shown else ""
