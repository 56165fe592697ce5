"""Many small copies where one would do.

What it means: the program sends runs of small copies in one direction, one after the other: token ids, positions,
masks, offsets and lengths as tensors of their own. Each takes as long as the link's latency, whatever its size.

Why it costs: a copy of 100 bytes takes about a microsecond on the device and several in its call. Twenty of them in a
row are a tenth of a millisecond of the host's time, and the first kernel waits for the last. The bound is the time
without a kernel in which the host was inside the calls of all but the first copy of each run.

What to do: pack them into one buffer on the host, copy it once and take views on the device
(``torch.frombuffer`` or one ``torch.empty`` and slices). Build on the device what can be computed there: positions and
masks from lengths, for example.

When to accept it: when they are few a step, or come from different parts of the program at different times.

When it may be wrong: copies that are made between launches for good reason are not counted as a run; runs are cut at a
launch, a change of direction or a pause of a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl

from nsysparse.joins.order import rows_among
from nsysparse.rules._evidence import (
    Found,
    copy_figures,
    every,
    from_where,
    judge,
    lower_median,
    make,
    of_wall,
    worst_copies,
)
from nsysparse.rules._frameworks import CUDA, PYTORCH, worded
from nsysparse.rules._price import price, waits_at, waits_for
from nsysparse.rules._scene import Scene
from nsysparse.rules.settings import Threshold, shares
from nsysparse.units import count, duration, size

ID = "small_copies"
NEEDS = ("calls", "visible copies", "kernels")
THRESHOLDS = {
    **shares(),
    "max_bytes": Threshold(
        65_536,
        "bytes",
        "Up to this size a copy's time is latency: at 25 to 50 GB/s 64 kB take 1 to 3 us, as long as an empty copy.",
    ),
    "run": Threshold(4, "number", "Copies in a row from which packing them is worth a change of the program."),
}
REMEDY = {
    PYTORCH: "Pack the tensors into one pinned buffer, copy it once with non_blocking=True and take views; compute"
    " positions and masks on the device.",
    CUDA: "Pack them into one buffer and copy it once (or cudaMemcpyBatchAsync from CUDA 12.8); compute on the"
    " device what follows from lengths.",
}


def check(scene: Scene) -> Iterable[Found]:
    """Price runs of small copies beyond the first of each."""
    runs = scene.role("small")
    if not runs.height:
        return
    runs = runs.sort("call_start_ns")
    more = runs.filter(pl.int_range(pl.len()).over("burst") > 0)
    calls = rows_among(scene.marks.call, np.unique(more["call"].drop_nulls().to_numpy()))
    waiting = waits_for(scene, more).rows
    waits = waits_at(scene, np.concatenate((calls[calls >= 0], waiting[~np.isin(waiting, calls)])))
    cost = price(scene, waits, more, held_up=False)
    judged = judge(scene, ID, cost.share(scene), "medium")
    if judged is None:
        return
    took = (runs["end_ns"] - runs["start_ns"]).filter(runs["end_ns"] > runs["start_ns"])
    figures = copy_figures(scene, runs) | {
        "runs": runs["burst"].n_unique(),
        "copies_per_run": runs.height / runs["burst"].n_unique(),
        "latency_floor_ns": took.quantile(0.05),
        "median_gpu_ns": lower_median(took),
        "median_call_ns": lower_median(runs["in_call_ns"]),
    }
    yield make(
        scene,
        ID,
        judged,
        title=f"{count(figures['copies'])} copies of {size(figures['median_bytes'])} in runs of"
        f" {count(figures['copies_per_run'])}: at most"
        f" {of_wall(scene, cost)} by packing them",
        detail=f"{count(figures['runs'])} runs{every(figures)}{from_where(figures)}. A copy takes"
        f" {duration(figures['median_gpu_ns'])}"
        f" on the GPU, where the fastest take {duration(figures['latency_floor_ns'])}, and"
        f" {duration(figures['median_call_ns'])} in its"
        f" call, whatever its size; all but the first of each run hold the host for {duration(cost.waited_ns)}.",
        remedy=worded(scene, REMEDY),
        price=cost,
        figures=figures,
        instances=worst_copies(runs),
    )
