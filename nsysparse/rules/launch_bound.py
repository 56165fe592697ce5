"""Launch-bound.

What it means: the device finishes each kernel before the host has launched the next. Its queue is empty, and the time
between two launches of the same thread is longer than the kernels it launches: the host, not the GPU, sets the pace.

Why it costs: the device is idle between nearly all kernels. The bound is the idle time that ended when such a launch
arrived, of gaps short enough to lie inside a sequence of launches, without what other findings claim. It is what the
GPU waits for launches in all; the kernels' own time remains.

What to do: launch more work at a time. Capture the step in a CUDA graph (in PyTorch
``torch.compile(mode='reduce-overhead')`` or ``torch.cuda.graph``), fuse (``torch.compile``, fused optimizers,
``jax.jit`` around the whole step), raise the batch size, or take the host's work out of the loop.

When to accept it: when latency at batch size one matters and the step cannot be captured, or when the GPU has other
programs to serve.

When it may be wrong: the profiler itself slows launches down, with backtraces severalfold, so the true share is smaller
than the one recorded. Gaps that hold a wait of the host are left to the findings on those waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from nsysparse.accounting.busy import in_window
from nsysparse.accounting.grouping import counts_of
from nsysparse.intervals import Intervals, times
from nsysparse.rules._evidence import Found, judge, lower_median, make, thread_name, window_phrase, worst_spans
from nsysparse.rules._frameworks import CUDA, JAX, LLAMA_CPP, PYTORCH, worded
from nsysparse.rules._gaps import claims_by_thread, gaps_of
from nsysparse.rules._price import Price, latency_ratio
from nsysparse.rules._roles import RECURS_IN
from nsysparse.rules._scene import Scene
from nsysparse.rules.settings import LOOSE, Threshold, shares
from nsysparse.units import count, duration, percent

ID = "launch_bound"
NEEDS = ("calls", "kernels")
REST = True
THRESHOLDS = {
    **shares(0.20, 0.35, 0.60, floor=0.10, why=LOOSE),
    "gap_ns": Threshold(
        1_000_000,
        "ns",
        "A launch costs 2 to 10 us from C++, 10 to 50 from eager Python, several 100 with backtraces; a pause of"
        " more than a millisecond is other work.",
    ),
}
REMEDY = {
    PYTORCH: "Capture the step in a CUDA graph (torch.compile(mode='reduce-overhead'), torch.cuda.graph), fuse the"
    " optimizer (fused=True) and elementwise operations (torch.compile), or raise the batch size.",
    JAX: "Put the whole step, loop included (lax.scan), under one jax.jit, or raise the batch size.",
    LLAMA_CPP: "Serve more sequences a batch (--parallel, --batch-size), and build with CUDA graphs on"
    " (GGML_CUDA_GRAPHS).",
    CUDA: "Capture the sequence in a CUDA graph, fuse kernels, or give each more work.",
}


LEAST_GAPS = 10  # fewer are no habit
KERNEL = ("start_ns", "end_ns", "counted", "graph_node")
MOSTLY_GRAPHS = 0.5  # share of kernels inside graphs from which "use graphs" is no advice
IN_GRAPHS = (
    "Most kernels run from CUDA graphs already: what is left lies between graph launches. Capture longer stretches into"
    " one graph, serve more sequences a batch, or launch the next graph before the result of this one is needed."
)


def check(scene: Scene) -> Iterable[Found]:
    """Price idle time that ended with a launch from inside a sequence of launches."""
    gaps = gaps_of(scene)
    gaps = gaps.select("start_ns", "end_ns", "gap_ns", "thread").filter(gaps["launching"])
    if gaps.height < LEAST_GAPS or scene.seen_in(gaps["end_ns"]) < RECURS_IN:
        return
    claim = scene.idle_in(gaps) - scene.claimed
    by_thread = claims_by_thread(gaps, claim)
    latency = latency_ratio(scene, by_thread)
    cost = Price(claim.length, claim, by_thread, 0, 0, 0, None, 0, latency, of_calls=False)
    judged = judge(scene, ID, cost.wall_ratio(scene), "high")
    figures = None if judged is None else _figures(scene, gaps, claim)
    if judged is None or figures is None or figures["launch_interval_ns"] <= figures["kernel_median_ns"]:
        return
    yield make(
        scene,
        ID,
        judged,
        title=f"Launch-bound: the GPU waits for the next launch for {percent(cost.wall_ratio(scene))}"
        f" {window_phrase(scene)}",
        detail=_detail(scene, figures, cost),
        remedy=worded(scene, REMEDY) if figures["graph_kernels_ratio"] < MOSTLY_GRAPHS else IN_GRAPHS,
        price=cost,
        figures=figures,
        instances=worst_spans(gaps["start_ns"], gaps["end_ns"]),
    )


def _figures(scene: Scene, gaps: pl.DataFrame, claim: Intervals) -> dict[str, Any] | None:
    """Kernel and launch times, and how many operations found the queue empty."""
    marks, (plain, whole) = scene.marks, (scene.marks.rows_that(f) for f in ("launch", "graph launch"))
    rows = np.sort(np.concatenate((plain, whole))) if whole.size else plain
    start, end, thread = (v[rows] for v in (marks.start_ns, marks.end_ns, marks.thread))
    between = np.diff(start)
    short = between[(thread[1:] == thread[:-1]) & (between <= scene.settings[f"{ID}.gap_ns"])]  # turns are by thread
    graphs = in_window(scene.work.graphs, scene.account.window)
    counted = [_counted(f) for f in (scene.account.ran.select(KERNEL), graphs.select(KERNEL[:-1]))]
    took = np.concatenate([times(f["end_ns"]) - times(f["start_ns"]) for f in counted])
    if not short.size or not took.size:
        return None
    sent = sorted(counts_of(pl.Series(thread)), key=lambda item: (-item[1], item[0]))
    return {
        "kernels": took.size,
        "kernel_median_ns": lower_median(pl.Series(took)),
        "launches": rows.size,
        "graph_launches": whole.size,
        "graph_kernels_ratio": counted[0]["graph_node"].is_not_null().mean() or 0.0,
        "launch_interval_ns": lower_median(pl.Series(short)),
        "launch_call_median_ns": lower_median(pl.Series(end - start)),
        "gaps": gaps.height,
        "gap_median_ns": lower_median(gaps["gap_ns"]),
        "empty_queue_ratio": min(gaps.height / took.size, 1.0),
        "idle_in_launch_calls_ns": Intervals.union_of(start, end).shared(claim),
        "threads": [{"thread": thread_name(scene, t), "launches": n} for t, n in sent[:4]],
        "kernels_per_request": took.size / scene.requests if scene.requests else None,
        "stacks_recorded": scene.recording.call_stacks.of_calls > 0,
    }


def _counted(operations: pl.DataFrame) -> pl.DataFrame:
    """Those that start in the window: mostly all."""
    return operations if operations["counted"].all() else operations.filter("counted")


def _detail(scene: Scene, figures: dict[str, Any], cost: Price) -> str:
    each = figures["kernels_per_request"]
    per = f" ({count(round(each))} a request)" if isinstance(each, float) else ""
    text = (
        f"{count(figures['launches'])} launches sent {count(figures['kernels'])} kernels or whole graphs{per} of"
        f" {duration(figures['kernel_median_ns'])} in the median, one launch every"
        f" {duration(figures['launch_interval_ns'])}. {count(figures['gaps'])} times the device had run dry before the"
        f" next kernel or copy came, for {duration(cost.bound_ns)} in all; in"
        f" {duration(figures['idle_in_launch_calls_ns'])} of it the host was inside launch calls."
    )
    if figures["graph_kernels_ratio"] >= MOSTLY_GRAPHS:
        text += f" {percent(figures['graph_kernels_ratio'])} of the kernels ran inside CUDA graphs already."
    if figures["stacks_recorded"]:
        text += " Backtraces were recorded, which slows every launch: without them the share is smaller."
    return text
