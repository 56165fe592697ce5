"""Statistics against plain SQL, brute force and hand-made recordings; the command; the notes."""

import csv
import io
import json
import re
import sqlite3
import statistics
from contextlib import closing
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from export_builder import DOMAIN, RELEASES, ExportBuilder, global_id
from export_scenario import standard_scenario
from independent import sql
from traces import trace_path

from nsysparse.cli.stats import command
from nsysparse.cli.stats_table import GAP, columns_of, print_table, that_fit, width_of, widths
from nsysparse.errors import UsageError
from nsysparse.joins.work import load_work
from nsysparse.outputs.frames import tables_of
from nsysparse.outputs.perfetto import write_perfetto
from nsysparse.outputs.tables import printed, to_csv
from nsysparse.source import open_trace
from nsysparse.stats import find_reports, find_rules, make_table, pick
from nsysparse.stats.cut import cut_trace
from nsysparse.stats.projection import project
from nsysparse.stats.ranges import load_stats_ranges

REPORTS, RULES = find_reports(), find_rules()
TID = global_id(100, 100)


def table_of(report, *paths, **options):
    traces = [open_trace(p) for p in paths]
    try:
        return make_table(report, traces, **options)
    finally:
        for trace in traces:
            trace.close()


def run(*arguments):
    result = CliRunner().invoke(command, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


@pytest.fixture
def small(tmp_path):
    """A builder and a function that writes it."""
    builder = ExportBuilder("2025.3.1.90" if "2025.3.1.90" in RELEASES else RELEASES[-5])
    return builder, lambda: builder.write(tmp_path / "small.sqlite")


# --- reports of which nsys's output is not at hand ---


def test_api_trace_lists_every_call_with_its_thread():
    path = trace_path("train_item")
    got = table_of(REPORTS["cuda_api_trace"], path).frame
    want = sql(
        path,
        'SELECT r.start, r."end" - r.start, s.value, r.returnValue, r.correlationId, (r.globalTid >> 24) & 0xFFFFFF,'
        " r.globalTid & 0xFFFFFF FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = r.nameId",
    )
    want = [(a, b, c[:-6] if c[-6:-4] == "_v" else c, *rest) for a, b, c, *rest in want]
    assert sorted(got.select(got.columns[:7]).rows()) == sorted(want)
    assert got["Start (ns)"].is_sorted()


def test_kernel_trace_lists_every_pair_of_kernel_and_call():
    path = trace_path("train_item")
    got = table_of(REPORTS["cuda_kern_exec_trace"], path).frame
    want = sql(
        path,
        'SELECT r.start, r."end" - r.start, CASE WHEN k.start > r."end" THEN k.start - r."end" END, k.start,'
        ' k."end" - k.start, max(r."end", k."end") - r.start, k.deviceId FROM CUPTI_ACTIVITY_KIND_KERNEL k'
        " JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId"
        " AND (r.globalTid >> 24) = (k.globalPid >> 24)",
    )
    names = ["API Start (ns)", "API Dur (ns)", "Queue Dur (ns)", "Kernel Start (ns)", "Kernel Dur (ns)"]
    rows = got.select(*names, "Total Dur (ns)", "DevId").rows()
    assert sorted(rows, key=str) == sorted(want, key=str)
    queue = got.filter(pl.col("Queue Dur (ns)").is_not_null())
    ends = queue["API Start (ns)"] + queue["API Dur (ns)"]
    assert (queue["Queue Start (ns)"] == ends).all()


def test_unified_memory(small):
    b, write = small
    b.copy(100, 200, 4096, 11, 7, 7, 0, 0, 0, 100, virtualAddress=0x1000)
    b.copy(300, 400, 8192, 11, 7, 7, 0, 0, 0, 100, virtualAddress=0x2000)
    b.copy(500, 600, 1000, 12, 7, 7, 0, 0, 0, 100, virtualAddress=0x1000)
    b.copy(700, 800, 9999, 1, 0, 2, 0, 7, 5, 100)  # an ordinary copy
    b.row("CUDA_UM_CPU_PAGE_FAULT_EVENTS", start=50, globalPid=global_id(100), address=0x3000)
    for _ in range(2):
        row = {"globalPid": global_id(100), "address": 0x1000, "numberOfPageFaults": 3}
        b.row("CUDA_UM_GPU_PAGE_FAULT_EVENTS", start=60, end=70, **row)
    path = write()
    total = table_of(REPORTS["um_total_sum"], path).frame.row(0)
    assert total == (0.012288, 0.001, 1, 6, 0x1000, 0x3000)
    by_address = table_of(REPORTS["um_sum"], path).frame.rows()
    assert by_address[0] == (0x2000, 0.008192, None, None, None, pytest.approx(81_920.0))
    assert by_address[1] == (0x1000, 0.004096, 0.001, None, 6, pytest.approx(25_480.0))
    assert by_address[2] == (0x3000, None, None, 1, None, None)


# --- every release ---


@pytest.mark.parametrize("release", RELEASES)
def test_every_report_on_every_release(release, tmp_path):
    builder = ExportBuilder(release)
    truth = standard_scenario(builder)
    path = builder.write(tmp_path / "t.sqlite")
    with open_trace(path) as trace:
        tables = {name: make_table(r, [trace]) for name, r in (REPORTS | RULES).items()}
    kernels = [op for op in truth["operations"] if op["kind"] == "kernel"]
    assert tables["cuda_gpu_kern_sum"].frame["Instances"].sum() == len(kernels)
    assert tables["cuda_gpu_trace"].frame.height == len(truth["operations"])
    assert tables["cuda_api_sum"].frame["Num Calls"].sum() == truth["api_rows"]
    # Processes A and B use the same correlation ids: a join without the process would give more pairs.
    assert tables["cuda_kern_exec_trace"].frame.height == len(kernels)
    assert tables["nvtx_startend_sum"].frame["Instances"].sum() == 2


@pytest.mark.parametrize("name", sorted(REPORTS | RULES))
def test_an_export_without_events_gives_tables_without_rows(name, tmp_path):
    path = ExportBuilder(RELEASES[-1]).write(tmp_path / "empty.sqlite")
    table = table_of((REPORTS | RULES)[name], path)
    assert table.frame.height == 0
    assert table.frame.width > 3
    assert to_csv(table) == ""
    assert table.notes == ()


# --- statistics ---


def test_figures_against_the_standard_library():
    path = trace_path("threads")
    by_name = {}
    for name, time in sql(path, 'SELECT demangledName, "end" - start FROM CUPTI_ACTIVITY_KIND_KERNEL'):
        by_name.setdefault(name, []).append(time)
    want = sorted(
        (len(t), sum(t), min(t), max(t), round(statistics.mean(t), 6), statistics.median(t)) for t in by_name.values()
    )
    f = table_of(REPORTS["cuda_gpu_kern_sum"], path).frame
    columns = ["Instances", "Total Time (ns)", "Min (ns)", "Max (ns)", "Avg (ns)", "Med (ns)"]
    assert sorted((*r[:4], round(r[4], 6), r[5]) for r in f.select(columns).rows()) == want
    deviations = sorted(statistics.stdev(t) if len(t) > 1 else 0.0 for t in by_name.values())
    assert sorted(f["StdDev (ns)"]) == pytest.approx(deviations)
    assert f["Time (%)"].sum() == pytest.approx(100)


def test_halves_are_rounded_by_the_exact_value_times_away_from_zero_sizes_to_even():
    rng = np.random.default_rng(7)
    values = np.concatenate((
        rng.integers(0, 10**7, 4000) / 20, rng.random(2000) * 10.0 ** rng.integers(-4, 9, 2000), -rng.random(99),
        [54109.85, 25152.25, 0.05, 0.15, 0.25, 1e12 + 0.05, 0.0, -0.04, 0.0625, 0.1875, 22347.3125],
    ))  # fmt: skip
    frame = pl.DataFrame({"Avg (ns)": values, "Size (MB)": values})
    for column, step in (("Avg (ns)", "0.1"), ("Size (MB)", "0.001")):
        ties = ROUND_HALF_EVEN if "MB" in column else ROUND_HALF_UP
        want = [str(Decimal(float(v)).quantize(Decimal(step), ties)) for v in values]
        assert printed(frame)[column].to_list() == want


def test_unknown_figures_are_empty_cells():
    frame = pl.DataFrame({"a": [None, float("nan"), float("inf"), 1.0]})
    assert printed(frame)["a"].to_list() == [None, None, None, "1.0"]


# --- the projection, against the definition itself ---


@pytest.mark.parametrize("seed", range(12))
def test_projection_by_brute_force(seed, tmp_path):
    rng = np.random.default_rng(seed)
    b = ExportBuilder(RELEASES[-1])
    threads = [global_id(100, 100), global_id(100, 107), global_id(200, 100)]
    for thread in threads:
        at = 1_000
        for _ in range(30):
            at += int(rng.integers(1, 40))
            end = at + int(rng.integers(2, 30))
            correlation = b.api("cudaLaunchKernel_v7000", at, end, thread)
            if rng.random() < 0.3:  # a driver call inside, and a backtrace row around
                b.api("cuLaunchKernel", at + 1, end - 1, thread, correlation, 1)
                b.api("cudaLaunchKernel", at - 1, end, thread, correlation, 67)
            pid = thread >> 24 & 0xFFFFFF
            for _ in range(int(rng.integers(0, 3))):
                start = end + int(rng.integers(0, 500))
                b.kernel(start, start + int(rng.integers(1, 99)), 0, 7, correlation, pid)
            at = end
        for _ in range(25):
            start = int(rng.integers(900, 2_000))
            other = threads[0] if rng.random() < 0.1 else None
            b.start_end(f"r{rng.integers(4)}", start, start + int(rng.integers(0, 900)), thread, other)
    path = b.write(tmp_path / "t.sqlite")
    with open_trace(path) as trace:
        got = project(trace).select("id", "gpu_start_ns", "gpu_end_ns", "operations").rows()
        ranges = load_stats_ranges(trace).filter(~pl.col("moved")).rows(named=True)
        kernels = make_table(REPORTS["nvtx_kern_sum"], [trace]).frame
    pairs = sql(
        path,
        'SELECT r.globalTid, r.start, r."end", r.correlationId, k.start, k."end", k.rowid FROM'
        " CUPTI_ACTIVITY_KIND_RUNTIME r JOIN CUPTI_ACTIVITY_KIND_KERNEL k ON k.correlationId = r.correlationId"
        " AND (k.globalPid >> 24) = (r.globalTid >> 24)",
    )
    want, kernel_rows = [], 0
    for r in ranges:
        mine = [p for p in pairs if p[0] == r["thread"] and p[1] >= r["start_ns"] and p[2] <= r["end_ns"]]
        kernel_rows += len(mine)
        if mine:
            want.append((r["id"], min(p[4] for p in mine), max(p[5] for p in mine), len({p[3] for p in mine})))
    assert sorted(got) == sorted(want)
    inside = [p for p in pairs if any(
        p[0] == r["thread"] and p[1] >= r["start_ns"] and p[2] <= r["end_ns"] for r in ranges
    )]  # fmt: skip
    total = kernels["Total Time (ns)"].sum()
    by_range = sum(
        p[5] - p[4] for r in ranges for p in pairs
        if p[0] == r["thread"] and p[1] >= r["start_ns"] and p[2] <= r["end_ns"]
    )  # fmt: skip
    assert total == by_range + sum(p[5] - p[4] for p in pairs if p not in inside)


# --- several recordings ---


def test_several_recordings_make_one_summary():
    paths = [trace_path("eager_h2d"), trace_path("pinned_overlap")]
    both = table_of(REPORTS["cuda_gpu_kern_sum"], *paths).frame
    times = {}
    for path in paths:
        for name, time in sql(
            path, 'SELECT s.value, k."end" - k.start FROM CUPTI_ACTIVITY_KIND_KERNEL k'
            " JOIN StringIds s ON s.id = k.demangledName"
        ):  # fmt: skip
            times.setdefault(name, []).append(time)
    got = {r["Name"]: (r["Instances"], r["Total Time (ns)"], r["Med (ns)"]) for r in both.iter_rows(named=True)}
    assert got == {n: (len(t), sum(t), statistics.median(t)) for n, t in times.items()}


def test_by_trace_gives_each_recording_its_own_rows():
    paths = [trace_path("eager_h2d"), trace_path("pinned_overlap")]
    apart = table_of(REPORTS["cuda_api_sum"], *paths, by_trace=True).frame
    assert apart.columns[0] == "Trace"
    for path in paths:
        single = table_of(REPORTS["cuda_api_sum"], path).frame
        assert apart.filter(pl.col("Trace") == path.name).drop("Trace").equals(single)


def test_lists_of_events_are_never_mixed_and_rows_of_two_recordings_are_counted_apart():
    path = trace_path("train_item")
    assert table_of(REPORTS["nvtx_pushpop_trace"], path, path).frame["Trace"].n_unique() == 2
    once = table_of(REPORTS["nvtx_kern_sum"], path).frame
    twice = table_of(REPORTS["nvtx_kern_sum"], path, path).frame
    for column in ("NVTX Inst", "Kern Inst", "Total Time (ns)"):
        assert (twice[column] == 2 * once[column]).all()


# --- notes ---


def test_notes_name_the_quirks(small):
    notes = " ".join(table_of(REPORTS["cuda_api_sum"], trace_path("train_item")).notes)
    n = sql(trace_path("train_item"), "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE eventClass = 67")[0][0]
    assert f"{n:,} of these rows only carry a backtrace" in notes
    assert not any("backtrace" in x for x in table_of(REPORTS["cuda_api_sum"], trace_path("eager_h2d")).notes)
    graphs = table_of(REPORTS["cuda_gpu_sum"], trace_path("graph_replay_graph")).notes
    assert any("100 launches of whole CUDA graphs" in x for x in graphs)
    b, write = small
    b.memcpy(TID, (0, 10), (20, 2_000_000_020), 1_000_000_000, 1, 0, 2)
    b.start_end("moved", 0, 10, TID, global_id(100, 101))
    b.push_pop("open", 5, None, TID)
    path = write()
    trace = table_of(REPORTS["cuda_gpu_trace"], path)
    assert trace.frame["Throughput (MB/s)"][0] == 0  # nsys's figure for 0.5 GB/s
    assert "too low by up to 100.0%" in trace.notes[0]
    assert any("1 ranges never ended" in x for x in table_of(REPORTS["nvtx_sum"], path).notes)
    assert table_of(REPORTS["nvtx_gpu_proj_trace"], path).frame.height == 0


def test_the_share_of_wall_time_is_that_of_the_union():
    path = trace_path("eager_h2d")
    note = table_of(REPORTS["cuda_gpu_mem_time_sum"], path).notes[0]
    assert "they cover 11.77 ms: 1.1% of the 1.057 s" in note


def test_names_with_nul_and_domains(small):
    b, write = small
    b.nvtx(DOMAIN, "lib", -5, None, TID, 3)
    b.push_pop("step\x00garbage", 10, 20, TID)
    b.push_pop("inner", 12, 15, TID, domain=3)
    names = set(table_of(REPORTS["nvtx_sum"], write()).frame["Range"])
    assert names == {":step", "lib:inner"}


# --- the command ---


def test_csv_of_the_command_is_the_report(tmp_path):
    path = trace_path("threads")
    assert run(path, "nvtx_sum", "--format", "csv") == to_csv(table_of(REPORTS["nvtx_sum"], path))
    run(path, "nvtx_sum", "cuda_api_sum", "--format", "csv", "-o", tmp_path / "out")
    assert {f.name for f in (tmp_path / "out").iterdir()} == {"nvtx_sum.csv", "cuda_api_sum.csv"}
    with pytest.raises(Exception, match="exists"):
        run(path, "nvtx_sum", "cuda_api_sum", "--format", "csv", "-o", tmp_path / "out")


def test_json_and_parquet_hold_unrounded_figures(tmp_path):
    path = trace_path("threads")
    frame = table_of(REPORTS["cuda_gpu_kern_sum"], path).frame
    (table,) = json.loads(run(path, "cuda_gpu_kern_sum", "--format", "json"))
    assert table["rows"] == [list(r) for r in frame.rows()]
    assert table["notes"]
    run(path, "cuda_gpu_kern_sum", "-o", tmp_path / "k.parquet")
    assert pl.read_parquet(tmp_path / "k.parquet").equals(frame)


def test_table_of_the_command(small):
    b, write = small
    b.push_pop("\x1b[31mred", 0, 123_456_789, TID)
    text = run(write(), "nvtx_sum")
    assert "123,456,789" in text
    assert "\x1b" not in text
    assert "\\x1b[31mred" in text
    assert "not recorded" in run(write(), "osrt_sum")


def test_rules_take_nsyss_options():
    path = trace_path("llama_default")
    rows = list(csv.reader(io.StringIO(run(path, "--rule", "gpu_gaps:gap=50", "--format", "csv"))))
    times = [int(r[1]) for r in rows[1:]]
    assert times == sorted(times, reverse=True)
    assert min(times) > 50_000_000
    with pytest.raises(UsageError, match="cannot read 'gap=x'"):
        run(path, "--rule", "gpu_gaps:gap=x")


def kernels_in(path, low, high):
    return sql(path, f'SELECT count(*), sum("end" - start) FROM {KERNELS} WHERE start < ? AND "end" > ?', high, low)[0]


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.mark.parametrize("name", ["train_item", "graph_replay_node", "llama_default"])
def test_a_window_keeps_whole_events_that_overlap_it_and_their_calls(name):
    path = trace_path(name)
    low, high = sql(path, f"SELECT min(start) + 2 * (max(start) - min(start)) / 5, max(start) FROM {KERNELS}")[0]
    with open_trace(path) as trace:
        part = cut_trace(trace, asked=f"{low}ns..{high}ns")
        tables = {n: make_table(REPORTS[n], [part]) for n in REPORTS}
        whole = make_table(REPORTS["nvtx_pushpop_trace"], [trace])
    count, total = kernels_in(path, low, high)
    kernels = tables["cuda_gpu_kern_sum"].frame
    assert (kernels["Instances"].sum(), kernels["Total Time (ns)"].sum()) == (count, total)
    assert 0 < count < sql(path, f"SELECT count(*) FROM {KERNELS}")[0][0]
    # Every kernel still has the call that sent it, also one from before the window.
    listed = tables["cuda_kern_exec_sum"].frame
    pairs = f"""SELECT count(*) FROM {KERNELS} k JOIN CUPTI_ACTIVITY_KIND_RUNTIME a
        ON a.correlationId = k.correlationId WHERE k.start < ? AND k."end" > ?"""
    assert listed["Count"].sum() == sql(path, pairs, high, low)[0][0]
    calls = """SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE start < ?1 AND "end" > ?2 OR correlationId IN (
        SELECT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start < ?1 AND "end" > ?2 UNION
        SELECT correlationId FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE start < ?1 AND "end" > ?2 UNION
        SELECT correlationId FROM {} WHERE start < ?1 AND "end" > ?2)"""
    memset = "CUPTI_ACTIVITY_KIND_MEMSET"
    there = sql(path, "SELECT 1 FROM sqlite_master WHERE name = ?", memset)
    calls = calls.format(memset if there else "CUPTI_ACTIVITY_KIND_KERNEL")
    assert tables["cuda_api_sum"].frame["Num Calls"].sum() == sql(path, calls, high, low)[0][0]
    inside = 'SELECT count(*) FROM OSRT_API WHERE start < ? AND "end" > ?'
    assert tables["osrt_sum"].frame["Num Calls"].sum() == sql(path, inside, high, low)[0][0]
    ranges = tables["nvtx_pushpop_trace"].frame
    kept = whole.frame.filter((pl.col("Start (ns)") < high) & (pl.col("End (ns)") > low))
    assert ranges["RangeId"].to_list() == kept["RangeId"].to_list()  # numbers of the export's rows, not of the part's
    assert all("each event whole" in t.notes[-1] for t in tables.values())


def test_a_device_has_its_own_gpu_work(tmp_path):
    path = trace_path("p2p")
    for device in (0, 1):
        text = run(path, "cuda_gpu_mem_time_sum", "cuda_api_sum", "--device", device, "--format", "json")
        copies, calls = json.loads(text)
        want = sql(path, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE deviceId = ?", device)[0][0]
        assert sum(r[copies["columns"].index("Count")] for r in copies["rows"]) == want > 0
        assert (
            sum(r[calls["columns"].index("Num Calls")] for r in calls["rows"])
            == sql(path, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME")[0][0]
        )
        assert f"GPU work of device {device} only" in copies["notes"][-1]
    with pytest.raises(UsageError, match="no device 7"):
        run(path, "--device", 7)


def test_a_window_without_events_is_empty_and_not_unrecorded():
    said = run(trace_path("p2p"), "cuda_gpu_trace", "--window", "1s..1.5s")
    assert "no rows" in said
    assert "not recorded" not in said


def test_columns_without_room_are_named():
    table = table_of(REPORTS["cuda_kern_exec_sum"], trace_path("train_item"))
    columns = columns_of(table, 5)
    assert [c.name for c in columns] == table.frame.columns
    for room in (40, 80, 120, 200, 2_000):
        shown = that_fit(columns, room)
        told = widths(shown, max(room, width_of(shown)))
        assert all(w >= c.least for w, c in zip(told, shown, strict=True))
        if room >= 80:
            assert width_of(shown) <= room
            assert sum(told) + GAP * len(told) <= room
        assert {"PID", "Count", "Kernel Name"} <= {c.name for c in shown}
    assert that_fit(columns, 2_000) == columns


def test_a_narrow_terminal_says_what_it_leaves_out(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    print_table(table_of(REPORTS["cuda_gpu_kern_sum"], trace_path("train_item")), 3, False)
    said = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).split())
    assert "No room here for Med (ns), Min (ns), Max (ns), StdDev (ns): a wider terminal, or --format csv" in said
    assert "Time (%) Total Time (ns) Instances Avg (ns) Name" in said


def test_a_file_has_every_column(tmp_path):
    run(trace_path("train_item"), "cuda_kern_exec_sum", "--format", "table", "-o", tmp_path / "t.txt")
    heads = (tmp_path / "t.txt").read_text("utf-8").splitlines()[1].split("  ")
    table = table_of(REPORTS["cuda_kern_exec_sum"], trace_path("train_item"))
    assert [h.strip() for h in heads if h.strip()] == table.frame.columns


def test_misspelt_names_get_a_hint():
    with pytest.raises(UsageError) as error:
        run(trace_path("threads"), "nvtx_sun")
    assert error.value.hint == "did you mean nvtx_sum?"
    with pytest.raises(UsageError, match="no trace"):
        run("nvtx_sum")
    with pytest.raises(UsageError, match="no rule"):
        pick("gpu_gap", RULES, "rule") if "gpu_gap" not in RULES else None


def test_list_names_every_report_and_rule():
    text = run("--list")
    assert all(name in text for name in REPORTS | RULES)
    assert len(REPORTS) == 21
    assert len(RULES) == 6


def test_the_documentation_names_every_report_and_rule():
    text = (Path(__file__).parent.parent / "docs" / "stats.md").read_text("utf-8")
    listed = text.replace("nvtx_gpu_proj_*", "")
    assert [n for n in REPORTS | RULES if n not in listed] == []


def test_broken_times_and_names_crash_nothing(small, tmp_path):
    b, write = small
    b.launch(TID, (10, 20), (30, 40))
    b.launch(TID, (50, 45), (0, 0))
    b.launch(TID, (60, 70), (90, 80))
    b.memcpy(TID, (100, 110), (120, 120), 64, 99, 42, 2)
    b.push_pop("reversed", 200, 100, TID)
    b.push_pop(None, 0, 300, TID)
    b.start_end("reversed too", 300, 200, TID)
    b.osrt("read", 20, 10, TID)
    path = write()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = 12345 WHERE rowid = 1")
    with open_trace(path) as trace:
        tables = {name: make_table(r, [trace]) for name, r in (REPORTS | RULES).items()}
        assert tables["cuda_gpu_trace"].frame.height == 4
        assert "[CUDA memcpy Unknown 99]" in tables["cuda_gpu_mem_size_sum"].frame["Operation"].to_list()
        work = load_work(trace)
        assert write_perfetto(work, trace, tmp_path / "t.pftrace") > 0
        assert {t.name: t.frame.height for t in tables_of(work, trace)}["copies"] == 1
    for table in tables.values():
        to_csv(table)
    for name, n in (("cuda_gpu_kern_sum", 1), ("cuda_api_sum", 1), ("nvtx_sum", 2), ("osrt_sum", 1)):
        assert f"{n} of these events end before they start" in tables[name].notes[-1]
    assert not any("end before" in note for note in tables["cuda_gpu_mem_time_sum"].notes)
