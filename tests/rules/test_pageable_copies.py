"""pageable_copies: fires, stays quiet, is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysparse.findings import Quiet, Severity, Skipped
from rules.program import DEVICE, DTOH, HTOD, MS, PAGEABLE, PINNED, US, Program, serve

RULE = "pageable_copies"


def eager(p: Program, kernel: int = 300 * US, source: int = PAGEABLE, steps: int = 60, **copy: object) -> Program:
    def step(_: int) -> None:
        with p.range("to_device"):
            p.copy(400_000, HTOD, source, DEVICE, 100 * US, **copy)
        with p.range("forward"):
            p.launch(kernel)
        with p.range("to_host"):
            p.copy(400_000, DTOH, DEVICE, source, 100 * US, **copy)

    return serve(p, steps, step)


def test_fires_with_shares_of_wall_and_latency(tmp_path: Path) -> None:
    p = eager(Program())
    found = p.finding(tmp_path, RULE)
    e = found.evidence
    # In: 103 us without a kernel. Out: 400 us in the call, of which the kernel runs 297; 101 + 2 us remain.
    to_device, to_host = 103 * US, (300 - 3 + 101) * US
    assert e["host_waited_ns"] == 59 * (to_device + to_host)
    assert e["idle_while_host_waited_ns"] == 59 * (to_device + 101 * US)
    latency = to_device + 5 * US + to_host
    assert e["bound_latency_ratio"] == pytest.approx((to_device + 101 * US) / latency, rel=1e-6)
    assert e["ranges_latency_ratio"] == pytest.approx((to_device + to_host) / latency, rel=1e-6)
    assert found.bound_ns == 59 * (to_device + 101 * US)
    assert e["directions"]["HtoD Pageable to Device"]["copies"] == 59
    assert e["directions"]["DtoH Device to Pageable"]["bytes"] == 59 * 400_000
    assert found.severity is Severity.MEDIUM  # 40%, in a window of 30 ms
    assert eager(Program(), steps=250).finding(tmp_path, RULE).severity is Severity.HIGH
    assert "pageable copies to the device" in found.title


def test_blocking_copies_of_pinned_memory_are_not_called_pageable(tmp_path: Path) -> None:
    found = eager(Program(), source=PINNED, waits=True, api="cudaMemcpy_v3020").finding(tmp_path, RULE)
    assert "pageable" not in found.title
    assert "blocking" in found.title


def test_quiet_for_pinned_copies_ahead_of_the_work(tmp_path: Path) -> None:
    p = Program()

    def step(_: int) -> None:
        p.copy(400_000, HTOD, PINNED, DEVICE, 20 * US, stream=13)
        p.launch(300 * US)

    assert isinstance(serve(p, 60, step).said(tmp_path, RULE)[0], Quiet)


def test_quiet_where_the_device_is_busy_meanwhile(tmp_path: Path) -> None:
    """Pageable copies on a second stream beside a long kernel: the host waits, the GPU does not."""
    p = Program()

    def step(_: int) -> None:
        p.launch(2 * MS)
        p.copy(400_000, HTOD, PAGEABLE, DEVICE, 100 * US, stream=13)

    assert isinstance(serve(p, 60, step).said(tmp_path, RULE)[0], Quiet)


def test_quiet_for_loading_and_for_copies_at_the_beginning(tmp_path: Path) -> None:
    p = Program()
    p.load()
    for _ in range(5):
        p.copy(400_000, HTOD, PAGEABLE, DEVICE, 100 * US)
    for _ in range(200):
        p.launch(MS)
    p.sync()
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)


def test_latency_counts_even_where_the_wall_hardly_does(tmp_path: Path) -> None:
    """A server that mostly waits: 1% of the wall, most of each request."""
    p = Program()
    for _ in range(60):
        with p.range("request"):
            p.copy(400_000, HTOD, PAGEABLE, DEVICE, 100 * US)
            p.launch(10 * US)
        p.sleep(20 * MS)
    found = p.finding(tmp_path, RULE)
    assert found.evidence["bound_wall_ratio"] < 0.01
    assert found.evidence["bound_latency_ratio"] > 0.9
    assert found.severity is Severity.HIGH


def test_skipped_in_whole_graphs(tmp_path: Path) -> None:
    p = Program()
    for _n in range(50):
        span = (p.now + 10 * US, p.now + 60 * US)
        correlation = p.b.api("cudaGraphLaunch_v10000", p.now, p.now + 5 * US, p.tid)
        p.b.graph_trace(*span, 0, 7, correlation, 4242)
        p.think(100 * US)
    said = p.said(tmp_path, RULE)
    assert isinstance(said[0], Skipped)
    assert "node" in said[0].reason
