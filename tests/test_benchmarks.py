"""The benchmark's recordings hold what they should, and the analysis of them counts what plain SQL counts."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import polars as pl
import pytest

from nsysparse.analysis import Analysis, analyze
from nsysparse.source import open_trace

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
N = 2_000
SHAPES = ("default", "flat", "deep", "unfinished", "equal", "names", "many")


def tool(name: str, *arguments: object) -> str:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("generated")
    for shape in SHAPES:
        tool("generate", N, folder / f"{shape}.sqlite", "--shape", shape)
    return {shape: folder / f"{shape}.sqlite" for shape in SHAPES}


@cache
def analysis_of(path: Path) -> Analysis:
    with open_trace(path) as trace:
        return analyze(trace)


def rows(path: Path, statement: str) -> list[tuple]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def enclosing_starts(path: Path) -> Counter:
    """Start of the innermost push/pop range around each launch that made a kernel; a loop over a stack of ranges."""
    ranges = rows(
        path, 'SELECT globalTid, start, ifnull("end", 1 << 62) FROM NVTX_EVENTS WHERE eventType = 59 ORDER BY start'
    )
    calls = rows(
        path,
        "SELECT r.globalTid, r.start FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r"
        " ON r.correlationId = k.correlationId AND r.globalTid & ~0xFFFFFF = k.globalPid",
    )
    events = [(t, s, 0, i) for i, (t, s, _) in enumerate(ranges)] + [(t, s, 1, -1) for t, s in calls]
    found: Counter = Counter()
    on: int | None = None
    for thread, start, is_call, i in sorted(events):
        if thread != on:
            on, opened = thread, []
        if not is_call:
            opened.append(ranges[i][1:])
            continue
        opened = [r for r in opened if r[1] >= start]
        # Latest start, then the shortest: what a stack of push and pop has on top.
        found[max(opened, key=lambda r: (r[0], -r[1]))[0] if opened else None] += 1
    return found


def test_a_recording_has_the_rows_it_was_asked_for(recordings: dict[str, Path]) -> None:
    for shape, path in recordings.items():
        counted = [
            rows(path, f"SELECT count(*) FROM {t}")[0][0]
            for t in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME")
        ]
        assert counted == [N, 3 * N], shape
    ranges = "SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 59"
    assert rows(recordings["flat"], ranges) == [(10 * N,)]
    assert {rows(recordings[s], ranges)[0][0] for s in ("deep", "unfinished", "equal")} == {N}
    assert rows(recordings["unfinished"], f'{ranges} AND "end" IS NULL') == [(N,)]
    assert rows(recordings["equal"], "SELECT count(DISTINCT start) FROM NVTX_EVENTS WHERE eventType = 59") == [(1,)]
    streams = "SELECT count(*) FROM (SELECT DISTINCT globalPid, streamId FROM CUPTI_ACTIVITY_KIND_KERNEL)"
    assert rows(recordings["many"], streams)[0][0] > 1_000  # 2,000 threads launched one kernel each


def test_the_same_arguments_give_the_same_rows(recordings: dict[str, Path], tmp_path: Path) -> None:
    tool("generate", N, tmp_path / "again.sqlite")
    assert (tmp_path / "again.sqlite").read_bytes() == recordings["default"].read_bytes()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_analysis_counts_what_sql_counts(recordings: dict[str, Path], shape: str) -> None:
    path = recordings[shape]
    work = analysis_of(path).work
    kernels = rows(
        path,
        'SELECT d.gpuId, count(*), sum(k."end" - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k'
        " JOIN TARGET_INFO_CUDA_DEVICE d ON d.pid = k.globalPid >> 24 & 0xFFFFFF AND d.cudaId = k.deviceId"
        " GROUP BY d.gpuId ORDER BY d.gpuId",
    )
    counted = (
        work.kernels.join(work.devices.select("device", "gpu"), on="device")
        .group_by("gpu")
        .agg(pl.len(), (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns"))
        .sort("gpu")
    )
    assert counted.rows() == kernels
    copies = rows(path, "SELECT copyKind, count(*), sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY GROUP BY copyKind")
    by_kind = work.copies.group_by("kind").agg(pl.len(), pl.col("bytes").sum()).sort("kind")
    assert by_kind.rows() == copies
    calls = rows(
        path,
        "SELECT count(*), sum(r.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r"
        " ON r.correlationId = k.correlationId AND r.globalTid & ~0xFFFFFF = k.globalPid",
    )
    assert [(work.kernels["call"].count(), work.calls.times_of(work.kernels["call"])["call_start_ns"].sum())] == calls


@pytest.mark.parametrize("shape", SHAPES)
def test_launches_are_in_the_ranges_that_a_stack_finds(recordings: dict[str, Path], shape: str) -> None:
    work = analysis_of(recordings[shape]).work
    starts = work.ranges.frame["start_ns"]
    kernels = work.kernels.with_columns(pl.col("path_by").cast(pl.String))
    ours = Counter(starts[r] if by == "thread" else None for r, by in kernels.select("range", "path_by").iter_rows())
    assert ours == enclosing_starts(recordings[shape])


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_floor_decodes_what_sqlite_reads(recordings: dict[str, Path]) -> None:
    for path in recordings.values():
        tables = json.loads(tool("floor", path, "--check"))["tables"]
        assert tables["CUPTI_ACTIVITY_KIND_RUNTIME"]["rows"] == 3 * N
        assert all(t["equal"] for t in tables.values())


def test_the_harness_measures_and_compares(tmp_path: Path) -> None:
    kept = [tmp_path / "before.json", tmp_path / "after.json"]
    for file in kept:
        arguments = ("--rounds", 1, "--command", "analyze", "--folder", tmp_path / "bench", "--keep", file)
        printed = tool("run", N, *arguments)
        assert "2,000 kernels, shape default" in printed
    (recording,) = json.loads(kept[1].read_text("utf-8"))["recordings"]
    by_name = {c["command"]: c for c in recording["commands"]}
    assert set(by_name) == {"analyze", "analyze, filling the cache", "analyze, from the cache", "analyze, within 2 GiB"}
    for command in by_name.values():
        assert command["failed"] == 0
        assert command["peak_bytes"] > 50_000_000
        assert {"starting", "reading", "joining", "accounting", "rendering"} <= set(command["stages_cpu_s"])
    assert not list((tmp_path / "bench").glob("work-*"))
    compared = tool("compare", *kept)
    assert "analyze, from the cache" in compared
    assert "median" in compared


def test_a_command_that_fails_is_said_and_is_no_measure(tmp_path: Path) -> None:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import run as harness
    finally:
        sys.path.remove(str(BENCHMARKS))
    failed = harness.run([sys.executable, "-m", "nsysparse", "info", str(tmp_path / "none.sqlite")])
    assert failed.status == 2
    assert "does not exist" in failed.said
    summary = harness.summarize([{**vars(failed), "floor": None}])
    assert summary["failed"] == 1
    assert summary["wall_s"] is None


FAKE_NSYS = """#!/bin/sh
case "$*" in
  --version) echo "NVIDIA Nsight Systems version 0.0" ;;
  *cuda_api_sum*) echo "Time (%)" ;;
  *nvtx_sum*--quiet*|*--quiet*nvtx_sum*) ;;
  *nvtx_sum*) echo "SKIPPED: no such data." ;;
  *cuda_gpu_kern_sum*) sleep 100 ;;
  *) echo "cannot" >&2; exit 3 ;;
esac
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
def test_a_peer_is_put_beside_ours_and_its_failures_fail_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = tmp_path / "bin" / "nsys"
    peer.parent.mkdir()
    peer.write_text(FAKE_NSYS)
    peer.chmod(0o755)
    monkeypatch.setenv("PATH", f"{peer.parent}{os.pathsep}{os.environ['PATH']}")
    reports = ("cuda_api_sum", "nvtx_sum", "cuda_gpu_kern_sum", "nvtx_kern_sum")
    wanted = [part for r in reports for part in ("--command", f"stats {r}", "--command", f"nsys stats {r}")]
    kept = tmp_path / "kept.json"
    limits = ("--rounds", 2, "--peer-limit", 1, "--folder", tmp_path / "bench", "--keep", kept)
    printed = tool("run", N, *limits, *wanted)
    found = json.loads(kept.read_text("utf-8"))
    assert found["machine"]["peers"]["nsys"] == "NVIDIA Nsight Systems version 0.0"
    commands = {c["command"]: c for c in found["recordings"][0]["commands"]}
    titles = list(commands)
    assert titles[titles.index("stats cuda_api_sum") + 1] == "nsys stats cuda_api_sum"
    assert all(commands[f"stats {r}"]["failed"] == 0 for r in reports)
    assert all(run["printed_bytes"] > 100 for r in reports for run in commands[f"stats {r}"]["runs"])
    said = {r: [run["said"] for run in commands[f"nsys stats {r}"]["runs"]] for r in reports}
    assert said == {  # what failed in the first round is not run in the second
        "cuda_api_sum": ["", ""],
        "nvtx_sum": ["printed nothing: SKIPPED: no such data."],
        "cuda_gpu_kern_sum": ["ended after 1 s"],
        "nvtx_kern_sum": ["cannot"],
    }
    assert commands["nsys stats cuda_gpu_kern_sum"]["runs"][0]["wall_s"] < 50
    beside = printed.split("nsysparse beside nsys")[1].splitlines()
    assert [line.split()[1] for line in beside if line.startswith("  stats ")] == ["cuda_api_sum"]
    assert "ended after 1 s" in printed


def test_a_peer_that_writes_into_a_recording_gets_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = tmp_path / "bin" / "nsys-ai"
    peer.parent.mkdir()
    peer.write_text('#!/bin/sh\necho found; echo index >> "$2"; touch here\n')
    peer.chmod(0o755)
    monkeypatch.setenv("PATH", f"{peer.parent}{os.pathsep}{os.environ['PATH']}")
    given = ("--rounds", 2, "--command", "nsys-ai", "--folder", tmp_path / "bench", "--keep", tmp_path / "kept.json")
    tool("run", N, *given)
    tool("generate", N, tmp_path / "again.sqlite")
    (trace,) = (tmp_path / "bench" / "traces").iterdir()
    assert trace.read_bytes() == (tmp_path / "again.sqlite").read_bytes()
    assert not list((tmp_path / "bench").glob("work-*"))
    (row,) = json.loads((tmp_path / "kept.json").read_text("utf-8"))["recordings"][0]["commands"]
    assert [run["status"] for run in row["runs"]] == [0, 0]


@pytest.mark.parametrize("shape", ["default", "deep", "unfinished", "equal"])
def test_attribution_agrees_with_brute_force(recordings: dict[str, Path], shape: str) -> None:
    said = tool("attribution", recordings[shape], "--kernels", 150)
    assert int(said.split()[0]) > 100
    assert said.endswith(" 0 differ\n")
