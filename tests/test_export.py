"""Exports: tables against plain SQL, the Perfetto trace read back packet by packet, lanes by brute force."""

import json
import re
import sqlite3
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from export_builder import RELEASES, ExportBuilder, global_id
from export_scenario import standard_scenario
from hypothesis import given, settings
from hypothesis import strategies as st
from independent import sql
from traces import trace_path

from nsysparse.accounting.cut import cut_work
from nsysparse.cli.export import command
from nsysparse.errors import OutputError, UsageError
from nsysparse.joins.work import load_work
from nsysparse.outputs.frames import tables_of
from nsysparse.outputs.perfetto import lanes, write_perfetto
from nsysparse.source import open_trace

perfetto_trace_pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

SPANS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 12)), max_size=40)
K, M, S = (f"CUPTI_ACTIVITY_KIND_{x}" for x in ("KERNEL", "MEMCPY", "MEMSET"))


def run(*arguments):
    result = CliRunner().invoke(command, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


# --- lanes ---


@given(SPANS)
@settings(max_examples=300, deadline=None)
def test_flat_lanes_never_overlap_and_are_as_few_as_possible(spans):
    group, start, length = (np.array([s[i] for s in spans], np.int64) for i in range(3))
    lane = lanes.flat_lanes(group, start, start + length)
    for g in {0, 1} & set(group.tolist()):
        mine = [(int(s), int(s + n), int(a)) for h, s, n, a in zip(group, start, length, lane, strict=True) if h == g]
        for i, (s, e, a) in enumerate(mine):
            assert not any(a == b and max(s, t) < min(e, f) for t, f, b in mine[i + 1 :])
        most = max((sum(s <= t < e for s, e, _ in mine) for t in range(45)), default=0)
        assert len({a for _, _, a in mine}) <= max(1, most) + 1  # an empty interval can hold a lane for an instant


@given(SPANS)
@settings(max_examples=300, deadline=None)
def test_nested_lanes_nest_and_walk_in_order_of_time(spans):
    group, start, length = (np.array([s[i] for s in spans], np.int64) for i in range(3))
    end = start + length
    lane = lanes.nested_lanes(group, start, end)
    track = group * 100 + lane
    begin, finish = lanes.depth_first(track, start, end)
    assert len(set(begin.tolist()) | set(finish.tolist())) == 2 * len(spans)
    events = sorted([(int(p), "b", i) for i, p in enumerate(begin)] + [(int(p), "e", i) for i, p in enumerate(finish)])
    stacks, last = defaultdict(list), defaultdict(lambda: -1)
    for _, what, i in events:
        time, stack = int(start[i] if what == "b" else end[i]), stacks[int(track[i])]
        assert time >= last[int(track[i])]
        last[int(track[i])] = time
        if what == "b":
            stack.append(i)
        else:
            assert stack.pop() == i
    if (lane > 0).any():  # a lane more only where something crosses
        assert any(
            group[i] == group[j] and start[i] < start[j] < end[i] < end[j]
            for i in range(len(spans)) for j in range(len(spans))
        )  # fmt: skip


# --- Perfetto ---


class ReadBack:
    """A Perfetto trace as its own importer sees it: packets in order of time, a stack a track."""

    def __init__(self, path):
        trace = perfetto_trace_pb2.Trace()
        trace.ParseFromString(path.read_bytes())
        event = perfetto_trace_pb2.TrackEvent
        self.tracks = {
            p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")
        }
        interned = trace.packet[0].interned_data
        names = {n.iid: n.name for n in interned.event_names}
        packets = sorted((p for p in trace.packet if p.HasField("track_event")), key=lambda p: p.timestamp)
        self.slices, self.counters, self.flows = [], defaultdict(list), defaultdict(list)
        self.open = defaultdict(list)
        for p in packets:
            e, stack = p.track_event, self.open[p.track_event.track_uuid]
            if e.type == event.TYPE_SLICE_BEGIN:
                size = e.debug_annotations[0].int_value if e.debug_annotations else None
                stack.append((names[e.name_iid], p.timestamp, size, tuple(n for n, *_ in stack)))
                for flow in e.flow_ids:
                    self.flows[flow].append((p.timestamp, e.track_uuid))
            elif e.type == event.TYPE_SLICE_END:
                name, start, size, path = stack.pop()
                self.slices.append((e.track_uuid, name, start, p.timestamp, size, path))
            else:
                self.counters[e.track_uuid].append((p.timestamp, e.double_counter_value))

    def named(self, name):
        return {u for u, t in self.tracks.items() if t.name == name}

    def below(self, uuid):
        return {u for u, t in self.tracks.items() if t.parent_uuid == uuid}


@pytest.fixture(scope="module")
def perfetto_of(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            path = tmp_path_factory.mktemp("perfetto") / f"{name}.pftrace"
            with open_trace(trace_path(name)) as trace:
                n = write_perfetto(load_work(trace), trace, path)
            made[name] = n, ReadBack(path)
        return made[name]

    return get


@pytest.mark.parametrize("name", ["train_item", "threads", "p2p", "graph_replay_graph", "pinned_overlap"])
def test_every_event_is_a_slice_of_its_own_time(perfetto_of, name):
    written, back = perfetto_of(name)
    path = trace_path(name)
    work = []
    for table in (K, M, S, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
        if sql(path, "SELECT 1 FROM sqlite_master WHERE name = ?", table):
            work += sql(path, f'SELECT start, "end" FROM {table}')
    gpu_tracks = {u for d in back.tracks if back.tracks[d].name.startswith("GPU ") for u in back.below(d)}
    gpu = [s for s in back.slices if s[0] in gpu_tracks]
    assert sorted((s, e) for _, _, s, e, _, _ in gpu) == sorted(work)
    assert all(path == () for *_, path in gpu)  # lanes never overlap, so nothing nests
    ranges = sql(path, 'SELECT start, "end" FROM NVTX_EVENTS WHERE eventType IN (59, 60) AND "end" IS NOT NULL')
    nvtx = back.named("NVTX") | {u for u, t in back.tracks.items() if t.name.startswith("NVTX start/end")}
    assert sorted((s, e) for u, _, s, e, _, _ in back.slices if u in nvtx) == sorted(ranges)
    calls = len(sql(path, "SELECT DISTINCT globalTid >> 24, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME"))
    on_threads = [s for s in back.slices if back.tracks[s[0]].HasField("thread")]
    assert len(on_threads) == calls
    assert written == len(back.slices) == len(work) + len(ranges) + calls
    assert not any(back.open.values())


def test_ranges_nest_as_on_their_thread(perfetto_of):
    _, back = perfetto_of("threads")
    paths = Counter((*path, name) for u, name, *_, path in back.slices if u in back.named("NVTX"))
    assert paths == {**{(f"worker{i}",): 40 for i in range(4)}, **{
        (f"worker{i}", x): 40 for i in range(4) for x in ("forward", "result")
    }}  # fmt: skip


def test_arrows_go_from_the_call_to_what_it_sent(perfetto_of):
    _, back = perfetto_of("train_item")
    path = trace_path("train_item")
    sent = sql(path, f"SELECT count(*) FROM (SELECT correlationId FROM {K} UNION SELECT correlationId FROM {M}"
                     f" UNION SELECT correlationId FROM {S})")[0][0]  # fmt: skip
    assert len(back.flows) == sent
    for ends in back.flows.values():
        (call, thread), (work, stream) = ends
        assert call < work
        assert back.tracks[thread].HasField("thread")
        assert back.tracks[stream].name.startswith("stream ")


def test_names_bytes_processes_and_threads(perfetto_of):
    _, back = perfetto_of("train_item")
    sizes = Counter((n, s) for _, n, _, _, s, _ in back.slices if n.startswith("Memcpy"))
    want = sql(trace_path("train_item"), f"SELECT copyKind, bytes, count(*) FROM {M} GROUP BY 1, 2")
    kinds = {1: "HtoD", 2: "DtoH"}
    assert sizes == {(f"Memcpy {kinds[k]}", b): n for k, b, n in want}
    processes = [t.process for t in back.tracks.values() if t.HasField("process")]
    assert [(p.pid, p.process_name) for p in processes] == [(667, "python3")]
    threads = {t.thread.tid: t.thread.thread_name for t in back.tracks.values() if t.HasField("thread")}
    assert threads == {667: "python3", 706: "pt_autograd_0"}


def test_counters_hold_what_their_names_say(perfetto_of):
    _, back = perfetto_of("train_item")
    (busy,) = back.named("busy")
    values = back.counters[busy]
    spans = sorted((s, e) for t in (K, M, S) for s, e in sql(trace_path("train_item"), f'SELECT start, "end" FROM {t}'))
    area = sum(v * (b - a) / 100 for (a, v), (b, _) in pairwise(values))
    union, reach = 0, 0
    for s, e in spans:
        union += max(0, e - max(s, reach))
        reach = max(reach, e)
    assert area == pytest.approx(union, rel=1e-9)
    (down,) = back.named("DtoH throughput")
    moved = sum(v * (b - a) for (a, v), (b, _) in pairwise(back.counters[down]))
    total = sql(trace_path("train_item"), f"SELECT sum(bytes) FROM {M} WHERE copyKind = 2")[0][0]
    assert moved == pytest.approx(total)
    assert back.counters[down][-1][1] == 0


def test_open_negative_and_crossing_ranges(tmp_path):
    b, tid = ExportBuilder(RELEASES[-1]), global_id(100, 100)
    b.launch(tid, (10, 20), (30, 40))
    b.push_pop("never ended", -50, None, tid)
    b.push_pop("first", 0, 10, tid)
    b.push_pop("crosses it", 5, 15, tid)
    path = b.write(tmp_path / "t.sqlite")
    with open_trace(path) as trace:
        write_perfetto(load_work(trace), trace, tmp_path / "t.pftrace")
    back = ReadBack(tmp_path / "t.pftrace")
    spans = {name: (s, e) for _, name, s, e, _, _ in back.slices}
    assert spans["first"] == (50, 60)  # all is moved by the 50 ns that lie before 0
    assert spans["crosses it"] == (55, 65)
    assert [s[0] for stack in back.open.values() for s in stack] == ["never ended"]


def test_without_the_package_a_hint(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "perfetto.protos.perfetto.trace", None)
    with pytest.raises(UsageError, match="needs the perfetto package"):
        run(trace_path("p2p"), "--format", "perfetto", "-o", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


# --- tables ---


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = tmp_path_factory.mktemp("db") / "t.db"
    run(trace_path("train_item"), "--format", "sqlite", "-o", path)
    return path


def test_sqlite_has_keys_and_indexes_and_no_dangling_reference(database):
    assert sql(database, "PRAGMA foreign_key_check") == []
    assert {r[3] for r in sql(database, "PRAGMA foreign_key_list(kernels)")} == {"device", "call", "path"}
    indexed = {sql(database, f'PRAGMA index_info("{r[1]}")')[0][2] for r in sql(database, "PRAGMA index_list(copies)")}
    assert indexed == {"start_ns", "kind", "device", "call", "path"}
    described = set(sql(database, 'SELECT "table", "column" FROM columns'))
    for (table,) in sql(database, "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'columns'"):
        if not table.startswith("sqlite_"):
            assert {(table, r[1]) for r in sql(database, f"PRAGMA table_info({table})")} <= described


def test_sqlite_holds_the_recording_joined(database):
    path = trace_path("train_item")
    assert sql(database, "SELECT count(*), sum(duration_ns), min(start_ns) FROM kernels") == sql(
        path, f'SELECT count(*), sum("end" - start), min(start) FROM {K}'
    )
    assert sql(database, "SELECT kind, sum(bytes), count(*) FROM copies GROUP BY 1") == sql(
        path, f"SELECT CASE copyKind WHEN 1 THEN 'HtoD' ELSE 'DtoH' END, sum(bytes), count(*) FROM {M} GROUP BY 1"
        " ORDER BY 1",
    )  # fmt: skip
    reads = sql(database, "SELECT nvtx_path, count(*) FROM copies WHERE kind = 'DtoH' GROUP BY 1")
    assert reads == [("train_step/log", 60)]
    late = sql(database, "SELECT count(*) FROM kernels k JOIN calls c ON c.call = k.call WHERE c.start_ns > k.start_ns")
    assert late == [(0,)]
    backward = "SELECT count(*) FROM kernels k JOIN calls c USING (call) WHERE c.thread_name LIKE 'pt_autograd%'"
    assert sql(database, backward)[0][0] == 480


def test_parquet_and_arrow_carry_units_and_meanings(tmp_path):
    run(trace_path("p2p"), "--format", "parquet", "-o", tmp_path / "p")
    run(trace_path("p2p"), "--format", "arrow", "-o", tmp_path / "a")
    parquet = pq.read_table(tmp_path / "p" / "copies.parquet")
    with pa.memory_map(str(tmp_path / "a" / "copies.arrow")) as file:
        arrow = pa.ipc.open_file(file).read_all()
        assert arrow.equals(parquet)
    for table in (parquet, arrow):
        assert table.schema.field("bytes").metadata[b"unit"] == b"bytes"
        assert table.schema.field("start_ns").metadata[b"unit"] == b"ns"
        assert table.schema.metadata[b"meaning"] == b"a memory copy"
    assert parquet["bytes"].to_pylist() == [8_000_000] * 60
    assert set(parquet["src_ordinal"].to_pylist()) == {0, 1}


def test_csv_comes_with_a_description(tmp_path):
    run(trace_path("graph_replay_graph"), "--format", "csv", "-o", tmp_path / "c")
    columns = pl.read_csv(tmp_path / "c" / "columns.csv")
    for file in (tmp_path / "c").glob("*.csv"):
        if file.name != "columns.csv":
            names = columns.filter(pl.col("table") == file.stem)["column"].to_list()
            assert pl.read_csv(file, infer_schema=False).columns == names
    assert pl.read_csv(tmp_path / "c" / "graphs.csv").height == 100


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_can_be_exported(release, tmp_path):
    builder = ExportBuilder(release)
    truth = standard_scenario(builder)
    with open_trace(builder.write(tmp_path / "t.sqlite")) as trace:
        work = load_work(trace)
        tables = {t.name: t.frame for t in tables_of(work, trace)}
        slices = write_perfetto(work, trace, tmp_path / "t.pftrace")
    assert tables["kernels"].height == truth["kernels"]
    assert slices == len(truth["operations"]) + tables["calls"].height + tables["ranges"].height
    back = ReadBack(tmp_path / "t.pftrace")
    assert len(back.slices) == slices - 1  # one range never ended
    text = json.dumps({n: f.to_dicts() for n, f in tables.items()}, default=str)
    assert "kind " not in text  # every number has its name


# --- a part of a recording ---


def test_a_window_keeps_whole_rows_that_overlap_it_and_their_calls():
    path = trace_path("pinned_overlap")
    with open_trace(path) as trace:
        work, span = cut_work(load_work(trace), (), "4.9s..5s")
        tables = {t.name: t.frame for t in tables_of(work, trace, span)}
    low, high = 4_900_000_000, 5_000_000_000
    assert span == (low, high)
    want = sql(path, f'SELECT start, "end" FROM {K} WHERE start < {high} AND "end" > {low}')
    assert sorted(tables["kernels"].select("start_ns", "end_ns").rows()) == sorted(want)
    assert set(tables["kernels"]["call"]) <= set(tables["calls"]["call"])
    ranges = sql(path, f'SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 59 AND start < {high} AND "end" > {low}')
    assert tables["ranges"].height == ranges[0][0]
    osrt = sql(path, f'SELECT count(*) FROM OSRT_API WHERE start < {high} AND "end" > {low}')
    assert tables["osrt"].height == osrt[0][0]


def test_devices_are_chosen_by_their_number():
    with open_trace(trace_path("p2p")) as trace:
        work, span = cut_work(load_work(trace), (1,))
        assert span is None
        assert set(work.copies["device"]) == {1}
        with pytest.raises(UsageError, match="no device 7"):
            cut_work(load_work(trace), (7,))


# --- files ---


def test_nothing_is_overwritten_and_nothing_is_left_behind(tmp_path):
    target = tmp_path / "out"
    run(trace_path("p2p"), "--format", "csv", "-o", target)
    (target / "mine.txt").write_text("keep")
    with pytest.raises(OutputError, match="not empty"):
        run(trace_path("p2p"), "--format", "csv", "-o", target)
    run(trace_path("p2p"), "--format", "csv", "-o", target, "--force")
    assert (target / "mine.txt").read_text() == "keep"
    database = tmp_path / "t.db"
    database.write_text("x")
    with pytest.raises(OutputError, match="exists"):
        run(trace_path("p2p"), "--format", "sqlite", "-o", database)
    assert database.read_text() == "x"
    assert {p.name for p in tmp_path.iterdir()} == {"out", "t.db"}


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def broken(*_):
        raise sqlite3.OperationalError("disk full")

    monkeypatch.setattr("nsysparse.outputs.tabular.describe", broken)
    with pytest.raises(sqlite3.OperationalError):
        run(trace_path("p2p"), "--format", "sqlite", "-o", tmp_path / "t.db")
    assert list(tmp_path.iterdir()) == []


def test_the_same_recording_gives_the_same_bytes(tmp_path):
    for form, name in (("perfetto", "x.pftrace"), ("parquet", "p"), ("sqlite", "x.db")):
        first, second = tmp_path / f"1{name}", tmp_path / f"2{name}"
        for target in (first, second):
            run(trace_path("p2p"), "--format", form, "-o", target)
        pairs = [(first, second)] if first.is_file() else [(f, second / f.name) for f in first.iterdir()]
        assert all(a.read_bytes() == b.read_bytes() for a, b in pairs)


def test_the_recording_is_never_replaced(tmp_path):
    path = tmp_path / "t.sqlite"
    path.write_bytes(trace_path("p2p").read_bytes())
    before = path.read_bytes()
    for form in ("sqlite", "perfetto"):
        with pytest.raises(OutputError, match="never changed"):
            run(path, "--format", form, "-o", path, "--force")
    assert path.read_bytes() == before


def test_the_documentation_names_every_table():
    text = (Path(__file__).parent.parent / "docs" / "export.md").read_text("utf-8")
    with open_trace(trace_path("p2p")) as trace:
        names = [t.name for t in tables_of(load_work(trace), trace)]
    assert [n for n in names if not re.search(rf"^\|[^|]*\b{n}\b", text, re.M)] == []
