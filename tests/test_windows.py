"""The window that shares are shares of."""

from __future__ import annotations

import pytest
from analyzed import analyzed
from export_builder import DEVICE, HTOD, PAGEABLE, ExportBuilder, global_id

from nsysparse.accounting.windows import parse_time
from nsysparse.errors import UsageError

PID = 4242
MAIN, SECOND = global_id(PID, PID), global_id(PID, PID + 1)
MS = 1_000_000


def recording(ranges, copies):
    """An export with push/pop ranges (name, start, end, thread) and copies (start, thread), times in ms."""
    builder = ExportBuilder("2025.3.2.0")
    builder.process(PID, "python3")
    builder.gpu(0, "NVIDIA H200", 0)
    builder.cuda_device(PID, 0, 0)
    for name, start, end, thread in ranges:
        builder.push_pop(name, start * MS, end * MS, thread)
    for start, thread in copies:
        call = (start * MS, start * MS + 200)
        builder.memcpy(thread, call, (start * MS + 300, start * MS + 900), 1_000, HTOD, PAGEABLE, DEVICE)
    return builder


def window_of(builder, tmp_path, window=None):
    account = analyzed(builder, tmp_path, window=window).devices[0]
    return account.window


def test_one_range_around_everything_is_no_repetition(tmp_path):
    steps = [(f"step {i}", 10 + 10 * i, 18 + 10 * i, MAIN) for i in range(5)]
    builder = recording([("main", 1, 90, MAIN), *steps], [(12 + 10 * i, MAIN) for i in range(5)])
    window = window_of(builder, tmp_path)
    assert (window.name, window.start_ns, window.end_ns) == ("steady", 20 * MS, 58 * MS)


def test_one_range_in_each_of_two_processes_is_no_repetition(tmp_path):
    builder = recording([("main", 1, 90, MAIN)], [(12, MAIN), (40, MAIN)])
    other = global_id(PID + 1, PID + 1)
    builder.process(PID + 1, "python3")
    builder.cuda_device(PID + 1, 0, 0)
    builder.push_pop("main", 2 * MS, 80 * MS, other)
    call = (50 * MS, 50 * MS + 200)
    builder.memcpy(other, call, (50 * MS + 300, 50 * MS + 900), 1_000, HTOD, PAGEABLE, DEVICE)
    assert window_of(builder, tmp_path).name == "whole"


def test_steady_begins_when_every_thread_repeats(tmp_path):
    ranges = [("serve", 10, 30, MAIN), ("serve", 31, 40, MAIN), ("serve", 11, 35, SECOND), ("serve", 36, 50, SECOND)]
    builder = recording(ranges, [(12, MAIN), (13, SECOND), (32, MAIN), (37, SECOND)])
    assert window_of(builder, tmp_path).start_ns == 36 * MS


def test_a_late_thread_does_not_cut_the_window(tmp_path):
    ranges = [("serve", 10 * i, 10 * i + 5, MAIN) for i in range(1, 9)]
    late = [("serve", 70, 72, SECOND), ("serve", 80, 82, SECOND)]
    builder = recording(ranges + late, [(10 * i + 1, MAIN) for i in range(1, 9)] + [(71, SECOND)])
    assert window_of(builder, tmp_path).start_ns == 20 * MS


def test_a_range_that_sends_nothing_defines_no_window(tmp_path):
    ranges = [("heartbeat", i, i + 1, SECOND) for i in range(10, 60)] + [("step", 10, 30, MAIN), ("step", 40, 60, MAIN)]
    builder = recording(ranges, [(12, MAIN), (42, MAIN)])
    window = window_of(builder, tmp_path)
    assert (window.start_ns, window.end_ns) == (40 * MS, 60 * MS)


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("0.02s..50ms", 20 * MS, 50 * MS),
        ("20ms..", 20 * MS, 52 * MS + 900),
        ("..30000us", 12 * MS + 300, 30 * MS),
        ("nvtx:^step 1$", 20 * MS, 28 * MS),
        ("request:3", 30 * MS, 58 * MS),
        ("whole", 12 * MS + 300, 52 * MS + 900),
    ],
)
def test_windows_that_a_user_can_ask_for(tmp_path, asked, start, end):
    steps = [(f"step {i}", 10 + 10 * i, 18 + 10 * i, MAIN) for i in range(5)]
    builder = recording(steps, [(12 + 10 * i, MAIN) for i in range(5)])
    window = window_of(builder, tmp_path, asked)
    assert (window.start_ns, window.end_ns) == (start, end)


@pytest.mark.parametrize(
    "asked", ["5", "a..b", "2s..1s", "nvtx:nothing", "nvtx:(", "request:0", "request:9", "sometimes"]
)
def test_windows_that_make_no_sense_are_refused(tmp_path, asked):
    steps = [(f"step {i}", 10 + 10 * i, 18 + 10 * i, MAIN) for i in range(5)]
    builder = recording(steps, [(12 + 10 * i, MAIN) for i in range(5)])
    with pytest.raises(UsageError) as caught:
        window_of(builder, tmp_path, asked)
    assert caught.value.hint


@pytest.mark.parametrize(("text", "ns"), [("1.5s", 1_500_000_000), ("3", 3_000_000_000), ("7us", 7_000), ("x", None)])
def test_times(text, ns):
    assert parse_time(text) == ns
