"""State moved off or onto the device per request.

What it means: again and again the program moves a large block from the device to host memory, or back. Typical blocks
are a KV cache that is offloaded and reloaded, recurrent state or a prompt that is saved for later, a checkpoint. The
finding says how much a request moves, which call path moves it, whether it is saved, reloaded or both, and whether the
thread that waits is the one that launches the kernels.

Why it costs: the copies themselves may take little GPU time, and the share of GPU time hides the price. The price is
in the host: a copy to or from pageable memory holds its thread until it is done, and the buffer on the other side has
to be allocated and touched first. If that thread also serves, every client waits. The bound is the time without a
kernel in which that thread was inside these copies or, where samples, NVTX or a comparison tell so, busy around them.

What to do: turn the saving off and measure again; that is the test of the diagnosis. Then save less often or less (only
what a later request can use), keep the state on the device while memory allows, or copy to pinned memory that is
allocated once, on a stream of its own, so that serving goes on meanwhile.

When to accept it: when the device's memory cannot hold the state and recomputing it would take longer than moving it;
when the block is a result that the caller asked for; when a checkpoint must be consistent and is rare.

When it may be wrong: a trace shows sizes, not meanings, so large results (logits, images, embeddings) look the same as
state; the name of the NVTX range or the call path tells them apart. Silent time around the copies is taken only on
evidence, which is named; without it the true price may be higher than the bound says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from nsysparse.rules._around import Around, around_copies
from nsysparse.rules._evidence import (
    Found,
    copy_figures,
    every,
    from_where,
    judge,
    lower_median,
    make,
    window_phrase,
    worst_copies,
)
from nsysparse.rules._frameworks import CUDA, JAX, LLAMA_CPP, PYTORCH, worded
from nsysparse.rules._price import Price, Waits, price, waits_for
from nsysparse.rules._reach import pinned_reference
from nsysparse.rules._roles import GROUP, STATE, names_of
from nsysparse.rules._scene import Scene
from nsysparse.rules.settings import Threshold, shares
from nsysparse.units import bandwidth, count, duration, percent, size

ID = "state_offload"
NEEDS = ("calls", "visible copies")
THRESHOLDS = {
    **shares(),
    "burst_bytes": Threshold(
        1_000_000,
        "bytes",
        "Median size of a block (a burst of copies without a launch in between) from which a recurring transfer to"
        " the host is state rather than a result: the size from which bandwidth, not latency, decides.",
    ),
}
REMEDY = {
    LLAMA_CPP: "Test it: start llama-server with --cache-ram 0 --ctx-checkpoints 0, which turns the saving of"
    " prompts and context checkpoints off, and compare tokens/s. If prompts are rarely reused, leave it off or lower"
    " both numbers.",
    PYTORCH: "Test it: leave the saving out and measure. Then copy into a pinned buffer that is allocated once"
    " (torch.empty(..., pin_memory=True); buffer.copy_(state, non_blocking=True)) on a side stream and wait for its"
    " event only when the bytes are needed; for transformers, drop cache_implementation='offloaded' while memory"
    " allows.",
    JAX: "Test it: leave the saving out and measure. Then keep the state on the device, or move it with"
    " jax.device_put to memory kind 'pinned_host' and do not block on it.",
    CUDA: "Test it: turn the saving off and measure. Then save less, keep the state on the device, or copy with"
    " cudaMemcpyAsync to memory from cudaMallocHost, allocated once, on a stream of its own.",
}


def check(scene: Scene) -> Iterable[Found]:
    """Price what recurring bursts to the host, and reloads of the same sizes, cost."""
    moved = scene.role("save", "reload")
    parts = [part for _, part in moved.group_by(GROUP, maintain_order=True)]
    worth = [p for p in parts if _price(scene, p)[0].share(scene) >= scene.settings[f"{ID}.floor"]]
    if not worth:
        return
    copies = pl.concat(worth).sort("start_ns")
    cost, waits, around = _price(scene, copies)
    figures = copy_figures(scene, copies, waits)
    named = _direction(copies) != "eviction" or STATE.search(names_of(copies, scene)) is not None
    confidence = (
        "high" if named and not _mostly_around(cost) else "medium" if named or cost.share(scene) > 0.1 else "low"
    )
    judged = judge(scene, ID, cost.share(scene), confidence)
    if judged is None:
        return
    figures |= _more(scene, copies, cost, around, named)
    yield make(
        scene,
        ID,
        judged,
        title=f"{_title(figures)}, {percent(cost.wall_ratio(scene))} {window_phrase(scene)}",
        detail=_detail(scene, copies, figures, cost, around),
        remedy=worded(scene, REMEDY),
        price=cost,
        figures=figures,
        instances=worst_copies(copies),
    )


def _price(scene: Scene, copies: pl.DataFrame) -> tuple[Price, Waits, Around | None]:
    waits = waits_for(scene, copies)
    around = around_copies(scene, copies, waits)
    return price(scene, waits, copies, around.by_thread if around else None), waits, around


def _mostly_around(cost: Price) -> bool:
    return (cost.around_ns or 0) > cost.bound_ns / 2


def _more(scene: Scene, copies: pl.DataFrame, cost: Price, around: Around | None, named: bool) -> dict[str, Any]:
    """Figures of this rule alone: direction, memory, serving thread, what pinning wins."""
    pageable = copies.filter(((pl.col("src") == "Pageable") | (pl.col("dst") == "Pageable")) & pl.col("direct"))
    bursts = copies.group_by(pl.coalesce("burst", -pl.col("start_ns")).alias("b")).agg(pl.col("bytes").sum())
    threads = copies.filter("direct")["thread"].drop_nulls().unique().to_list()
    figures: dict[str, Any] = {
        "direction": _direction(copies),
        "bursts": bursts.height,
        "burst_median_bytes": lower_median(bursts["bytes"]),
        "pageable_copies": int(pageable["copy_count"].sum()),
        "pageable_bytes": int(pageable["bytes"].sum()),
        "serving_thread_waits": bool(set(threads) & set(scene.feeders)),
        "only_serving_thread": len(scene.feeders) == 1 and threads == scene.feeders,
        "named_as_state": named,
        "around": around.evidence() if around else None,
    }
    reference, basis = pinned_reference(scene, to_device=_direction(copies) == "reload")
    if pageable.height and reference:
        total, in_call = int(pageable["bytes"].sum()), int(pageable["in_call_ns"].sum())
        pinned = total / reference * 1e9
        figures |= {
            "pinned_bandwidth": reference,
            "pinned_basis": basis,
            "call_mean_ns": round(in_call / pageable.height),
            "pinned_copy_ns": round(pinned / pageable.height),
            "pinning_wins_ns": max(0, min(cost.idle_while_ns, in_call) - round(pinned)),
        }
    return figures


def _direction(copies: pl.DataFrame) -> str:
    roles = set(copies["role"].unique().to_list())
    return "both" if len(roles) == 2 else "eviction" if roles == {"save"} else "reload"


def _title(figures: dict[str, Any]) -> str:
    each = figures["bytes_per_request"]
    what = "state" if figures["named_as_state"] else "state or large results"
    verb = {"eviction": "off the device", "reload": "onto the device", "both": "off and back onto the device"}
    rate = f"{size(each)} of {what} a request" if each else f"{size(figures['bytes_per_second'])}/s of {what}"
    return (
        f"{rate} moved {verb[str(figures['direction'])]}: {count(figures['copies'])} copies, {size(figures['bytes'])}"
    )


def _detail(scene: Scene, copies: pl.DataFrame, figures: dict[str, Any], cost: Price, around: Around | None) -> str:
    memory = ", ".join(sorted({f"{s} to {d}".lower() for s, d in copies.select("src", "dst").unique().iter_rows()}))
    who = (
        "the only thread that serves"
        if figures["only_serving_thread"]
        else (
            "a thread that also launches kernels"
            if figures["serving_thread_waits"]
            else "threads that launch no kernels"
        )
    )
    parts = [
        f"{count(figures['bursts'])} blocks of {size(figures['burst_median_bytes'])}"
        f" ({memory}){every(figures)}{from_where(figures)}:"
        f" {who} was inside these copy calls for {duration(figures['in_call_ns'])}"
    ]
    if figures["call_bandwidth"] is not None:
        parts[0] += f" ({bandwidth(figures['call_bandwidth'])})"
    if around is not None and cost.around_ns:
        how = {
            "nvtx": "in the NVTX ranges that hold them",
            "samples": "by CPU samples in the functions that save it",
            "comparison": "beyond its usual pauses",
        }
        parts[0] += f" and for another {duration(cost.around_ns)} around them ({how[around.sign]})"
    parts[0] += "."
    alone, share = int(figures["alone_ns"]), f"{percent(figures['alone_wall_ratio'])} {window_phrase(scene)}"
    parts.append(
        f"Without a kernel running: {duration(cost.bound_ns)}, {percent(cost.wall_ratio(scene))} {window_phrase(scene)}"
        f"{_latency(cost)}. "
        + (
            f"The copies run alone for {share}."
            if alone > cost.bound_ns / 2
            else f"On the GPU the copies run alone for only {share}: the price is in the host thread."
        )
    )
    if figures.get("pinning_wins_ns"):
        parts.append(
            f"Pinned memory would bring a copy from {duration(figures['call_mean_ns'])} to about"
            f" {duration(figures['pinned_copy_ns'])} ({figures['pinned_basis']})."
        )
    return " ".join(parts)


def _latency(cost: Price) -> str:
    return f" and {percent(cost.latency_ratio)} of request latency" if cost.latency_ratio is not None else ""
