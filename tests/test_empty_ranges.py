"""Runs of NVTX ranges without a call, against a loop over the ranges of each thread and path."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import groupby

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysparse.integrity.loss import EMPTY_RUN, SIBLINGS_ALIKE, _suspicious_runs

RANGE = st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(0, 60), st.sampled_from([0, 0, 1, 1, 1, 2]))


def _by_hand(ranges):
    groups = defaultdict(list)
    for row, (thread, path, start, calls) in enumerate(ranges):
        groups[thread, path].append((start, row, calls))
    found = []
    for (_, path), mine in groups.items():
        held = [calls for *_, calls in mine if calls]
        if not held or len(mine) - len(held) < EMPTY_RUN:
            continue
        counts = Counter(held)
        typical = min(counts, key=lambda n: (-counts[n], n))
        if counts[typical] / len(held) < SIBLINGS_ALIKE:
            continue
        for empty, run in groupby(sorted(mine), key=lambda r: r[2] == 0):
            starts = [start for start, *_ in run]
            if empty and len(starts) >= EMPTY_RUN:
                n = len(starts)
                found.append((f"p{path}", n, len(mine), len(held), typical, n * typical, starts[0], starts[-1] + 5))
    return sorted(found)


@settings(max_examples=300, deadline=None)
@given(st.lists(RANGE, max_size=40))
def test_runs_of_empty_ranges(ranges):
    frame = pl.DataFrame(
        [(t, p, start, start + 5, f"p{p}", t << 24, calls) for t, p, start, calls in ranges],
        schema={"thread": pl.Int64, "path": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}
        | {"label": pl.String, "process": pl.Int64, "calls": pl.Int32},
        orient="row",
    ).with_columns(pl.col("label").cast(pl.Categorical))
    columns = ("label", "ranges", "all", "held", "typical", "missing", "start_ns", "end_ns")
    assert sorted(_suspicious_runs(frame).select(columns).rows()) == _by_hand(ranges)
