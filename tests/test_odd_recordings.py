"""Recordings that plausibly exist and once gave a wrong figure; the right one is held here."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from analyzed import MS, PID, TID, US, account, analyzed, check, machine
from export_builder import DEVICE, DTOH, HTOD, PAGEABLE, PINNED, global_id

from nsysparse.analysis import analyze
from nsysparse.findings import Failed
from nsysparse.integrity import Status
from nsysparse.outputs.json import to_json
from nsysparse.queries import load_queries, run_query
from nsysparse.source import open_trace
from tests.traces import trace_path

S = 1_000_000_000


def test_a_correlation_id_that_comes_again_is_another_call(tmp_path):
    b = machine()
    b.push_pop("first", S, S + 2 * MS, TID)
    b.push_pop("second", S + 10 * MS, S + 12 * MS, TID)
    for start, name, chain in ((S + MS, "cudaMemcpyAsync_v3020", 1), (S + 11 * MS, "cudaLaunchKernel_v7000", 2)):
        b.api(name, start, start + 20 * US, TID, 7)
        bare = name.split("_")[0]
        b.api(bare, start - 50, start + 20 * US + 50, TID, 7, event_class=67, callchain=chain)
    b.copy(S + MS + 5 * US, S + MS + 9 * US, 64, HTOD, PINNED, DEVICE, device=0, stream=7, correlation=7, pid=PID)
    b.kernel(S + 11 * MS + 5 * US, S + 11 * MS + 9 * US, device=0, stream=7, correlation=7, pid=PID)
    work = analyzed(b, tmp_path).work
    assert work.calls.height == 2
    kernel = work.kernels.join(work.ranges.paths, on="path").row(0, named=True)
    assert (str(kernel["api"]), kernel["text"], kernel["callchain"]) == ("cudaLaunchKernel", "second", 2)
    copy = work.copies.join(work.ranges.paths, on="path").row(0, named=True)
    assert (str(copy["api"]), copy["text"], copy["callchain"]) == ("cudaMemcpyAsync", "first", 1)


def test_an_instant_at_the_end_of_the_recording_counts(tmp_path):
    b = machine()
    b.memcpy(TID, (S, S + US), (S + 2 * US, S + 4 * US), 1_000, HTOD, PINNED, DEVICE)
    b.memcpy(TID, (S + 5 * US, S + 6 * US), (S + 9 * US, S + 9 * US), 64, DTOH, DEVICE, PINNED)
    table = account(b, tmp_path).tables["copies_by_kind"]
    assert dict(zip(table["kind_name"], table["bytes"], strict=True)) == {"HtoD": 1_000, "DtoH": 64}


def test_the_time_of_a_batched_copy_call_counts_once(tmp_path):
    b = machine()
    correlation = b.api("cudaMemcpyBatchAsync_v12080", S, S + MS, TID)
    for i in range(10):
        start = S + 10 * US * (i + 1)
        b.copy(
            start,
            start + 5 * US,
            1_000_000,
            HTOD,
            PAGEABLE,
            DEVICE,
            device=0,
            stream=7,
            correlation=correlation,
            pid=PID,
        )
    for name in ("copies_by_kind", "copies_by_api", "copies_by_sender"):
        row = account(b, tmp_path).tables[name].row(0, named=True)
        assert (row["count"], row["in_call_ns"]) == (10, MS)
        assert row["call_bandwidth"] == pytest.approx(10_000_000 / 1e-3)


def test_a_gap_that_a_migration_ends_is_no_threads(tmp_path):
    b = machine()
    b.launch(TID, (S, S + US), (S + 2 * US, S + 3 * MS))
    b.copy(S + 10 * MS, S + 11 * MS, 4_096, 11, 7, 7, device=0, stream=0, correlation=0, pid=PID)
    other = global_id(PID, PID + 1)
    b.launch(other, (S + 11 * MS, S + 11 * MS + US), (S + 12 * MS, S + 13 * MS))
    gaps = account(b, tmp_path).gaps.sort("start_ns")
    assert gaps["next"].to_list() == ["migrations", "kernels"]
    assert gaps["thread"].to_list() == [None, other]
    assert gaps["unknown thread"].to_list() == [7 * MS, 0]


def test_requests_count_whole_graphs_and_memsets(tmp_path):
    b = machine()
    for i in range(2):
        start = S + i * 10 * MS
        b.push_pop(f"step {i}", start, start + 5 * MS, TID)
        correlation = b.api("cudaGraphLaunch_v10000", start + MS, start + MS + US, TID)
        b.graph_trace(start + 2 * MS, start + 3 * MS, device=0, stream=7, correlation=correlation, pid=PID)
    correlation = b.api("cudaMemsetAsync_v3020", S + 40 * MS, S + 40 * MS + US, TID)
    b.memset(S + 41 * MS, S + 42 * MS, 64, device=0, stream=7, correlation=correlation, pid=PID)
    found = account(b, tmp_path, request_range="step").requests
    assert found.frame["graphs"].to_list() == [1, 1]
    assert found.frame["graph_ns"].to_list() == [MS, MS]
    assert found.unclaimed == 1


@pytest.mark.parametrize("offset", [0, 2**62])
def test_late_clocks_lose_nothing(tmp_path, offset):
    b = machine()
    start = S + offset
    b.memcpy(TID, (start, start + 10), (start + 50, start + 300), 1_000, HTOD, PINNED, DEVICE)
    timeline = account(b, tmp_path).timeline
    assert timeline["from_ns"][0] == start + 50
    width = timeline["to_ns"] - timeline["from_ns"]
    assert (timeline["copies_ratio"] * width).sum() == pytest.approx(250)
    assert (timeline["htod"] * width).sum() / 1e9 == pytest.approx(1_000)


def test_queries_leave_out_rows_without_usable_times(tmp_path):
    b = machine()
    b.launch(TID, (S, S + US), (S + 2 * US, S + 4 * US))
    b.kernel(S + MS, 0, device=0, stream=7, correlation=91, pid=PID)
    b.memcpy(TID, (S, S + US), (S + 5 * US, S + 6 * US), 10, HTOD, PINNED, DEVICE)
    b.copy(0, S + 9 * MS, 10, HTOD, PINNED, DEVICE, device=0, stream=7, correlation=92, pid=PID)
    queries = load_queries()
    with open_trace(b.write(tmp_path / "trace.sqlite")) as trace:
        assert run_query(trace, queries["kernels/by_name"])["time_ns"].to_list() == [2 * US]
        assert run_query(trace, queries["copies/by_kind"])["time_ns"].to_list() == [US]


def test_child_processes_without_cuda_are_no_loss(tmp_path):
    """Seen with a just-in-time compiler, whose assembler runs as 47 processes of its own."""
    said = (
        "No CUDA events collected. Does the process use CUDA?",
        "CUDA profiling might have not been started correctly.",
    )
    b = machine()
    b.launch(TID, (S, S + US), (S + 2 * US, S + 4 * US))

    def say(pid):
        for text in said:
            row = {"timestamp": 0, "timestampType": 2, "severity": 1, "source": 3, "text": text}
            b.row("DIAGNOSTIC_EVENT", globalPid=global_id(pid), **row)

    say(PID + 1)
    assert check(analyzed(b, tmp_path), "diagnostics").status is Status.OK
    say(PID)
    (tmp_path / "trace.sqlite").unlink()
    assert check(analyzed(b, tmp_path), "diagnostics").status is Status.INCOMPLETE


EXTREMES = {
    "bytes": "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET bytes = 9223372036854775807 WHERE rowid % 3 = 1",
    "ranges longer than 64 bits": "UPDATE NVTX_EVENTS SET start = -9223372036854775807 - 1, end = 9223372036854775807"
    " WHERE rowid % 3 = 1",
    "no correlation ids": "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = NULL",
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("change", EXTREMES.values(), ids=EXTREMES.keys())
def test_extreme_values_stop_nothing(tmp_path, change):
    path = tmp_path / "trace.sqlite"
    path.write_bytes(trace_path("eager_h2d").read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
        connection.commit()
        kernels = connection.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0]
    with open_trace(path) as trace:
        analysis = analyze(trace)
        assert analysis.work.kernels.height == kernels
        assert not [o for o in analysis.outcomes if isinstance(o, Failed)]
        assert to_json(analysis)
