"""The recording itself.

What it means: something about the recording limits what can be read from it: part of it is missing; CUDA graphs were
recorded whole, so that their kernels and copies are hidden; backtraces of CUDA calls were recorded, which slows the
host; the window is dominated by loading a model; or it is too short.

Why it costs: no GPU time is lost, but a conclusion may be. Shares of an incomplete recording are shares of a part; a
program slowed by backtraces looks more launch-bound than it is; a window that is mostly loading makes serving look
idle.

What to do: record again as the finding says: a smaller recording or a newer Nsight Systems against loss,
``--cuda-graph-trace=node`` for graphs, without ``--cudabacktrace`` when times matter, with NVTX ranges around requests
or
``--window`` past the loading phase.

When to accept it: when what is asked for does not depend on what is missing, and for backtraces when the question is
who sends the work, not how long it takes.

When it may be wrong: signs of loss are indirect; the integrity checks say how sure each is. A program that stops using
the GPU halfway looks cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nsysparse.findings import Finding, Severity
from nsysparse.integrity import Status, Verdict
from nsysparse.intervals import Intervals
from nsysparse.rules._evidence import Found, lower_median
from nsysparse.rules._scene import Scene
from nsysparse.rules.settings import Threshold
from nsysparse.units import count, duration, percent

ID = "recording"
NEEDS = ()
SCOPE = "recording"
THRESHOLDS = {
    "loading_ratio": Threshold(
        0.3,
        "ratio",
        "Share of a device's window that loads a model, from which its shares say little of serving.",
    ),
    "short_window_ns": Threshold(
        100_000_000,
        "ns",
        "In a tenth of a second one hiccup of 10 ms is 10%: nothing found in a shorter window is called high.",
    ),
}


def check(scenes: Sequence[Scene], integrity: Verdict) -> Iterable[Found]:
    """Everything about the recording that limits what the other rules can say."""
    found = [
        _incomplete(integrity),
        *_graphs(scenes),
        _backtraces(scenes),
        *_loading(scenes),
        *_short(scenes),
    ]
    for finding in found:
        if finding is not None:
            yield Found(finding, Intervals.none())


def _incomplete(integrity: Verdict) -> Finding | None:
    if integrity.status is Status.OK:
        return None
    sure = integrity.status is Status.INCOMPLETE
    checks = [c.id for c in integrity.checks if c.status is integrity.status]
    return Finding(
        ID,
        Severity.MEDIUM if sure else Severity.LOW,
        "high" if sure else "medium",
        None,
        "This recording is incomplete" if sure else "This recording is perhaps incomplete",
        integrity.summary,
        "Record again, shorter or with a newer Nsight Systems; until then compare only what the holes do not touch.",
        None,
        {"checks": checks},
        tuple((h.start_ns, h.end_ns) for h in integrity.holes[:5]),
        key="incomplete",
    )


def _graphs(scenes: Sequence[Scene]) -> Iterable[Finding]:
    for scene in scenes:
        graphs = scene.account.busy.by_kind["graphs"].length
        if graphs:
            share = graphs / scene.account.window.length_ns
            yield Finding(
                ID,
                Severity.INFO,
                "high",
                scene.account.number,
                f"Whole CUDA graphs hide what runs in {percent(share)} of the window",
                f"{count(scene.work.graphs.height)} graphs were recorded as one span each. Rules on kernels and"
                f" copies cannot look inside: {percent(graphs / scene.account.busy.everything.length)} of the time in"
                " which the device was busy is not judged.",
                "Record with --cuda-graph-trace=node.",
                None,
                {
                    "graphs": scene.work.graphs.height,
                    "graphs_ns": graphs,
                    "graphs_window_ratio": share,
                    "graphs_busy_ratio": graphs / scene.account.busy.everything.length,
                },
                key="graphs",
            )


def _backtraces(scenes: Sequence[Scene]) -> Finding | None:
    if not scenes or not scenes[0].recording.call_stacks.of_calls:
        return None
    calls = scenes[0].work.calls
    traced = calls.recorded.with_stack
    launches = calls.doing("launch")
    took = calls["end_ns"].filter(launches) - calls["start_ns"].filter(launches)
    return Finding(
        ID,
        Severity.INFO,
        "high",
        None,
        f"Backtraces of {count(traced)} CUDA calls were recorded: the host ran slower than it does",
        f"A launch call took {duration(lower_median(took))} in the median; each backtrace adds to the time of its call"
        " and to the gap before the next. Who sends the work is right; how long the host takes is an upper bound.",
        "For times, record again without --cudabacktrace; keep this recording for the call paths.",
        None,
        {"calls_with_stack": traced, "calls": calls.recorded.calls, "launch_call_median_ns": lower_median(took)},
        key="backtraces",
    )


def _loading(scenes: Sequence[Scene]) -> Iterable[Finding]:
    for scene in scenes:
        loading, window = scene.account.loading, scene.account.window
        if loading is None or loading.end_ns <= window.start_ns:
            continue
        share = (min(loading.end_ns, window.end_ns) - window.start_ns) / window.length_ns
        if share >= scene.settings[f"{ID}.loading_ratio"]:
            yield Finding(
                ID,
                Severity.INFO,
                "high",
                scene.account.number,
                f"Loading a model takes {percent(share)} of the window",
                f"Until {loading.end_ns / 1e9:.3f} s the recording loads a model; shares of the whole window say"
                " little of serving.",
                f"Look past it with --window {loading.end_ns / 1e9:.3f}s.., or put NVTX ranges around requests.",
                None,
                {"loading_end_ns": loading.end_ns, "loading_window_ratio": share, "bytes": loading.bytes},
                slice_ns=(window.start_ns, min(loading.end_ns, window.end_ns)),
                key="loading",
            )


def _short(scenes: Sequence[Scene]) -> Iterable[Finding]:
    for scene in scenes:
        limit = scene.settings[f"{ID}.short_window_ns"]
        if scene.wall_ns < limit:
            yield Finding(
                ID,
                Severity.INFO,
                "high",
                scene.account.number,
                f"The window is short: {duration(scene.wall_ns)}",
                f"In less than {duration(limit)} one hiccup weighs as much as a habit: no finding here is called high.",
                "Record more steps.",
                None,
                {"wall_ns": scene.wall_ns},
                key="short",
            )
