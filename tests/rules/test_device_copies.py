"""device_copies: fires, stays quiet, is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysparse.findings import Finding, Quiet, Severity, Skipped
from rules.program import DEVICE, DTOD, PTOP, US, Program

RULE = "device_copies"


def cloning(copy: int = 200 * US, kernel: int = 300 * US, steps: int = 300) -> Program:
    p = Program()
    for _ in range(steps):
        p.launch(kernel)
        p.copy(64_000_000, DTOD, DEVICE, DEVICE, copy)
    p.launch(kernel)
    p.sync()
    return p


def test_fires_within_a_device(tmp_path: Path) -> None:
    found = cloning().finding(tmp_path, RULE)
    assert found.id == "device_copies:0:within"
    assert found.evidence["bytes"] == 300 * 64_000_000
    assert found.bound_ns == pytest.approx(300 * 200 * US, rel=0.01)  # each holds the next kernel up
    assert found.severity is Severity.HIGH


def test_peer_copies_that_hold_nothing_up_are_information(tmp_path: Path) -> None:
    p = Program(gpus=2)
    p.launch(10 * US)
    for _ in range(50):
        peers = {"api": "cudaMemcpyPeerAsync_v4000", "src_device": 0, "dst_device": 1}
        p.copy(8_000_000, PTOP, DEVICE, DEVICE, 100 * US, **peers)
        p.think(150 * US)
    found = [o for o in p.said(tmp_path, RULE) if isinstance(o, Finding)]
    (only,) = found
    assert only.severity is Severity.INFO
    assert only.bound_ns == 0
    assert only.evidence["pairs"] == {
        "GPU 0 to GPU 1": {"copies": 50, "bytes": 400_000_000, "bandwidth": pytest.approx(80e9)}
    }


def test_quiet_for_a_little_copying(tmp_path: Path) -> None:
    assert isinstance(cloning(copy=2 * US).said(tmp_path, RULE)[0], Quiet)


def test_skipped_in_whole_graphs(tmp_path: Path) -> None:
    p = Program()
    for _ in range(50):
        correlation = p.b.api("cudaGraphLaunch_v10000", p.now, p.now + 5 * US, p.tid)
        p.b.graph_trace(p.now + 10 * US, p.now + 60 * US, 0, 7, correlation, 4242)
        p.think(100 * US)
    assert isinstance(p.said(tmp_path, RULE)[0], Skipped)
