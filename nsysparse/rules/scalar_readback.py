"""Scalar read-back.

What it means: every step, the program fetches a number from the device and waits for it: ``loss.item()``, ``.cpu()``
on a metric, a comparison of a device tensor in an ``if``. In the trace it is a copy of a few bytes to the host and a
synchronization by the same thread before its next launch.

Why it costs: the thread stops until all work before the copy is done, so it cannot launch ahead, and the device runs
dry until the next launch arrives. What it merely waits for (kernels that had to run anyway) is no cost. The price of
one read-back is the time without a kernel while the thread was inside it, and, of the idle time right after it, at
most as much as the thread had waited for kernels. If the device had run dry before, the price is the calls alone,
however long the step.

What to do: read less often (every 50th step), keep sums on the device and read them once, or copy into pinned memory
without blocking and look at the number one step later. In PyTorch: ``total += loss.detach()`` instead of
``loss.item()``.

When to accept it: when the program needs the number to decide what comes next (a stop token, a gradient norm that may
skip a step), and when the price below is small, which it is wherever the host is slower than the device.

When it may be wrong: the copy may be of a few bytes that are no scalar (a short list of tokens); raise or lower
``max_bytes``. What follows the read-back may be slow for reasons of its own; the bound counts at most the time waited.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from nsysparse.nulls import filled
from nsysparse.rules._evidence import (
    Found,
    copy_figures,
    every,
    from_where,
    judge,
    make,
    of_wall,
    thread_name,
    worst_spans,
)
from nsysparse.rules._frameworks import CUDA, JAX, PYTORCH, worded
from nsysparse.rules._price import Price, Waits, price, waits_for
from nsysparse.rules._roles import RECURS_IN
from nsysparse.rules._scene import Scene
from nsysparse.rules.settings import Threshold, shares
from nsysparse.units import count, duration, percent

ID = "scalar_readback"
NEEDS = ("calls", "visible copies", "kernels")
THRESHOLDS = {
    **shares(floor=0.001),
    "max_bytes": Threshold(
        64,
        "bytes",
        "A double or int64 is 8 bytes; 64 takes in a small batch of tokens or flags and no tensor of results.",
    ),
}
REMEDY = {
    PYTORCH: "Keep the number on the device (total += loss.detach()) and call .item() every N steps, or copy it with"
    " non_blocking=True into pinned memory and read it a step later.",
    JAX: "Keep metrics as device arrays and convert them (float(x), np.asarray) every N steps; jax.jit returns"
    " before they are computed.",
    CUDA: "Accumulate on the device and read every N steps, or cudaMemcpyAsync into pinned memory and look at it"
    " after an event of the step before.",
}


def check(scene: Scene) -> Iterable[Found]:
    """Price copies of a few bytes that a thread waits for."""
    scalars = scene.role("scalar")
    if not scalars.height:
        return
    waits = waits_for(scene, scalars)
    held = np.concatenate([of[waits.rows] for of in (scene.marks.call, scene.marks.last_work)])
    scalars = scalars.filter(pl.Series(np.isin(filled(scalars["call"], -2), held)))  # -1 is: no work before it
    if scalars["decile"].n_unique() < RECURS_IN:
        return
    cost = price(scene, waits, scalars, held_up=False)
    judged = judge(scene, ID, cost.share(scene), "high")
    if judged is None:
        return
    figures = copy_figures(scene, scalars, waits) | _more(scene, scalars, waits, cost)
    yield make(
        scene,
        ID,
        judged,
        title=_title(scene, figures, cost),
        detail=_detail(figures, cost),
        remedy=worded(scene, REMEDY),
        price=cost,
        figures=figures,
        instances=worst_spans(waits.calls["start_ns"], waits.calls["end_ns"]),
    )


def _more(scene: Scene, scalars: pl.DataFrame, waits: Waits, cost: Price) -> dict[str, Any]:
    """What each thread reads and pays, and how long the device had been idle when a read-back began."""
    idle = scene.account.busy.idle
    begin = scalars["call_start_ns"].to_numpy()
    at = np.searchsorted(idle.start, begin, side="right") - 1
    dry = (at >= 0) & idle.contains(begin)
    before = begin[dry] - idle.start[at[dry]]
    threads = [
        {
            "thread": thread_name(scene, thread),
            "readbacks": int(scalars.filter(pl.col("thread") == thread)["copy_count"].sum()),
            "waited_ns": spans.length,
            "price_ns": cost.by_thread[thread].length,
        }
        for thread, spans in waits.spans.items()
    ]
    return {
        "readbacks": int(scalars["copy_count"].sum()),
        "by_thread": threads,
        "waited_for_work_ns": cost.waited_ns - cost.idle_while_ns,
        "dry_before_ratio": float(dry.mean()) if begin.size else None,
        "dry_before_median_ns": int(np.median(before)) if before.size else None,
    }


def _title(scene: Scene, figures: dict[str, Any], cost: Price) -> str:
    n = len(figures["by_thread"])
    threads = f" on {count(n)} threads" if n > 1 else ""
    return f"{count(figures['readbacks'])} scalar read-backs{threads} cost at most {of_wall(scene, cost)}"


def _detail(figures: dict[str, Any], cost: Price) -> str:
    beyond = figures["waited_for_work_ns"]
    text = (
        f"Copies of {count(figures['median_bytes'])} bytes{every(figures)}{from_where(figures)} with their"
        f" synchronizations held the host for {duration(cost.waited_ns)}; {duration(beyond)} of that it waited for"
        f" work that had to run anyway. Their price is {duration(cost.bound_ns)}."
    )
    dry, before = figures["dry_before_ratio"], figures["dry_before_median_ns"]
    if isinstance(dry, float) and dry > 0.5 and isinstance(before, int):
        text += (
            f" Before {percent(dry)} of them the GPU had already run dry, by {duration(before)} in the median: the"
            " read-back is not what starves it."
        )
    return text
