"""launch_bound: fires, stays quiet, is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from independent import sql
from traces import trace_path

from nsysparse.findings import Quiet, Severity, Skipped
from rules.program import DEVICE, DTOH, HTOD, LATENCY, MS, PAGEABLE, PINNED, US, Program, serve

RULE = "launch_bound"


def eager(p: Program, kernel: int, interval: int, launches: int = 2_000) -> Program:
    for _ in range(launches):
        p.launch(kernel)
        p.think(interval - 5 * US)
    return p


def test_fires_where_kernels_are_shorter_than_the_interval(tmp_path: Path) -> None:
    found = eager(Program(), 10 * US, 60 * US).finding(tmp_path, RULE)
    e = found.evidence
    assert found.bound_ns == 1_999 * 50 * US
    assert e["kernel_median_ns"] == 10 * US
    assert e["launch_interval_ns"] == 60 * US
    assert e["gaps"] == 1_999
    assert e["idle_in_launch_calls_ns"] == 1_999 * LATENCY  # a kernel starts 2 us into its call
    assert found.severity is Severity.HIGH
    assert found.confidence == "high"


def test_quiet_where_the_queue_is_full(tmp_path: Path) -> None:
    """Kernels of 60 us launched every 10: the device's own microsecond between two of them is not the host's."""
    p = Program()
    for _ in range(2_000):
        p.launch(60 * US)
        p.ready[0, 7] += US
        p.think(5 * US)
    p.sync()
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)


def test_quiet_where_the_host_pauses_for_other_work(tmp_path: Path) -> None:
    p = Program()
    for _ in range(200):
        for _ in range(5):
            p.launch(100 * US)
        p.think(5 * MS)
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)
    assert p.finding(tmp_path, "idle_gaps").bound_ns > 0


def test_waits_and_copies_are_not_launching(tmp_path: Path) -> None:
    """Each kernel waits for a pageable copy: that is another rule's."""
    p = Program()

    def step(_: int) -> None:
        p.copy(4_000_000, HTOD, PAGEABLE, DEVICE, 400 * US)
        p.launch(300 * US)
        p.copy(4_000_000, DTOH, DEVICE, PAGEABLE, 400 * US)

    assert isinstance(serve(p, 200, step).said(tmp_path, RULE)[0], Quiet)


def test_short_window_is_never_high(tmp_path: Path) -> None:
    found = eager(Program(), 10 * US, 60 * US, launches=500).finding(tmp_path, RULE)
    assert found.severity is Severity.MEDIUM
    assert found.confidence == "medium"


def test_asynchronous_copies_belong_to_the_sequence(tmp_path: Path) -> None:
    p = Program()
    for _ in range(1_000):
        p.copy(4_096, HTOD, PINNED, DEVICE, 2 * US)
        p.think(45 * US)
        p.launch(10 * US)
        p.think(45 * US)
    found = p.finding(tmp_path, RULE)
    assert found.bound_ns == pytest.approx(1_000 * (100 - 12) * US, rel=0.01)


def test_skipped_without_calls_and_without_kernels(tmp_path: Path) -> None:
    p = eager(Program(), 10 * US, 60 * US, 100)
    del p.b.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]
    assert isinstance(p.said(tmp_path, RULE)[0], Skipped)
    p = Program()
    for _ in range(30):
        p.copy(4_096, HTOD, PINNED, DEVICE, 2 * US)
    assert isinstance(p.said(tmp_path, RULE)[0], Skipped)


def test_graphs_are_no_advice_to_who_uses_them(analysis_of):
    """400 of the 420 kernels of this recording are nodes of a graph, by plain SQL."""
    (inside, all_of_them) = sql(
        trace_path("graph_replay_node"), "SELECT count(graphNodeId), count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL"
    )[0]
    assert (inside, all_of_them) == (400, 420)
    found = next(f for f in analysis_of("graph_replay_node").findings if f.rule == "launch_bound")
    assert found.remedy.startswith("Most kernels run from CUDA graphs already")
    assert found.evidence["graph_kernels_ratio"] == 1.0  # in the window: the other 20 are warm-up
