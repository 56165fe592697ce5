"""Which request a call belongs to, against a search through all of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from nsysparse.accounting.requests import _Owner
from nsysparse.joins.calls import Calls
from nsysparse.joins.ranges import BY_THREAD, IN_TIME

THREADS = (3, 5, 7)
CALLS = st.lists(st.tuples(st.sampled_from(THREADS), st.integers(0, 30)), min_size=1, max_size=20).map(sorted)
RANGES = st.lists(st.tuples(st.sampled_from(THREADS), st.integers(0, 30), st.integers(0, 8)), max_size=6)


def around(ranges, thread, instant):
    """The one that started last, of those that start together the shortest, and of equal ones the last."""
    found = [(s, -n, row) for row, (t, s, n) in enumerate(ranges) if t == thread and s <= instant <= s + n]
    return max(found)[2] if found else -1


@given(CALLS, RANGES, st.data())
def test_request_of_each_operation(calls, ranges, data):
    start = [s for _, s in calls]
    threads = sorted({t for t, _ in calls})  # a thread may have requests and no call
    bounds = np.searchsorted([t for t, _ in calls], [*threads, 99])
    work = SimpleNamespace(
        calls=Calls(pl.DataFrame({"start_ns": start}), np.array(threads), bounds),
        ranges=SimpleNamespace(frame=pl.DataFrame({"thread": [7, 3]})),
    )
    requests = pl.DataFrame(
        [(t, t, s, s + n) for t, s, n in ranges],
        schema=dict.fromkeys(("thread", "end_thread", "start_ns", "end_ns"), pl.Int64),
        orient="row",
    )
    call = st.one_of(st.none(), st.integers(0, len(calls) - 1))
    ops = data.draw(st.lists(st.tuples(call, st.sampled_from([BY_THREAD, IN_TIME]), st.integers(0, 1)), max_size=12))
    frame = pl.DataFrame(
        {
            "call": pl.Series([c for c, _, _ in ops], dtype=pl.Int32),
            "thread": pl.Series([None if c is None else calls[c][0] for c, _, _ in ops], dtype=pl.Int64),
            "path_by": pl.Series([by for _, by, _ in ops], dtype=pl.String),
            "range": pl.Series([r for _, _, r in ops], dtype=pl.Int32),
        }
    )
    expected = []
    for c, by, row in ops:
        thread = (7, 3)[row] if by == IN_TIME else None if c is None else calls[c][0]
        expected.append(-1 if c is None else around(ranges, thread, calls[c][1]))
    assert _Owner(requests, work).of(frame).tolist() == expected
