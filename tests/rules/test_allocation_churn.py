"""allocation_churn: fires, stays quiet, is skipped."""

from __future__ import annotations

from pathlib import Path

from nsysparse.findings import Quiet, Severity, Skipped
from rules.program import US, Program, serve

RULE = "allocation_churn"


def churning(p: Program, every: int = 1, took: int = 150 * US) -> Program:
    def step(number: int) -> None:
        if number % every == 0:
            p.allocate(took)
        p.launch(200 * US)
        if number % every == 0:
            p.sync()
            p.allocate(took, "cudaFree_v3020")

    return serve(p, 300, step)


def test_fires_with_calls_and_functions(tmp_path: Path) -> None:
    found = churning(Program()).finding(tmp_path, RULE)
    e = found.evidence
    assert e["calls"] == 2 * 299
    assert {(r["api"], r["calls"]) for r in e["by_function"]} == {("cudaMalloc", 299), ("cudaFree", 299)}
    assert e["host_waited_ns"] == found.bound_ns == 2 * 299 * 150 * US
    assert e["calls_per_request"] == 2
    assert found.severity is Severity.HIGH


def test_quiet_where_calls_are_cheap(tmp_path: Path) -> None:
    """A pool: cudaMallocAsync returns in a microsecond."""
    p = Program()

    def step(_: int) -> None:
        p.allocate(US, "cudaMallocAsync_v11020")
        p.launch(400 * US)
        p.allocate(US, "cudaFreeAsync_v11020")
        p.sync()

    assert isinstance(serve(p, 300, step).said(tmp_path, RULE)[0], Quiet)


def test_quiet_for_warm_up(tmp_path: Path) -> None:
    p = Program()
    for _ in range(50):
        p.allocate(500 * US)
        p.launch(20 * US)
    for _ in range(1_000):
        p.launch(20 * US)
    p.sync()
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)


def test_quiet_where_the_device_works_meanwhile(tmp_path: Path) -> None:
    p = Program()

    def step(_: int) -> None:
        for _ in range(3):
            p.launch(400 * US)
        p.allocate(200 * US)

    serve(p, 300, step)
    p.sync()
    assert isinstance(p.said(tmp_path, RULE, window="whole")[0], Quiet)


def test_skipped_without_calls(tmp_path: Path) -> None:
    p = churning(Program())
    del p.b.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]
    assert isinstance(p.said(tmp_path, RULE)[0], Skipped)
