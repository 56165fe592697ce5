"""state_offload: fires, stays quiet, is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysparse.findings import Quiet, Severity, Skipped
from rules.program import DEVICE, DTOH, HTOD, MS, PAGEABLE, PINNED, US, Program, serve

RULE = "state_offload"
STACK = {
    1: ("copy_out", "state_get", "make_checkpoint", "serve"),
    2: ("copy_out", "state_get", "prompt_save", "serve"),
}


def saving(
    p: Program, requests: int = 30, save: int = 4 * MS, blocks: int = 4, nvtx: str | None = None, around: int = 0
) -> Program:
    """Ten kernels, then 8 MB in some blocks to pageable memory, from the thread that serves."""

    def step(_: int) -> None:
        for _ in range(10):
            p.launch(50 * US)
        p.sync()
        if nvtx is None:
            _save(p, save, blocks)
            p.think(around)
            return
        with p.range(nvtx):
            _save(p, save, blocks)
            p.think(around)

    return serve(p, requests, step)


def _save(p: Program, save: int, blocks: int) -> None:
    for _ in range(blocks):
        p.copy(8_000_000 // blocks, DTOH, DEVICE, PAGEABLE, save // blocks)


def test_fires_with_bytes_calls_and_what_pinning_wins(tmp_path: Path) -> None:
    p = saving(Program(), nvtx="state_save")
    found = p.finding(tmp_path, RULE)
    e = found.evidence
    assert (e["copies"], e["bytes"], e["bytes_per_request"], e["bursts"]) == (29 * 4, 29 * 8_000_000, 8_000_000, 29)
    assert e["direction"] == "eviction"
    assert e["only_serving_thread"] is True
    # Each call starts 2 us before its copy and returns 1 us after it; all of it without a kernel.
    assert e["in_call_ns"] == found.bound_ns == 29 * 4 * (MS + 3 * US)
    assert e["pinned_copy_ns"] == round(2_000_000 / (0.85 * 63e9) * 1e9)
    assert e["pinning_wins_ns"] == e["in_call_ns"] - round(29 * 8_000_000 / (0.85 * 63e9) * 1e9)
    assert found.severity is Severity.HIGH
    assert found.confidence == "high"
    assert "8 MB of state a request" in found.title
    assert "request/state_save" in found.detail
    assert e["cadence"]["nvtx"] == "request"


def test_gpu_share_does_not_hide_it(tmp_path: Path) -> None:
    """The copies are 2% of the window; the thread is busy around them, in the range that holds them."""
    p = saving(Program(), save=200 * US, blocks=4, nvtx="prompt_save", around=9 * MS)
    found = p.finding(tmp_path, RULE)
    assert found.evidence["exposed_window_ratio"] < 0.025
    assert found.evidence["around"]["sign"] == "nvtx"
    assert found.evidence["around_ns"] == 29 * 9 * MS
    assert found.bound_ns == 29 * (9 * MS + 200 * US + 4 * 3 * US)
    assert found.severity is Severity.HIGH
    assert "the price is in the host thread" in found.detail


def test_silence_counts_only_on_evidence(tmp_path: Path) -> None:
    """Nothing says what the thread does after the copies: the bound is the calls alone."""
    found = saving(Program(), save=4 * MS, around=9 * MS).finding(tmp_path, RULE)
    assert found.evidence["around"] is None
    assert found.evidence["around_ns"] is None
    assert found.bound_ns == 29 * 4 * (MS + 3 * US)


def _with_stacks(p: Program, sampled: str) -> None:
    """Stacks on the copies (chains 1 and 2) and on launches (3), and a CPU sample each 2 ms of the silences."""
    for chain, functions in STACK.items():
        p.b.callchain(chain, [("cudaMemcpyAsync", "libcudart.so"), *((f, "server") for f in functions)])
    p.b.callchain(3, [("cudaLaunchKernel", "libcudart.so"), ("decode", "server"), ("serve", "server")])
    strings = dict(p.b._strings.items())
    copies = 0
    for row in p.b.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]:
        if row["nameId"] == strings["cudaMemcpyAsync_v3020"]:
            row["callchainId"] = 1 if copies % 12 < 8 else 2
            copies += 1
            if copies % 4 == 0:
                for ms in (2, 4, 6, 8):
                    p.b.sample(
                        row["end"] + ms * MS, p.tid, [("0x1234", "libc.so"), (sampled, "server"), ("serve", "server")]
                    )
        else:
            row["callchainId"] = 3


def test_samples_in_the_copies_own_functions_count_the_silence(tmp_path: Path) -> None:
    p = saving(Program(), save=200 * US, around=9 * MS)
    _with_stacks(p, "prompt_save")
    found = p.finding(tmp_path, RULE)
    assert found.evidence["around"]["sign"] == "samples"
    assert found.evidence["around"]["samples_own"] == found.evidence["around"]["samples_named"] == 28 * 4
    assert found.evidence["around_ns"] == 28 * 9 * MS  # after the last no call follows
    assert found.severity is Severity.HIGH
    assert "make_checkpoint" in found.detail
    assert "prompt_save" in found.detail
    assert sum(path["count"] for path in found.evidence["call_paths"]) == found.evidence["copies"]
    assert found.evidence["call_paths"][0]["functions"] == list(STACK[1])


def test_samples_elsewhere_do_not(tmp_path: Path) -> None:
    p = saving(Program(), save=4 * MS, around=9 * MS)
    _with_stacks(p, "decode")
    found = p.finding(tmp_path, RULE)
    assert found.evidence["around"] is None


def test_comparison_with_other_silences(tmp_path: Path) -> None:
    """Two of three steps save nothing; after a save the thread is silent for 20 ms more, and not in the system."""
    p = Program()

    def step(number: int) -> None:
        for _ in range(10):
            p.launch(50 * US)
        p.sync()
        if number % 3 == 0:
            _save(p, 400 * US, 4)
            p.think(20 * MS)
        p.think(300 * US)
        p.sleep(100 * US)

    found = serve(p, 90, step).finding(tmp_path, RULE)
    around = found.evidence["around"]
    assert around["sign"] == "comparison"
    assert around["usual_silence_ns"] == pytest.approx(300 * US, rel=0.05)
    assert found.evidence["around_ns"] == pytest.approx(29 * 20 * MS, rel=0.05)


def test_waiting_for_requests_is_not_saving(tmp_path: Path) -> None:
    p = Program()

    def step(number: int) -> None:
        for _ in range(10):
            p.launch(50 * US)
        p.sync()
        if number % 3 == 0:
            _save(p, 400 * US, 4)
            p.sleep(20 * MS)
        p.think(300 * US)

    found = list(serve(p, 90, step).said(tmp_path, RULE, window="whole"))
    assert all(getattr(o, "bound_ns", 0) < 30 * 2 * MS for o in found)


def test_eviction_and_reload(tmp_path: Path) -> None:
    """What is saved comes back before the next request: both are said, and what kernels wait for is priced."""
    p = Program()

    def step(_: int) -> None:
        with p.range("kv_reload"):
            p.copy(8_000_000, HTOD, PINNED, DEVICE, 500 * US)
        for _ in range(10):
            p.launch(50 * US)
        with p.range("kv_offload"):
            p.copy(8_000_000, DTOH, DEVICE, PINNED, 500 * US)

    serve(p, 30, step)
    p.sync()
    found = p.finding(tmp_path, RULE, window="whole")
    assert found.evidence["direction"] == "both"
    assert found.evidence["held_up_ns"] > 0
    assert "off and back onto the device" in found.title


def test_quiet_for_small_results_and_overlapped_saving(tmp_path: Path) -> None:
    p = Program()

    def step(_: int) -> None:
        p.launch(MS)
        p.copy(500_000, DTOH, DEVICE, PAGEABLE, 20 * US)  # a result, not state

    assert isinstance(serve(p, 30, step).said(tmp_path, RULE)[0], Quiet)
    p = Program()

    def saved_beside(_: int) -> None:
        p.launch(2 * MS)
        p.copy(8_000_000, DTOH, DEVICE, PINNED, 200 * US, stream=13)

    assert isinstance(serve(p, 30, saved_beside).said(tmp_path, RULE)[0], Quiet)


def test_equal_blocks_in_and_out_are_inputs_and_results(tmp_path: Path) -> None:
    """4 MB in, 4 MB out, pageable, in every request: no state, but copies before and after the work."""
    p = Program()

    def step(_: int) -> None:
        p.copy(4_000_000, HTOD, PAGEABLE, DEVICE, 400 * US)
        p.launch(300 * US)
        p.copy(4_000_000, DTOH, DEVICE, PAGEABLE, 400 * US)

    serve(p, 200, step)
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)
    assert p.finding(tmp_path, "pageable_copies").severity is Severity.HIGH


def test_names_decide(tmp_path: Path) -> None:
    """The same blocks, in ranges that say what they are."""
    for name, rule in (("fetch_result", "pageable_copies"), ("save_state", RULE)):
        p = Program()

        def step(_: int, program: Program = p, label: str = name) -> None:
            program.launch(300 * US)
            with program.range(label):
                program.copy(4_000_000, DTOH, DEVICE, PAGEABLE, 400 * US)

        assert serve(p, 200, step).analyze(tmp_path).findings[0].rule == rule


def test_cache_that_grows_and_comes_back(tmp_path: Path) -> None:
    """Each token's blocks are a little larger than the last; no name says what they are, but they come back."""
    p = Program()
    for token in range(150):
        for _ in range(4):
            nbytes = 4_000_000 + token * 4_096
            p.copy(nbytes, HTOD, PINNED, DEVICE, 150 * US)
            p.launch(100 * US)
            p.copy(nbytes + 4_096, DTOH, DEVICE, PINNED, 150 * US)
    p.sync()
    found = p.finding(tmp_path, RULE)
    assert found.evidence["direction"] == "both"
    assert found.severity is Severity.HIGH


def test_quiet_for_a_single_checkpoint_and_for_loading(tmp_path: Path) -> None:
    p = Program()
    p.load()

    def step(number: int) -> None:
        p.launch(MS)
        if number == 10:
            p.copy(400_000_000, DTOH, DEVICE, PAGEABLE, 20 * MS)

    assert isinstance(serve(p, 30, step).said(tmp_path, RULE)[0], Quiet)


def test_background_thread_costs_only_what_it_holds_up(tmp_path: Path) -> None:
    """A thread that launches nothing saves the state: nobody waits, so nothing is won."""
    p = Program()
    saver = p.thread(1, "saver")

    def step(_: int) -> None:
        p.launch(4 * MS)
        with p.on(saver):
            p.now = max(p.now, p.clock[p.b.thread(4242, 4242)])
            p.copy(8_000_000, DTOH, DEVICE, PAGEABLE, 3 * MS, stream=13)
        p.sync()

    assert isinstance(serve(p, 30, step).said(tmp_path, RULE)[0], Quiet)


def test_skipped_without_calls(tmp_path: Path) -> None:
    p = saving(Program())
    del p.b.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]
    assert isinstance(p.said(tmp_path, RULE)[0], Skipped)
