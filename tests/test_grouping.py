"""Rows counted by group, against the obvious way; what is larger than a float holds stays exact."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysparse.accounting import grouping
from nsysparse.accounting.grouping import add_up, number_rows
from nsysparse.flamegraph.tree import add_rows
from nsysparse.intervals import owned
from nsysparse.stacks.chains import Lists, distinct_lists


@pytest.fixture(autouse=True, scope="module", params=[1, grouping.PIECE])
def _piece(request):
    """Sums come to the same whatever is added up together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "PIECE", request.param)
        yield


INTEGERS = st.integers(-(2**62), 2**62)
ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, "a", "b"]),
        st.sampled_from([None, -5, 0, 7, 2**61, -(2**61)]),
        st.sampled_from([None, True, False]),
        st.integers(0, 3_000),
    ),
    max_size=40,
)
SCHEMA = {"text": pl.String, "wide": pl.Int64, "truth": pl.Boolean, "number": pl.Int16}


@given(ROWS)
def test_rows_have_one_number_where_all_columns_are_equal(rows):
    frame = pl.DataFrame(rows, orient="row", schema=SCHEMA).with_columns(same=pl.lit("always"))
    number, first = number_rows(frame, frame.columns)
    shown = frame.rows()
    assert sorted(set(number.tolist())) == list(range(first.size)) == list(range(len(set(shown))))
    for row, n in zip(shown, number.tolist(), strict=True):
        assert shown[first[n]] == row


def test_rows_of_very_many_combinations_are_numbered_too():
    n = 5_000
    frame = pl.DataFrame({c: np.random.default_rng(i).permutation(n) for i, c in enumerate("abcd")})
    number, first = number_rows(frame, frame.columns)
    assert sorted(number.tolist()) == list(range(n)) == sorted(first[number].tolist())
    assert (first[number] == np.arange(n)).all()


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(-(2**55), 2**55)), max_size=60))
def test_sums_are_exact(rows):
    values = pl.Series([v for _, v in rows], dtype=pl.Int64)
    number = np.array([n for n, _ in rows], np.int64)
    told = add_up(values, number, 4).tolist()
    assert told == [sum(v or 0 for n, v in rows if n == group) for group in range(4)]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("n", [0, 1, 500])
def test_rows_of_weights_are_added_where_they_belong(ordered, n):
    random = np.random.default_rng(n)
    place, values = random.integers(0, 50, n), random.integers(-(2**55), 2**55, (n, 3))
    place = np.sort(place) if ordered else place
    total, expected = np.ones((50, 3), np.int64), np.ones((50, 3), np.int64)
    np.add.at(expected, place, values)
    add_rows(total, place, values)
    assert (total == expected).all()


@given(st.lists(st.lists(st.integers(0, 2), max_size=3), max_size=30))
def test_lists_that_are_equal_have_one_number_and_repeat_the_one_before(rows):
    lists = Lists.of_lengths([len(r) for r in rows], np.array([v for r in rows for v in r], np.int64))
    assert lists.repeats().tolist() == [i > 0 and row == rows[i - 1] for i, row in enumerate(rows)]
    number, first = distinct_lists(lists)
    seen = list(dict.fromkeys(map(tuple, rows)))
    assert number.tolist() == [seen.index(tuple(r)) for r in rows]
    assert first.tolist() == [list(map(tuple, rows)).index(r) for r in seen]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=25))
def test_every_instant_has_one_owner_that_started_first_and_lasts_longest(spans):
    start, end = np.array([s for s, _ in spans], np.int64), np.array([s + n for s, n in spans], np.int64)
    mine = [set(range(s, e)) for s, e in zip(*(part.tolist() for part in owned(start, end)), strict=True)]
    for instant in range(20):
        inside = [i for i in range(start.size) if start[i] <= instant < end[i]]
        owner = min(inside, key=lambda i: (start[i], -end[i], i), default=None)
        assert [i for i, part in enumerate(mine) if instant in part] == ([] if owner is None else [owner])
