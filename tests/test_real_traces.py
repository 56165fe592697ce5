"""The real recordings: every figure equal to the census table, to plain SQL, or to NVIDIA's own reports."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from independent import length, merged, oracle, overlap, sql
from traces import NAMES, trace_path

from nsysparse.accounting.nvtx import project_ranges
from nsysparse.integrity import Status
from nsysparse.joins.work import load_work
from nsysparse.source import open_trace

# The same programs counted by a census in separate runs: kernels, HtoD, DtoH, other (copies, bytes), memsets.
CENSUS = {
    "eager_h2d": (1609, (208, 119_570_432), (200, 52_428_800), None, (0, 0)),
    "pinned_overlap": (1609, (209, 119_832_576), (0, 0), None, (0, 0)),
    "state_checkpoint": (2571, (8, 67_141_632), (16, 640_000_000), None, (0, 0)),
    "train_item": (2771, (4, 33_574_912), (60, 240), None, (120, 7_920)),
    "threads": (1449, (168, 88_113_152), (160, 320), None, (0, 0)),
    "loader": (657, (48, 77_627_392), (0, 0), None, (160, 81_920)),
    "graph_replay_node": (420, (107, 21_897_216), (103, 13_500_416), None, (0, 0)),
    "p2p": (1, (0, 0), (0, 0), ("PtoP", 60, 480_000_000), (0, 0)),
}
KINDS = ("kernels", "copies", "memsets")
TABLES = {
    "kernels": "CUPTI_ACTIVITY_KIND_KERNEL",
    "copies": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memsets": "CUPTI_ACTIVITY_KIND_MEMSET",
    "graphs": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
}


def copies_of(analysis, kind):
    count = size = 0
    for account in analysis.devices:
        table = account.tables["copies_by_kind"].filter(pl.col("kind_name") == kind)
        count, size = count + table["count"].sum(), size + table["bytes"].sum()
    return count, size


@pytest.mark.parametrize("name", CENSUS)
def test_counts_and_bytes_equal_the_census(analysis_of, name):
    kernels, htod, dtoh, other, memsets = CENSUS[name]
    analysis = analysis_of(name, "whole")
    assert sum(a.tables["kernels"]["count"].sum() for a in analysis.devices) == kernels
    assert copies_of(analysis, "HtoD") == htod
    assert copies_of(analysis, "DtoH") == dtoh
    if other:
        assert copies_of(analysis, other[0]) == other[1:]
    found = [a.tables["memsets"] for a in analysis.devices]
    assert (sum(t["count"].sum() for t in found), sum(t["bytes"].sum() for t in found)) == memsets


def test_server_saves_its_state_only_by_default(analysis_of):
    saved = {}
    for name in ("llama_default", "llama_nosave"):
        table = analysis_of(name, "whole").devices[0].tables["copies_by_kind"]
        row = table.filter((pl.col("kind_name") == "DtoH") & (pl.col("dst") == "Pageable"))
        saved[name] = (row["count"].sum(), row["bytes"].sum())
    # Both sides: what the default saved, and that turning it off left nothing of it.
    assert saved == {"llama_default": (1344, 1_444_380_672), "llama_nosave": (0, 0)}


@pytest.mark.parametrize("name", NAMES)
def test_copies_by_kind_equal_plain_sql(analysis_of, name):
    path = trace_path(name)
    expected = sql(
        path,
        "SELECT deviceId, copyKind, srcKind, dstKind, count(*), sum(bytes), sum(end - start), min(bytes), max(bytes)"
        " FROM CUPTI_ACTIVITY_KIND_MEMCPY GROUP BY 1, 2, 3, 4",
    )
    copy_names = dict(sql(path, "SELECT id, label FROM ENUM_CUDA_MEMCPY_OPER"))
    memory = dict(sql(path, "SELECT id, label FROM ENUM_CUDA_MEM_KIND"))
    short = {
        "Host-to-Device": "HtoD",
        "Device-to-Host": "DtoH",
        "Device-to-Device": "DtoD",
        "Peer-to-Peer": "PtoP",
    }
    wanted = {
        (device, short[copy_names[kind]], memory[src], memory[dst]): tuple(figures)
        for device, kind, src, dst, *figures in expected
    }
    columns = ["count", "bytes", "time_ns", "min_bytes", "max_bytes"]
    found = {}
    for account in analysis_of(name, "whole").devices:
        groups = (
            account.tables["copies_by_kind"]
            .group_by("kind_name", "src", "dst")
            .agg(pl.col(columns[:3]).sum(), pl.col("min_bytes").min(), pl.col("max_bytes").max())
        )
        for kind, src, dst, *figures in groups.select("kind_name", "src", "dst", *columns).iter_rows():
            found[account.device["ordinal"], kind, src, dst] = tuple(figures)
    assert found == wanted


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("window", ["whole", None])
def test_busy_and_exposed_equal_a_plain_sweep(analysis_of, name, window):
    path = trace_path(name)
    present = {n for (n,) in sql(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    for account in analysis_of(name, window).devices:
        low, high = account.window.start_ns, account.window.end_ns
        union = {
            kind: merged(
                sql(path, f"SELECT start, end FROM {table} WHERE deviceId = ?", account.device["ordinal"]), low, high
            )
            if table in present
            else []
            for kind, table in TABLES.items()
        }
        compute = merged([*union["kernels"], *union["graphs"]], low, high)
        everything = merged([s for spans in union.values() for s in spans], low, high)
        figures = account.figures()
        for kind in TABLES:
            assert figures[f"{kind}_ns"] == length(union[kind])
        assert figures["busy_ns"] == length(everything)
        assert figures["idle_ns"] == high - low - length(everything)
        assert figures["copies_overlapped_ns"] == overlap(union["copies"], compute)
        assert figures["copies_exposed_ns"] == length(union["copies"]) - overlap(union["copies"], compute)
        exposed = {t: account.tables[t]["exposed_ns"].sum() for t in account.tables if "copies_by" in t}
        assert set(exposed.values()) == {figures["copies_exposed_ns"]}
        gaps = account.tables["idle_by_length"]
        assert gaps["idle_ns"].sum() == figures["idle_ns"]
        assert (
            gaps.select(pl.all().exclude("length", "count", "idle_ns", "idle_ratio")).sum().sum_horizontal().item()
            == (figures["idle_ns"])
        )


# Wall, busy, kernels, copies, exposed, held up, host in copy or synchronize calls; computed three independent ways.
EXPERT = {
    ("eager_h2d", "ranges"): (1_012_860_453, 8_184_030, 5_358_440, 2_825_590, 2_825_590, 0, 25_208_702),
    ("eager_h2d", "steady"): (855_888_400, 8_136_990, 5_325_800, 2_811_190, 2_811_190, 0, 24_853_264),
    ("pinned_overlap", "ranges"): (167_113_056, 6_840_547, 5_354_629, 1_485_918, 1_485_918, 0, 1_042_228),
    ("pinned_overlap", "steady"): (54_284_744, 6_796_643, 5_321_701, 1_474_942, 1_474_942, 0, 1_024_473),
}


@pytest.mark.parametrize(("name", "window"), EXPERT)
def test_figures_are_the_experts(analysis_of, name, window):
    figures = analysis_of(name, window).devices[0].figures()
    names = ("window", "busy", "kernels", "copies", "copies_exposed", "held_up", "host_in_copy_or_sync")
    assert tuple(figures[f"{n}_ns"] for n in names) == EXPERT[name, window]


@pytest.mark.parametrize("name", ["state_checkpoint", "threads", "train_item"])
@pytest.mark.parametrize("window", ["ranges", "steady"])
def test_host_in_copy_or_sync_equals_plain_sql(analysis_of, name, window):
    """All threads that feed the device count; in "threads" none feeds it more than others."""
    path, account = trace_path(name), analysis_of(name, window).devices[0]
    low, high = account.window.start_ns, account.window.end_ns
    kernels, copies = (
        merged(sql(path, f"SELECT start, end FROM CUPTI_ACTIVITY_KIND_{table}"), low, high)
        for table in ("KERNEL", "MEMCPY")
    )
    waiting = merged(
        sql(
            path,
            "SELECT start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME AS r JOIN StringIds AS s ON s.id = r.nameId"
            " WHERE eventClass IN (0, 1) AND (value LIKE '%Memcpy%' OR value LIKE '%Synchronize%')",
        ),
        low,
        high,
    )
    figures = account.figures()
    assert figures["host_in_copy_or_sync_ns"] == length(waiting)
    beside = merged([*kernels, *waiting], low, high)  # of exposed copies what lies in no waiting call is in neither
    exposed = length(copies) - overlap(copies, kernels)
    assert figures["host_blocked_in_copies_ns"] == exposed - (length(copies) - overlap(copies, beside))


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_has_its_one_call(name):
    with open_trace(trace_path(name)) as trace:
        work = load_work(trace)  # with their ids
    for kind in KINDS:
        frame = getattr(work, kind)
        expected = (
            sql(
                trace_path(name),
                f"SELECT count(*), sum(end - start) FROM {TABLES[kind]}",
            )
            if frame.height
            else [(0, None)]
        )
        assert (frame.height, (frame["end_ns"] - frame["start_ns"]).sum() or None) == expected[0]
        assert frame["call"].null_count() == 0
        ids = work.calls.at(frame["call"].to_numpy())["correlation"]
        assert (ids == frame["correlation"]).all()


def test_backtrace_rows_do_not_multiply_calls(analysis_of):
    path = trace_path("llama_default")
    (expected,) = sql(path, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE eventClass IN (0, 1)")
    work = analysis_of("llama_default", "whole").work
    assert work.calls.recorded.calls == expected[0]
    (stacks,) = sql(path, "SELECT count(callchainId) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE eventClass = 67")
    assert work.calls.recorded.with_stack == stacks[0]


@pytest.mark.parametrize("name", NAMES)
def test_projection_of_push_pop_ranges_equals_nsys(analysis_of, name):
    """Where they differ: nsys projects no whole graph (graph mode), and counts the nodes of a graph as one operation.

    nsys writes a range of the default domain as ":name". Both leave out ranges without an operation, and both take
    push/pop ranges by the call's own thread.
    """
    expected = {
        row["Range"].removeprefix(":"): (
            int(row["Range Instances"]),
            int(row["Total Proj Time (ns)"]),
            int(row["Total Range Time (ns)"]),
            int(row["Total GPU Ops"]),
        )
        for row in oracle(name, "nvtx_gpu_proj_sum")
        if row["Style"] == "PushPop"
    }
    work = analysis_of(name, "whole").work
    if work.graphs.height:
        assert not expected
        assert project_ranges(work)["operations"].sum() == work.graphs.height
        work = replace(work, graphs=work.graphs.clear())
    projected = {row[0]: row[1:] for row in project_ranges(work).iter_rows()}
    assert {n: r[:3] for n, r in projected.items()} == {n: r[:3] for n, r in expected.items()}
    launches = work.all().group_by("call").len()["len"]
    if launches.max() == 1:
        assert projected == expected
    else:  # node mode: a graph launch has many operations
        assert sum(r[3] for r in expected.values()) == sum(
            work.all().filter(pl.col("path") > 0)["call"].n_unique() for _ in expected
        )


@pytest.mark.parametrize("name", NAMES)
def test_kernels_of_ranges_equal_nsys(analysis_of, name):
    """Where they differ: nsys doubles times where a launch has a backtrace row, and places no kernel in time.

    nsys gives a kernel to every push/pop range around its launch. With --cudabacktrace a launch has two API rows, over
    which its "Total Time" is summed, while its count and mean are of the kernels: count times mean is held against.
    """
    analysis = analysis_of(name, "whole")
    expected: dict[str | None, list[float]] = {}
    for row in oracle(name, "nvtx_kern_sum"):
        if row["Style"] == "StartEnd":  # may overlap and cross threads: no level of a path here
            continue
        figure = expected.setdefault(row["NVTX Range"].removeprefix(":") or None, [0, 0, 0])
        figure[0] += int(row["Kern Inst"])
        figure[1] += float(row["Avg (ns)"]) * int(row["Kern Inst"])
        figure[2] += int(row["Total Time (ns)"])
    found = kernels_of_ranges(analysis.work) if expected else {}
    assert {n: f[0] for n, f in found.items()} == {n: f[0] for n, f in expected.items()}
    doubled = analysis.work.calls.recorded.with_stack > 0
    for range_name, (count, time) in found.items():
        assert time == pytest.approx(expected[range_name][1], abs=0.05 * count + 1)
        if not doubled:
            assert time == expected[range_name][2]


def kernels_of_ranges(work):
    """Kernels and their time under each range name, by a loop over the ranges around each launch."""
    ranges, nesting = work.ranges.frame, work.ranges.nesting
    kernels = work.kernels.filter(pl.col("path_by").cast(pl.String) == "thread")
    node = nesting.enclosing(kernels["thread"], work.calls["start_ns"].gather(kernels["call"]))
    names, rows, parents = ranges["name"].to_list(), nesting.row.tolist(), nesting.parent.tolist()
    found: dict[str | None, tuple[int, int]] = {}
    outside = work.kernels.filter(pl.col("path_by").cast(pl.String) != "thread")
    if outside.height:
        found[None] = (outside.height, (outside["end_ns"] - outside["start_ns"]).sum())
    for at, took in zip(node.tolist(), (kernels["end_ns"] - kernels["start_ns"]).to_list(), strict=True):
        step = at
        while rows[step] >= 0:
            name = names[rows[step]]
            count, time = found.get(name, (0, 0))
            found[name] = (count + 1, time + took)
            step = parents[step]
    return found


def test_autograd_kernels_are_placed_in_time_and_counted_apart(analysis_of):
    table = analysis_of("train_item", "whole").devices[0].tables["nvtx_paths"]
    placed = table.filter(pl.col("path_by") == "in time")
    assert placed.filter(pl.col("kernels") > 0).select("text", "kernels").rows() == [("train_step/backward", 480)]
    coverage = {r["measure"]: r for r in analysis_of("train_item", "whole").coverage.to_dicts()}
    assert coverage["nvtx_in_time"]["operations"] == 480
    assert coverage["call"]["operations_ratio"] == 1


@pytest.mark.parametrize("name", NAMES)
def test_only_the_lossy_recording_is_called_incomplete(analysis_of, name):
    verdict = analysis_of(name).integrity
    expected = Status.INCOMPLETE if name == "pinned_overlap_lossy" else Status.OK
    assert verdict.status is expected, verdict.summary


def test_what_the_lossy_recording_lacks(analysis_of):
    analysis = analysis_of("pinned_overlap_lossy")
    checks = {c.id: c for c in analysis.integrity.checks}
    assert checks["id_jumps"].evidence["largest_jump"] == 20_160
    empty = checks["empty_ranges"].evidence
    assert (empty["label"], empty["ranges"], empty["all"], empty["confirmed"]) == ("request", 107, 200, True)
    before, after = sql(
        trace_path("pinned_overlap_lossy"),
        "SELECT max(CASE WHEN correlationId < 3000 THEN end END), min(CASE WHEN correlationId > 20000 THEN start END)"
        " FROM CUPTI_ACTIVITY_KIND_RUNTIME",
    )[0]
    hole = next(h for h in analysis.integrity.holes if h.sign == "id_jumps")
    assert (hole.start_ns, hole.end_ns) == (before, after)
    figures = analysis.devices[0].figures()
    assert figures["hole_ns"] > 0  # its shares are marked
    assert "incomplete" in " ".join(analysis.verdict)


def test_graph_mode_says_what_it_hides(analysis_of):
    checks = {c.id: c for c in analysis_of("graph_replay_graph").integrity.checks}
    assert checks["graphs"].status is Status.NOTE
    assert checks["graphs"].evidence["graph_rows"] == 100
    assert "--cuda-graph-trace=node" in checks["graphs"].summary
    # Calls captured into graphs have no row and are not lost.
    assert checks["missing_rows"].evidence["captured_into_graphs"] == 6
    assert checks["missing_rows"].status is Status.OK


def test_requests_of_the_state_checkpoint(analysis_of):
    account = analysis_of("state_checkpoint").devices[0]
    requests = account.requests
    assert (requests.count, requests.unclaimed) == (15, 0)
    assert requests.frame["dtoh_bytes"].to_list() == [40_000_000] * 15
    assert requests.frame["kernels"].to_list() == [160] * 15
    walls = sql(
        trace_path("state_checkpoint"),
        "SELECT end - start FROM NVTX_EVENTS WHERE eventType = 59 AND text LIKE 'request:%' ORDER BY start",
    )
    assert requests.frame["latency_ns"].to_list() == [w for (w,) in walls][1:]
    row = requests.distribution().filter(pl.col("figure") == "latency_ns").row(0, named=True)
    ordered = sorted(w for (w,) in walls[1:])
    assert row["median"] == ordered[7]
    assert row["p95"] == pytest.approx(ordered[13] + 0.3 * (ordered[14] - ordered[13]))
