"""What a sampling profiler would have shown: exact shares, expected errors, and a simulated sampler."""

from __future__ import annotations

import math
import random
from pathlib import Path

import polars as pl
import pytest
from independent import length, merged, sql
from rules.program import DEVICE, DTOH, HTOD, MS, PAGEABLE, PINNED, US, Program, serve
from traces import trace_path


def program() -> Program:
    p = Program()

    def step(_: int) -> None:
        p.copy(400_000, HTOD, PAGEABLE, DEVICE, 100 * US)
        p.launch(300 * US)
        p.copy(400_000, DTOH, DEVICE, PINNED, 50 * US)
        p.sync()

    return serve(p, 500, step)


def row(frame: pl.DataFrame, kind: str) -> dict:
    return frame.filter(pl.col("kind_name") == kind).row(0, named=True)


def test_shares_are_exact_and_errors_are_a_fair_samplers(tmp_path: Path) -> None:
    p = program()
    (account,) = p.analyze(tmp_path).devices
    table = account.tables["sampling"]
    window = account.window
    into = row(table, "HtoD")
    assert into["count"] == 499
    assert into["time_ns"] == 499 * 100 * US
    share = 499 * 100 * US / window.length_ns
    assert into["window_ratio"] == pytest.approx(share)
    for rate in (10, 100, 1000):
        n = window.length_ns / 1e9 * rate
        assert into[f"samples_{rate}"] == pytest.approx(n)
        assert into[f"error_{rate}"] == pytest.approx(math.sqrt(share * (1 - share) / n))
        assert into[f"missed_{rate}"] == pytest.approx(1 - 100e-6 * rate)
        assert into[f"unseen_{rate}"] == pytest.approx((1 - share) ** n)


def test_a_simulated_sampler_agrees(tmp_path: Path) -> None:
    """Looks at random instants, as many as 1,000 Hz would take; a thousand times over."""
    p = program()
    (account,) = p.analyze(tmp_path).devices
    into = row(account.tables["sampling"], "HtoD")
    window, rng = account.window, random.Random(4)
    spans = [(s, e) for s, e in p.copies if e - s == 100 * US and s >= window.start_ns]
    starts = [s for s, _ in spans]
    n = round(into["samples_1000"])
    estimates = []
    for _ in range(1_000):
        hits = 0
        for _ in range(n):
            t = rng.randrange(window.start_ns, window.end_ns)
            at = _last(starts, t)
            hits += at >= 0 and t < spans[at][1]
        estimates.append(hits / n)
    mean = sum(estimates) / len(estimates)
    spread = math.sqrt(sum((x - mean) ** 2 for x in estimates) / len(estimates))
    assert mean == pytest.approx(into["window_ratio"], rel=0.02)
    assert spread == pytest.approx(into["error_1000"], rel=0.1)


def _last(starts: list[int], t: int) -> int:
    low, high = 0, len(starts)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if starts[middle] <= t else (low, middle)
    return low - 1


def test_a_cpu_sampler_sees_calls_only(tmp_path: Path) -> None:
    """A sample every 37 us: as many in the pageable copies as their calls take, hardly one in the pinned ones."""
    p = program()
    for t in range(p.b.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][0]["start"], p.now, 37 * US):
        p.b.sample(t, p.tid, [("main", "server")])
    (account,) = p.analyze(tmp_path).devices
    into, out = (row(account.tables["sampling"], kind) for kind in ("HtoD", "DtoH"))
    assert into["cpu_sample_ratio"] == pytest.approx(into["in_call_ratio"], rel=0.05)
    assert out["in_call_ratio"] < 0.02 < out["window_ratio"]
    assert out["cpu_sample_ratio"] == pytest.approx(out["in_call_ratio"], abs=0.01)
    assert into["cpu_samples_of"] == pytest.approx(account.window.length_ns / (37 * US), abs=2)


def test_without_samples_their_share_is_unknown(tmp_path: Path) -> None:
    (account,) = program().analyze(tmp_path).devices
    assert account.tables["sampling"]["cpu_sample_ratio"].null_count() == 2


def test_rates_are_an_option(tmp_path: Path) -> None:
    (account,) = program().analyze(tmp_path, sampling_hz=(4_000,)).devices
    assert "error_4000" in account.tables["sampling"].columns
    assert "error_10" not in account.tables["sampling"].columns
    assert row(account.tables["sampling"], "HtoD")["missed_4000"] == pytest.approx(0.6)


def test_long_operations_are_never_missed(tmp_path: Path) -> None:
    p = Program()
    for _ in range(5):
        p.copy(400_000_000, HTOD, PAGEABLE, DEVICE, 20 * MS)
        p.launch(MS)
    (account,) = p.analyze(tmp_path).devices
    into = row(account.tables["sampling"], "HtoD")
    assert (into["missed_100"], into["missed_1000"]) == (0, 0)
    assert into["missed_10"] == pytest.approx(0.8)


def test_state_checkpoint_by_sql(analysis_of) -> None:
    """The copies of 40 MB: their share of the window, and the samples of their thread that fell into their calls."""
    path = trace_path("state_checkpoint")
    (account,) = analysis_of("state_checkpoint").devices
    low, high = account.window.start_ns, account.window.end_ns
    out = row(account.tables["sampling"], "DtoH")
    copies = sql(path, "SELECT start, end FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind = 2")
    assert out["time_ns"] == length(merged(copies, low, high))
    inside = sql(
        path,
        """
        SELECT count(DISTINCT e.id) FROM COMPOSITE_EVENTS e JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
        ON r.globalTid = e.globalTid AND e.start >= r.start AND e.start < r.end AND r.eventClass IN (0, 1)
        JOIN CUPTI_ACTIVITY_KIND_MEMCPY m ON m.correlationId = r.correlationId AND m.copyKind = 2
        WHERE e.start >= ? AND e.start < ? AND m.start >= ?
        """,
        low,
        high,
        low,
    )[0][0]
    everywhere = sql(
        path,
        "SELECT count(*) FROM COMPOSITE_EVENTS WHERE start >= ? AND start < ? AND globalTid ="
        " (SELECT globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME GROUP BY 1 ORDER BY count(*) DESC LIMIT 1)",
        low,
        high,
    )[0][0]
    assert (out["cpu_samples"], out["cpu_samples_of"]) == (inside, everywhere)
    assert out["cpu_sample_ratio"] > 0.5  # the thread is in them: here a CPU sampler would have told
