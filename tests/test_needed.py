"""Calls that are kept past the accounting of idle time, against what plain loops say of all of them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from analyzed import NEWEST, SECOND, TID, US, analyze_file, machine
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stack_cases import copy_with_stack
from traces import trace_path

from nsysparse.accounting.device import Options
from nsysparse.accounting.windows import choose_window, phases
from nsysparse.analysis import analyze
from nsysparse.errors import SchemaError, UsageError
from nsysparse.findings import Failed
from nsysparse.joins import needed as needed_calls
from nsysparse.joins.calls import Calls
from nsysparse.joins.needed import PAUSE_NS, find_needed, keep_needed
from nsysparse.joins.work import GPU_TABLES, Work, load_work
from nsysparse.rules._turns import COLUMNS, Marks
from nsysparse.shelf import MappedShelf, Shelf
from nsysparse.source import open_trace

THREADS = (3, 5, 7)
NAMES = ("cudaEventQuery", "cudaGetDevice", "cudaLaunchKernel", "cudaMalloc", "cudaMemcpy", "cudaNew", "cudaNewest")
NO_LAUNCH, LAUNCH, UNKNOWN = ("cudaMalloc", "cudaMemcpy"), "cudaLaunchKernel", "cudaNewest"
STEPS = st.one_of(st.integers(0, 9), st.sampled_from([PAUSE_NS - 1, PAUSE_NS, PAUSE_NS + 1]))
CALLS = st.lists(
    st.tuples(st.sampled_from(THREADS), STEPS, STEPS, st.sampled_from(NAMES), st.booleans()), min_size=1, max_size=40
)
LAUNCHED = (3, 0, 0, LAUNCH, True)
LASTING = [LAUNCHED, (3, 0, 9, "cudaEventQuery", False), LAUNCHED, (3, 0, 0, "cudaMemcpy", False), LAUNCHED]


def rows_of(drawn):
    """(thread, start, end, name, whether it sent work) by thread and start."""
    clock, rows = dict.fromkeys(THREADS, 0), []
    for thread, step, length, name, sent in drawn:
        clock[thread] += step
        rows.append((thread, clock[thread], clock[thread] + length, name, sent and name in {LAUNCH, UNKNOWN}))
    return sorted(rows, key=lambda row: row[0])


def work_of(rows):
    """As much of a recording's work as is looked at: its calls, and a kernel for each that sent one."""
    threads = sorted({row[0] for row in rows})
    bounds = [sum(row[0] < t for row in rows) for t in threads]
    frame = pl.DataFrame(
        {
            "start_ns": [row[1] for row in rows],
            "end_ns": [row[2] for row in rows],
            "name": pl.Series([row[3] for row in rows], dtype=pl.Enum(NAMES)),
            "failed": [False] * len(rows),
            "callchain": pl.Series([i if i % 3 else None for i in range(len(rows))], dtype=pl.Int64),
            "waits": [row[3] == "cudaMemcpy" for row in rows],
        }
    )
    calls = Calls(frame, np.array(threads), np.array([*bounds, len(rows)]))
    none = pl.DataFrame(schema={"call": pl.Int32})
    sent = pl.DataFrame({"call": pl.Series([None, *(i for i, row in enumerate(rows) if row[4])], dtype=pl.Int32)})
    tables = dict.fromkeys(("copies", "memsets", "graphs", "migrations", "untimed", "devices", "peers"), none)
    ranges = SimpleNamespace()
    return Work(kernels=sent, calls=calls, ranges=ranges, **tables)  # type: ignore[arg-type]


def wanted(row):
    return row[4] or row[3] in {LAUNCH, *NO_LAUNCH}


def silence(rows, at):
    """The silence of the thread before a call, None where it is the first."""
    earlier = [row[2] for row in rows[:at] if row[0] == rows[at][0]]
    return rows[at][1] - max(earlier) if earlier else None


@settings(max_examples=400, deadline=None)
@example(drawn=LASTING, piece=3, mapped=False)
@given(CALLS, st.sampled_from([2, 3, 1_000_000]), st.booleans())
def test_silences_and_pauses_stay_what_they_were(drawn, piece, mapped):
    rows, shelf = rows_of(drawn), MappedShelf() if mapped else Shelf()
    work = work_of(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(needed_calls, "PIECE_ROWS", piece)
        numbers = pl.DataFrame({"call": pl.Series([i for i, r in enumerate(rows) if wanted(r)], dtype=pl.Int32)})
        kept, (numbered,) = keep_needed(work, find_needed(work), shelf, numbers)
    columns = ("thread", "start_ns", "end_ns", "name")
    left = list(kept.calls.whole().select(pl.col(columns)).cast({"name": pl.String}).iter_rows())
    shelf.close()

    whole = [row for row in rows if wanted(row)]
    assert [left[i] for i in numbered["call"]] == [row[:4] for row in whole]
    sent = kept.kernels["call"].to_list()
    assert sent[0] is None
    assert [left[i] for i in sent[1:]] == [row[:4] for row in rows if row[4]]
    assert (kept.calls.recorded.calls, kept.calls.recorded.with_stack) == (
        len(rows),
        sum(i % 3 > 0 for i in range(len(rows))),
    )
    assert kept.calls.recorded.last_end_ns == max(row[2] for row in rows)
    assert kept.calls.threads.tolist() == sorted({row[0] for row in rows})

    # Next to what is no launch the thread was silent for as long, before it and after it.
    places = [i for i, row in enumerate(rows) if wanted(row)]
    for place, number in zip(places, numbered["call"].to_list(), strict=True):
        before, after = (rows[p] if 0 <= p < len(rows) else None for p in (place - 1, place + 1))
        near = rows[place][3] in NO_LAUNCH or (before and before[0] == rows[place][0] and before[3] in NO_LAUNCH)
        if near:
            assert silence(left, number) == silence(rows, place)
        if rows[place][3] in NO_LAUNCH and after and after[0] == rows[place][0]:
            assert silence(left, number + 1) == silence(rows, place + 1)

    # Between two of them the thread paused as it did.
    for (a, one), (b, two) in pairwise(zip(places, numbered["call"].to_list(), strict=True)):
        if rows[a][0] == rows[b][0]:
            paused = any(silence(rows, i) > PAUSE_NS for i in range(a + 1, b + 1))
            assert any(silence(left, i) > PAUSE_NS for i in range(one + 1, two + 1)) == paused

    # What is left grows with these calls and with pauses, not with the others.
    pauses = sum((silence(rows, i) or 0) > PAUSE_NS for i in range(len(rows)))
    assert len(left) <= 2 * len(whole) + len(THREADS) + pauses


def test_what_is_said_of_all_calls_stays(tmp_path):
    """A window may lie where only other calls were made; the end of the recording is theirs."""
    b = machine(NEWEST)
    b.launch(TID, (SECOND, SECOND + US), (SECOND + 2 * US, SECOND + 9 * US))
    for second in range(2, 9):
        b.api("cudaEventQuery_v3020", second * SECOND, second * SECOND + US, TID)
    path = b.write(tmp_path / "t.sqlite")
    work = analyze_file(path, window="whole").work
    assert (work.calls.height, work.calls.recorded.calls) == (1, 8)
    (offered,) = (phases(work, None),)
    assert choose_window("5s..6s", offered, None, work).start_ns == 5 * SECOND
    with pytest.raises(UsageError, match="holds none"):
        choose_window("9s..10s", offered, None, work)


def test_damaged_stacks_without_call_paths(tmp_path):
    """Rules that look at stacks fail one by one; with call paths the analysis cannot be made."""
    path = copy_with_stack(NEWEST, 0).write(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE CUDA_CALLCHAINS SET symbol = 'none'")
    with open_trace(path) as trace, pytest.raises(SchemaError, match="CUDA_CALLCHAINS"):
        analyze(trace)
    with open_trace(path) as trace:
        analysis = analyze(trace, Options(call_paths=False))
    failed = [o for o in analysis.outcomes if isinstance(o, Failed)]
    assert failed
    assert all("CUDA_CALLCHAINS" in o.error for o in failed)
    assert analysis.devices[0].figures()["busy_ns"]


def test_a_recording_of_needed_calls_stays_as_it_is():
    work = work_of([(3, 0, 5, LAUNCH, True), (3, 9, 12, "cudaMemcpy", False)])
    assert keep_needed(work, find_needed(work), Shelf())[0] is work


@pytest.mark.parametrize("name", ["llama_default", "threads", "train_item"])
def test_marks_of_real_recordings(name):
    """What the rules ask of the calls that they look at is the same of all calls and of those that are kept."""
    with open_trace(trace_path(name)) as trace:
        work = load_work(trace)
        every = work.calls.whole().select(COLUMNS)
        sent = {table: getattr(work, table)["call"].drop_nulls() for table in GPU_TABLES}
        starts = {table: work.calls["start_ns"].gather(calls).to_list() for table, calls in sent.items()}
        kept, _ = keep_needed(work, find_needed(work), trace.shelf)
    few = kept.calls.whole().select(COLUMNS)
    assert 0 < few.height < every.height == kept.calls.recorded.calls
    for table in GPU_TABLES:
        again = getattr(kept, table)["call"].drop_nulls()
        assert kept.calls["start_ns"].gather(again).to_list() == starts[table]

    threads = every["thread"].unique().to_list()
    before, after = Marks(every, threads), Marks(few, threads)
    functions = ("launch", "graph launch", "copy", "memset", "synchronize", "allocate")
    mine, ours = (marks.rows_that(*functions) for marks in (before, after))
    known = {table: set(calls.to_list()) for table, calls in sent.items()}
    assert set().union(*known.values()) <= set(mine.tolist())
    assert before.start_ns[mine].tolist() == after.start_ns[ours].tolist()
    changes = [np.diff(marks.stretch[rows]) > 0 for marks, rows in ((before, mine), (after, ours))]
    assert changes[0].tolist() == changes[1].tolist()
    work_rows = [marks.last_work[rows] for marks, rows in ((before, mine), (after, ours))]
    shown = [
        [marks.start_ns[row] if row >= 0 else None for row in rows]
        for marks, rows in zip((before, after), work_rows, strict=True)
    ]
    assert shown[0] == shown[1]
    silent = [marks.pauses()[rows] for marks, rows in ((before, before.syncs), (after, after.syncs))]
    assert silent[0].tolist() == silent[1].tolist()
