"""The cross-check: on real recordings with real censuses, and cause by cause on small ones made for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from analyzed import PID, TID, machine
from commandline import CommandLine, complaint
from export_builder import ExportBuilder
from independent import length, merged, sql
from traces import NAMES, trace_path

from nsysparse.census import dump, windows
from nsysparse.crosscheck import Crosscheck, Requests, Row, Status, check_census
from nsysparse.crosscheck.sides import Item, side_of_census, side_of_trace
from nsysparse.errors import NsysparseError, UsageError
from nsysparse.integrity import check_recording
from nsysparse.joins.work import load_work
from nsysparse.source import open_trace

from . import lines

FIXTURES = Path(__file__).parents[1] / "fixtures" / "census"
# Counted by another census of another run: kernels, HtoD copies and bytes, DtoH copies and bytes, memsets and bytes.
EXPECTED = {
    "eager_h2d": (1609, 208, 119_570_432, 200, 52_428_800, 0, 0),
    "pinned_overlap": (1609, 209, 119_832_576, 0, 0, 0, 0),
    "state_checkpoint": (2571, 8, 67_141_632, 16, 640_000_000, 0, 0),
    "train_item": (2771, 4, 33_574_912, 60, 240, 120, 7920),
    "threads": (1449, 168, 88_113_152, 160, 320, 0, 0),
    "loader": (657, 48, 77_627_392, 0, 0, 160, 81_920),
    "graph_replay": (420, 107, 21_897_216, 103, 13_500_416, 0, 0),
}
CENSUS_OF = {
    **{name: name for name in EXPECTED if name != "graph_replay"},
    "pinned_overlap_lossy": "pinned_overlap",
    "graph_replay_node": "graph_replay",
    "graph_replay_graph": "graph_replay",
}
CAUSE_OF = {"pinned_overlap_lossy": "loss in the trace", "graph_replay_graph": "graph mode"}
# Times of two runs: kernels repeat closely, copies of pageable memory do not.
KERNEL_SPREAD, COPY_SPREAD = 1.03, 1.40


def checked(trace: Path, census: Path, **options: Any) -> Crosscheck:
    with open_trace(trace) as opened:
        work = load_work(opened)
        return check_census(opened, work, check_recording(opened, work), dump.read(census), **options)


def row(result: Crosscheck, item: str, quantity: str = "count") -> Row:
    (found,) = [r for r in result.rows if (r.item, r.quantity) == (item, quantity)]
    return found


# ---- censuses that came back from an H200


@pytest.mark.parametrize("name", EXPECTED)
def test_recorded_census_equals_the_expected_table(name: str) -> None:
    (c,) = windows.count(dump.read(FIXTURES / name))
    assert c.copies is not None
    both = [[v for k, v in c.copies.items() if k.kind == kind] for kind in ("HtoD", "DtoH")]
    h, d = [(sum(v.count for v in found), sum(v.bytes for v in found)) for found in both]
    assert (c.kernels, *h, *d, c.memsets, c.memset_bytes) == EXPECTED[name]
    assert {k.kind for k in c.copies} <= {"HtoD", "DtoH"}
    assert (c.dropped, c.untimed, c.busy_late_ns) == (0, 0, 0)


@pytest.mark.parametrize("folder", sorted(p.name for p in FIXTURES.iterdir()))
def test_fixtures_hold_no_identity_of_the_machine(folder: str) -> None:
    for process in dump.read(FIXTURES / folder).processes:
        for device in process.header["devices"]:
            assert device["uuid"].startswith("GPU-00000000-")
        assert "/" not in process.program


@pytest.mark.parametrize("name", CENSUS_OF)
def test_real_recording_against_the_census_of_the_same_load(name: str) -> None:
    result = checked(trace_path(name), FIXTURES / CENSUS_OF[name])
    statuses = {r.status for r in result.rows}
    if name not in CAUSE_OF:
        assert statuses == {Status.EQUAL}
        assert result.causes == ()
        return
    assert statuses == {Status.EQUAL, Status.EXPLAINED}
    explained = [r for r in result.rows if r.status is Status.EXPLAINED]
    assert {r.cause.partition(",")[0] for r in explained} == {CAUSE_OF[name]}
    assert {c.name for c in result.causes} == {CAUSE_OF[name]}
    assert row(result, "kernels").status is Status.EXPLAINED


def test_graph_mode_says_how_much_each_run_hides() -> None:
    result = checked(trace_path("graph_replay_graph"), FIXTURES / "graph_replay")
    assert row(result, "kernels").cause == "graph mode, 4 in each of 100 runs"
    assert row(result, "copies HtoD pinned to device", "bytes").cause == "graph mode, 131,072 in each of 100 runs"
    assert row(result, "graph launches").status is Status.EQUAL


@pytest.mark.parametrize("name", ["eager_h2d", "threads", "graph_replay_node", "train_item", "loader"])
def test_busy_of_the_census_and_unions_of_the_trace_agree_within_the_spread_of_two_runs(name: str) -> None:
    path, (c,) = trace_path(name), windows.count(dump.read(FIXTURES / CENSUS_OF[name]))
    spans = {kind: sql(path, f"SELECT start, end FROM CUPTI_ACTIVITY_KIND_{kind}") for kind in ("KERNEL", "MEMCPY")}
    kernels, copies = (length(merged(spans[kind], 0, 1 << 62)) for kind in ("KERNEL", "MEMCPY"))
    assert c.kernel_busy_ns == pytest.approx(kernels, rel=KERNEL_SPREAD - 1)
    assert c.copy_busy_ns is not None
    assert 1 / COPY_SPREAD < c.copy_busy_ns / copies < COPY_SPREAD
    with open_trace(path) as trace:
        sums = side_of_trace(trace, load_work(trace), None).sums()
    assert sums[Item("busy", "kernels")].time_ns == kernels
    assert sums[Item("busy", "copies")].time_ns == copies


@pytest.mark.parametrize("name", NAMES)
def test_the_side_of_the_trace_against_plain_sql(name: str) -> None:
    path = trace_path(name)
    with open_trace(path) as trace:
        sums = side_of_trace(trace, load_work(trace), None).sums()
    ((n, time),) = sql(path, "SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL")
    assert (sums[Item("kernels")].count, sums[Item("kernels")].time_ns) == (n, time)
    by_sql = sql(path, "SELECT count(*), sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY"
                       " GROUP BY copyKind, srcKind, dstKind, CASE copyKind WHEN 10 THEN srcDeviceId END")  # fmt: skip
    assert sorted((t.count, t.bytes) for i, t in sums.items() if i.part == "copies") == sorted(by_sql)


def test_memory_kinds_are_compared_by_name() -> None:
    """Pageable is 0 in exports and 1 in CUPTI: a comparison of numbers would pair pinned with pageable."""
    result = checked(trace_path("pinned_overlap"), FIXTURES / "pinned_overlap")
    assert row(result, "copies HtoD pageable to device").trace == 8
    assert row(result, "copies HtoD pinned to device").census == 201


def test_peer_copies_of_two_gpus_equal_a_real_census() -> None:
    result = checked(trace_path("p2p"), FIXTURES / "p2p")
    for way in ("0 to 1", "1 to 0"):
        item = f"copies PtoP device to device ({way})"
        assert (row(result, item).census, row(result, item, "bytes").census) == (30, 240_000_000)
    assert {r.status for r in result.rows} == {Status.EQUAL}


def test_peer_copies_by_their_way(tmp_path: Path) -> None:
    """The same from totals written by hand: 60 peer copies, 480,000,000 bytes."""

    def side(here: int, there: int) -> dict[str, Any]:
        peer = lines.copies(30, 240_000_000, kind="PtoP", dst="device", peer=there, outbound=True, time_ns=750_000)
        return lines.device(1 - here, [peer], device=here, memsets={"count": 0, "bytes": 0, "time_ns": 0, "untimed": 0})

    write(tmp_path, [side(0, 1), side(1, 0)])
    result = checked(trace_path("p2p"), tmp_path)
    for way in ("0 to 1", "1 to 0"):
        assert row(result, f"copies PtoP device to device ({way})", "bytes").status is Status.EQUAL
    assert row(result, "kernels").status is Status.EQUAL


# ---- one cause at a time


def write(folder: Path, devices: list[dict[str, Any]], pid: int = 10, **extra: Any) -> None:
    head = {k: extra.pop(k) for k in ("graph_mode", "duty") if k in extra}
    lines.write(folder, lines.header(pid, **head), lines.totals(1, devices, **({"final": True} | extra)))


def device(kernels: int | None, copies: int = 0, **extra: Any) -> dict[str, Any]:
    by = [lines.copies(copies, 1000 * copies, time_ns=500 * copies)] if copies else []
    nothing = {"count": 0, "bytes": 0, "time_ns": 0, "untimed": 0}
    more = {"memsets": nothing, "graphs": {"launches": 0, "time_ns": None, "untimed": None}, **extra}
    made = lines.device(kernels or 0, by, **more)
    return made | ({"kernels": None} if kernels is None else {})


def load(b: ExportBuilder, kernels: int, copies: int = 0, tid: int = TID, start: int = 1_000_000) -> None:
    """Kernels of 100 ns and copies of 1,000 bytes in 500 ns, DtoH from device to pageable, one every 10 us."""
    for i in range(kernels + copies):
        at = start + 10_000 * i
        if i < kernels:
            b.launch(tid, (at, at + 1000), (at + 2000, at + 2100))
        else:
            b.memcpy(tid, (at, at + 1000), (at + 2000, at + 2500), 1000, 2, 2, 0)


@pytest.fixture
def compared(tmp_path: Path) -> Callable[..., Crosscheck]:
    """Cross-check of an export with the census in ``tmp_path / 'census'``."""

    def compare(b: ExportBuilder, **options: Any) -> Crosscheck:
        return checked(b.write(tmp_path / "trace.sqlite"), tmp_path / "census", **options)

    return compare


def test_equal(compared: Callable[..., Crosscheck], tmp_path: Path) -> None:
    b = machine()
    load(b, 40, 20)
    write(tmp_path / "census", [device(40, 20)])
    result = compared(b)
    assert {r.status for r in result.rows} == {Status.EQUAL}
    assert result.status is Status.EQUAL


def test_a_difference_without_a_sign_is_unexplained_and_its_time_unknown(
    compared: Callable[..., Crosscheck], tmp_path: Path
) -> None:
    b = machine()
    load(b, 40)
    write(tmp_path / "census", [device(41)])
    result = compared(b)
    assert row(result, "kernels").status is Status.UNEXPLAINED
    assert row(result, "kernels").cause == "the trace has 1 less, and no sign says why"
    assert row(result, "kernels", "time_ns").status is Status.UNKNOWN
    assert result.status is Status.UNEXPLAINED


@pytest.mark.parametrize(
    ("less", "line", "cause"),
    [
        (10, {"dropped": 10}, "dropped records"),
        (10, {"covered_ns": lines.SECOND // 2}, "census switched off"),
        (10, {"final": False}, "unfinished census"),
    ],
)
def test_what_makes_a_census_short(
    compared: Callable[..., Crosscheck], tmp_path: Path, less: int, line: dict[str, Any], cause: str
) -> None:
    b = machine()
    load(b, 40)
    write(tmp_path / "census", [device(40 - less)], **line)
    result = compared(b)
    assert (row(result, "kernels").status, row(result, "kernels").cause) == (Status.EXPLAINED, cause)
    write(tmp_path / "census", [device(40 + less)], **line)
    assert row(compared(b), "kernels").status is Status.UNEXPLAINED, "a short census does not explain a short trace"


def test_drops_that_cupti_cannot_count_are_unknown(compared: Callable[..., Crosscheck], tmp_path: Path) -> None:
    b = machine()
    load(b, 40)
    write(tmp_path / "census", [device(30)], dropped=None)
    assert row(compared(b), "kernels").status is Status.UNKNOWN


def test_a_kind_that_the_census_did_not_record_is_unknown(compared: Callable[..., Crosscheck], tmp_path: Path) -> None:
    b = machine()
    load(b, 40, 20)
    write(tmp_path / "census", [device(None, 20, busy_ns=None)])
    result = compared(b)
    assert (row(result, "kernels").census, row(result, "kernels").status) == (None, Status.UNKNOWN)
    assert row(result, "kernels").cause == "the census did not record kernels"
    assert row(result, "copies DtoH device to pageable").status is Status.EQUAL


def test_unified_memory(compared: Callable[..., Crosscheck], tmp_path: Path) -> None:
    b = machine()
    load(b, 40)
    b.copy(3_000_000, 3_000_900, 65536, 11, 4, 4, 0, 7, 0, PID)
    write(tmp_path / "census", [device(40)])
    result = compared(b)
    found = row(result, "migrations Unified HtoD", "bytes")
    assert (found.trace, found.census, found.status) == (65536, None, Status.EXPLAINED)
    assert found.cause.startswith("unified memory")
    assert {r.status for r in result.rows if "migrations" not in r.item} == {Status.EQUAL}


def test_a_filtered_export(compared: Callable[..., Crosscheck], tmp_path: Path) -> None:
    b = machine()
    b.meta("EXPORT_PARAM_TIMES_TO_EXPORT", "1s/2s")
    load(b, 40)
    write(tmp_path / "census", [device(50)])
    assert row(compared(b), "kernels").cause == "filtered export"


def test_graphs_that_the_census_counted_as_a_whole(compared: Callable[..., Crosscheck], tmp_path: Path) -> None:
    b = machine()
    launch = b.api("cudaGraphLaunch_v10000", 1_000_000, 1_001_000, TID)
    for i in range(5):
        b.kernel(1_002_000 + 200 * i, 1_002_100 + 200 * i, 0, 7, launch, PID, graph_node=i + 1)
    graphs = {"launches": 1, "time_ns": 900, "untimed": 0}
    write(tmp_path / "census", [device(0, graphs=graphs)], graph_mode="graph")
    result = compared(b)
    assert row(result, "kernels").cause == "graph mode of the census"
    assert row(result, "graph launches").status is Status.EQUAL


def test_processes_that_only_the_census_holds(compared: Callable[..., Crosscheck], tmp_path: Path) -> None:
    b = machine()
    load(b, 40, 20)
    for pid, kernels in ((10, 40), (11, 7)):
        write(tmp_path / "census", [device(kernels, 20 if pid == 10 else 1)], pid=pid)
    result = compared(b)
    assert row(result, "kernels").cause == "different processes"
    assert "process 11," in result.causes[0].text
    write(tmp_path / "census", [device(39, 20)], pid=10)
    assert row(compared(b), "kernels").status is Status.UNEXPLAINED, "no set of processes makes the counts equal"


def test_runs_of_another_length_are_compared_per_request(compared: Callable[..., Crosscheck], tmp_path: Path) -> None:
    b = machine()
    load(b, 40, 20)
    write(tmp_path / "census", [device(60, 31)])
    result = compared(b, requests=Requests(10, 15))
    kernels, copies = row(result, "kernels"), row(result, "copies DtoH device to pageable")
    assert (kernels.trace_per_request, kernels.census_per_request) == (4.0, 4.0)
    assert kernels.status is Status.EXPLAINED
    assert kernels.cause == "run length: 10 requests in the trace, 15 in the census; equal per request"
    assert copies.status is Status.UNEXPLAINED
    with_tolerance = compared(b, requests=Requests(10, 15), tolerance=0.05)
    assert row(with_tolerance, "copies DtoH device to pageable").status is Status.EXPLAINED
    assert row(compared(b), "kernels").status is Status.UNEXPLAINED, "without requests, lengths are not known"


def test_windows_on_both_sides(compared: Callable[..., Crosscheck], tmp_path: Path) -> None:
    b = machine()
    load(b, 10)
    load(b, 40, start=50_000_000)
    lines.write(
        tmp_path / "census", lines.header(), lines.totals(1, [device(999)]), lines.totals(2, [device(1039)], final=True)
    )
    census = dump.read(tmp_path / "census")
    window = windows.after_seconds(census, 1.0)
    result = compared(b, window_trace="0.05s..", window_census=window)
    assert (row(result, "kernels").trace, row(result, "kernels").census) == (40, 40)
    assert row(result, "kernels").status is Status.EQUAL
    with pytest.raises(UsageError):
        compared(b, window_trace="request:9")


def test_times_farther_apart_than_two_runs_are(compared: Callable[..., Crosscheck], tmp_path: Path) -> None:
    b = machine()
    correlation = b.api("cudaLaunchKernel_v7000", 1_000_000, 1_001_000, TID)
    b.kernel(2_000_000, 12_000_000, 0, 7, correlation, PID)
    made = device(1)
    made["kernels"] |= {"time_ns": 4_000_000}
    write(tmp_path / "census", [made])
    found = row(compared(b), "kernels", "time_ns")
    assert (found.status, row(compared(b), "kernels").status) == (Status.UNEXPLAINED, Status.EQUAL)


def test_rows_without_usable_times_are_counted(compared: Callable[..., Crosscheck], tmp_path: Path) -> None:
    b = machine()
    load(b, 40)
    b.kernel(0, 0, 0, 7, b.api("cudaLaunchKernel_v7000", 9_000_000, 9_001_000, TID), PID)
    write(tmp_path / "census", [device(41)])
    assert row(compared(b), "kernels").status is Status.EQUAL


def test_copies_that_the_census_had_no_room_for_are_a_row(tmp_path: Path) -> None:
    made = device(4, 2)
    made["copies"]["other"] = {"count": 3, "bytes": 30, "time_ns": 3, "untimed": 0}
    write(tmp_path, [made])
    sums = side_of_census(windows.count(dump.read(tmp_path))).sums()
    assert sums[Item("copies", "other", "unknown", "unknown")].count == 3


# ---- the commands


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    (tmp_path / "here").mkdir()
    return CommandLine(tmp_path / "here", monkeypatch, capfd)


def test_validate_prints_every_row_and_its_status_says_whether_all_is_explained(run: CommandLine) -> None:
    trace = trace_path("graph_replay_graph")
    done = run("validate", trace, "--census", FIXTURES / "graph_replay")
    assert done.code == 0
    assert "18 rows: 7 equal, 11 explained." in done.out
    assert "The trace holds 100 runs of CUDA graphs as one row each" in done.out
    assert "13,500,416" in done.out
    done = run("validate", trace, "--census", FIXTURES / "loader")
    assert done.code == 1
    assert "unexplained" in done.out


def test_validate_as_json(run: CommandLine) -> None:
    done = run("validate", trace_path("loader"), "--census", FIXTURES / "loader", "--json", "--requests-trace", 5,
               "--requests-census", 5)  # fmt: skip
    data = json.loads(done.out)
    kernels = next(r for r in data["rows"] if (r["item"], r["quantity"]) == ("kernels", "count"))
    assert (kernels["trace"], kernels["census"], kernels["trace_per_request"]) == (657, 657, 657 / 5)
    assert (data["status"], done.code) == ("equal", 0)


def test_validate_refuses_what_makes_no_sense(run: CommandLine, tmp_path: Path) -> None:
    trace = trace_path("loader")
    assert "does not exist" in complaint(run("validate", trace, "--census", tmp_path / "none"))[0]
    census = FIXTURES / "loader"
    complaint(run("validate", trace, "--census", census, "--window-trace", "nonsense"))
    complaint(run("validate", trace, "--census", census, "--after", 1, "--marks", "a", "b"))
    complaint(run("validate", trace, "--census", census, "--marks", "a", "b"))


def test_analyze_with_a_census_adds_a_section_and_the_same_rows_to_the_json(run: CommandLine) -> None:
    trace, census = trace_path("graph_replay_graph"), FIXTURES / "graph_replay"
    done = run("analyze", trace, "--census", census)
    assert done.code == 0, done.err
    page = (run.folder / "graph_replay_graph.html").read_text()
    assert 'id="crosscheck"' in page
    assert "graph mode, 4 in each of 100 runs" in page
    data = json.loads((run.folder / "graph_replay_graph.json").read_text())
    assert data["crosscheck"] == json.loads(run("validate", trace, "--census", census, "--json").out)
    assert run("analyze", trace, "--force").code == 0
    assert 'id="crosscheck"' not in (run.folder / "graph_replay_graph.html").read_text()
    assert json.loads((run.folder / "graph_replay_graph.json").read_text())["crosscheck"] is None


def test_analyze_a_census_alone(run: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "served"
    lines.server(folder)
    done = run("analyze", "--census", folder, "--after", 3, "--requests", 7)
    assert done.code == 0, done.err
    page = (run.folder / "served.html").read_text()
    assert "It does not know which code sent them" in page
    assert "copies DtoH device to pageable" in page
    assert "1 kB" in page, "7,000 bytes of 7 requests"
    assert "9.5%" not in page
    assert str(tmp_path) not in page
    data = json.loads((run.folder / "served.json").read_text())
    assert (data["format"], data["code_attribution"], data["requests"]) == ("nsysparse-census-analysis", None, 7)
    assert data["counts"][0]["kernels"] == 7000
    assert str(tmp_path) not in (run.folder / "served.json").read_text()


def test_hostile_names_in_a_census_are_escaped(run: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "evil"
    kernels = {
        "record": "kernels",
        "top": [{"device": 0, "name": "<script>alert(1)</script>", "count": 1, "time_ns": 1}],
    }
    head = lines.header(program="<img src=x onerror=alert(1)>")
    lines.write(folder, head, lines.totals(1, [device(1)], final=True), kernels)
    assert run("analyze", "--census", folder).code == 0
    page = (run.folder / "evil.html").read_text()
    assert "<script>" not in page
    assert "<img" not in page


def test_analyze_without_anything_says_what_to_name(run: CommandLine) -> None:
    assert "nothing to analyze" in complaint(run("analyze"))[0]


def test_the_busy_share_of_the_smi_run() -> None:
    """The figures that the documentation prints beside nvidia-smi's 7.6%."""
    table = windows.timeline(dump.read(FIXTURES / "smi")).filter(pl.col("device") == 0)
    first, last = table.row(table.height // 4, named=True), table.row(-2, named=True)
    wall = last["unix_ns"] - first["unix_ns"]
    shares = [(last[n] - first[n]) / wall for n in ("kernel_busy_ns", "copy_busy_ns", "busy_ns")]
    assert shares == pytest.approx([0.016, 0.830, 0.846], abs=0.001)


def test_a_damaged_census_is_refused(tmp_path: Path) -> None:
    b = machine()
    load(b, 1)
    made = device(1)
    made["copies"] = {"by": [{"kind": "HtoD", "count": "many"}]}
    write(tmp_path / "census", [made])
    with pytest.raises(NsysparseError):
        checked(b.write(tmp_path / "trace.sqlite"), tmp_path / "census")
