"""Weights or tables streamed in every step.

What it means: the same sequence of sizes is copied to the device again and again: weights that live in host memory and
are brought in layer by layer (CPU offload), or a table that is sent with every step. Model loading at the start is not
meant.

Why it costs: each step pays the link for bytes that have not changed. A GPU's memory is 50 to 100 times as fast as the
link, so even a small part of the weights on the host can take most of a step. The bound is the time without a kernel
in which the feeding thread was inside these copies, and the time in which they held a submitted kernel up.

What to do: keep on the device what fits (a smaller type or quantized weights, fewer layers offloaded, more of them
where they are used most). If it must be streamed, keep the host copy pinned and prefetch the next layer on a second
stream while this one computes. In transformers and accelerate: change ``device_map`` or ``max_memory`` so that fewer
layers are on the CPU; in llama.cpp raise ``--n-gpu-layers``.

When to accept it: when the model does not fit and throughput matters more than latency; then raise the batch size, so
that each byte brought in is used more often.

When it may be wrong: inputs of a fixed shape, many tensors a step, look the same. The trace does not show contents; if
these are inputs, the link is the limit all the same: send less (a smaller type, compressed data, decoding on the
device), read pageable_copies and serial_copies, and raise ``step_bytes``. A single copy a step counts only if it is
named as weights, or takes the link twice as long as all kernels take the device.
"""

from __future__ import annotations

from collections.abc import Iterable

from nsysparse.rules._evidence import (
    Found,
    copy_figures,
    every,
    from_where,
    judge,
    make,
    of_wall,
    to_callers,
    worst_copies,
)
from nsysparse.rules._frameworks import CUDA, LLAMA_CPP, PYTORCH, worded
from nsysparse.rules._periods import find_period
from nsysparse.rules._price import price, waits_for
from nsysparse.rules._reach import pinned_reference
from nsysparse.rules._roles import WEIGHTS, names_of
from nsysparse.rules._scene import Scene
from nsysparse.rules.settings import Threshold, shares
from nsysparse.units import bandwidth, count, duration, size

ID = "streamed_weights"
NEEDS = ("calls", "visible copies", "kernels")
THRESHOLDS = {
    **shares(),
    "copy_bytes": Threshold(65_536, "bytes", "Smaller copies are inputs, masks and positions."),
    "copies_per_step": Threshold(4, "number", "A step's inputs are one to three tensors; a model's layers are more."),
    "step_bytes": Threshold(32_000_000, "bytes", "More than the inputs of a step of most models."),
    "table_bytes": Threshold(64_000_000, "bytes", "A single copy a step of this size is a table rather than a batch."),
}
REMEDY = {
    PYTORCH: "Keep more layers on the GPU (device_map, max_memory, a quantized type); otherwise pin the host weights"
    " and prefetch the next layer on a side stream with non_blocking=True.",
    LLAMA_CPP: "Raise --n-gpu-layers, or choose a smaller quantization, so that all layers fit on the device.",
    CUDA: "Keep the data on the device; if it must be streamed, from pinned memory, on a stream of its own, a layer"
    " ahead.",
}


def check(scene: Scene) -> Iterable[Found]:
    """Price a sequence of sizes that comes to the device again and again."""
    copies = scene.role("weights")
    if not copies.height:
        return
    waits = waits_for(scene, copies)
    cost = price(scene, waits, copies)
    figures = copy_figures(scene, copies, waits)
    named = WEIGHTS.search(names_of(copies, scene)) is not None
    judged = judge(scene, ID, cost.share(scene), "medium" if named else "low")
    if judged is None:
        return
    period = find_period(copies.sort("call_start_ns")["bytes"].to_numpy())
    reference, basis = pinned_reference(scene, to_device=True)
    figures |= {
        "sequence_copies": period,
        "sequence_bytes": int(copies.sort("call_start_ns")["bytes"].head(period).sum()),
        "pinned_bandwidth": reference,
        "pinned_basis": basis,
        "named_as_weights": named,
    }
    each = figures["bytes_per_request"]
    per = f"{size(each)} a request" if each else f"{size(figures['bytes_per_second'])}/s"
    yield make(
        scene,
        ID,
        judged,
        title=f"The same {'data' if named else 'sizes'} streamed to the device again and again: {per},"
        f" {of_wall(scene, cost)}",
        detail=f"{count(figures['copies'])} copies, {size(figures['bytes'])} in sizes that"
        f" repeat{every(figures)}{from_where(figures)}, at {bandwidth(figures['bandwidth'])} on the GPU"
        f"{to_callers(figures)}: the host was held for {duration(cost.waited_ns)},"
        f" submitted kernels for {duration(cost.held_up_ns)}; at most {duration(cost.bound_ns)} can be won.",
        remedy=worded(scene, REMEDY),
        price=cost,
        figures=figures,
        instances=worst_copies(copies),
    )
