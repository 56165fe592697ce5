"""The standard scenario means the same in all 35 releases, whatever tables and columns they have."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from analyzed import NEWEST, analyze_file
from export_builder import RELEASES, ExportBuilder, Row, version
from export_scenario import GPU_OF, A, standard_scenario

from nsysparse import schema
from nsysparse.accounting.device import DeviceAccount
from nsysparse.analysis import Analysis
from nsysparse.joins.api import load_calls
from nsysparse.outputs.json import to_json
from nsysparse.source import open_trace

Key = tuple[int, int]  # process, CUDA ordinal
OLD = "before 2021.5"


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def built(release: str) -> tuple[ExportBuilder, Row]:
    builder = ExportBuilder(release)
    return builder, standard_scenario(builder)


def analyzed_as(release: str, **how: Any) -> Analysis:
    with tempfile.TemporaryDirectory() as folder:
        path = built(release)[0].write(Path(folder) / "trace.sqlite", **how)
        return analyze_file(path, window="whole", whole_names=True)


@cache
def analysis_of(release: str) -> Analysis:
    return analyzed_as(release)


def says_which_gpu(release: str) -> bool:
    return release == OLD or version(release) >= (2025, 1)


@cache
def frames_of(release: str) -> dict[str, pl.DataFrame]:
    with tempfile.TemporaryDirectory() as folder:
        path = built(release)[0].write(Path(folder) / "trace.sqlite")
        with open_trace(path) as trace:
            return {name: trace.frame(name) for name in schema.TABLES}


def test_frames_have_the_columns_and_types_of_the_schema(release: str) -> None:
    for name, table in schema.TABLES.items():
        assert dict(frames_of(release)[name].schema) == {c.name: c.dtype() for c in table.columns}, name


def test_frames_hold_what_the_export_holds(release: str) -> None:
    builder, _ = built(release)
    texts = [{"id": number, "value": text} for text, number in builder._strings.items()]
    for name, table in schema.TABLES.items():
        held = builder.rows | {"StringIds": texts}
        source = next((s for s in table.sources if held.get(s)), None)
        rows = held[source] if source else []
        present = set(rows[0]) if rows else set()
        for column in table.columns:
            picked = next((c for c in (column.source, *column.alternatives) if c in present), None)
            values = [row[picked] if picked else None for row in rows]
            expected = [column.default if v is None else v for v in values]
            assert frames_of(release)[name][column.name].to_list() == expected, (name, column.name)


def test_frames_equal_those_of_the_newest_release(release: str) -> None:
    builder, newest = built(release)[0], frames_of(NEWEST)
    for name, table in schema.TABLES.items():
        source = next((s for s in table.sources if builder.rows.get(s)), None)
        if source is None or name in {"cuda_gpus", "diagnostics"}:  # one is of the oldest release, one counts rows
            continue
        present = {column[0] for column in builder.tables[source]}
        for column in table.columns:
            if column.pick(present) is not None and newest[name].height:
                assert frames_of(release)[name][column.name].equals(newest[name][column.name]), (name, column.name)


def test_counts_and_bytes(release: str) -> None:
    truth, work = built(release)[1], analysis_of(release).work
    assert work.kernels.height == truth["kernels"]
    assert (work.memsets.height, work.memsets["bytes"].sum()) == (truth["memsets"], truth["memset_bytes"])
    groups = work.copies.group_by("kind", "src_kind", "dst_kind").agg(pl.len(), pl.col("bytes").sum())
    assert {row[:3]: row[3:] for row in groups.iter_rows()} == truth["copies"]
    assert work.calls.height == truth["calls"]
    assert [f.height for f in (work.migrations, work.graphs, work.untimed)] == [0, 0, 0]


def test_every_operation_has_its_call_thread_and_path(release: str) -> None:
    truth, work = built(release)[1], analysis_of(release).work
    with (
        tempfile.TemporaryDirectory() as folder,
        open_trace(built(release)[0].write(Path(folder) / "t.sqlite")) as trace,
    ):
        ids = load_calls(trace)["correlation"].to_list()
    texts = dict(work.ranges.paths.select("path", "text").iter_rows())
    found = {}
    for kind in ("kernels", "copies", "memsets"):
        frame: pl.DataFrame = getattr(work, kind)
        for op in frame.with_columns(pl.col("path_by").cast(pl.String)).to_dicts():
            key = (kind[:4], op["start_ns"], op["end_ns"], op["thread"], ids[op["call"]])
            found[key] = (texts[op["path"]], op["path_by"])
    expected = {}
    for op in truth["operations"]:
        by = "thread" if op["path"] else "in time" if op["in_time_path"] else "none"
        names = op["path_all_domains"] or op["in_time_path"] or ("(no NVTX range)",)
        text = "/".join("lib:gemm_call" if name == "gemm_call" else name for name in names)
        kind = {"kernel": "kern", "copy": "copi", "memset": "mems"}[op["kind"]]
        expected[kind, op["start"], op["end"], op["tid"], op["correlation"]] = (text, by)
    assert found == expected


def _accounts(release: str) -> dict[tuple[Key, ...], DeviceAccount]:
    """Accounts by the (process, ordinal) pairs that they stand for."""
    work = analysis_of(release).work
    found: dict[tuple[Key, ...], DeviceAccount] = {}
    for account in analysis_of(release).devices:
        parts = [f.filter(pl.col("device") == account.number) for f in (work.kernels, work.copies, work.memsets)]
        pairs = {pair for part in parts for pair in part.select("process", "ordinal").unique().iter_rows()}
        found[tuple(sorted((process >> 24 & 0xFFFFFF, ordinal) for process, ordinal in pairs))] = account
    return found


def test_devices_are_folded_and_named_where_the_export_says_which_gpu_they_are(release: str) -> None:
    accounts = {keys: account.device for keys, account in _accounts(release).items()}
    named = {keys: (d["label"], d["name"], d["gpu"], d["sm_count"]) for keys, d in accounts.items()}
    if says_which_gpu(release):
        together = tuple(sorted(key for key, gpu in GPU_OF.items() if gpu == 0))
        assert named == {
            together: ("GPU 0 (NVIDIA L4)", "NVIDIA L4", 0, 58),
            ((A, 0),): ("GPU 1 (NVIDIA H200)", "NVIDIA H200", 1, 132),
        }
    else:
        unknown = {(key,): (f"CUDA device {key[1]} of process {key[0]}", None, None, None) for key in GPU_OF}
        assert named == unknown


def test_busy_copy_and_exposed_time_of_each_device(release: str) -> None:
    truth = built(release)[1]
    for keys, account in _accounts(release).items():
        known = truth["gpus"][GPU_OF[keys[0]]] if says_which_gpu(release) else truth["devices"][keys[0]]
        f = account.figures()
        assert (f["window_start_ns"], f["window_end_ns"]) == known["window"]
        names = ("busy_ns", "kernels_ns", "copies_ns", "memsets_ns", "copies_exposed_ns", "copies_overlapped_ns")
        expected = ("busy_ns", "kernel_ns", "copy_ns", "memset_ns", "exposed_copy_ns", "overlapped_copy_ns")
        assert [f[name] for name in names] == [known[name] for name in expected]
        assert f["idle_ns"] == known["window"][1] - known["window"][0] - known["busy_ns"]
        assert (f["sm_fill_ratio"] is not None) == says_which_gpu(release)


def test_requests(release: str, tmp_path: Path) -> None:
    builder, truth = built(release)
    analysis = analyze_file(builder.write(tmp_path / "trace.sqlite"), window="whole")
    (account,) = (a for a in analysis.devices if a.requests and "request:#" in a.requests.basis)
    assert account.requests is not None
    assert account.requests.count == 4
    frame = account.requests.frame
    assert frame is not None
    for row in frame.to_dicts():
        mine = [op for op in truth["operations"] if row["name"] in (op["path"] or op["in_time_path"] or ())]
        kernels, copies = ([op for op in mine if op["kind"] == kind] for kind in ("kernel", "copy"))
        sizes = {kind: sum(op["bytes"] for op in copies if op["copy"][0] == kind) for kind in (1, 2, 8)}
        assert row["latency_ns"] == 900_000
        assert (row["kernels"], row["copies"]) == (len(kernels), len(copies))
        assert (row["htod_bytes"], row["dtoh_bytes"], row["other_bytes"]) == tuple(sizes.values())
        assert row["kernel_ns"] == sum(op["end"] - op["start"] for op in kernels)
    assert frame["kernels"].sum() == sum(r["kernels"] for r in truth["requests"].values()) + 2  # autograd's two


def test_no_check_alarms(release: str) -> None:
    verdict = analysis_of(release).integrity
    statuses = {c.status.value for c in verdict.checks}
    assert verdict.status.value == "ok"
    assert statuses <= {"ok", "not applicable", "unknown"}
    assert ("unknown" in statuses) == (version(release) < (2024, 2))


def _json(analysis: Analysis) -> str:
    size = analysis.trace["size_bytes"]
    return to_json(analysis).replace(f'"size_bytes": {size}', '"size_bytes": 0')


def test_row_order_and_empty_tables_change_nothing(release: str) -> None:
    expected = _json(analysis_of(release))
    assert _json(analyzed_as(release, lazy=False, shuffle=3)) == expected


@pytest.mark.parametrize("how", [{"lazy": False}, {"shuffle": 1}, {"shuffle": 2}])
@pytest.mark.parametrize("release", [OLD, RELEASES[len(RELEASES) // 2], NEWEST], indirect=True)
def test_each_variation_alone_changes_nothing(release: str, how: dict[str, Any]) -> None:
    assert _json(analyzed_as(release, **how)) == _json(analysis_of(release))
