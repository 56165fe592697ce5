"""small_copies: fires, stays quiet, is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysparse.findings import Quiet, Severity, Skipped
from rules.program import DEVICE, HTOD, PAGEABLE, PINNED, US, Program, serve

RULE = "small_copies"


def many(p: Program, copies: int = 20, nbytes: int = 512, kernel: int = 100 * US, steps: int = 60) -> Program:
    def step(_: int) -> None:
        for _ in range(copies):
            p.copy(nbytes, HTOD, PINNED, DEVICE, US)
        p.launch(kernel)
        p.think(100 * US)  # the device is idle again when the next run begins

    return serve(p, steps, step)


def test_fires_with_the_calls_beyond_the_first(tmp_path: Path) -> None:
    found = many(Program()).finding(tmp_path, RULE)
    e = found.evidence
    assert (e["copies"], e["runs"], e["copies_per_run"]) == (59 * 20, 59, 20)
    assert e["host_waited_ns"] == 59 * 19 * 5 * US
    assert e["latency_floor_ns"] == US
    assert found.bound_ns == pytest.approx(59 * 19 * 5 * US, rel=0.01)
    assert found.severity is Severity.MEDIUM  # a third of the window, which is short
    assert many(Program(), steps=500).finding(tmp_path, RULE).severity is Severity.HIGH


def test_quiet_for_few_for_large_and_for_scattered(tmp_path: Path) -> None:
    assert isinstance(many(Program(), copies=2).said(tmp_path, RULE)[0], Quiet)
    assert isinstance(many(Program(), nbytes=1_000_000).said(tmp_path, RULE)[0], Quiet)
    p = Program()

    def step(_: int) -> None:
        for _ in range(20):
            p.copy(512, HTOD, PINNED, DEVICE, US)
            p.launch(5 * US)

    assert isinstance(serve(p, 60, step).said(tmp_path, RULE)[0], Quiet)


def test_quiet_where_the_device_works_meanwhile(tmp_path: Path) -> None:
    p = Program()

    def step(_: int) -> None:
        p.launch(500 * US)
        for _ in range(20):
            p.copy(512, HTOD, PINNED, DEVICE, US, stream=13)
        p.sync(stream=13)

    assert isinstance(serve(p, 60, step).said(tmp_path, RULE)[0], Quiet)


def test_quiet_for_set_up(tmp_path: Path) -> None:
    p = Program()
    for _ in range(40):
        p.copy(512, HTOD, PAGEABLE, DEVICE, US)
    for _ in range(400):
        p.launch(100 * US)
    p.sync()
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)


def test_skipped_without_kernels(tmp_path: Path) -> None:
    p = Program()
    for _ in range(40):
        p.copy(512, HTOD, PINNED, DEVICE, US)
    assert isinstance(p.said(tmp_path, RULE)[0], Skipped)
