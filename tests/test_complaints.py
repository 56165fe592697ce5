"""Complaints of people who do this job, one test each; the test's name says the complaint."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from analyzed import MS, NEWEST, PID, SECOND, TID, US, account, analyze_file, analyzed, check, machine, paths_of
from export_builder import (
    BACKTRACE,
    DEVICE,
    DRIVER,
    DTOD,
    DTOH,
    HTOD,
    PAGEABLE,
    PINNED,
    PTOP,
    RELEASES,
    UNKNOWN_MEMORY,
    ExportBuilder,
    global_id,
)
from export_scenario import standard_scenario

from nsysparse import schema
from nsysparse.outputs.json import MAX_ROWS, to_dict, to_json

T = SECOND  # where the small recordings begin
KNOWN_TABLES = sorted({source for table in schema.TABLES.values() for source in table.sources})


def at(first: int, last: int) -> tuple[int, int]:
    """Microseconds after T."""
    return T + first * US, T + last * US


@pytest.mark.parametrize("table", KNOWN_TABLES)
def test_no_such_table_on_a_valid_export(table: str, tmp_path: Path) -> None:
    b = ExportBuilder(NEWEST)
    standard_scenario(b)
    path = b.write(tmp_path / "trace.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"DROP TABLE IF EXISTS {table}")
    analysis = analyze_file(path)
    assert analysis.work.kernels.height == (0 if table == "CUPTI_ACTIVITY_KIND_KERNEL" else 17)
    assert analysis.work.copies.height == (0 if table == "CUPTI_ACTIVITY_KIND_MEMCPY" else 23)


def test_ranges_nameless(tmp_path: Path) -> None:
    b = machine()
    b.domain(5, "NCCL", tid=TID)
    ranges: list[tuple[str | None, dict[str, Any], str]] = [
        ("in place", {}, "in place"),
        ("registered", {"registered": True}, "registered"),
        ("in a domain", {"domain": 5}, "NCCL:in a domain"),
        ("registered in a domain", {"domain": 5, "registered": True}, "NCCL:registered in a domain"),
        ("of a domain without a name", {"domain": 6}, "domain 6:of a domain without a name"),
        (None, {}, "(unnamed)"),
        (None, {"textId": 999_999}, "(unnamed)"),
        ("", {}, ""),
    ]
    for i, (name, how, _) in enumerate(ranges):
        b.push_pop(name, *at(10 * i, 10 * i + 9), TID, **how)
        b.launch(TID, at(10 * i + 1, 10 * i + 2), at(10 * i + 3, 10 * i + 4))
    assert paths_of(analyzed(b, tmp_path), "kernels") == [(shown, "thread") for _, _, shown in ranges]


def test_utilization_above_100_percent(tmp_path: Path) -> None:
    b = machine()
    for stream in range(7, 17):  # ten streams at once
        b.launch(TID, at(stream, stream + 1), at(100, 200), stream=stream)
    f = account(b, tmp_path).figures()
    assert (f["kernels_ns"], f["busy_ns"], f["window_ns"]) == (100 * US, 100 * US, 100 * US)
    assert (f["kernels_ratio"], f["busy_ratio"], f["idle_ratio"]) == (1, 1, 0)


def test_a_streams_idle_sold_as_the_gpus(tmp_path: Path) -> None:
    b = machine()
    b.launch(TID, at(0, 1), at(10, 60), stream=7)
    b.launch(TID, at(1, 2), at(60, 110), stream=8)  # stream 7 has nothing to do, the GPU has
    device = account(b, tmp_path)
    assert device.figures()["idle_ns"] == 0
    assert device.gaps.height == 0


def test_copy_only_time_called_idle(tmp_path: Path) -> None:
    b = machine()
    b.launch(TID, at(0, 1), at(10, 20))
    b.memcpy(TID, at(11, 12), at(20, 90), 1_000_000, HTOD, PINNED, DEVICE)
    b.launch(TID, at(13, 14), at(95, 100))
    f = account(b, tmp_path).figures()
    assert (f["idle_ns"], f["kernels_ns"], f["copies_ns"], f["copies_exposed_ns"]) == (
        5 * US,
        15 * US,
        70 * US,
        70 * US,
    )


def test_sync_1912_percent_of_wall(tmp_path: Path) -> None:
    b = machine()
    threads = [b.thread(PID, PID + i, f"worker {i}") for i in range(20)]
    for i, tid in enumerate(threads):
        b.launch(tid, at(i, i + 1), at(50, 150), stream=7 + i)
        b.synchronize(tid, at(50, 150), stream=7 + i)
    device = account(b, tmp_path)
    assert device.figures()["host_blocked_ns"] == 100 * US == device.window.length_ns
    assert device.host.threads["blocked_ratio"].to_list() == [1.0] * 20


def test_ranges_of_start_end_type_ignored(tmp_path: Path) -> None:
    b = machine()
    for i in range(4):
        b.start_end(f"batch {i}", *at(100 * i, 100 * i + 90), TID)
        b.launch(TID, at(100 * i + 10, 100 * i + 11), at(100 * i + 20, 100 * i + 40))
    device = account(b, tmp_path, request_range="^batch")
    assert device.tables["start_end_ranges"].select("label", "count", "mean_ns").rows() == [("batch #", 4, 90_000.0)]
    assert device.requests is not None
    assert device.requests.frame is not None
    assert device.requests.frame["kernels"].to_list() == [1, 1, 1, 1]


def test_ranges_across_threads_lost(tmp_path: Path) -> None:
    b = machine()
    other = b.thread(PID, PID + 1, "sender")
    for i in range(3):
        b.start_end(f"request {i}", *at(100 * i, 100 * i + 90), TID, other)
        b.launch(TID, at(100 * i + 5, 100 * i + 6), at(100 * i + 10, 100 * i + 20))
        b.memcpy(other, at(100 * i + 50, 100 * i + 52), at(100 * i + 60, 100 * i + 80), 1000 + i, DTOH, DEVICE, PINNED)
    device = account(b, tmp_path, request_range="^request")
    assert device.requests is not None
    assert device.requests.frame is not None
    assert device.requests.frame.select("kernels", "copies", "dtoh_bytes", "latency_ns").rows() == [
        (1, 1, 1000 + i, 90_000) for i in range(3)
    ]
    assert device.requests.unclaimed == 0
    assert device.tables["start_end_ranges"]["across_threads"].to_list() == [3]


def test_phantom_iterations_from_a_librarys_own_nvtx(tmp_path: Path) -> None:
    b = machine()
    b.domain(1, "NCCL", tid=TID)
    for step in range(3):
        t = 1000 * step
        for i in range(10):  # far more of them, outermost, and they send more
            b.push_pop("ncclAllReduce", *at(t + 500 + 10 * i, t + 509 + 10 * i), TID, domain=1)
            b.launch(TID, at(t + 501 + 10 * i, t + 502 + 10 * i), at(t + 503 + 10 * i, t + 508 + 10 * i))
        b.push_pop(f"step {step}", *at(t, t + 400), TID)
        b.launch(TID, at(t + 10, t + 20), at(t + 30, t + 40))
    device = account(b, tmp_path, window=None)
    assert device.window.name == "steady"
    assert "3 ranges 'step #'" in device.window.basis
    assert device.requests is not None
    assert device.requests.count == 2


def _python_calls(ranges: int, folder: Path) -> int:
    """How many Python functions run while that many ranges are analyzed."""
    b = machine()
    for i in range(ranges):
        b.push_pop(f"range {i % 7}", *at(3 * i, 3 * i + 2), TID)
    b.launch(TID, at(0, 1), at(5, 3 * ranges))
    path = b.write(folder / "trace.sqlite")
    calls = 0

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        analyze_file(path)
    finally:
        sys.setprofile(None)
    return calls


def test_10_million_ranges_minutes_and_gigabytes(tmp_path: Path) -> None:
    _python_calls(10, tmp_path)  # imports
    few, many = _python_calls(1_000, tmp_path), _python_calls(9_000, tmp_path)
    assert many < few + 1_000, "a Python loop over ranges"


def test_graph_launches_counted_once_a_kernel(tmp_path: Path) -> None:
    b = machine()
    graph = b.api("cudaGraphLaunch_v10000", *at(0, 30), TID)
    for i in range(5):
        b.kernel(*at(10 + 10 * i, 20 + 10 * i), 0, 7, graph, PID, graph_node=i + 1)
    b.copy(*at(60, 80), 4096, DTOD, DEVICE, DEVICE, 0, 7, graph, PID, graphNodeId=9)
    analysis = analyzed(b, tmp_path, window="whole")
    device = analysis.devices[0]
    assert (analysis.work.calls.height, analysis.work.kernels.height) == (1, 5)
    assert device.host.threads.select("calls", "operations", "launch_ns").rows() == [(1, 6, 20 * US)]  # clipped
    assert device.tables["copies_by_api"].select("api", "count", "bytes").rows() == [("cudaGraphLaunch", 1, 4096)]


BAD_TIMES = [(0, 0), (0, T + 50 * US), (T + 50 * US, 0), (T + 50 * US, T + 10 * US), (T + 50 * US, None), (None, None)]


def test_zero_or_reversed_timestamps_crash_or_poison_sums(tmp_path: Path) -> None:
    b = machine()
    for table in ("KERNEL", "MEMCPY", "MEMSET"):
        b.tables[f"CUPTI_ACTIVITY_KIND_{table}"] = [
            [c[0], c[1]] for c in b.columns(f"CUPTI_ACTIVITY_KIND_{table}") or ()
        ]
    b.launch(TID, at(0, 1), at(10, 20))
    b.memcpy(TID, at(2, 3), at(30, 40), 500, HTOD, PINNED, DEVICE)
    for start, end in BAD_TIMES:
        correlation = b.api("cudaLaunchKernel_v7000", *at(41, 42), TID)
        b.kernel(start, end, 0, 7, correlation, PID)  # type: ignore[arg-type]
        b.copy(start, end, 1 << 40, HTOD, PINNED, DEVICE, 0, 7, correlation, PID)  # type: ignore[arg-type]
        b.memset(start, end, 8, 0, 7, correlation, PID)  # type: ignore[arg-type]
    b.api("cudaFree_v3020", T + 50 * US, T + 45 * US, TID)
    analysis = analyzed(b, tmp_path, window="whole")
    f = analysis.devices[0].figures()
    assert (f["window_ns"], f["busy_ns"], f["copies_ns"]) == (30 * US, 20 * US, 10 * US)
    assert sum(analysis.devices[0].tables["copies_by_kind"]["bytes"]) == 500
    clocks = check(analysis, "clocks")
    assert clocks.status.value == "suspect"
    assert clocks.evidence["untimed"] == {"kernels": 6, "copies": 6, "memsets": 6}
    assert clocks.evidence["reversed_calls"] == 1


def test_a_device_with_nothing_but_zero_timestamps_crashes(tmp_path: Path) -> None:
    b = machine(gpus=2)
    b.launch(TID, at(0, 1), at(10, 20))
    b.launch(TID, at(2, 3), (0, 0), device=1)
    analysis = analyzed(b, tmp_path)
    assert [d.device["gpu"] for d in analysis.devices] == [0]
    assert check(analysis, "clocks").evidence["untimed"] == {"kernels": 1}


def test_idle_share_dominated_by_model_loading(tmp_path: Path) -> None:
    b = machine()
    for i in range(10):  # 10 s of loading, with gaps in which files are read
        b.memcpy(
            TID, (T + i * SECOND, T + i * SECOND + MS), (T + i * SECOND, T + i * SECOND + MS), 10**9, HTOD, 0, DEVICE
        )
    serving = T + 10 * SECOND
    for i in range(100):  # 100 ms of serving, never idle for long
        b.launch(TID, (serving + i * MS, serving + i * MS + US), (serving + i * MS + US, serving + (i + 1) * MS))
    analysis = analyzed(b, tmp_path)
    loading = analysis.devices[0].loading
    assert loading is not None
    assert loading.end_ns <= serving
    assert loading.wall_ratio > 0.7
    assert any("loads a model" in sentence and "loading is not serving" in sentence for sentence in analysis.verdict)
    served = account(b, tmp_path, window=f"{serving / 1e9}s..").figures()
    assert served["idle_ratio"] < 0.01


def test_zero_kernels_reported_as_an_improvement(tmp_path: Path) -> None:
    b = machine()
    for i in range(10):
        b.api("cudaLaunchKernel_v7000", *at(10 * i, 10 * i + 5), TID)
    analysis = analyzed(b, tmp_path)
    assert analysis.devices == ()
    assert "No GPU operation was recorded, though 10 CUDA API calls were" in analysis.verdict[0]
    assert analysis.integrity.status.value == "incomplete"
    assert all(row["operations_ratio"] is None for row in analysis.coverage.to_dicts())


def test_a_copy_with_an_unknown_kind_crashes(tmp_path: Path) -> None:
    b = machine()
    columns = "CUPTI_ACTIVITY_KIND_MEMCPY"
    b.tables[columns] = [[c[0], c[1]] for c in b.columns(columns) or ()]
    b.memcpy(TID, at(0, 1), at(10, 20), 100, 99, 42, 43)
    b.memcpy(TID, at(2, 3), at(30, 40), 200, None, None, None)  # type: ignore[arg-type]
    b.memcpy(TID, at(4, 5), at(50, 60), 400, 0, UNKNOWN_MEMORY, UNKNOWN_MEMORY, copyCount=None)
    table = account(b, tmp_path).tables["copies_by_kind"]
    rows = set(table.select("kind_name", "src", "dst", "count", "bytes").rows())
    assert rows == {
        ("kind 99", "kind 42", "kind 43", 1, 100),
        ("n/a", "n/a", "n/a", 1, 200),
        ("Unknown", "Unknown", "Unknown", 1, 400),
    }


def test_peer_copies_missed_or_doubled(tmp_path: Path) -> None:
    b = machine(gpus=2)
    there = {"api": "cudaMemcpyPeerAsync_v4000", "src_device": 0, "dst_device": 1}
    back = {"api": "cudaMemcpyPeerAsync_v4000", "src_device": 1, "dst_device": 0, "device": 1, "stream": 15}
    for i in range(3):
        b.memcpy(TID, at(i, i + 1), at(100 * i + 10, 100 * i + 60), 8_000_000, PTOP, DEVICE, DEVICE, **there)
    b.memcpy(TID, at(5, 6), at(500, 600), 1_000_000, PTOP, DEVICE, DEVICE, **back)
    tables = [d.tables["copies_by_kind"] for d in analyzed(b, tmp_path, window="whole").devices]
    rows = [table.select("kind_name", "peer", "count", "bytes").rows() for table in tables]
    assert rows == [[("PtoP", "GPU 0 to GPU 1", 3, 24_000_000)], [("PtoP", "GPU 1 to GPU 0", 1, 1_000_000)]]


@pytest.mark.parametrize("api", ["cuMemcpyHtoDAsync_v2", "cuMemcpyHtoD_v2_ptds", "cuMemcpyAsync_ptsz", "cuMemcpy2D_v2"])
def test_driver_api_copies_missed(api: str, tmp_path: Path) -> None:
    b = machine()
    b.memcpy(TID, at(0, 50), at(10, 40), 5000, HTOD, PAGEABLE, DEVICE, api=api)
    device = account(b, tmp_path)
    plain = api.split("_", maxsplit=1)[0]
    assert device.tables["copies_by_api"].select("api", "bytes", "in_call_ns").rows() == [(plain, 5000, 50 * US)]
    assert device.figures()["host_blocked_ns"] == 30 * US  # pageable: it waits, whatever its name; clipped
    assert device.host.threads["copy_ns"].to_list() == [30 * US]


def test_two_processes_share_correlation_ids(tmp_path: Path) -> None:
    b = machine()
    other = global_id(PID + 1, PID + 1)
    b.cuda_device(PID + 1, 0, 0)
    for i in range(4):
        b.push_pop("mine", *at(100 * i, 100 * i + 40), TID)
        b.push_pop("theirs", *at(100 * i + 50, 100 * i + 90), other)
        b.launch(TID, at(100 * i + 1, 100 * i + 2), at(100 * i + 10, 100 * i + 20))
        b.launch(other, at(100 * i + 51, 100 * i + 52), at(100 * i + 60, 100 * i + 70))
    analysis = analyzed(b, tmp_path, window="whole")
    assert paths_of(analysis, "kernels") == [("mine", "thread"), ("theirs", "thread")] * 4
    assert [d.device["processes"] for d in analysis.devices] == [f"{PID}, {PID + 1}"]
    assert analysis.devices[0].figures()["kernels_ns"] == 80 * US


def test_backtrace_rows_double_the_bytes(tmp_path: Path) -> None:
    b = machine()
    for i in range(3):
        t = 100 * i
        ids = b.memcpy(TID, at(t, t + 50), at(t + 10, t + 40), 1000, HTOD, PAGEABLE, DEVICE)
        b.api("cuMemcpyHtoDAsync_v2", *at(t + 5, t + 45), TID, ids, DRIVER)
        b.api("cudaMemcpyAsync", *at(t, t + 50), TID, ids, BACKTRACE, callchain=i)
    analysis = analyzed(b, tmp_path, window="whole")
    assert analysis.work.calls.frame.select("name", "callchain").rows() == [("cudaMemcpyAsync", i) for i in range(3)]
    by_api = analysis.devices[0].tables["copies_by_api"].select("api", "count", "bytes", "in_call_ns")
    assert by_api.rows() == [("cudaMemcpyAsync", 3, 3000, 150 * US)]


def test_unified_memory_rows_poison_joins_and_bandwidth(tmp_path: Path) -> None:
    b = machine()
    b.memcpy(TID, at(0, 5), at(10, 20), 1000, HTOD, PINNED, DEVICE)
    for i, kind in enumerate((11, 12, 13)):  # no call, no stream, no context
        zero = {"contextId": 0, "migrationCause": 1}
        b.copy(*at(30 + 10 * i, 35 + 10 * i), 65_536, kind, UNKNOWN_MEMORY, UNKNOWN_MEMORY, 0, 0, 0, PID, **zero)
    analysis = analyzed(b, tmp_path, window="whole")
    device = analysis.devices[0]
    assert device.tables["copies_by_kind"].select("kind_name", "bytes").rows() == [("HtoD", 1000)]
    assert device.tables["migrations"]["bytes"].to_list() == [65_536] * 3
    assert (device.figures()["copies_ns"], device.figures()["migrations_ns"]) == (10 * US, 15 * US)
    assert analysis.coverage["operations_ratio"].to_list()[0] == 1.0


def test_json_too_large_for_the_viewer(tmp_path: Path) -> None:
    b = machine()
    for i in range(3 * MAX_ROWS):  # each kernel has a name of its own, each range too
        b.push_pop(f"{i:x}".translate(str.maketrans("0123456789", "ghijklmnop")), *at(4 * i, 4 * i + 3), TID)
        b.launch(TID, at(4 * i, 4 * i + 1), at(4 * i + 1, 4 * i + 2), name=f"kernel_{i}")
    analysis = analyzed(b, tmp_path)
    tables = to_dict(analysis)["devices"][0]["tables"]
    kernels, paths = tables["kernels"], tables["nvtx_paths"]
    assert (len(kernels["rows"]), kernels["rows_total"]) == (MAX_ROWS, 3 * MAX_ROWS)
    assert (len(paths["rows"]), paths["rows_total"]) == (MAX_ROWS, 3 * MAX_ROWS)
    assert len(to_json(analysis)) < 5_000_000
    json.loads(to_json(analysis))


def test_the_tool_wrote_indexes_into_the_users_trace(tmp_path: Path) -> None:
    path = machine().write(tmp_path / "trace.sqlite")
    before = path.read_bytes()
    analyze_file(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["trace.sqlite"]


def test_copy_counts_of_batched_copies(tmp_path: Path) -> None:
    b = machine()
    b.memcpy(TID, at(0, 5), at(10, 20), 1000, HTOD, PINNED, DEVICE, copyCount=8)
    b.memcpy(TID, at(6, 7), at(30, 40), 500, HTOD, PINNED, DEVICE, copyCount=None)
    device = account(b, tmp_path)
    assert device.tables["copies_by_kind"].select("count", "bytes").rows() == [(9, 1500)]


@pytest.mark.parametrize("release", RELEASES[::6])
def test_synchronizations_are_told_by_the_apis_name(release: str, tmp_path: Path) -> None:
    """syncType's numbers changed three times: only the API's name tells what waits."""
    b = machine(release)
    b.launch(TID, at(0, 1), at(5, 100))
    for i, api in enumerate(
        ["cudaStreamSynchronize", "cudaEventSynchronize", "cuCtxSynchronize", "cudaStreamWaitEvent"]
    ):
        ids = b.api(f"{api}_v3020", *at(10 + 20 * i, 20 + 20 * i), TID)
        b.sync(*at(10 + 20 * i, 20 + 20 * i), 0, 7, ids, PID, sync_type=4 - i)
    b.api("cudaStreamQuery_v3020", *at(92, 98), TID)
    assert account(b, tmp_path).figures()["host_blocked_ns"] == 30 * US
