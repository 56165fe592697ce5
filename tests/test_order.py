"""Rows in order by group and start, against a plain sort; groups by number, against a search."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysparse.joins.order import by_start, codes_of, inverse, places_of, rows_by
from nsysparse.side_by_side import aside

ROWS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(-2, 2), st.integers(-1, 1)), min_size=1, max_size=60
)


@given(ROWS, st.booleans(), st.booleans(), st.sampled_from([1, 20]))
def test_order_is_that_of_a_plain_sort(rows: list[tuple[int, ...]], sort_first: bool, ties: bool, times: int) -> None:
    code, start, end, number = np.repeat(np.array(sorted(rows) if sort_first else rows, np.int64), times, axis=0).T
    then = (end, number) if ties else ()
    order, bounds = by_start(code.astype(np.uint8), 5, start, *then)
    expected = np.lexsort((*reversed(then), start, code))
    assert (np.arange(code.size) if order is None else order).tolist() == expected.tolist()
    assert (order is None) == (expected.tolist() == list(range(code.size)))
    assert bounds.tolist() == [0, *np.cumsum(np.bincount(code, minlength=5)).tolist()]


@given(st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(1, 20)), max_size=30))
def test_groups_are_numbered_in_runs_or_not(runs: list[tuple[int, int]]) -> None:
    groups = np.array([g for g, n in runs for _ in range(n)], np.int64)
    distinct, codes = codes_of(groups)
    assert distinct[codes].tolist() == groups.tolist()
    assert distinct.tolist() == sorted(set(groups.tolist()))
    some = distinct[::2]
    places = dict(zip(some.tolist(), range(some.size), strict=True))
    assert places_of(groups, some).tolist() == [places.get(group, some.size) for group in groups.tolist()]


@pytest.mark.parametrize("most", [1, 2])
def test_what_is_done_aside_gives_its_result_or_its_error(most: int) -> None:
    def fail() -> int:
        raise KeyError("lost")

    with aside(most) as begin:
        assert begin(lambda: 7)() == 7
    with pytest.raises(KeyError, match="lost"), aside(most) as begin:
        begin(fail)()


@given(st.lists(st.none() | st.integers(-3, 3) | st.just(1 << 40), max_size=40), st.booleans())
def test_rows_of_each_key(keys: list[int | None], together: bool) -> None:
    if together:
        keys = sorted(keys, key=lambda key: (key is None, key or 0))
    found = {key: np.arange(len(keys))[rows].tolist() for key, rows in rows_by(pl.Series(keys, dtype=pl.Int64))}
    assert found == {key: [i for i, k in enumerate(keys) if k == key] for key in keys if key is not None}


@given(st.sets(st.integers(0, 20)))
def test_the_place_of_each_of_some_rows(rows):
    ascending = sorted(rows)
    place = inverse(np.array(ascending, np.uint32), 21)
    assert place.tolist() == [ascending.index(row) if row in rows else 0 for row in range(21)]
