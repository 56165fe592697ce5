"""The call behind each operation, against a loop; ids that come again later in a process included."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysparse.joins import senders
from nsysparse.joins.calls import Calls
from nsysparse.joins.senders import find_calls

CALL = st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(0, 40))
OPERATION = st.tuples(st.integers(0, 3), st.integers(0, 7), st.integers(0, 50))


def calls_of(rows):
    """Calls of (thread, correlation id, start), which are in order."""
    threads = sorted({thread for thread, _, _ in rows})
    bounds = [sum(thread < t for thread, _, _ in rows) for t in threads]
    frame = pl.DataFrame(
        [row[1:] for row in rows], schema={"correlation": pl.Int64, "start_ns": pl.Int64}, orient="row"
    )
    frame = frame.with_columns(name=pl.lit("cudaLaunchKernel").cast(pl.Enum(["cudaLaunchKernel"])))
    return Calls(frame, np.array(threads), np.array([*bounds, len(rows)]))


@pytest.mark.parametrize("piece_rows", [2, 1000])
@pytest.mark.parametrize("scale", [1, 1_000_000_000], ids=["dense ids", "sparse ids"])
@settings(max_examples=150, deadline=None)
@given(
    made=st.lists(CALL, unique=True, min_size=1, max_size=25),
    sent=st.lists(OPERATION, max_size=15),
    cut=st.integers(0, 15),
)
def test_latest_call_before_the_operation(scale, piece_rows, made, sent, cut):
    made = sorted(made, key=lambda call: ((call[0] << 24) + call[1] % 2, call[2]))
    calls = calls_of([((p << 24) + c % 2, c * scale, t) for p, c, t in made])
    work = pl.DataFrame(
        [(p << 24, c * scale, t) for p, c, t in sent],
        schema={"process": pl.Int64, "correlation": pl.Int64, "start_ns": pl.Int64},
        orient="row",
    )
    with patch.object(senders, "PIECE_ROWS", piece_rows):
        first, second = find_calls([work[:cut], work[cut:]], calls, 1)
    for (process, correlation, start), found in zip(sent, [*first.tolist(), *second.tolist()], strict=True):
        candidates = [
            (t, i) for i, (p, c, t) in enumerate(made) if (p, c) == (process, correlation) and correlation != 0
        ]
        before = [c for c in candidates if c[0] <= start]
        if before:
            assert found == max(before)[1]
        else:  # a broken clock: some call with the id, or none where no call has it
            assert found in ([i for _, i in candidates] or [-1])


def test_large_ids_of_calls_beside_small_ones_of_work():
    """Each column has the smallest type that holds it: those of one process need not be alike."""
    base = 1 << 31
    calls = calls_of([(7 << 24, base + i, i) for i in (1, 2, 3)])
    for dtype, ids, expected in (
        (pl.Int8, [1, 2, 3], [-1, -1, -1]),
        (pl.Int32, [5, 0, 1], [-1, -1, -1]),
        (pl.Int64, [base + 2, 1, None], [1, -1, -1]),
    ):
        work = pl.DataFrame({"process": [7 << 24] * 3, "correlation": pl.Series(ids, dtype=dtype), "start_ns": [9] * 3})
        assert find_calls([work], calls, 1)[0].tolist() == expected


@pytest.mark.parametrize(("threads", "expected"), [([7, 8], [1, -1]), ([7 << 24, 8 << 24], [-1, -1])])
def test_work_without_a_process_is_that_of_the_only_one(threads, expected):
    calls = calls_of([(thread, i + 5, i) for i, thread in enumerate(threads)])
    work = pl.DataFrame({"process": pl.Series([None, None], dtype=pl.Int64), "correlation": [6, 4], "start_ns": [9, 9]})
    assert find_calls([work], calls, 1)[0].tolist() == expected


def test_large_tables_are_looked_up_by_several_threads(monkeypatch):
    monkeypatch.setattr(senders, "PIECE_ROWS", 10_000)
    calls = calls_of([(7, i, i) for i in range(1, 300_000)])
    ids = np.random.default_rng(1).integers(0, 310_000, 200_000)
    work = pl.DataFrame({"process": np.zeros(ids.size, np.int64), "correlation": ids, "start_ns": ids})
    expected = np.where((ids > 0) & (ids < 300_000), ids - 1, -1)
    assert (find_calls([work], calls, 4)[0] == expected).all()
