"""The figures behind findings: every one has a label, none claims more than there is, and plain SQL agrees."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from independent import Span, length, merged, overlap, sql

from nsysparse.findings import Finding
from nsysparse.rules._labels import LABELS
from rules.test_recorded_programs import FOLDER, analysis, finding, unpacked

DOCS = Path(__file__).parents[2] / "docs" / "json.md"
NAMES = sorted(p.name.partition(".")[0] for p in FOLDER.glob("*.xz"))
ALONE = [n for n in NAMES if n != "pipeline_over_peers"]  # on one device
DATA = {"by_activity_ns", "directions", "pairs", "priced_elsewhere_ns"}  # their keys are what was found
# Recordings in which a plain condition chooses the copies that a finding is about.
COPIES = {
    ("cache_cloned_each_token", "device_copies"): "copyKind = 8",
    ("double_buffer_by_copy", "device_copies"): "copyKind = 8",
    ("forty_small_tensors", "small_copies"): "copyKind = 1 AND bytes = 1024",
    ("losses_one_by_one", "scalar_readback"): "copyKind = 2",
    ("pageable_images", "pageable_copies"): "copyKind IN (1, 2)",
    ("pageable_workers", "pageable_copies"): "copyKind IN (1, 2)",
    ("pinned_in_sequence", "serial_copies"): "copyKind IN (1, 2) AND bytes = 33554432",
    ("results_in_sequence", "serial_copies"): "copyKind = 2",
    ("session_swap", "state_offload"): "copyKind IN (1, 2) AND bytes = 32000000",
    ("swap_blocks", "state_offload"): "bytes = 4194304",
    ("table_each_step", "streamed_weights"): "copyKind = 1 AND bytes = 128000000",
    ("token_by_item", "scalar_readback"): "copyKind = 2",
    ("weights_from_host", "streamed_weights"): "copyKind = 1",
}


def after(name: str) -> tuple[int, int]:
    """The window without what leads it."""
    account = analysis(name).devices[0]
    leads = [a.end_ns for a in (account.startup, account.loading) if a is not None]
    return max([account.window.start_ns, *leads]), account.window.end_ns


def spans(name: str, table: str, where: str = "1") -> list[Span]:
    tables = {row[0] for row in sql(unpacked(name), "SELECT name FROM sqlite_master")}
    if f"CUPTI_ACTIVITY_KIND_{table}" not in tables:
        return []
    return sql(unpacked(name), f"SELECT start, end FROM CUPTI_ACTIVITY_KIND_{table} WHERE {where}")


def computing(name: str, low: int, high: int) -> list[Span]:
    return merged([*spans(name, "KERNEL"), *spans(name, "GRAPH_TRACE")], low, high)


def keys(value: Any, inside: str = "") -> set[str]:
    if isinstance(value, dict):
        own = set() if inside in DATA else {str(k) for k in value}
        return own.union(*(keys(v, str(k)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return set().union(*(keys(v) for v in value))
    return set()


def told(name: str) -> list[Finding]:
    return [f for f in analysis(name).findings if f.device is not None]


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_label_and_a_meaning(name: str) -> None:
    for f in analysis(name).findings:
        assert not keys(f.evidence) - set(LABELS), f.id


def test_labels_are_documented() -> None:
    rows = [f"| `{name}` | {text} | {meaning} |" for name, (text, meaning) in LABELS.items()]
    assert [r for r in DOCS.read_text("utf-8").splitlines() if r in rows] == rows
    assert all(text and meaning for text, meaning in LABELS.values())


@pytest.mark.parametrize("name", ALONE)
def test_no_finding_wins_more_than_the_time_without_a_kernel(name: str) -> None:
    low, high = after(name)
    free = high - low - length(computing(name, low, high))
    for f in told(name):
        if f.bound_ns is None:
            continue
        assert 0 <= f.bound_ns <= free, f.id
        assert (f.own_ns or 0) <= free
        if "bound_wall_ratio" in f.evidence and not analysis(name).integrity.holes:
            assert f.evidence["bound_wall_ratio"] == pytest.approx(f.bound_ns / (high - low), rel=1e-9), f.id
            whole = analysis(name).devices[0].window.length_ns
            assert f.evidence["bound_window_ratio"] == pytest.approx(f.bound_ns / whole, rel=1e-9)


@pytest.mark.parametrize("name", ALONE)
def test_lost_time_is_split_without_rest_and_without_overlap(name: str) -> None:
    result = analysis(name)
    window = result.devices[0].window
    free = window.length_ns - length(computing(name, window.start_ns, window.end_ns))
    assert result.lost["lost_ns"].sum() == free
    assert sum(f.own_ns or 0 for f in told(name)) <= free


@pytest.mark.parametrize(("name", "rule"), COPIES)
def test_copies_by_plain_sql(name: str, rule: str) -> None:
    e, where = finding(name, rule).evidence, COPIES[name, rule]
    window = analysis(name).devices[0].window
    inside = f"{where} AND start >= {window.start_ns} AND start < {window.end_ns}"
    rows = sql(
        unpacked(name), f"SELECT start, end, bytes, correlationId FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE {inside}"
    )
    count = len(rows)
    moved = sum(r[2] for r in rows)
    took = sum(r[1] - r[0] for r in rows)
    low, high = after(name)
    assert (e["copies"], e["bytes"], e["gpu_time_ns"]) == (count, moved, took)
    assert e["median_bytes"] == sorted(r[2] for r in rows)[(len(rows) - 1) // 2]
    assert e["bandwidth"] == pytest.approx(moved * 1e9 / took)
    assert e["bytes_per_second"] == pytest.approx(moved * 1e9 / (high - low))
    mine = merged(((r[0], r[1]) for r in rows), low, high)
    alone = length(mine) - overlap(mine, computing(name, low, high))
    assert e["alone_ns"] == alone
    assert e["alone_wall_ratio"] == pytest.approx(alone / (high - low))
    if e["cadence"] and rule == "device_copies":
        starts = sorted(begun(name, [r[3] for r in rows]))
        apart = sorted(b - a for a, b in pairwise(starts))
        assert apart[0] <= e["cadence"]["period_ns"] <= apart[-1]
    calls = in_calls(name, [r[3] for r in rows])
    assert e["in_call_ns"] == sum(calls)
    assert e["in_call_window_ratio"] == pytest.approx(sum(calls) / window.length_ns)


def outermost(name: str) -> dict[int, Span]:
    """The runtime call of each correlation id, or the driver call where it is the only one; no rows of backtraces."""
    found: dict[int, Span] = {}
    query = (
        "SELECT correlationId, start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE eventClass IN (0, 1)"
        " ORDER BY start, end DESC"
    )
    for correlation, start, end in sql(unpacked(name), query):
        found.setdefault(correlation, (start, end))
    return found


def begun(name: str, correlations: list[int]) -> list[int]:
    calls = outermost(name)
    return [calls[c][0] for c in correlations]


def in_calls(name: str, correlations: list[int]) -> list[int]:
    calls = outermost(name)
    return [calls[c][1] - calls[c][0] for c in correlations]
