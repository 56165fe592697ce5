"""streamed_weights: fires, stays quiet, is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysparse.findings import Quiet, Severity, Skipped
from rules.program import DEVICE, HTOD, MS, PAGEABLE, PINNED, US, Program, serve

RULE = "streamed_weights"
SIZES = [16_000_000, 4_000_000, 8_000_000, 12_000_000, 20_000_000]


def layers(p: Program, memory: int = PINNED, steps: int = 40, ranges: bool = False) -> Program:
    """Five layers, brought in one by one, each before its kernel."""

    def step(_: int) -> None:
        for size in SIZES:
            p.copy(size, HTOD, memory, DEVICE, size // 50_000 * US)
            p.launch(200 * US)
        p.sync()

    if ranges:
        return serve(p, steps, step, "layer_step")
    for n in range(steps):
        step(n)
    return p


def test_fires_with_the_sequence_and_what_it_holds_up(tmp_path: Path) -> None:
    found = layers(Program()).finding(tmp_path, RULE)
    e = found.evidence
    assert (e["copies"], e["bytes"]) == (200, 40 * sum(SIZES))
    assert (e["sequence_copies"], e["sequence_bytes"]) == (5, sum(SIZES))
    # Kernels are launched while the copy before them runs: all but the first microseconds of each step is held up.
    copying = 40 * sum(s // 50_000 for s in SIZES) * US
    assert found.bound_ns == pytest.approx(copying, rel=0.02)
    assert layers(Program(), steps=100).finding(tmp_path, RULE).severity is Severity.HIGH


def test_fires_for_equal_layers_where_requests_tell_the_step(tmp_path: Path) -> None:
    p = Program()

    def step(_: int) -> None:
        for _ in range(8):
            p.copy(16_000_000, HTOD, PAGEABLE, DEVICE, 2 * MS)
            p.launch(200 * US)

    found = serve(p, 20, step, "layer_step").finding(tmp_path, RULE)
    assert found.evidence["bytes_per_request"] == 8 * 16_000_000
    assert found.confidence == "medium"


def test_inputs_are_no_weights(tmp_path: Path) -> None:
    """Two tensors a step, one of 38 MB: a batch of images and its labels."""
    p = Program()

    def step(_: int) -> None:
        p.copy(38_535_168, HTOD, PAGEABLE, DEVICE, 4 * MS)
        p.copy(512, HTOD, PAGEABLE, DEVICE, US)
        p.launch(4 * MS)

    serve(p, 40, step)
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)
    assert p.finding(tmp_path, "pageable_copies").evidence["copies"] == 78


def test_quiet_where_the_next_layer_comes_beside_the_kernels(tmp_path: Path) -> None:
    p = Program()
    for _ in range(40):
        for size in SIZES:
            p.copy(size, HTOD, PINNED, DEVICE, 300 * US, stream=13)
            p.launch(400 * US)
        p.sync()
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)


def test_quiet_for_loading_a_model(tmp_path: Path) -> None:
    p = Program()
    p.load()
    for _ in range(300):
        p.launch(300 * US)
    p.sync()
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)


def test_skipped_without_kernels(tmp_path: Path) -> None:
    p = Program()
    for size in SIZES * 10:
        p.copy(size, HTOD, PINNED, DEVICE, MS)
    assert isinstance(p.said(tmp_path, RULE)[0], Skipped)
