"""Recordings that lack almost everything: exit 0, the output says so, and unknown is never 0."""

from __future__ import annotations

import html
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from analyzed import MS, NEWEST, PID, TID, US, machine
from commandline import CommandLine
from export_builder import DEVICE, DTOH, HTOD, PAGEABLE, PINNED, RELEASES, UNKNOWN_MEMORY, ExportBuilder

NOTHING_ON_THE_GPU = "there is nothing to account for on the GPU"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    (tmp_path / "here").mkdir()
    return CommandLine(tmp_path / "here", monkeypatch, capfd)


def everything(cli: CommandLine, builder: ExportBuilder, **how: Any) -> tuple[dict[str, Any], str, str]:
    """The JSON, what is printed, and what `info` prints; the report must be there too."""
    path = builder.write(cli.folder.parent / "trace.sqlite", **how)
    info = cli("info", path)
    assert (info.code, info.err) == (0, "")
    done = cli("analyze", path)
    assert (done.code, done.err) == (0, ""), done.err
    page = (cli.folder / "trace.html").read_text()
    found = json.loads((cli.folder / "trace.json").read_text())
    assert found["verdict"]
    for sentence in found["verdict"]:
        assert sentence in html.unescape(page)
    for printed in (done.out, info.out):
        assert "nan" not in printed.lower().replace("nanosecond", "")
        assert "None" not in printed
        assert "-inf" not in printed
    return found, done.out, info.out


def nothing(b: ExportBuilder) -> None: ...


def only_nvtx(b: ExportBuilder) -> None:
    for i in range(5):
        b.push_pop(f"request {i}", i * MS, (i + 1) * MS - US, TID)


def only_os_runtime(b: ExportBuilder) -> None:
    b.osrt("read", MS, 2 * MS, TID)


@pytest.mark.parametrize("release", RELEASES[::11])
@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("filled", [nothing, only_nvtx, only_os_runtime])
def test_no_cuda_at_all(filled: Callable[[ExportBuilder], None], lazy: bool, release: str, cli: CommandLine) -> None:
    b = ExportBuilder(release)
    filled(b)
    found, printed, info = everything(cli, b, lazy=lazy)
    assert found["devices"] == []
    assert f"No CUDA activity was recorded: {NOTHING_ON_THE_GPU}." in printed
    assert found["integrity"]["status"] == "ok"
    assert (
        {row["operations_ratio"] for row in found["coverage"]}
        == {row["time_ratio"] for row in found["coverage"]}
        == {None}
    )
    assert info.count("n/a of operations") == len(found["coverage"])
    states = {row["what"]: row["state"] for row in found["recorded"]}
    assert states["kernels"] == states["memory copies"] == "not recorded"
    assert states["NVTX ranges"] == ("recorded" if filled is only_nvtx else "not recorded")
    assert "kernels: -t cuda" in info


def test_no_rows_in_any_table(cli: CommandLine) -> None:
    path = machine().write(cli.folder.parent / "empty.sqlite", lazy=False)
    with closing(sqlite3.connect(path)) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            db.execute(f'DELETE FROM "{table}"')
        db.commit()
    done = cli("analyze", path)
    assert (done.code, done.err) == (0, "")
    assert NOTHING_ON_THE_GPU in done.out
    info = cli("info", path)
    assert "GPUs of the machine\n  none" in info.out
    trace = json.loads((cli.folder / "empty.json").read_text())["trace"]
    assert (trace["release"], trace["schema"], trace["session_start_utc_ns"]) == (None, None, None)


def test_calls_but_no_gpu_rows(cli: CommandLine) -> None:
    b = machine()
    for i in range(5):
        b.api("cudaMalloc_v3020", i * MS, i * MS + US, TID)
    found, printed, _ = everything(cli, b)
    assert "No GPU operation was recorded, though 5 CUDA API calls were" in printed
    assert found["devices"] == []
    assert found["integrity"]["status"] == "ok"  # none of these calls sends work
    assert {r["state"] for r in found["recorded"] if r["what"] in {"kernels", "memory copies"}} == {"none seen"}


def test_calls_that_send_work_but_no_gpu_rows(cli: CommandLine) -> None:
    b = machine()
    b.api("cudaLaunchKernel_v7000", MS, 2 * MS, TID)
    found, printed, _ = everything(cli, b)
    assert found["integrity"]["status"] == "incomplete"
    assert "1 of 1 calls that send work have no GPU row" in printed


def one(found: dict[str, Any]) -> dict[str, Any]:
    (device,) = found["devices"]
    return dict(device)


def test_no_kernels(cli: CommandLine) -> None:
    b = machine()
    b.memcpy(TID, (MS, 2 * MS), (MS, 2 * MS), 1_000_000, HTOD, PAGEABLE, DEVICE)
    found, printed, _ = everything(cli, b)
    device = one(found)
    assert device["figures"]["sm_fill_ratio"] is None
    assert device["tables"]["kernels"]["rows_total"] == 0
    assert (device["figures"]["kernels_ns"], device["figures"]["copies_ns"]) == (0, MS)
    assert device["loading"] is None
    assert "kernels 0.0%" in printed


def test_no_copies(cli: CommandLine) -> None:
    b = machine()
    b.launch(TID, (MS, MS + US), (2 * MS, 3 * MS))
    device = one(everything(cli, b)[0])
    tables = device["tables"]
    assert {name: tables[name]["rows_total"] for name in tables if name.startswith("cop")} == dict.fromkeys(
        ("copies_by_kind", "copies_by_api", "copies_by_thread", "copies_by_sender", "copy_busy", "copy_sizes"), 0
    )
    assert device["figures"]["copies_exposed_ns"] == 0


def test_no_nvtx(cli: CommandLine) -> None:
    b = machine()
    b.launch(TID, (MS, MS + US), (2 * MS, 3 * MS))
    found, _, info = everything(cli, b)
    device = one(found)
    assert (device["window"]["name"], device["requests"]) == ("whole", None)
    assert device["tables"]["requests"]["rows_total"] == 0
    coverage = {row["measure"]: row["operations_ratio"] for row in found["coverage"]}
    assert (coverage["call"], coverage["nvtx"]) == (1, 0)
    assert "NVTX ranges: -t nvtx" in info


def test_gpu_rows_but_no_calls(cli: CommandLine) -> None:
    b = machine()
    b.kernel(MS, 2 * MS, 0, 7, 1, PID)
    b.copy(3 * MS, 4 * MS, 8, DTOH, DEVICE, PINNED, 0, 7, 2, PID)
    found, _, info = everything(cli, b)
    device = one(found)
    assert device["tables"]["threads"]["rows_total"] == 0
    columns = device["tables"]["copies_by_api"]["columns"]
    (row,) = device["tables"]["copies_by_api"]["rows"]
    values = dict(zip(columns, row, strict=True))
    assert (values["api"], values["in_call_ns"], values["call_bandwidth"]) == (None, None, None)
    assert values["bytes"] == 8
    (gap,) = device["tables"]["idle_by_activity"]["rows"]
    assert gap[:2] == ["unknown thread", MS]
    assert found["coverage"][0]["operations_ratio"] == 0
    assert "0.0% of operations" in info


def test_only_memsets(cli: CommandLine) -> None:
    b = machine()
    ids = b.api("cudaMemsetAsync_v3020", MS, MS + US, TID)
    b.memset(2 * MS, 3 * MS, 4096, 0, 7, ids, PID)
    device = one(everything(cli, b)[0])
    assert device["figures"]["memsets_ns"] == device["figures"]["busy_ns"] == MS
    assert device["tables"]["memsets"]["rows"] == [["Device", 1, 4096, MS]]
    assert device["figures"]["sm_fill_ratio"] is None


def test_only_graphs(cli: CommandLine) -> None:
    b = machine()
    for i in range(3):
        ids = b.api("cudaGraphLaunch_v10000", i * MS, i * MS + US, TID)
        b.graph_trace(i * MS + 2 * US, i * MS + 500 * US, 0, 7, ids, PID)
    found, printed, _ = everything(cli, b)
    device = one(found)
    assert device["figures"]["graphs_ns"] == 3 * 498 * US
    assert device["figures"]["sm_fill_ratio"] is None
    assert "whole graphs" in printed
    (graphs,) = (c for c in found["integrity"]["checks"] if c["id"] == "graphs")
    assert graphs["status"] == "note"
    assert "--cuda-graph-trace=node" in graphs["summary"]


def test_only_unified_memory(cli: CommandLine) -> None:
    b = machine()
    for i, kind in enumerate((11, 12)):
        b.copy(
            (i + 1) * MS, (i + 2) * MS, 65_536, kind, UNKNOWN_MEMORY, UNKNOWN_MEMORY, 0, 0, 0, PID, contextId=0
        )  # fmt: skip
    found, printed, _ = everything(cli, b)
    device = one(found)
    assert device["figures"]["migrations_ns"] == 2 * MS
    assert (device["figures"]["copies_ns"], device["tables"]["copies_by_kind"]["rows_total"]) == (0, 0)
    assert "unified-memory migrations 100.0%" in printed
    assert found["coverage"][0]["operations_ratio"] is None


def test_a_single_zero_length_kernel(cli: CommandLine) -> None:
    b = machine()
    b.launch(TID, (MS, MS + US), (2 * MS, 2 * MS))
    device = one(everything(cli, b)[0])
    assert device["tables"]["kernels"]["rows_total"] == 1
    assert device["figures"]["busy_ns"] == 0
    kernels = dict(zip(device["tables"]["kernels"]["columns"], device["tables"]["kernels"]["rows"][0], strict=True))
    assert (kernels["count"], kernels["time_ns"], kernels["time_ratio"], kernels["sm_fill"]) == (1, 0, None, None)


def test_zero_length_and_zero_byte_copies(cli: CommandLine) -> None:
    b = machine()
    b.memcpy(TID, (MS, MS + US), (2 * MS, 2 * MS), 1000, HTOD, PINNED, DEVICE)
    b.memcpy(TID, (3 * MS, 3 * MS), (4 * MS, 5 * MS), 0, DTOH, DEVICE, PINNED)
    tables = one(everything(cli, b)[0])["tables"]["copies_by_kind"]
    rows = {row[0]: dict(zip(tables["columns"], row, strict=True)) for row in tables["rows"]}
    assert {kind: (row["bytes"], row["bandwidth"], row["call_bandwidth"]) for kind, row in rows.items()} == {
        "HtoD": (1000, None, 1e9),  # a rate over no time is unknown
        "DtoH": (0, None, None),
    }


def test_a_gpu_that_the_export_does_not_describe(cli: CommandLine) -> None:
    b = ExportBuilder(NEWEST)
    b.launch(TID, (MS, MS + US), (2 * MS, 3 * MS))
    found, printed, info = everything(cli, b)
    device = one(found)
    assert f"CUDA device 0 of process {PID} was busy" in printed
    assert (device["device"]["name"], device["device"]["link_peak"], device["figures"]["sm_fill_ratio"]) == (None,) * 3
    assert "GPUs of the machine\n  none" in info


def test_ranges_without_gpu_work_are_no_requests(cli: CommandLine) -> None:
    b = machine()
    for i in range(5):
        b.push_pop("poll", i * MS, i * MS + US, TID)
    b.launch(TID, (10 * MS, 10 * MS + US), (11 * MS, 12 * MS))
    assert one(everything(cli, b)[0])["requests"] is None
