"""Host synchronization on the critical path.

What it means: a thread that launches kernels stops in synchronize calls (device, stream or event) in every step. Waits
that belong to a copy (pageable copies, scalar read-backs, saved state) and implicit ones (allocations) are listed
beside, and priced by the findings of their own.

Why it costs: while the thread waits it launches nothing; when the device is done it is idle until the thread has come
back and launched again. Time in which the host waited and the GPU worked is not lost. The bound is the time without a
kernel inside the calls and, of the idle time right after, at most as much as the thread had waited for kernels. Where
the synchronization fetches a result of a copy to the host, which the program needs, only the time inside the call
counts. Idle time whose next kernel had been sent before it began is not counted at all: the device waited for another
device or stream, not for the host.

What to do: drop synchronizations that are there for timing or caution; wait for one event instead of the whole device;
let the wait of step N come after the launches of step N+1. In PyTorch look for ``torch.cuda.synchronize()`` and for
implicit ones with ``torch.cuda.set_sync_debug_mode('warn')``.

When to accept it: at the end of a measurement, before results are used, or as a throttle that keeps the host from
running too far ahead (then the GPU stays busy and the price here is near nothing).

When it may be wrong: what comes after the synchronization may need it for a reason that no trace shows, such as a host
callback or a file written. Idle time after it may be the host's own work; the bound counts at most the time waited.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.intervals import Index
from nsysparse.joins.order import rows_among
from nsysparse.nulls import filled
from nsysparse.rules._evidence import Found, judge, make, of_wall, thread_name, worst_spans
from nsysparse.rules._frameworks import CUDA, JAX, PYTORCH, worded
from nsysparse.rules._gaps import queued_time
from nsysparse.rules._periods import cadence
from nsysparse.rules._price import Price, Waits, price, waits_at, waits_for
from nsysparse.rules._roles import RECURS_IN, TO_HOST
from nsysparse.rules._scene import Scene
from nsysparse.rules.settings import shares
from nsysparse.units import count, duration

ID = "host_sync"
NEEDS = ("calls", "kernels")
THRESHOLDS = shares()
REMEDY = {
    PYTORCH: "Remove torch.cuda.synchronize() from the loop, find implicit waits with"
    " torch.cuda.set_sync_debug_mode('warn'), and wait on an event of the step before instead.",
    JAX: "Call block_until_ready only when the value is used; let the next step be dispatched first.",
    CUDA: "Replace cudaDeviceSynchronize and cudaStreamSynchronize in the loop by an event of the step before"
    " (cudaEventSynchronize after the next step is launched), or order streams with cudaStreamWaitEvent.",
}
PRICED_ELSEWHERE = {
    "scalar": "scalar_readback",
    "save": "state_offload",
    "reload": "state_offload",
    "input": "pageable_copies",
    "output": "pageable_copies",
    "weights": "streamed_weights",
    "small": "small_copies",
}


def check(scene: Scene) -> Iterable[Found]:
    """Price synchronizations that belong to no copy that another rule prices."""
    rows, needed = _synchronizations(scene)
    if rows.size < 3 or scene.seen_in(scene.marks.start_ns[rows]) < RECURS_IN:
        return
    waits = waits_at(scene, rows)
    cost = price(scene, waits, ahead=waits_at(scene, rows[~needed]), queued=queued_time(scene))
    judged = judge(scene, ID, cost.share(scene), "medium")
    if judged is None:
        return
    figures = _figures(scene, waits, int(np.count_nonzero(needed)))
    yield make(
        scene,
        ID,
        judged,
        title=f"{count(waits.rows.size)} synchronizations in the loop cost at most {of_wall(scene, cost)}",
        detail=_detail(scene, figures, cost),
        remedy=worded(scene, REMEDY),
        price=cost,
        figures=figures,
        instances=worst_spans(waits.calls["start_ns"], waits.calls["end_ns"]),
    )


def _synchronizations(scene: Scene) -> tuple[Index, npt.NDArray[np.bool_]]:
    """Rows of the synchronize calls in the window that no priced copy explains; whether they fetch one to the host."""
    window, marks, copies = scene.account.window, scene.marks, scene.copies
    rows = marks.syncs[marks.feeds[marks.syncs]]
    rows = rows[(marks.start_ns[rows] >= window.start_ns) & (marks.start_ns[rows] < window.end_ns)]
    direct = np.flatnonzero(copies["direct"].to_numpy())
    calls, first = np.unique(filled(copies["call"], -2)[direct], return_index=True)  # -1 is: no work before it
    sent = rows_among(calls, marks.last_work[rows])
    role, kind = copies["role"].is_in(list(PRICED_ELSEWHERE)), copies["kind_name"].is_in(list(TO_HOST))
    # The last stands for no copy.
    elsewhere, needed = (np.append(of.to_numpy()[direct[first]], False)[sent] for of in (role, kind))
    return rows[~elsewhere], needed[~elsewhere]


def _figures(scene: Scene, waits: Waits, needed: int) -> dict[str, Any]:
    calls = waits.calls
    path, _ = scene.work.ranges.path_of(calls["thread"], calls["start_ns"])
    texts = scene.account.paths.select("path", nvtx="text")
    by = (
        calls.with_columns(pl.col("name").cast(pl.String), path=pl.Series(path, dtype=pl.Int32))
        .join(texts, on="path", how="left", maintain_order="left")
        .group_by("name", "path", "nvtx", "thread")
        .agg(pl.len().alias("calls"), (pl.col("end_ns") - pl.col("start_ns")).sum().alias("waited_ns"))
        .sort("waited_ns", "name", "nvtx", "thread", descending=[True, False, False, False])
    )
    rows = [
        {
            "api": r["name"],
            "nvtx": r["nvtx"] if r["path"] else None,
            "thread": thread_name(scene, r["thread"]),
        }
        | {k: r[k] for k in ("calls", "waited_ns")}
        for r in by.head(6).to_dicts()
    ]
    others = {
        rule: waits_for(scene, scene.role(*[r for r, owner in PRICED_ELSEWHERE.items() if owner == rule]))
        for rule in dict.fromkeys(PRICED_ELSEWHERE.values())
    }
    allocations = waits_at(scene, scene.marks.allocations)
    others["allocation_churn"] = allocations
    return {
        "calls": calls.height,
        "calls_per_request": calls.height / scene.requests if scene.requests else None,
        "for_results": needed,
        "by_caller": rows,
        "priced_elsewhere_ns": {
            rule: max((s.length for s in w.spans.values()), default=0) for rule, w in others.items()
        },
        "cadence": cadence(calls["start_ns"], scene.beats),
    }


def _detail(scene: Scene, figures: dict[str, Any], cost: Price) -> str:
    rows: list[dict[str, Any]] = figures["by_caller"]
    names = ", ".join(f"{count(r['calls'])} {r['api']}" + (f" in {r['nvtx']}" if r["nvtx"] else "") for r in rows[:3])
    return (
        f"{names}: the host waited {duration(cost.waited_ns)}, and in {duration(cost.idle_while_ns)} of it nothing"
        f" ran and nothing more had been sent; another {duration(cost.after_ns)} the GPU was idle right"
        f" after. Without the waits at most {duration(cost.bound_ns)} could be won."
    )
