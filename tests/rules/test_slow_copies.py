"""slow_copies: fires, stays quiet, is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysparse.findings import Finding, Quiet, Severity, Skipped
from rules.program import DEVICE, HTOD, MS, PAGEABLE, PINNED, US, Program

RULE = "slow_copies"
REACH = 0.85 * 63e9  # an H200's link


def copying(bandwidth: float, memory: int = PINNED, steps: int = 100) -> Program:
    p = Program()
    for _ in range(steps):
        p.copy(8_000_000, HTOD, memory, DEVICE, round(8_000_000 / bandwidth * 1e9))
        p.launch(500 * US)
    p.sync()
    return p


def test_fires_for_pinned_copies_on_a_slow_link(tmp_path: Path) -> None:
    found = copying(8e9).finding(tmp_path, RULE)
    e = found.evidence
    assert e["bandwidth"] == pytest.approx(8e9)
    assert e["of_reach_ratio"] == pytest.approx(8e9 / REACH)
    assert e["by_size"] == [
        {"from_bytes": 4_194_304, "copies": 100, "bytes": 800_000_000, "bandwidth": pytest.approx(8e9)}
    ]
    # Each copy takes 1 ms and holds a kernel up; at the reach it would take 8 MB / 53.55 GB/s.
    assert found.bound_ns == pytest.approx(100 * MS * (1 - 8e9 / REACH), rel=0.01)
    assert found.severity is Severity.HIGH
    assert found.id == "slow_copies:0:HtoD-pinned"


def test_pageable_copies_are_only_listed(tmp_path: Path) -> None:
    found = copying(2e9, PAGEABLE).finding(tmp_path, RULE)
    assert found.severity is Severity.INFO
    assert found.own_ns == 0
    assert found.bound_ns is None  # pinning wins the staging, too: the finding on these copies says how much
    assert all(value is None for name, value in found.evidence.items() if name.startswith("bound"))
    assert "Pin the memory" in found.remedy


def test_quiet_at_a_sound_bandwidth_and_without_anyone_waiting(tmp_path: Path) -> None:
    assert isinstance(copying(50e9).said(tmp_path, RULE)[0], Quiet)
    p = Program()
    for _ in range(100):
        p.copy(8_000_000, HTOD, PINNED, DEVICE, MS, stream=13)
        p.launch(1_100 * US)
    p.sync()
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)


def test_unknown_link_is_held_against_the_best_copy(tmp_path: Path) -> None:
    p = copying(8e9)
    p.b.rows["TARGET_INFO_GPU"][0]["name"] = "NVIDIA Something"
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)  # its own best copy is as slow
    p.copy(8_000_000, HTOD, PINNED, DEVICE, 200 * US)
    (said,) = p.said(tmp_path, RULE)
    assert isinstance(said, Finding)
    assert said.evidence["reach"] == pytest.approx(40e9)


def test_skipped_without_calls(tmp_path: Path) -> None:
    p = copying(8e9)
    del p.b.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]
    assert isinstance(p.said(tmp_path, RULE)[0], Skipped)
