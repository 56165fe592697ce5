"""Flame graphs: every level adds up, every format agrees, and the figures are those of plain SQL."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from export_builder import DEVICE, DTOH, HTOD, PAGEABLE, ExportBuilder
from independent import sql
from stack_cases import (
    PID,
    THREAD,
    US,
    copy_with_stack,
    describe_payloads,
    flame_of,
    labels_of,
    made,
    python_stack,
    sum_where,
)
from traces import trace_path

from nsysparse import units
from nsysparse.accounting.device import Options
from nsysparse.analysis import analyze
from nsysparse.cli import cli
from nsysparse.flamegraph.difference import compare
from nsysparse.flamegraph.document import difference_to_json, to_dict
from nsysparse.flamegraph.flame import LEVELS
from nsysparse.flamegraph.folded import difference_to_folded, to_folded
from nsysparse.flamegraph.speedscope import difference_to_speedscope, to_speedscope
from nsysparse.flamegraph.tables import table_copy_paths, table_waiting_paths
from nsysparse.flamegraph.tree import build_tree
from nsysparse.report.flamegraph import HOW_TO_RECORD, render_difference, render_page
from nsysparse.source import open_trace
from nsysparse.stacks.chains import Lists

STACKED = ("train_item", "state_checkpoint", "llama_default")
REAL = (*STACKED, "llama_nosave", "threads", "p2p", "graph_replay_graph", "graph_replay_node", "eager_h2d", "loader")
NO_SHARES = pl.DataFrame()
# Copies by the function on the stack of their call, counted by plain SQL; ns are sums of durations.
BY_FUNCTION = """
    SELECT count(*), sum(m.bytes), sum(m."end" - m.start) FROM CUPTI_ACTIVITY_KIND_MEMCPY m
    JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
        ON r.correlationId = m.correlationId AND r.globalTid >> 24 = m.globalPid >> 24 AND r.callchainId IS NOT NULL
    WHERE m.copyKind = 2 AND EXISTS (SELECT 1 FROM CUDA_CALLCHAINS c JOIN StringIds s ON s.id = c.symbol
        WHERE c.id = r.callchainId AND s.value LIKE ? || '(%')"""


def flame_from(builder: ExportBuilder, tmp_path, name="trace.sqlite", **options):
    with open_trace(builder.write(tmp_path / name)) as trace:
        return made(analyze(trace, Options(**options)), trace)


# --- exact figures ---


def test_server_checkpoints_are_where_the_stacks_say():
    flame = flame_of("llama_default")
    found = {}
    for function in ("server_context_impl::create_checkpoint", "server_slot::prompt_save"):
        (expected,) = sql(trace_path("llama_default"), BY_FUNCTION, function)
        keys = ("operations", "bytes", "operation_ns")
        found[function] = tuple(sum_where(flame, key, function) for key in keys)
        assert found[function] == expected
        assert sum_where(flame, "bytes", function, "DtoH copy, Device to Pageable", "cudaMemcpyAsync") == expected[1]
    counts = [n for n, _, _ in found.values()]
    assert counts == [768, 576]
    assert sum(size for _, size, _ in found.values()) == 1_444_380_672
    assert sum_where(flame, "bytes", "llama_context::state_seq_get_data") == 1_444_380_672


def test_state_sits_under_its_line():
    flame = flame_of("state_checkpoint")
    under = ("state_save", "state_checkpoint (workloads.py:31)", "torch::autograd::THPVariable_cpu", "cudaMemcpyAsync")
    expected = sql(
        trace_path("state_checkpoint"),
        'SELECT count(*), sum(bytes), sum("end" - start) FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind = 2',
    )[0]
    assert tuple(sum_where(flame, k, *under) for k in ("operations", "bytes", "operation_ns")) == expected
    assert expected[:2] == (16, 640_000_000)
    # Nothing ran beside these copies: what is exposed is their whole duration.
    assert sum_where(flame, "exposed_ns", *under) == sum_where(flame, "busy_ns", *under) == expected[2]


def test_read_backs_and_optimizer_of_a_training_run():
    flame = flame_of("train_item")
    read = ("<module> (workloads.py:178)", "train_item (workloads.py:84)", "torch::autograd::THPVariable_item")
    chain = ("at::native::item", "at::native::_local_scalar_dense_cuda", "cudaMemcpyAsync")
    size = 'SELECT count(*), sum("end" - start), sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE bytes = 4'
    expected = sql(trace_path("train_item"), size)[0]
    assert tuple(sum_where(flame, k, *read, *chain) for k in ("operations", "operation_ns", "bytes")) == expected
    assert (expected[0], expected[2]) == (60, 240)
    texts = labels_of(flame)
    adam = [
        i
        for i, path in enumerate(texts)
        if any(re.match(r"_single_tensor_adam \(torch/optim/adam\.py:\d+\)", t) for t in path)
    ]
    kernels = flame.values[adam, flame.column("operations")].sum()
    in_optimizer = sum_where(flame, "operations", "optimizer", "train_step")
    assert 0 < kernels <= in_optimizer
    assert kernels / in_optimizer > 0.99  # all but what step() itself launches


@pytest.mark.parametrize("name", REAL)
def test_totals_are_the_accounts(name, analysis_of):
    flame, accounts = flame_of(name), analysis_of(name, "whole").devices
    assert flame.total("busy_ns") == sum(a.busy.everything.length for a in accounts)
    assert flame.total("exposed_ns") == sum(a.busy.exposed.length for a in accounts)
    assert flame.total("bytes") == sum(a.tables["copies_by_kind"]["bytes"].sum() for a in accounts)
    if len(accounts) == 1:
        assert flame.total("idle_ns") == accounts[0].figures()["idle_while_host_blocked_ns"]
        assert flame.total("blocked_ns") >= accounts[0].host.blocked.length  # threads are added


@pytest.mark.parametrize("name", STACKED)
def test_totals_are_plain_sql(name):
    flame = flame_of(name)
    tables = [
        t
        for t in ("KERNEL", "MEMCPY", "MEMSET")
        if sql(trace_path(name), "SELECT 1 FROM sqlite_master WHERE name = ?", f"CUPTI_ACTIVITY_KIND_{t}")
    ]
    time = sum(
        sql(trace_path(name), f'SELECT sum("end" - start) FROM CUPTI_ACTIVITY_KIND_{t} WHERE start > 0')[0][0]
        for t in tables
    )
    assert flame.total("operation_ns") == time
    low, high = flame.window
    samples = sql(trace_path(name), "SELECT count(*) FROM COMPOSITE_EVENTS WHERE start >= ? AND start < ?", low, high)
    pids = {p for (p,) in sql(trace_path(name), "SELECT DISTINCT globalTid >> 24 FROM COMPOSITE_EVENTS")}
    assert len(pids) == 1  # else only the program's would count
    assert flame.total("cpu_samples") == samples[0][0]


@pytest.mark.parametrize("name", ["llama_default", "state_checkpoint", "train_item", "loader", "threads"])
def test_os_runtime_calls_add_up_to_the_threads_own_time(name, analysis_of):
    flame = flame_of(name)
    low, high = flame.window
    total = 0
    for thread in {t for a in analysis_of(name, "whole").devices for t in a.host.threads["thread"].to_list()}:
        query = 'SELECT max(start, ?), min("end", ?) FROM OSRT_API WHERE globalTid = ? AND start < ? AND "end" > ?'
        reach = low
        for start, end in sorted(sql(trace_path(name), query, low, high, thread, high, low)):
            total += max(0, end - max(start, reach))
            reach = max(reach, end)
    assert flame.total("os_ns") == total > 0
    row = flame.coverage.filter(pl.col("kind") == "OS runtime calls").row(0, named=True)
    assert 0 < row["by_call"] <= row["of_operations"]
    assert row["operations_ratio"] < row["time_ratio"]  # only long calls have a stack


def test_os_runtime_calls_say_what_a_thread_waits_for():
    flame = flame_of("llama_default")
    waits = sum_where(flame, "os_ns", "server_queue::start_loop", "pthread_cond_clockwait")
    query = """SELECT sum("end" - start) FROM OSRT_API WHERE callchainId IN (SELECT c.id FROM OSRT_CALLCHAINS c
        JOIN StringIds s ON s.id = c.symbol WHERE s.value LIKE 'server_queue::start_loop(%')
        AND nameId = (SELECT id FROM StringIds WHERE value = 'pthread_cond_clockwait') AND start >= ? AND "end" <= ?"""
    whole = sql(trace_path("llama_default"), query, *flame.window)[0][0]
    assert 0 < whole <= waits  # a call that crosses the window's edge counts with the part inside
    texts = flame.labels["text"].to_list()
    # The call is a level of its own, not also the stack's last frame.
    leaves = [[texts[i] for i in p] for p in flame.paths.to_lists()]
    assert not any(len(p) > 1 and p[-1] == p[-2] == "pthread_cond_clockwait" for p in leaves)


# --- levels and trees ---


@pytest.mark.parametrize("name", REAL)
def test_every_level_adds_up(name):
    flame = flame_of(name)
    tree = build_tree(flame.paths, flame.values)
    totals = [flame.total(w.key) for w in flame.weights]
    assert tree.total[0].tolist() == totals
    for depth in range(int(tree.depth.max()) + 1):
        ended = tree.own[tree.depth < depth].sum(axis=0)
        assert (tree.total[tree.depth == depth].sum(axis=0) + ended).tolist() == totals
    for level in LEVELS:
        less = flame.without(frozenset({level}))
        assert [less.total(w.key) for w in less.weights] == totals
        assert not {LEVELS[n] for n in less.labels["level"].to_numpy()[less.paths.value]} & {level}


@pytest.mark.parametrize("seed", range(15))
def test_trees_against_dictionaries(seed):
    rng = random.Random(seed)
    paths = [[rng.randrange(4) for _ in range(rng.randrange(6))] for _ in range(rng.randrange(60))]
    values = np.array([[rng.randrange(100), rng.randrange(3)] for _ in paths], np.int64).reshape(-1, 2)
    flat = np.array([x for p in paths for x in p], np.int64)
    tree = build_tree(Lists.of_lengths([len(p) for p in paths], flat), values)
    expected: dict[tuple[int, ...], np.ndarray] = {(): np.zeros(2, np.int64)}
    for path, value in zip(paths, values, strict=True):
        for end in range(len(path) + 1):
            expected[tuple(path[:end])] = expected.get(tuple(path[:end]), 0) + value
    names = [tuple(p) for p in tree.paths().to_lists()]
    assert len(set(names)) == len(names)
    assert {n: t.tolist() for n, t in zip(names, tree.total, strict=True)} == {
        n: t.tolist() for n, t in expected.items()
    }
    whole = np.maximum(expected[()], 1)
    share = {n: (t / whole).max() for n, t in expected.items()}
    for most in (1, 3, 10, 1000):
        small = build_tree(Lists.of_lengths([len(p) for p in paths], flat), values, most)
        bar = sorted(share.values(), reverse=True)[min(most, len(share)) - 1]
        larger = {n for n in share if share[n] > bar} if most < len(share) else set()
        kept = (larger or {n for n in share if share[n] >= bar}) | {()}
        shown = [tuple(p) for p in small.paths().to_lists()]
        assert dict(zip(shown, small.total.tolist(), strict=True)) == {n: expected[n].tolist() for n in kept}
        gone = [max((n[:end] for end in range(len(n)) if n[:end] in kept), key=len) for n in share if n not in kept]
        assert small.lost.tolist() == [gone.count(n) for n in shown]
        assert small.own.sum(axis=0).tolist() == tree.total[0].tolist()
        again = small.own.copy()
        for node in range(len(small) - 1, 0, -1):
            again[small.parent[node]] += again[node]
        assert (again == small.total).all()


# --- formats agree ---


def clean(text):
    return re.sub(r"\s", " ", text.replace(";", ":"))


def by_path(pairs):
    summed = {}
    for path, value in pairs:
        key = ";".join(clean(t) for t in path)
        summed[key] = summed.get(key, 0) + value
    return {k: v for k, v in summed.items() if v}


def read_folded(text):
    return {path: int(value) for path, _, value in (line.rpartition(" ") for line in text.splitlines())}


def page_data(page):
    return json.loads(re.search(r'<script type="application/json" id="flame-data">(.*?)</script>', page, re.S)[1])


def page_paths(data, key, side=0):
    parent, label, texts = data["nodes"]["parent"], data["nodes"]["label"], data["labels"]["text"]
    for node, value in zip(*data["own"][key][side].values(), strict=True):
        path = []
        while node:
            path.insert(0, texts[label[node]])
            node = parent[node]
        yield path, value


@pytest.mark.parametrize("name", REAL)
def test_folded_speedscope_json_and_page_agree(name):
    flame = flame_of(name)
    document, scope, data = to_dict(flame), json.loads(to_speedscope(flame)), page_data(render_page(flame, NO_SHARES))
    frames = [f["name"] for f in scope["shared"]["frames"]]
    texts = document["labels"]["text"]
    assert (
        [w["key"] for w in document["weights"]] == [w["key"] for w in data["weights"]] == [w.key for w in flame.weights]
    )
    for weight, profile in zip(flame.weights, scope["profiles"], strict=True):
        folded = read_folded(to_folded(flame, weight.key))
        assert folded == by_path(
            ([texts[c] for c in path], v)
            for path, v in zip(document["paths"], document["values"][weight.key], strict=True)
        )
        assert folded == by_path(
            ([frames[c] for c in s], v) for s, v in zip(profile["samples"], profile["weights"], strict=True)
        )
        assert folded == by_path(page_paths(data, weight.key))
        assert sum(folded.values()) == profile["endValue"] == flame.total(weight.key) > 0


def test_speedscope_files_are_valid(tmp_path):
    from pathlib import Path

    from jsonschema import Draft7Validator

    schema = json.loads((Path(__file__).parent / "fixtures" / "speedscope-schema.json").read_text("utf-8"))
    validator = Draft7Validator(schema)
    base, new = flame_of("llama_default", lines=False), flame_of("llama_nosave", lines=False)
    for text in (
        *(to_speedscope(flame_of(name)) for name in REAL),
        to_speedscope(flame_from(ExportBuilder("2025.3.2.0"), tmp_path)),
        difference_to_speedscope(compare(base, new)),
    ):
        assert not list(validator.iter_errors(json.loads(text)))
    broken = json.loads(to_speedscope(base)) | {"profiles": [{"type": "sampled"}]}
    assert list(validator.iter_errors(broken))


# --- the difference ---


def test_difference_shows_what_vanished():
    base, new = flame_of("llama_default", lines=False), flame_of("llama_nosave", lines=False)
    difference = compare(base, new)
    assert difference.per == "second"
    assert difference.base_number == (base.window[1] - base.window[0]) / 1e9
    for function, count, size in (
        ("server_context_impl::create_checkpoint", 768, 825_360_384),
        ("server_slot::prompt_save", 576, 619_020_288),
    ):
        for key, expected in (("operations", count), ("bytes", size)):
            table = difference.table(key, function)
            assert (table["base"].sum(), table["new"].sum()) == (expected, 0)
            assert table["change_per"].sum() == pytest.approx(-expected / difference.base_number)
    # Of what was copied to pageable memory of the host, exactly these bands vanished.
    gone = difference.table("bytes", "DtoH copy, Device to Pageable").filter(pl.col("new") == 0)
    assert all(
        {"server_context_impl::create_checkpoint", "server_slot::prompt_save"} & set(p) for p in gone["path"].to_list()
    )
    for key in ("busy_ns", "exposed_ns", "bytes"):
        column = difference.column(key)
        assert difference.base_values[:, column].sum() == base.total(key)
        assert difference.new_values[:, column].sum() == new.total(key)


def test_difference_says_what_changed_in_all(tmp_path):
    """Per second a faster run looks busier: the wall time of a request must stand beside it."""
    files = [trace_path(n) for n in ("llama_default", "llama_nosave")]
    edges = 'SELECT min(start), max("end") FROM ({})'.format(
        " UNION ALL ".join(f'SELECT start, "end" FROM CUPTI_ACTIVITY_KIND_{t}' for t in ("KERNEL", "MEMCPY", "MEMSET"))
    )
    walls = [b - a for a, b in (sql(f, edges)[0] for f in files)]
    copied = [sql(f, "SELECT sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind < 11")[0][0] for f in files]
    result = run(*files, "--requests", 16, "--requests", 8, "--format", "json", "-o", tmp_path / "d.json")
    assert result.stdout.count("loads a model") == 2  # a share of both that is no serving
    rows = {r["key"]: r for r in json.loads((tmp_path / "d.json").read_text())["totals"]}
    for key, (base, new) in (("wall_ns", walls), ("bytes", copied)):
        row = rows[key]
        assert (row["base"], row["new"], row["per"]) == (base, new, "request")
        assert (row["base_per"], row["new_per"]) == (base / 16, new / 8)
        assert row["change_ratio"] == pytest.approx((new / 8) / (base / 16) - 1)
    assert f"wall time: {units.duration(walls[0])} → {units.duration(walls[1])}; per request" in result.output
    base, new = flame_of("llama_default", lines=False), flame_of("llama_nosave", lines=False)
    difference = compare(base, new)
    assert difference.per == "second"
    wall = difference.totals().row(0, named=True)
    assert (wall["base"], wall["new"], wall["base_per"], wall["change_ratio"]) == (*walls, None, None)
    page = render_difference(difference)
    assert "How many requests each holds is not known, so wall time cannot be compared" in page
    assert f'title="{walls[0]:,}">' in page
    for key in ("busy_ns", "bytes", "os_ns"):
        row = difference.totals().filter(pl.col("key") == key).row(0, named=True)
        assert (row["base"], row["new"]) == (base.total(key), new.total(key))
        assert row["base_per"] == base.total(key) / difference.base_number


def test_a_difference_with_itself_is_none():
    flame = flame_of("train_item", lines=False)
    difference = compare(flame, flame)
    assert (difference.base_values == difference.new_values).all()
    assert len(difference.paths) == len(flame.paths)
    assert difference.per == "request"  # its steps are NVTX ranges


def test_moved_symbols_and_newer_modules_match_by_name(tmp_path):
    one, two = copy_with_stack("2025.3.2.0", 0), copy_with_stack("2025.3.2.0", 0)
    other = {"/usr/lib/libcudart.so.13": "/elsewhere/libcudart.so.14", "/usr/bin/python3.12": "/opt/python3.13"}
    for text, moved in other.items():
        two._strings = {moved if t == text else t: i for t, i in two._strings.items()}
    two._strings = {t.replace("0x551418", "0x771418"): i for t, i in two._strings.items()}
    base, new = flame_from(one, tmp_path), flame_from(two, tmp_path, "new.sqlite")
    difference = compare(base, new)
    assert (difference.base_values == difference.new_values).all()
    assert len(difference.paths) == len(base.paths)


def test_thicker_copies_of_the_same_code(tmp_path):
    """The same program on two devices: the copy's path is the same, and its time and what it is per are told."""
    flames = []
    for name, model, slow in (("a.sqlite", "NVIDIA A100", 3), ("b.sqlite", "NVIDIA H100", 1)):
        b = ExportBuilder("2025.3.2.0")
        b.gpu(0, model, 0)
        b.cuda_device(PID, 0, 0)
        for i in range(4):
            at = 1_000 * US * (i + 1)
            b.launch(THREAD, (at, at + 10 * US), (at + 20 * US, at + 120 * US), f"{model[7:]}_gemm")
            b.memcpy(
                THREAD,
                (at + 12 * US, at + 900 * US),
                (at + 200 * US, at + (200 + 100 * slow) * US),
                1_000_000,
                HTOD,
                PAGEABLE,
                DEVICE,
            )
        flames.append(flame_from(b, tmp_path, name, requests=4))
    difference = compare(*flames)
    row = difference.table("exposed_ns").row(0, named=True)
    assert row["path"][-1] == "HtoD copy, Pageable to Device"
    assert (row["base_per"], row["new_per"], row["change_per"]) == (300 * US, 100 * US, -200 * US)
    # Each card has kernels of its own; the copy is one band of both, and not one that went and one that came.
    kernels = {r["path"][-1]: (r["base"], r["new"]) for r in difference.table("busy_ns", "gemm").to_dicts()}
    assert kernels == {"A100_gemm": (400 * US, 0), "H100_gemm": (0, 400 * US)}
    assert difference.table("exposed_ns").height == 1
    total = difference.totals().filter(pl.col("key") == "exposed_ns").row(0, named=True)
    assert (total["base_per"], total["new_per"]) == (300 * US, 100 * US)
    assert total["change_ratio"] == pytest.approx(-2 / 3)
    data = page_data(render_difference(difference))
    (node,) = [
        i for i, n in enumerate(data["nodes"]["label"]) if i and data["labels"]["text"][n].startswith("HtoD copy")
    ]
    sides = [dict(zip(side["node"], side["value"], strict=True))[node] for side in data["own"]["exposed_ns"]]
    assert [v * scale for v, scale in zip(sides, data["scale"], strict=True)] == [300 * US, 100 * US]


def test_formats_of_a_difference_agree():
    base, new = flame_of("llama_default", lines=False), flame_of("llama_nosave", lines=False)
    difference = compare(base, new)
    data = page_data(render_difference(difference))
    scope = json.loads(difference_to_speedscope(difference))
    frames = [f["name"] for f in scope["shared"]["frames"]]
    profiles = {p["name"]: p for p in scope["profiles"]}
    for weight in difference.weights:
        rows = [line.rsplit(" ", 2) for line in difference_to_folded(difference, weight.key).splitlines()]
        for side, flame in enumerate((base, new)):
            folded = {path: int(v[side]) for path, *v in rows if int(v[side])}
            assert folded == read_folded(to_folded(flame, weight.key))
            assert folded == by_path(page_paths(data, weight.key, side))
            profile = profiles[f"{weight.title}, {flame.name}"]
            assert folded == by_path(
                ([frames[c] for c in s], v) for s, v in zip(profile["samples"], profile["weights"], strict=True)
            )
    assert data["scale"] == [1 / difference.base_number, 1 / difference.new_number]


# --- tables ---


@pytest.mark.parametrize("name", STACKED)
def test_tables_add_up(name, analysis_of):
    flame, account = flame_of(name), analysis_of(name, "whole").devices[0]
    copies, waiting = table_copy_paths(flame), table_waiting_paths(flame)
    assert copies["exposed_ns"].sum() == account.busy.exposed.length
    assert copies["bytes"].sum() == account.tables["copies_by_kind"]["bytes"].sum()
    assert copies["copies"].sum() == account.tables["copies_by_kind"]["count"].sum()
    assert waiting["idle_ns"].sum() == account.figures()["idle_while_host_blocked_ns"]
    assert waiting["blocked_ns"].sum() == flame.total("blocked_ns")
    assert copies["exposed_ns"].to_list() == sorted(copies["exposed_ns"].to_list(), reverse=True)


def test_tables_name_who_asked():
    copies = table_copy_paths(flame_of("state_checkpoint"))
    assert copies.row(0, named=True)["where"] == "state_checkpoint (workloads.py:31)"
    server = table_copy_paths(flame_of("llama_default"))
    rows = server.filter(pl.col("where").str.contains("create_checkpoint"))
    assert (rows["copies"].sum(), rows["bytes"].sum()) == (768, 825_360_384)
    waiting = table_waiting_paths(flame_of("train_item"))
    row = waiting.filter(
        (pl.col("where") == "train_item (workloads.py:84)") & (pl.col("api") == "cudaStreamSynchronize")
    )
    end = flame_of("train_item").window[1]
    calls = """SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = r.nameId
        WHERE s.value = 'cudaStreamSynchronize' AND r.start < ? AND EXISTS (SELECT 1 FROM CUDA_CALLCHAINS c
        JOIN StringIds f ON f.id = c.symbol WHERE c.id = r.callchainId AND f.value LIKE 'at::native::item(%')"""
    assert (
        [(row["calls"].sum(),)] == sql(trace_path("train_item"), calls, end) == [(59,)]
    )  # the last lies behind the work


# --- hostile and empty input ---


def test_hostile_names_stay_text(tmp_path):
    evil = "</script><script>window.hacked=1</script>\u2028;&amp;"
    b = ExportBuilder("2025.3.2.0")
    b.gpu(0, evil, 0)
    b.cuda_device(PID, 0, 0)
    b.process(PID, evil)
    b.thread(PID, PID, evil)
    b.push_pop(evil, 500 * US, 2_000 * US, THREAD)
    b.callchain(0, [("cudaMemcpyAsync", "libcudart.so"), (evil, evil)])
    correlation = b.api("cudaMemcpyAsync", 1_000 * US, 1_100 * US, THREAD, callchain=0)
    b.copy(1_010 * US, 1_090 * US, 8, DTOH, DEVICE, PAGEABLE, 0, 7, correlation, PID)
    flame = flame_from(b, tmp_path)
    page = render_page(flame, NO_SHARES)
    assert "window.hacked" in page
    assert "<script>window" not in page
    assert page.count("</script>") == 2
    assert page_data(page)["labels"]["text"].count(evil) == 2  # the thread and the range; others are shortened
    assert read_folded(to_folded(flame, "bytes")) == by_path([(["x"], 0), *page_paths(page_data(page), "bytes")])


def test_command_lines_and_folders_of_the_machine_stay_out(tmp_path):
    b = copy_with_stack("2025.3.2.0", 0)
    for row in b.rows["PROCESSES"]:
        row["name"] = "/opt/SECRET/python3 /home/SECRET/serve.py --api-key=SECRET"
    describe_payloads(b)
    python_stack(b, 1_000 * US - 200, [("save", "/home/SECRET/serve.py", 31)])
    b.callchain(7, [("cudaMemcpyAsync", "/home/SECRET/libcudart.so"), ("go(int)", "/home/SECRET/bin/app")])
    correlation = b.api("cudaMemcpyAsync", 9_000 * US, 9_100 * US, THREAD, callchain=7)
    b.copy(9_010 * US, 9_090 * US, 8, DTOH, DEVICE, PAGEABLE, 0, 7, correlation, PID)
    flame = flame_from(b, tmp_path)
    assert {path[0] for path in labels_of(flame)} == {"python3"}
    assert any("go" in path for path in labels_of(flame))
    difference = compare(flame, flame)
    for text in (
        *(render_page(flame, NO_SHARES), to_speedscope(flame), to_folded(flame, "bytes"), json.dumps(to_dict(flame))),
        *(render_difference(difference), difference_to_speedscope(difference), difference_to_json(difference)),
    ):
        assert "serve.py" in text
        assert "SECRET" not in text
        assert str(tmp_path) not in text


def test_nothing_at_all_is_said_and_no_error(tmp_path):
    flame = flame_from(ExportBuilder("2025.3.2.0"), tmp_path)
    assert not flame.weights
    page = render_page(flame, NO_SHARES)
    assert "no GPU work" in page
    assert "<script" not in page


def test_a_trace_without_stacks_says_which_flag_records_them(tmp_path):
    b = ExportBuilder("2025.3.2.0")
    b.launch(THREAD, (10 * US, 20 * US), (30 * US, 40 * US))
    assert "--cudabacktrace=all" in HOW_TO_RECORD
    assert HOW_TO_RECORD in render_page(flame_from(b, tmp_path), NO_SHARES)
    assert HOW_TO_RECORD not in render_page(flame_of("train_item"), NO_SHARES)


def test_python_stacks_that_cannot_be_read_are_told(tmp_path):
    b = copy_with_stack("2025.3.2.0", 0)
    describe_payloads(b)
    python_stack(b, 100, binaryData=None, jsonText="{}")
    page = render_page(flame_from(b, tmp_path), NO_SHARES)
    assert "1 Python stacks are in a form that cannot be read and are left out." in page


def test_too_many_frames_are_pruned_and_it_is_said():
    flame = flame_of("train_item")
    whole, small = render_page(flame, NO_SHARES), render_page(flame, NO_SHARES, max_nodes=50)
    assert "largest of" not in whole
    assert re.search(r"This page holds the \d+ largest of [\d,]+ frames", small)
    data = page_data(small)
    assert len(data["nodes"]["parent"]) <= 50
    for weight in flame.weights:
        assert sum(data["own"][weight.key][0]["value"]) == flame.total(weight.key)


def test_same_input_same_bytes(tmp_path):
    pages = []
    for seed in (1, 2):
        b = copy_with_stack("2025.3.2.0", 0)
        with open_trace(b.write(tmp_path / "trace.sqlite", shuffle=seed)) as trace:
            flame = made(analyze(trace), trace)
        pages.append((render_page(flame, NO_SHARES), to_speedscope(flame), to_folded(flame, "bytes")))
    assert pages[0] == pages[1]


# --- the command ---


def run(*arguments):
    return CliRunner().invoke(cli, ["flamegraph", *map(str, arguments)])


def test_command_writes_every_format(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trace = trace_path("state_checkpoint")
    for form, ending in (
        ("html", "flamegraph.html"),
        ("folded", "folded"),
        ("speedscope", "speedscope.json"),
        ("json", "flamegraph.json"),
    ):
        result = run(trace, "--format", form)
        assert result.exit_code == 0, result.output
        assert (tmp_path / f"state_checkpoint.{ending}").stat().st_size > 1_000
        assert "copies with a stack: 100.0%" in result.output
    result = run(
        trace, "--format", "folded", "--weight", "bytes", "--window", "whole", "--without", "nvtx", "-o", "x.txt"
    )
    assert result.exit_code == 0
    assert sum(read_folded((tmp_path / "x.txt").read_text()).values()) == 640_000_000 + 67_141_632
    assert "state_save" not in (tmp_path / "x.txt").read_text()


def test_command_reads_from_a_cache(tmp_path):
    texts = []
    for name in ("first", "second"):
        result = run(trace_path("train_item"), "--cache", tmp_path / "kept", "-o", tmp_path / name)
        assert result.exit_code == 0, result.output
        texts.append((tmp_path / name).read_bytes())
    result = run(trace_path("train_item"), "-o", tmp_path / "without")
    assert texts[0] == texts[1] == (tmp_path / "without").read_bytes()


def test_command_draws_a_difference(tmp_path):
    result = run(trace_path("llama_default"), trace_path("llama_nosave"), "--requests", 16, "-o", tmp_path / "d.html")
    assert result.exit_code == 0, result.output
    assert page_data((tmp_path / "d.html").read_text())["per"] == " a request"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weight", "bytes"], "--weight was given"),
        (["--per", "second"], "--per was given with one recording"),
        (["--requests", "3", "--requests", "4"], "--requests was given too often"),
        (
            ["--format", "folded", "--weight", "python-samples"],
            "nothing in the window has a weight of 'python-samples'",
        ),
    ],
)
def test_command_refuses_what_makes_no_sense(arguments, message, tmp_path):
    result = run(trace_path("eager_h2d"), "-o", tmp_path / "x", *arguments)
    assert message in str(result.exception)
    assert not (tmp_path / "x").exists()
