"""Calls by row, thread, process and condition, against plain loops; and made of rows in any order, in pieces or not."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
import pytest
from export_builder import RELEASES, ExportBuilder, global_id
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysparse.joins.api import load_calls
from nsysparse.joins.calls import Calls
from nsysparse.source import open_trace

RUNTIME, DRIVER, BACKTRACE = 0, 1, 67
ROW = st.tuples(st.sampled_from([(1, 1), (1, 2), (3, 1)]), st.integers(0, 40), st.booleans())


def calls_of(rows):
    """Calls of sorted (thread, start, failed)."""
    threads = sorted({thread for thread, _, _ in rows})
    bounds = [sum(thread < t for thread, _, _ in rows) for t in threads]
    frame = pl.DataFrame([row[1:] for row in rows], {"start_ns": pl.Int64, "failed": pl.Boolean}, orient="row")
    frame = frame.with_columns(name=pl.lit("cudaMemset").cast(pl.Enum(["cudaMemset"])))
    return Calls(frame, np.array(threads, np.int64), np.array([*bounds, len(rows)]))


@settings(max_examples=100, deadline=None)
@given(st.lists(ROW, max_size=30))
def test_calls_are_found_by_row_thread_process_and_condition(rows):
    rows = sorted((global_id(*who), start, failed) for who, start, failed in rows)
    calls = calls_of(rows)
    numbered = [(i, start, failed, "cudaMemset", "memset", thread) for i, (thread, start, failed) in enumerate(rows)]
    assert calls.whole().rows() == numbered
    for thread in (global_id(1, 1), global_id(1, 2), global_id(9, 9)):
        assert calls.of(thread).rows() == [row for row in numbered if row[-1] == thread]
    threads = (global_id(3, 1), global_id(1, 1))
    assert calls.of(*threads).rows() == [row for row in numbered if row[-1] in threads]
    for process, mine in calls.by_process().items():
        assert calls.at(mine).rows() == [row for row in numbered if row[-1] & ~0xFFFFFF == process]
    assert {row[-1] & ~0xFFFFFF for row in numbered} == set(calls.by_process())
    assert calls.where(pl.col("failed")).rows() == [row for row in numbered if row[2]]
    part = calls.part(~pl.col("failed"))
    assert part.whole().rows() == [row for row in numbered if not row[2]]
    assert part.of(global_id(1, 2)).rows() == [r for r in numbered if not r[2] and r[-1] == global_id(1, 2)]
    assert part.part(pl.col("start_ns") > 20).whole().rows() == [r for r in numbered if not r[2] and r[1] > 20]


@pytest.mark.parametrize(
    ("function", "names"),
    [
        ("allocate", ("cudaMallocAsync", "cudaFreeHost", "cudaHostRegister", "cuMemAlloc", "cuMemHostRegister")),
        (
            "allocate",
            ("cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"),
        ),
        ("allocate", ("cuMemAddressFree",)),
        ("copy", ("cudaMemcpy2DAsync", "cuMemcpyHtoD")),
        ("memset", ("cudaMemsetAsync", "cuMemsetD8")),
        ("synchronize", ("cudaDeviceSynchronize", "cuStreamSynchronize")),
        ("launch", ("cudaLaunchKernelExC", "cuLaunchKernel")),
        ("graph launch", ("cudaGraphLaunch",)),
        ("other", ("cuMemGetInfo", "cuMemAdvise", "cuMemGetAddressRange", "cudaEventQuery", "cudaGraphInstantiate")),
    ],
)
def test_what_functions_do(function, names):
    names = sorted(names)
    frame = pl.DataFrame({"name": pl.Series(names, dtype=pl.Enum(names))})
    calls = Calls(frame, np.array([1]), np.array([0, len(names)]))
    assert calls.doing(function).all()
    assert calls.number_doing(function) == len(names)


NAMES = ("cudaMemcpy", "cuMemcpyHtoD_v2", "cudaLaunchKernel_v7000", "cudaStreamSynchronize")
RECORDED = st.lists(
    st.tuples(
        st.sampled_from([(1, 1), (1, 2), (3, 1)]),
        st.integers(0, 40),  # start
        st.integers(-3, 9),  # length
        st.integers(0, 9),  # correlation id
        st.sampled_from([RUNTIME, DRIVER, BACKTRACE]),
        st.sampled_from(NAMES),
        st.none() | st.integers(1, 9),  # stack
    ),
    max_size=25,
)


def plain(rows):
    """The calls of API rows by the definition: (thread, start, end, id, name, reversed, stack)."""
    rows = [(*row, number) for number, row in enumerate(rows)]
    rows = sorted(rows, key=lambda r: (global_id(*r[0]), r[1], r[1] + r[2], r[3], r[7]))
    rows = [(*row[:7], place) for place, row in enumerate(rows)]
    groups = []
    for row in sorted(rows, key=lambda r: (global_id(*r[0]), r[3], r[1], r[7])):
        last = groups[-1] if groups else None
        same = last is not None and row[3] != 0 and (last[0][0], last[0][3]) == (row[0], row[3])
        # A row that begins after all before it have ended is another call with the same number.
        if same and row[1] <= max(r[1] + r[2] for r in last):
            last.append(row)
        else:
            groups.append([row])
    found = []
    for group in groups:
        kept = min(group, key=lambda r: (r[4] == BACKTRACE, r[1], -(r[1] + r[2]), r[7]))
        stacks = [r[6] for r in group if r[6] is not None]
        who, start, length, number, _, name, stack, place = kept
        stack = stack if stack is not None else (stacks[0] if stacks else None)
        name = re.sub(r"_v\d+$", "", name)
        found.append((place, global_id(*who), start, max(start, start + length), number, name, length < 0, stack))
    return [row[1:] for row in sorted(found)]


@pytest.mark.parametrize("limit", [None, 1], ids=["in memory", "mapped, in pieces"])
@settings(max_examples=60, deadline=None)
@given(rows=RECORDED)
def test_one_call_of_all_its_rows(tmp_path_factory, limit, rows):
    builder = ExportBuilder(RELEASES[-1])
    for who, start, length, number, event_class, name, stack in rows:
        builder.api(name, start, start + length, global_id(*who), number, event_class, callchain=stack)
    path = builder.write(tmp_path_factory.mktemp("calls") / "t.sqlite")
    with pytest.MonkeyPatch.context() as patch, open_trace(path, memory_limit=limit) as trace:
        patch.setattr("nsysparse.shelf.PIECE_ROWS", 3)
        calls = load_calls(trace).whole()
    columns = ("thread", "start_ns", "end_ns", "correlation", "name", "reversed", "callchain")
    assert calls.select(columns).rows() == plain(rows)


def test_calls_can_be_loaded_again(tmp_path):
    """Columns are taken out of the table on the way; one that the recording keeps must not suffer."""
    for name, builder in (("none", ExportBuilder(RELEASES[-1])), ("one", ExportBuilder(RELEASES[-1]))):
        if name == "one":
            builder.launch(global_id(7, 7), (100, 200), (300, 400))
        with open_trace(builder.write(tmp_path / f"{name}.sqlite")) as trace:
            trace.frame("api")
            first, second = load_calls(trace).whole(), load_calls(trace).whole()
        assert first.equals(second)
        assert first.height == (name == "one")
