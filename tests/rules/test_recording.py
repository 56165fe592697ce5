"""recording: each of its five remarks, and silence over a sound recording."""

from __future__ import annotations

from pathlib import Path

from nsysparse.findings import Finding, Quiet, Severity
from rules.program import MS, US, Program

RULE = "recording"


def sound(p: Program, kernels: int = 300) -> Program:
    for _ in range(kernels):
        p.launch(MS)
    p.sync()
    return p


def keys(p: Program, folder: Path) -> dict[str, Finding]:
    return {o.key: o for o in p.said(folder, RULE) if isinstance(o, Finding)}


def test_quiet_over_a_sound_recording(tmp_path: Path) -> None:
    (only,) = sound(Program()).said(tmp_path, RULE)
    assert isinstance(only, Quiet)
    assert only.device is None


def test_incomplete(tmp_path: Path) -> None:
    p = sound(Program())
    p.b.diagnostic("Not all CUDA events might have been collected.")
    found = keys(p, tmp_path)["incomplete"]
    assert found.severity is Severity.MEDIUM
    assert found.device is None
    assert found.id == "recording:recording:incomplete"


def test_hidden_graphs(tmp_path: Path) -> None:
    p = Program()
    for _ in range(400):
        correlation = p.b.api("cudaGraphLaunch_v10000", p.now, p.now + 5 * US, p.tid)
        p.b.graph_trace(p.now + 10 * US, p.now + 460 * US, 0, 7, correlation, 4242)
        p.think(500 * US)
    found = keys(p, tmp_path)["graphs"]
    assert found.severity is Severity.INFO
    assert "--cuda-graph-trace=node" in found.remedy
    assert found.evidence["graphs_ns"] == 400 * 450 * US


def test_backtraces(tmp_path: Path) -> None:
    p = sound(Program())
    p.b.callchain(0, [("cudaLaunchKernel", "libcudart.so"), ("main", "server")])
    for row in p.b.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]:
        row["callchainId"] = 0
    found = keys(p, tmp_path)["backtraces"]
    assert found.severity is Severity.INFO
    assert found.evidence["calls_with_stack"] == 301


def test_loading_dominates(tmp_path: Path) -> None:
    p = Program()
    for _ in range(3):
        p.load(10_000_000_000)
    found = keys(sound(p, 100), tmp_path)["loading"]
    assert found.severity is Severity.INFO
    assert "--window" in found.remedy
    assert found.slice_ns is not None
    # A little loading is not worth a remark.
    p = Program()
    p.load()
    assert "loading" not in keys(sound(p, 1_000), tmp_path)


def test_short_window(tmp_path: Path) -> None:
    assert keys(sound(Program(), 20), tmp_path)["short"].evidence["wall_ns"] == 20 * MS
