from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nsysparse.census import dump, run, windows
from nsysparse.errors import NsysparseError, SourceError, UsageError

from . import lines
from .lines import SECOND, START


def test_a_file_cut_at_any_byte_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    whole = lines.server(tmp_path / "whole").read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    path = tmp_path / "cut" / "census-1-2.jsonl"
    path.parent.mkdir()
    for cut in [*range(0, len(whole), 37), *ends, *(e - 1 for e in ends)]:
        path.write_bytes(whole[:cut])
        process = dump.read_process(path)
        complete = sum(end <= cut for end in ends)
        if complete == 0:
            assert process is None
            continue
        assert process is not None
        assert len(process.totals) == complete - 1
        assert process.cut == (cut not in ends)
        assert process.bad_lines == 0


def test_a_folder_with_only_cut_headers_says_so(tmp_path: Path) -> None:
    (tmp_path / "census-1-2.jsonl").write_text('{"record":"head')
    with pytest.raises(SourceError, match="complete header"):
        dump.read(tmp_path)


@pytest.mark.parametrize("version", [0, 2, "1", None, True])
def test_an_unknown_format_version_is_refused_with_a_clear_line(tmp_path: Path, version: object) -> None:
    lines.write(tmp_path, lines.header(version=version))
    with pytest.raises(SourceError, match="this nsysparse reads format 1") as error:
        dump.read(tmp_path)
    assert error.value.hint


@pytest.mark.parametrize("text", ["", "[]\n", "{}\n", "\xff\n", '{"record":"totals"}\n', "[" * 100_000 + "\n"])
def test_files_that_are_no_census(tmp_path: Path, text: str) -> None:
    (tmp_path / "census-1-2.jsonl").write_bytes(text.encode("latin-1"))
    with pytest.raises(SourceError):
        dump.read(tmp_path)


def test_missing_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        dump.read(tmp_path / "nothing")
    with pytest.raises(SourceError, match="no census files"):
        dump.read(tmp_path)


def test_damaged_lines_in_the_middle_are_counted_and_skipped(tmp_path: Path) -> None:
    path = lines.server(tmp_path)
    text = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*text[:3], "garbage\n", '{"record":"totals"}\n', '{"record":"later"}\n', *text[3:]]))
    census = dump.read(tmp_path)
    assert census.processes[0].bad_lines == 2
    assert len(census.processes[0].totals) == 10
    assert any("2 lines" in problem for problem in census.problems)


def test_the_whole_recording(tmp_path: Path) -> None:
    lines.server(tmp_path)
    (c,) = windows.count(dump.read(tmp_path))
    assert (c.pid, c.program, c.device, c.device_name, c.uuid) == (10, "server", 0, "H200", "GPU-1")
    assert (c.kernels, c.kernel_time_ns, c.kernel_busy_ns, c.busy_ns) == (10_000, 10**6, 900_000, 950_000)
    assert (c.memsets, c.memset_bytes, c.memset_time_ns, c.graph_launches) == (1, 4, 1, 1000)
    assert (c.wall_ns, c.coverage_ratio, c.dropped) == (10 * SECOND, 1.0, 0)
    assert c.copies is not None
    assert [(k.kind, v.count, v.bytes) for k, v in c.copies.items()] == [
        ("HtoD", 1, 5_000_000),
        ("DtoH", 100, 10_000),
    ]


def test_windows_subtract_and_leave_loading_out(tmp_path: Path) -> None:
    lines.server(tmp_path)
    census = dump.read(tmp_path)
    (c,) = windows.count(census, windows.after_seconds(census, 3))
    assert c.kernels == 7000
    assert c.copies == {windows.CopyClass("DtoH", "device", "pageable"): windows.Copies(70, 7000, 700, 0, {20: 70})}
    assert (c.start_ns, c.end_ns) == (START + 3 * SECOND, START + 10 * SECOND)
    (c,) = windows.count(census, windows.Window(START + SECOND // 2, START + int(4.2 * SECOND)))
    assert c.kernels == 4000, "boundaries fall on the first line at or after them"
    assert (c.start_ns, c.end_ns) == (START + SECOND, START + 5 * SECOND)


def test_a_boundary_in_a_quiet_time_takes_the_line_before(tmp_path: Path) -> None:
    lines.write(
        tmp_path, lines.header(), lines.totals(1, [lines.device(100)]),
        lines.totals(9, [lines.device(500)], same_until_unix_ns=START + 8 * SECOND),
    )  # fmt: skip
    census = dump.read(tmp_path)
    (c,) = windows.count(census, windows.Window(START + 5 * SECOND, None))
    assert (c.kernels, c.start_ns, c.covered_ns) == (400, START + 5 * SECOND, 4 * SECOND)
    (c,) = windows.count(census, windows.Window(None, START + 8 * SECOND))
    assert c.kernels == 100
    (c,) = windows.count(census, windows.Window(None, START + int(8.5 * SECOND)))
    assert c.kernels == 500


def test_marks_with_counts_give_requests(tmp_path: Path) -> None:
    lines.server(tmp_path)
    marks = [(2.5, "begin", 4), (6.5, "end", 20), (1, "begin", None)]
    text = [{"record": "mark", "unix_ns": START + int(t * SECOND), "label": n, "requests": r} for t, n, r in marks]
    (tmp_path / "marks.jsonl").write_text("".join(json.dumps(m) + "\n" for m in text) + "broken\n{}\n" + '{"unix')
    census = dump.read(tmp_path)
    assert [m.label for m in census.marks] == ["begin", "begin", "end"]
    window = windows.between_marks(census, "begin", "end")
    assert window.requests == 16
    (c,) = windows.count(census, window)
    assert c.kernels == 4000
    with pytest.raises(UsageError, match="no mark 'other'"):
        windows.between_marks(census, "other", "end")
    with pytest.raises(UsageError, match="not after"):
        windows.between_marks(census, "end", "begin")


def test_null_stays_unknown(tmp_path: Path) -> None:
    nothing = lines.device(5) | {"kernels": None, "copies": None, "memsets": None, "graphs": None}
    lines.write(tmp_path, lines.header(), lines.totals(1, [nothing | {"busy_ns": None}], dropped=None))
    (c,) = windows.count(dump.read(tmp_path))
    assert (c.kernels, c.copies, c.memsets, c.graph_launches, c.busy_ns, c.dropped) == (None,) * 6
    frame = windows.device_frame([c])
    assert frame["kernels"].to_list() == [None]


def test_several_processes_start_at_zero_each(tmp_path: Path) -> None:
    lines.server(tmp_path, 1)
    late = START + 20 * SECOND
    lines.write(tmp_path, lines.header(2, late), lines.totals(1, [lines.device(7)], late, final=True))
    census = dump.read(tmp_path)
    counts = windows.count(census, windows.Window(START + 15 * SECOND, None))
    assert [(c.pid, c.kernels) for c in counts] == [(1, 0), (2, 7)]
    assert counts[0].coverage_ratio is None, "it had ended before the window"


def test_peer_copies_keep_their_direction(tmp_path: Path) -> None:
    by = [copies(3, kind="PtoP", peer=1, outbound=True), copies(2, kind="PtoP", peer=1, outbound=False)]
    lines.write(tmp_path, lines.header(), lines.totals(1, [lines.device(0, by)]))
    frame = windows.copy_frame(windows.count(dump.read(tmp_path)))
    assert frame.select("peer", "outbound", "count").rows() == [(1, True, 3), (1, False, 2)]


def copies(n: int, **key: object) -> dict[str, object]:
    return lines.copies(n, 8 * n, **key)


def test_frames(tmp_path: Path) -> None:
    lines.server(tmp_path)
    census = dump.read(tmp_path)
    counts = windows.count(census)
    assert windows.size_frame(counts).filter(kind="DtoH").select("bin", "count").rows() == [(20, 100)]
    timeline = windows.timeline(census)
    assert timeline["kernels"].to_list() == [1000 * s for s in range(1, 11)]
    assert windows.kernel_frame(census).is_empty()
    for frame in (windows.device_frame, windows.copy_frame, windows.size_frame):
        assert frame([]).is_empty()
        assert frame([]).schema == frame(counts).schema


@pytest.mark.parametrize(
    "broken",
    [
        {"devices": [{"device": 0, "copies": {"by": [{"count": "x"}]}}]},
        {"devices": [{"device": 0, "copies": {"by": [1]}}]},
        {"devices": [{"device": 0, "copies": {"by": [{"count": 1, "sizes": {"a": 1}}]}}]},
    ],
)
def test_a_hostile_totals_line_is_an_error_of_two_lines(tmp_path: Path, broken: dict[str, object]) -> None:
    lines.write(tmp_path, lines.header(), lines.totals(1, []) | broken)
    with pytest.raises(SourceError, match="not in format 1"):
        windows.count(dump.read(tmp_path))


def test_numbers_too_large_for_a_frame_are_unknown(tmp_path: Path) -> None:
    lines.write(tmp_path, lines.header(), lines.totals(1, [lines.device(1) | {"busy_ns": 10**30}]))
    counts = windows.count(dump.read(tmp_path))
    assert counts[0].busy_ns is None
    assert len(windows.device_frame(counts)) == 1


def test_times_are_read_as_people_write_them() -> None:
    assert windows.time_ns("1700000000.5") == 1_700_000_000_500_000_000
    assert windows.time_ns("2023-11-14T22:13:20Z") == START
    with pytest.raises(UsageError):
        windows.time_ns("yesterday")


def test_writing_marks_and_switches_needs_the_folder(tmp_path: Path) -> None:
    for action in (lambda p: dump.write_mark(p, "x"), lambda p: run.switch(p, on=True)):
        with pytest.raises(NsysparseError, match="cannot write"):
            action(tmp_path / "nothing")
    run.switch(tmp_path, on=False)
    assert (tmp_path / "control").read_text() == "off\n"
    assert [p.name for p in tmp_path.iterdir()] == ["control"]


def test_refresh_takes_new_lines_and_new_processes(tmp_path: Path) -> None:
    path = lines.server(tmp_path, 1)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    census = dump.read(tmp_path)
    assert census.processes[0].cut
    seen = len(census.processes[0].totals)
    path.write_bytes(whole)
    lines.server(tmp_path, 2)
    dump.refresh(census)
    assert [len(p.totals) for p in census.processes] == [10, 10]
    assert 0 < seen < 10
    assert not census.processes[0].cut
    assert [c.kernels for c in windows.count(census)] == [10_000, 10_000]
    path.unlink()
    dump.refresh(census)
    assert len(census.processes) == 2


def test_a_mark_does_not_wait_for_recorders_that_are_gone(tmp_path: Path) -> None:
    path = lines.write(tmp_path, lines.header(), lines.totals(1, []))
    os.utime(path, (0, 0))
    assert dump.await_mark(tmp_path, dump.write_mark(tmp_path, "x"), 30.0) == (0, 0)
