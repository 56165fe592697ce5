"""low_fill: fires, stays quiet, is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysparse.findings import Quiet, Severity, Skipped
from rules.program import MS, US, Program

RULE = "low_fill"


def running(grid: int, pause: int = 0, count: int = 300) -> Program:
    p = Program()
    for _ in range(count):
        p.launch(400 * US, grid=(grid, 1, 1), block=(128, 1, 1))
        p.think(pause)
    p.sync()
    return p


def test_fires_by_the_estimate(tmp_path: Path) -> None:
    """128 threads and 32 registers: 16 blocks an SM by warps, 132 SMs; 100 blocks fill 100 / 2,112 of it."""
    found = running(100).finding(tmp_path, RULE)
    assert found.evidence["sm_fill_ratio"] == pytest.approx(100 / 2_112)
    assert found.severity is Severity.MEDIUM
    assert found.bound_ns is None
    assert running(400).finding(tmp_path, RULE).severity is Severity.LOW


def test_quiet_where_full_or_not_busy(tmp_path: Path) -> None:
    assert isinstance(running(2_112).said(tmp_path, RULE)[0], Quiet)
    assert isinstance(running(100, pause=2 * MS).said(tmp_path, RULE)[0], Quiet)


def test_skipped_where_the_limits_are_unknown(tmp_path: Path) -> None:
    p = running(100)
    p.b.rows["TARGET_INFO_GPU"][0]["smCount"] = None
    p.b.rows["TARGET_INFO_CUDA_DEVICE"][0]["numMultiprocessors"] = None
    assert isinstance(p.said(tmp_path, RULE)[0], Skipped)
