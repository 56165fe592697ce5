"""Idle gaps.

What it means: again and again the device has nothing to do for a tenth of a millisecond and longer, not because the
next launch of a sequence is on its way, and no other finding explains it. The finding sorts the gaps by length and by
what the host thread that ended each was doing: no traced call (it computes, or waits in something that was not
traced), waiting in the operating system, in other CUDA calls, in the profiler.

Why it costs: the GPU is paid for and waits. The bound is the idle time of the gaps that recur, without what other
findings claim; single long gaps (imports, compilation, the first request) are listed and not counted.

What to do: find what the host does there. Where CPU samples were recorded, their functions are named; where not,
record them (``nsys profile --sample=process-tree``) or put NVTX ranges around the host's work. Then move it off the
thread that launches (data loading into workers, tokenizing into another process), batch it, or do it while the GPU
works on the step before.

When to accept it: when there is no work for the GPU, as in a server with few requests or a notebook between two cells.
A thread that sleeps or waits for the network in most of the gaps is taken for that, and so is one that waits for
others outside the NVTX ranges of its requests; the finding is then for information only.

When it may be wrong: waiting for requests looks like working, unless OS runtime calls were recorded (``-t osrt``). A
window that holds more than the steady state (no repeated NVTX ranges) includes start-up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from nsysparse.accounting.busy import union_by_thread, union_of_rows
from nsysparse.accounting.host import ACTIVITIES, NOTHING
from nsysparse.accounting.idle import CLASS_NAMES, UNKNOWN_THREAD, class_of
from nsysparse.findings import Severity
from nsysparse.intervals import Intervals, times
from nsysparse.rules._evidence import Found, judge, make, window_phrase, worst_spans
from nsysparse.rules._gaps import claims_by_thread, gaps_of
from nsysparse.rules._price import Price, latency_ratio
from nsysparse.rules._roles import RECURS_IN
from nsysparse.rules._scene import Scene
from nsysparse.rules.settings import LOOSE, Threshold, shares
from nsysparse.units import count, duration, percent

ID = "idle_gaps"
NEEDS = ("kernels",)
REST = True
THRESHOLDS = {
    **shares(0.20, 0.35, 0.60, floor=0.10, why=LOOSE),
    "gap_ns": Threshold(100_000, "ns", "Shorter gaps are the pace of launching and the device's own latency."),
    "recurring": Threshold(5, "number", "Gaps of one order of magnitude from which they are a habit and no accident."),
}
ALL = [*ACTIVITIES, NOTHING, UNKNOWN_THREAD]
SAID = {
    NOTHING: "in no traced call: it computes, or waits in something that was not traced",
    "OS runtime call": "waiting in the operating system",
    "other CUDA call": "in other CUDA calls",
    "launch call": "inside launch calls",
    "copy call": "inside copy calls",
    "synchronize call": "synchronizing",
    "allocation call": "allocating",
    "profiler overhead": "held by the profiler",
    UNKNOWN_THREAD: "not known",
}

WORKING, WAITING, NO_WORK, SETTING_UP, UNTRACED = "working", "waiting", "no work", "setting up", "untraced"
# What a thread that waits for requests is in: the network, a timer.
REQUEST = re.compile(r"(?i)request|query|infer|serve|predict|prompt|generat|chat|rpc|(^|[^a-z])(req|call|job)")
OUTSIDE_REQUESTS = 0.9  # share of waits outside the ranges of requests from which nobody had asked
FOR_WORK = re.compile(r"^(epoll_|p?poll$|p?select|accept|recv|read|(clock_)?nanosleep|u?sleep)")
TITLES = {
    WORKING: "The host is the limit",
    WAITING: "The host waits for another thread or process",
    NO_WORK: "The GPU waits for work",
    SETTING_UP: "The host sets CUDA up in the loop",
    UNTRACED: "The host is the limit, or has nothing to do",
}
# What it can be called at most: waiting may be for lack of work, and what was not traced cannot be told from it.
MOST = {
    WORKING: Severity.HIGH,
    WAITING: Severity.MEDIUM,
    NO_WORK: Severity.INFO,
    SETTING_UP: Severity.HIGH,
    UNTRACED: Severity.MEDIUM,
}
MOVE_IT = (
    "Take the host's work off the thread that launches (workers, another process), batch it, or overlap it with the"
    " GPU's step before; NVTX ranges or CPU samples around these gaps say which work it is."
)
REMEDIES = {
    WORKING: MOVE_IT,
    WAITING: "The thread that feeds the GPU waits for another: give it more workers (DataLoader(num_workers=...,"
    " prefetch_factor=...)), or let it wait for the next input while the GPU works on this one.",
    NO_WORK: "Nothing, if there is no work to do; otherwise send requests sooner, or more at a time.",
    SETTING_UP: "Loading of modules, graph instantiation or context work: do it once, before the loop.",
    UNTRACED: f"Record what the host does (-t osrt, --sample=process-tree). {MOVE_IT}",
}


def check(scene: Scene) -> Iterable[Found]:
    """Price idle time that recurs and that nothing else explains."""
    gaps = gaps_of(scene)
    start, end, took = (times(gaps[c]) for c in ("start_ns", "end_ns", "gap_ns"))
    long = (took >= scene.settings[f"{ID}.gap_ns"]) & (end > scene.begin_ns)
    rows = np.flatnonzero(long & gaps["late"].to_numpy() & ~gaps["launching"].to_numpy())
    taken = scene.claimed.covered(start[rows], end[rows])
    gaps = gaps[rows[taken < 0.5 * took[rows]]]
    gaps = gaps.with_columns(
        length=pl.Series(class_of(gaps["gap_ns"])),
        decile=pl.Series(scene.deciles(gaps["end_ns"])),
    )
    habit = (pl.len() >= scene.settings[f"{ID}.recurring"]) & (pl.col("decile").n_unique() >= RECURS_IN)
    often = gaps.filter(habit.over("length"))
    claim = scene.idle_in(often) - scene.claimed
    by_thread = claims_by_thread(often, claim)
    latency = latency_ratio(scene, by_thread)
    cost = Price(claim.length, claim, by_thread, 0, 0, 0, None, 0, latency, of_calls=False)
    judged = judge(scene, ID, cost.wall_ratio(scene), "medium")
    if judged is None:
        return
    figures = _figures(scene, gaps, often, claim)
    cause = _cause(scene, figures)
    figures["cause"] = cause
    yield make(
        scene,
        ID,
        (min(judged[0], MOST[cause]), "low" if cause == UNTRACED else judged[1]),
        title=f"{TITLES[cause]}: the GPU is idle for {percent(cost.wall_ratio(scene))} {window_phrase(scene)}"
        f" in {count(often.height)} gaps of more than {duration(scene.settings[f'{ID}.gap_ns'])}",
        detail=_detail(figures, cost),
        remedy=REMEDIES[cause],
        price=cost,
        figures=figures,
        instances=worst_spans(often["start_ns"], often["end_ns"]),
    )


def _cause(scene: Scene, figures: dict[str, Any]) -> str:
    """Whether the host worked, waited for others of its kind, or for work to come; as far as the recording tells."""
    if figures["most"] == "other CUDA call":
        return SETTING_UP
    if figures["most"] != "OS runtime call":
        known = scene.recording.osrt.height or scene.recording.samples.height
        return WORKING if known else UNTRACED
    asked, outside = scene.account.requests, figures["outside_ranges_ns"] or 0
    names = asked.frame["name"].unique().to_list() if asked is not None and asked.frame is not None else []
    if any(REQUEST.search(str(n)) for n in names) and outside >= OUTSIDE_REQUESTS * figures["gaps_ns"]:
        return NO_WORK
    functions = figures["os_functions"]
    idle = sum(f["ns"] for f in functions if FOR_WORK.match(f["function"]))
    return NO_WORK if idle > sum(f["ns"] for f in functions) / 2 else WAITING


def _figures(scene: Scene, gaps: pl.DataFrame, often: pl.DataFrame, claim: Intervals) -> dict[str, Any]:
    """Gaps by length, by activity, by NVTX; and the names behind them."""
    spent = often.select(pl.col(ALL).cast(pl.Int64).sum()).row(0, named=True)
    total = sum(spent.values())
    most = max(spent, key=lambda a: spent[a])
    inside, outside = _nvtx(scene, often)
    single = gaps.join(often.select("start_ns"), on="start_ns", how="anti").sort(
        "gap_ns", "start_ns", descending=[True, False]
    )
    return {
        "gaps": often.height,
        "gaps_ns": int(often["gap_ns"].sum()),
        "by_length": [
            {"length": CLASS_NAMES[r["length"]], "gaps": r["n"], "idle_ns": r["idle_ns"]}
            for r in often.group_by("length")
            .agg(pl.len().alias("n"), pl.col("gap_ns").sum().alias("idle_ns"))
            .sort("length")
            .to_dicts()
        ],
        "by_activity_ns": {a: n for a, n in sorted(spent.items(), key=lambda x: -x[1]) if n},
        "most": most,
        "most_ratio": spent[most] / total if total else None,
        "by_nvtx": inside,
        "outside_ranges_ns": outside,
        "os_functions": _os_functions(scene, often),
        "sampled_functions": _sampled(scene, often),
        "single_gaps": [list(r) for r in single.select("start_ns", "end_ns").head(5).iter_rows()],
        "single_idle_ns": int(single["gap_ns"].sum()),
        "claimed_ns": claim.length,
    }


def _nvtx(scene: Scene, gaps: pl.DataFrame) -> tuple[list[dict[str, Any]], int | None]:
    """Gaps by the NVTX path of their thread in their middle, and how much of them lies outside all ranges."""
    ranges = scene.work.ranges
    known = gaps.filter(pl.col("thread").is_not_null())
    if not ranges.frame["push_pop"].any() or not known.height:
        return [], None
    path, _ = ranges.path_of(known["thread"], (known["start_ns"] + known["end_ns"]) // 2)
    by = (
        known.with_columns(path=pl.Series(path, dtype=pl.Int32))
        .group_by("path")
        .agg(pl.len().alias("gaps"), pl.col("gap_ns").sum().alias("idle_ns"))
        .join(ranges.paths.select("path", nvtx="text"), on="path", how="left")
        .sort("idle_ns", "nvtx", descending=[True, False])
    )
    outside = 0
    for (thread,), part in known.group_by("thread", maintain_order=True):
        outermost = pl.col("push_pop") & (pl.col("depth") == 1) & (pl.col("thread") == thread)
        union = union_of_rows(ranges.frame.select(pl.col("start_ns", "end_ns").filter(outermost)))
        outside += int(part["gap_ns"].sum()) - int(union.covered(part["start_ns"], part["end_ns"]).sum())
    rows = [
        {"nvtx": r["nvtx"] if r["path"] else None, "gaps": r["gaps"], "idle_ns": r["idle_ns"]}
        for r in by.head(6).to_dicts()
    ]
    return rows, outside


def _os_functions(scene: Scene, gaps: pl.DataFrame) -> list[dict[str, Any]]:
    """OS runtime functions that the gaps' threads were in, most time first."""
    found = []
    for (thread,), part in gaps.group_by("thread", maintain_order=True):
        if thread is None:
            continue
        mine = scene.recording.osrt.filter(pl.col("thread") == thread)
        union = Intervals.union_of(part["start_ns"], part["end_ns"])
        inside = union.covered(mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy())
        found.append(mine.select("name").with_columns(ns=pl.Series(inside, dtype=pl.Int64)))
    if not found:
        return []
    table = pl.concat(found).group_by("name").agg(pl.col("ns").sum(), pl.len().alias("calls"))
    table = table.filter(pl.col("ns") > 0).sort("ns", "name", descending=[True, False])
    return [{"function": r["name"], "ns": r["ns"]} for r in table.head(5).to_dicts()]


def _sampled(scene: Scene, gaps: pl.DataFrame) -> list[dict[str, Any]]:
    """Functions of the program in CPU samples of the gaps' threads, most samples first."""
    inside = scene.recording.samples_in(union_by_thread(gaps))
    if not inside.height:
        return []
    frames = scene.recording.call_stacks.functions(inside["stack"]).filter("own")
    first = frames.group_by("stack", maintain_order=True).first().select("stack", "function")
    table = inside.join(first, on="stack").group_by("function").len("samples")
    return table.sort("samples", "function", descending=[True, False]).head(5).to_dicts()


def _detail(figures: dict[str, Any], cost: Price) -> str:
    spent: dict[str, int] = figures["by_activity_ns"]
    shown = [f"{duration(n)} {SAID[a]}" for a, n in list(spent.items())[:2]]
    total = int(figures["gaps_ns"])
    rest = f" ({duration(cost.bound_ns)} without what other findings hold)" if total > cost.bound_ns else ""
    text = f"In these gaps, {duration(total)} in all{rest}, the thread that ended them was {'; '.join(shown)}."
    outside = figures["outside_ranges_ns"]
    if isinstance(outside, int) and outside > 0:
        text += f" {duration(outside)} lie outside every NVTX range."
    names: list[dict[str, Any]] = figures["os_functions"]
    if names and figures["most"] == "OS runtime call":
        text += f" It waited in {', '.join(str(n['function']) for n in names[:3])}."
    sampled: list[dict[str, Any]] = figures["sampled_functions"]
    if sampled:
        text += f" CPU samples there: {', '.join(str(s['function']) for s in sampled[:3])}."
    return text
