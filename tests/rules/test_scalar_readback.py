"""scalar_readback: fires, stays quiet, is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysparse.findings import Finding, Quiet, Severity, Skipped
from rules.program import DEVICE, DTOH, MS, PAGEABLE, PINNED, US, Program, serve

RULE = "scalar_readback"


def training(kernel: int, pinned: bool, steps: int = 40, kernels: int = 20) -> Program:
    p = Program()

    def step(_: int) -> None:
        for _ in range(kernels):
            p.launch(kernel)
        p.copy(4, DTOH, DEVICE, PINNED if pinned else PAGEABLE, US)
        p.sync()

    return serve(p, steps, step, "step")


def test_fires_where_the_host_ran_ahead(tmp_path: Path) -> None:
    """20 kernels of 200 us, launched in 100: the host waits 3.9 ms, then the device is idle until the next launch."""
    p = training(200 * US, pinned=False)
    found = p.finding(tmp_path, RULE)
    waited = sum(e - s for s, e in p.waited[2:])  # copy and synchronization of the first step lie before the window
    assert found.evidence["readbacks"] == 39
    assert found.evidence["host_waited_ns"] == waited
    # A copy of 1 us with 1 us to return, 2 us of synchronization, 2 us until the next kernel runs; the end has no next.
    assert found.bound_ns == 39 * (1 + 1 + 2) * US + 38 * 2 * US
    assert found.evidence["waited_for_work_ns"] == waited - 39 * 4 * US
    assert found.severity is Severity.INFO


def test_price_is_what_the_host_waited_at_most(tmp_path: Path) -> None:
    """A long pause after the read-back is not its fault beyond the time that the host had waited."""
    p = Program()

    def step(_: int) -> None:
        p.launch(300 * US)
        p.copy(4, DTOH, DEVICE, PAGEABLE, US)
        p.think(2 * MS)

    serve(p, 40, step, "step")
    found = p.finding(tmp_path, RULE)
    ahead = 300 - 3  # the copy's call began 5 us after the launch's, which began 2 us before the kernel
    assert found.bound_ns == pytest.approx(39 * (2 + ahead) * US, rel=0.01)
    assert found.severity is Severity.MEDIUM


def test_small_price_where_the_device_had_run_dry(tmp_path: Path) -> None:
    """The host launches every 105 us, kernels take 5: what the read-back costs are its own calls."""
    p = Program()

    def step(_: int) -> None:
        for _ in range(20):
            p.launch(5 * US)
            p.think(100 * US)
        p.copy(4, DTOH, DEVICE, PINNED, US)
        p.sync()

    serve(p, 40, step, "step")
    found = p.finding(tmp_path, RULE)
    assert found.bound_ns == 39 * (5 + 2) * US
    assert found.severity is Severity.INFO
    assert found.evidence["dry_before_ratio"] == 1.0
    assert "had already run dry" in found.detail
    analysis = p.analyze(tmp_path)
    assert analysis.findings[0].rule == "launch_bound"


def test_each_thread_is_named(tmp_path: Path) -> None:
    p = Program()
    for number in (1, 2, 3):
        with p.on(p.thread(number)):

            def step(_: int, stream: int = 20 + number, pause: int = 100 * number * US) -> None:
                p.launch(10 * US, stream=stream)
                p.copy(4, DTOH, DEVICE, PAGEABLE, US, stream=stream)
                p.think(pause)

            serve(p, 60 // number, step, "step")
    found = p.finding(tmp_path, RULE)
    threads = found.evidence["by_thread"]
    assert len(threads) == 3
    assert sum(t["readbacks"] for t in threads) == found.evidence["readbacks"]
    assert "on 3 threads" in found.title
    prices = [t["price_ns"] for t in threads]
    assert found.bound_ns == max(prices) < sum(prices)


def test_quiet_where_nobody_waits(tmp_path: Path) -> None:
    """The copy is asynchronous, into pinned memory, and no synchronization follows."""
    p = Program()

    def step(_: int) -> None:
        for _ in range(20):
            p.launch(100 * US)
        p.copy(4, DTOH, DEVICE, PINNED, US)

    assert isinstance(serve(p, 40, step).said(tmp_path, RULE)[0], Quiet)


def test_quiet_for_larger_results_and_for_few(tmp_path: Path) -> None:
    p = Program()

    def step(number: int) -> None:
        p.launch(300 * US)
        p.copy(4096, DTOH, DEVICE, PAGEABLE, US)
        if number == 1:
            p.copy(4, DTOH, DEVICE, PAGEABLE, US)

    assert isinstance(serve(p, 40, step).said(tmp_path, RULE)[0], Quiet)


def test_threshold_decides_what_a_scalar_is(tmp_path: Path) -> None:
    p = Program()

    def step(_: int) -> None:
        p.launch(300 * US)
        p.copy(256, DTOH, DEVICE, PAGEABLE, US)

    serve(p, 40, step)
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)
    assert isinstance(p.said(tmp_path, RULE, settings={f"{RULE}.max_bytes": 256})[0], Finding)


def test_skipped_without_calls_and_without_kernels(tmp_path: Path) -> None:
    p = training(200 * US, pinned=True)
    del p.b.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]
    said = p.said(tmp_path, RULE)
    assert isinstance(said[0], Skipped)
    assert "-t cuda" in said[0].reason
    p = Program()
    for _ in range(20):
        p.copy(4, DTOH, DEVICE, PAGEABLE, US)
    assert isinstance(p.said(tmp_path, RULE)[0], Skipped)
