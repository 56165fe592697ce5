"""unified_memory: fires, stays quiet; nothing has to be recorded for it beyond the copies, so it is never skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysparse.findings import Quiet, Severity
from rules.program import MS, US, Program

RULE = "unified_memory"
INTO, BACK = 11, 12
USER_PREFETCH, FAULT, SPECULATIVE = 1, 2, 3
PAGE = 2_097_152


def managed(p: Program, rounds: int = 100, back: bool = True, cause: int = FAULT, beside: bool = True) -> Program:
    """Each round a kernel needs four pages that the host touches after it."""
    for _ in range(rounds):
        span = p.launch(400 * US)
        at = span[0] if beside else span[1]
        for page in range(4):
            address = 0x7F0000000000 + page * PAGE
            move(p, at + page * 50 * US, INTO, address, cause)
        p.sync()
        if back:
            for page in range(4):
                move(p, p.now + page * 50 * US, BACK, 0x7F0000000000 + page * PAGE, cause)
            p.think(250 * US)
    return p


def move(p: Program, start: int, kind: int, address: int, cause: int) -> None:
    ids = {"virtualAddress": address, "migrationCause": cause}
    p.b.copy(start, start + 50 * US, PAGE, kind, 7, 7, 0, 0, 0, 4242, **ids)


def test_fires_with_both_ways_causes_and_bytes_beyond_the_working_set(tmp_path: Path) -> None:
    found = managed(Program()).finding(tmp_path, RULE)
    e = found.evidence
    assert (e["bytes_to_device"], e["bytes_to_host"]) == (400 * PAGE, 400 * PAGE)
    assert e["working_set_bytes"] == 4 * PAGE
    assert e["beyond_working_set_bytes"] == 2 * 396 * PAGE
    assert e["prefetched_ratio"] == 0
    assert found.bound_ns == 2 * 100 * 200 * US  # beside a kernel as well: it waits for its pages
    assert managed(Program(), 200).finding(tmp_path, RULE).severity is Severity.HIGH


def test_prefetched_bytes_are_told_apart(tmp_path: Path) -> None:
    """The driver's speculative prefetch follows a fault: it is none of the program's."""
    for cause, prefetched, faults in ((USER_PREFETCH, 1.0, 0.0), (FAULT, 0.0, 1.0), (SPECULATIVE, 0.0, 1.0)):
        evidence = managed(Program(), cause=cause).finding(tmp_path, RULE).evidence
        assert (evidence["prefetched_ratio"], evidence["by_fault_ratio"]) == (prefetched, faults)


def test_working_set_is_unknown_without_addresses(tmp_path: Path) -> None:
    p = managed(Program())
    for row in p.b.rows["CUPTI_ACTIVITY_KIND_MEMCPY"]:
        row["virtualAddress"] = None
    found = p.finding(tmp_path, RULE)
    assert found.evidence["working_set_bytes"] is None
    assert found.evidence["beyond_working_set_bytes"] is None


def test_quiet_for_a_first_touch_and_without_managed_memory(tmp_path: Path) -> None:
    assert isinstance(managed(Program(), back=False).said(tmp_path, RULE)[0], Quiet)
    p = Program()
    for _ in range(100):
        p.launch(MS)
    p.sync()
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)


def test_quiet_where_it_takes_no_time(tmp_path: Path) -> None:
    p = Program()
    for n in range(100):
        p.launch(20 * MS)
        p.sync()
        move(p, p.now, INTO if n % 2 else BACK, 0x7F0000000000, 5)
        p.think(50 * US)
    assert isinstance(p.said(tmp_path, RULE)[0], Quiet)
    found = p.finding(tmp_path, RULE, settings={"unified_memory.floor": 0.0001})
    assert found.severity is Severity.INFO
    assert found.bound_ns == pytest.approx(100 * 50 * US)
