"""host_sync: fires, stays quiet, is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysparse.findings import Quiet, Severity, Skipped
from rules.program import DEVICE, DTOH, MS, PAGEABLE, PINNED, US, Program, serve

RULE = "host_sync"


def synchronous(
    p: Program, steps: int = 60, kernel: int = 200 * US, pause: int = 300 * US, api: str = "cudaDeviceSynchronize_v3020"
) -> Program:
    def step(_: int) -> None:
        p.launch(kernel)
        p.sync(api, None)
        p.think(pause)

    return serve(p, steps, step)


@pytest.mark.parametrize("api", ["cudaDeviceSynchronize_v3020", "cudaEventSynchronize_v3020", "cuStreamSynchronize"])
def test_fires_and_counts_at_most_the_wait(tmp_path: Path, api: str) -> None:
    """Kernel 200 us, waited for 198; then 300 us of the host's own, of which at most the wait is the sync's fault."""
    p = synchronous(Program(), api=api)
    found = p.finding(tmp_path, RULE)
    e = found.evidence
    assert e["calls"] == 59
    assert e["host_waited_ns"] == 59 * 198 * US
    assert e["idle_while_host_waited_ns"] == 59 * US
    assert e["idle_after_ns"] == 59 * 197 * US  # as long as it had waited beside a kernel
    assert found.bound_ns == 59 * 198 * US
    assert found.severity is Severity.MEDIUM  # 197 of 505 us, in a window of 30 ms
    assert synchronous(Program(), 300, api=api).finding(tmp_path, RULE).severity is Severity.HIGH
    assert e["by_caller"][0]["nvtx"] == "request"


def test_waiting_in_the_system_afterwards_is_no_price(tmp_path: Path) -> None:
    p = Program()

    def step(_: int) -> None:
        p.launch(200 * US)
        p.sync()
        p.sleep(300 * US)

    assert isinstance(serve(p, 60, step).said(tmp_path, RULE)[0], Quiet)


def test_quiet_where_the_host_is_only_held_back(tmp_path: Path) -> None:
    """It waits for an event of the step before: the queue is never empty."""
    p = Program()
    for n in range(80):
        p.launch(MS)
        if n > 3:
            start = p.now
            done = p.kernels[-3][1]
            p.think(max(done - start, US))
            p.b.synchronize(p.tid, (start, p.now), "cudaEventSynchronize_v3020")
    p.sync()
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)


def test_quiet_for_waits_that_other_rules_price(tmp_path: Path) -> None:
    p = Program()

    def step(_: int) -> None:
        p.launch(200 * US)
        p.copy(4, DTOH, DEVICE, PAGEABLE, US)
        p.sync()
        p.think(300 * US)

    serve(p, 60, step)
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)
    assert p.finding(tmp_path, "scalar_readback").bound_ns > 0


def test_a_result_that_is_needed_does_not_let_the_host_run_ahead(tmp_path: Path) -> None:
    p = Program()

    def step(_: int) -> None:
        p.launch(200 * US)
        p.copy(100_000, DTOH, DEVICE, PINNED, 10 * US)
        p.sync()
        p.think(300 * US)

    assert isinstance(serve(p, 60, step).said(tmp_path, RULE)[0], Quiet)
    found = p.finding(tmp_path, RULE, settings={f"{RULE}.floor": 0.001})
    assert found.evidence["for_results"] == 59
    assert found.evidence["idle_after_ns"] == 0
    assert found.bound_ns == 59 * US  # the return; the copy's own time is not the wait's


def test_quiet_for_one_at_the_end(tmp_path: Path) -> None:
    p = Program()
    for _ in range(100):
        p.launch(200 * US)
    p.sync(stream=None)
    p.think(20 * MS)
    p.launch(200 * US)
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)


def test_skipped_without_calls(tmp_path: Path) -> None:
    p = synchronous(Program())
    del p.b.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]
    assert isinstance(p.said(tmp_path, RULE)[0], Skipped)
