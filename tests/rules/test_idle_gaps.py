"""idle_gaps: fires, stays quiet, is skipped."""

from __future__ import annotations

from pathlib import Path

from nsysparse.findings import Quiet, Severity, Skipped
from rules.program import DEVICE, HTOD, MS, PINNED, US, Program

RULE = "idle_gaps"


def pausing(p: Program, steps: int = 200, pause: int = 4 * MS, sleep: int = 0, kernels: int = 3) -> Program:
    for _ in range(steps):
        with p.range("forward"):
            for _ in range(kernels):
                p.launch(200 * US)
        p.think(pause)
        if sleep:
            p.sleep(sleep, "pthread_cond_timedwait")
    return p


def test_fires_and_says_what_the_host_did(tmp_path: Path) -> None:
    p = pausing(Program())
    assert p.finding(tmp_path, RULE, window="whole").severity is Severity.MEDIUM  # it may as well have slept
    p.b.osrt("fopen", p.now, p.now + 20 * US, p.tid)  # system calls were recorded, so it did not
    found = p.finding(tmp_path, RULE, window="whole")
    e = found.evidence
    # Kernels end 602 us after the range began, the host's next launch comes at 4,015 us and its kernel 2 us later.
    assert found.bound_ns == 199 * (4_015 + 2 - 602) * US
    assert e["gaps"] == 199
    assert e["most"] == "no traced call"
    assert e["outside_ranges_ns"] == 199 * (4_015 - 602) * US
    assert e["by_length"] == [{"length": "1 ms - 10 ms", "gaps": 199, "idle_ns": found.bound_ns}]
    assert found.severity is Severity.HIGH
    assert found.title.startswith("The host is the limit")


def test_names_what_the_thread_waited_in(tmp_path: Path) -> None:
    found = pausing(Program(), pause=US, sleep=4 * MS).finding(tmp_path, RULE, window="whole")
    assert found.evidence["cause"] == "waiting"
    assert found.severity is Severity.MEDIUM  # for want of data or for want of work: a trace does not tell
    assert found.evidence["os_functions"][0]["function"] == "pthread_cond_timedwait"
    assert "pthread_cond_timedwait" in found.detail
    assert "workers" in found.remedy


def test_waiting_for_requests_is_information(tmp_path: Path) -> None:
    for function in ("epoll_wait", "poll", "clock_nanosleep", "accept4"):
        p = Program()
        for _ in range(200):
            p.launch(200 * US)
            p.sleep(4 * MS, function)
        found = p.finding(tmp_path, RULE)
        assert found.evidence["cause"] == "no work"
        assert found.severity is Severity.INFO
        assert found.title.startswith("The GPU waits for work")


def test_names_sampled_functions(tmp_path: Path) -> None:
    p = Program()
    for _ in range(200):
        p.launch(200 * US)
        for ms in (1, 2, 3):
            p.b.sample(p.now + ms * MS, p.tid, [("0x55", "libc.so"), ("tokenize", "server"), ("main", "server")])
        p.think(4 * MS)
    found = p.finding(tmp_path, RULE)
    assert found.evidence["sampled_functions"][0] == {"function": "tokenize", "samples": 200 * 3 - 3}
    assert "tokenize" in found.detail


def test_quiet_for_single_long_gaps(tmp_path: Path) -> None:
    """Import, compilation and one hiccup; the rest is busy."""
    p = Program()
    for n in range(400):
        p.launch(MS)
        if n in {1, 20, 200}:
            p.sync()
            p.think(300 * MS)
    p.sync()
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)


def test_quiet_before_and_during_loading(tmp_path: Path) -> None:
    p = Program()
    for _ in range(10):
        p.copy(50_000_000, HTOD, PINNED, DEVICE, 2 * MS)
        p.think(30 * MS)
    for _ in range(1_000):
        p.launch(MS)
    p.sync()
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)


def test_quiet_where_another_finding_explains_it(tmp_path: Path) -> None:
    p = Program()
    for _ in range(2_000):
        p.launch(10 * US)
        p.think(80 * US)
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)


def test_skipped_without_kernels(tmp_path: Path) -> None:
    p = Program()
    for _ in range(30):
        p.copy(4_096, HTOD, PINNED, DEVICE, 2 * US)
        p.think(5 * MS)
    assert isinstance(p.said(tmp_path, RULE)[0], Skipped)
