"""What leads a window is told from what it is about; names of libraries say nothing of what a copy is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysparse.rules._roles import LIBRARY
from rules.program import DEVICE, HTOD, MS, PINNED, US, Program

STEPS = 200


def begins_late(p: Program) -> None:
    for _ in range(3):  # imports and compilation, a kernel now and then
        p.launch(10 * US)
        p.think(150 * MS)


def test_a_silence_that_the_rest_does_not_know_is_startup(tmp_path: Path) -> None:
    p = Program()
    begins_late(p)
    first = len(p.kernels)
    for _ in range(STEPS):
        p.launch(20 * US)
        p.think(100 * US)
    account = p.analyze(tmp_path).devices[0]
    assert account.startup.operations == first
    assert account.startup.end_ns == p.kernels[first][0]
    assert account.startup.operations_ratio == pytest.approx(first / len(p.kernels))


def test_pauses_that_come_again_and_again_are_none(tmp_path: Path) -> None:
    p = Program()
    for _ in range(STEPS):
        p.launch(20 * US)
        p.think(150 * MS)
    assert p.analyze(tmp_path).devices[0].startup is None


def test_a_window_of_ranges_has_none(tmp_path: Path) -> None:
    p = Program()
    begins_late(p)
    for _ in range(STEPS):
        with p.range("step"):
            p.launch(20 * US)
            p.think(100 * US)
    assert p.analyze(tmp_path).devices[0].startup is None


def test_kilobytes_are_no_model(tmp_path: Path) -> None:
    p = Program()
    p.copy(40_000, HTOD, PINNED, DEVICE, 10 * US)
    for _ in range(STEPS):
        p.launch(20 * US)
        p.think(100 * US)
    assert p.analyze(tmp_path).devices[0].loading is None


@pytest.mark.parametrize(
    ("function", "library"),
    [
        ("__pyx_f_4cupy_4cuda_6memory_13MemoryPointer_copy_to_host_async (memory.so)", True),
        ("at::native::copy_kernel_cuda (libtorch_cuda.so)", True),
        ("cudaMemcpyAsync (libcudart.so.13)", True),
        ("PyObject_Vectorcall (python3.12)", True),
        ("server_slot::prompt_save (llama-server)", False),
        ("save_state (serve.py:31)", False),
        ("curate_results (serve.py:7)", False),
    ],
)
def test_names_of_libraries_do_not_say_what_a_copy_is_for(function: str, library: bool) -> None:
    assert bool(LIBRARY.search(function)) is library
