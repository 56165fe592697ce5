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
    """4 blocks on 132 multiprocessors; of 128 threads and 32 registers each could hold 16."""
    found = running(4).finding(tmp_path, RULE)
    assert found.evidence["sm_reach_ratio"] == pytest.approx(4 / 132)
    assert found.evidence["sm_fill_ratio"] == pytest.approx(4 / 2_112)
    assert found.evidence["kernels"][0]["unreached_ns"] == round(300 * 400 * US * (1 - 4 / 132))
    assert found.severity is Severity.MEDIUM
    assert found.bound_ns is None
    assert running(20).finding(tmp_path, RULE).severity is Severity.LOW


def test_quiet_where_each_multiprocessor_has_a_block_or_the_device_is_not_busy(tmp_path: Path) -> None:
    assert isinstance(running(132).said(tmp_path, RULE)[0], Quiet)
    assert isinstance(running(4, pause=2 * MS).said(tmp_path, RULE)[0], Quiet)


def test_short_kernels_of_few_blocks_do_not_count_for_much(tmp_path: Path) -> None:
    p = running(2_112)
    for _ in range(300):
        p.launch(10 * US, grid=(1, 1, 1))
    p.sync()
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)


def test_skipped_where_the_limits_are_unknown(tmp_path: Path) -> None:
    p = running(100)
    p.b.rows["TARGET_INFO_GPU"][0]["smCount"] = None
    p.b.rows["TARGET_INFO_CUDA_DEVICE"][0]["numMultiprocessors"] = None
    assert isinstance(p.said(tmp_path, RULE)[0], Skipped)
