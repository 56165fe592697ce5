"""serial_copies: fires, stays quiet, is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysparse.findings import Quiet, Severity, Skipped
from rules.program import DEVICE, DTOH, HTOD, MS, PINNED, US, Program

RULE = "serial_copies"


def in_sequence(steps: int = 300, kernel: int = 500 * US, into: int = 300 * US, back: int = 200 * US) -> Program:
    """In, compute, out, on one stream: nothing overlaps, and the host runs ahead."""
    p = Program()
    for _ in range(steps):
        p.copy(16_000_000, HTOD, PINNED, DEVICE, into)
        p.launch(kernel)
        p.copy(900_000, DTOH, DEVICE, PINNED, back)
    p.sync()
    return p


def test_fires_with_the_time_that_kernels_were_held_up(tmp_path: Path) -> None:
    p = in_sequence()
    found = p.finding(tmp_path, RULE, settings={"streamed_weights.table_bytes": 1e9})
    e = found.evidence
    # All but the first copy in (no kernel had been launched in its first 10 us) and the last copy out hold a kernel up;
    # and never more than the kernels themselves take.
    held = 300 * 300 * US + 299 * 200 * US - 10 * US + 2 * US
    assert e["held_up_ns"] == pytest.approx(held, abs=10 * US)
    assert found.bound_ns == min(e["held_up_ns"], 300 * 500 * US)
    assert e["order"]["input"] == pytest.approx(0.6, abs=0.01)
    assert e["order"]["habit"] == pytest.approx(0.4, abs=0.01)
    assert found.severity is Severity.HIGH
    assert found.confidence == "medium"
    assert "does not need" in found.detail


def test_a_declared_dependency_lowers_the_confidence(tmp_path: Path) -> None:
    p = Program()
    for _ in range(300):
        p.copy(14_000_000, HTOD, PINNED, DEVICE, 300 * US, stream=13)
        p.order(7, 13)
        p.launch(500 * US)
        p.order(13, 7)
    p.sync()
    found = p.finding(tmp_path, RULE)
    assert found.evidence["order"]["declared"] == pytest.approx(1.0)
    assert found.confidence == "low"


def test_quiet_where_copies_run_beside_kernels(tmp_path: Path) -> None:
    p = Program()
    for _ in range(300):
        p.copy(4_000_000, HTOD, PINNED, DEVICE, 300 * US, stream=13)
        p.launch(500 * US)
    p.sync()
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)


def test_quiet_where_the_host_is_late_anyway(tmp_path: Path) -> None:
    """Nothing had been submitted while the copies ran: removing them would win nothing."""
    p = Program()
    for _ in range(300):
        p.copy(1_000_000, HTOD, PINNED, DEVICE, 20 * US)
        p.think(MS)
        p.launch(50 * US)
        p.think(MS)
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)


def test_skipped_without_calls(tmp_path: Path) -> None:
    p = in_sequence(30)
    del p.b.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]
    assert isinstance(p.said(tmp_path, RULE)[0], Skipped)
