"""Work side by side: results in order, the first error, and no more threads than cores that may be used."""

import os
import subprocess
import sys
import threading
import time

import pytest
from export_builder import RELEASES, ExportBuilder, global_id

from nsysparse import rules
from nsysparse import side_by_side as module
from nsysparse.analysis import analyze
from nsysparse.outputs.json import to_json
from nsysparse.side_by_side import aside, by_piece, in_order, side_by_side
from nsysparse.source import open_trace


@pytest.fixture(params=[1, 2, 5])
def cores(request, monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: request.param)
    return request.param


def test_results_are_in_the_order_of_the_items_however_many_cores(cores):
    items = list(range(20))
    assert side_by_side(str, items, 4) == [str(i) for i in items]
    assert list(in_order(str, iter(items), 4)) == [str(i) for i in items]
    with aside(4) as begin:
        later = [begin(lambda i=i: i * i) for i in items]
        assert [result() for result in later] == [i * i for i in items]


def test_no_more_threads_than_cores(cores):
    together = threading.Barrier(min(cores, 4))
    side_by_side(lambda _: together.wait(30), range(together.parties * 3), 4)  # fewer threads would wait in vain
    seen = set()
    side_by_side(lambda _: seen.add(threading.get_ident()), range(100), 4)
    assert len(seen) <= min(cores, 4)


def test_the_first_error_in_order_is_raised(cores):
    def work(item):
        if item % 2:
            raise ValueError(item)
        return item

    with pytest.raises(ValueError, match=r"^1$"):
        side_by_side(work, range(10), 4)
    with pytest.raises(ValueError, match=r"^1$"):
        list(in_order(work, range(10), 4))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to cores")
def test_cores_are_those_the_process_is_bound_to():
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "from nsysparse.side_by_side import cores; print(cores())"
    )
    env = {k: v for k, v in os.environ.items() if k != "POLARS_MAX_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_of_large_devices_two_are_judged_at_a_time_and_nothing_changes(tmp_path, monkeypatch):
    b, tid = ExportBuilder(RELEASES[-1]), global_id(7, 7)
    for device in range(6):
        for start in range(1_000, 40_000, 1_000):
            b.launch(tid, (start, start + 10), (start + 20 + device, start + 300), device=device)
    path = b.write(tmp_path / "t.sqlite")
    expected = analyzed(path)
    here, most, lock, judge = 0, 0, threading.Lock(), rules._on_device

    def counted(*args):
        nonlocal here, most
        with lock:
            here += 1
            most = max(most, here)
        time.sleep(0.05)  # long enough for others to come in, if they may
        try:
            return judge(*args)
        finally:
            with lock:
                here -= 1

    monkeypatch.setattr(rules, "_on_device", counted)
    monkeypatch.setattr(module, "cores", lambda: 4)
    monkeypatch.setattr(module, "WORTH_A_THREAD", 0)
    assert analyzed(path) == expected
    assert most > 2
    most = 0
    monkeypatch.setattr(module, "MANY", 0)
    assert analyzed(path) == expected
    assert most <= 2


def analyzed(path):
    with open_trace(path) as trace:
        return to_json(analyze(trace))


@pytest.mark.parametrize("rows", [0, 1, 3, 50])
def test_pieces_are_worked_on_in_order_by_one_thread_or_several(rows):
    column = list(range(rows))
    parts = by_piece(lambda piece: column[piece], rows, 3)
    assert [value for part in parts for value in part] == column
    assert all(len(part) == 3 for part in parts[:-1])


def test_an_error_in_a_piece_is_raised():
    with pytest.raises(ZeroDivisionError):
        by_piece(lambda piece: 1 // (piece.start - 60), 100, 3)
