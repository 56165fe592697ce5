"""The interval algebra against sets of integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysparse import intervals, side_by_side
from nsysparse.intervals import Intervals, Spans, owned, pairs, places

TIMES = st.integers(-8, 20)
SPANS = st.lists(st.tuples(TIMES, TIMES), max_size=12)  # reversed and empty ones among them


@pytest.fixture(autouse=True, scope="module", params=[(1, 1, 0), (3, 2, 1), (intervals.PIECE, intervals.BLOCK, 16)])
def _piece(request):
    """What is worked on a piece at a time comes to the same whatever the piece."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(("PIECE", "BLOCK", "FEW"), request.param, strict=True):
            patch.setattr(intervals, name, value)
        patch.setattr(side_by_side, "MANY_PIECES", 2)
        yield


def union(spans):
    return Intervals.union_of([s for s, _ in spans], [e for _, e in spans])


def instants(spans):
    return {t for s, e in spans for t in range(s, e)}


def members(found):
    return instants(zip(found.start.tolist(), found.end.tolist(), strict=True))


def canonical(found):
    start, end = found.start.tolist(), found.end.tolist()
    return all(s < e for s, e in zip(start, end, strict=True)) and all(
        e < s for e, s in zip(end[:-1], start[1:], strict=True)
    )


@given(SPANS)
def test_union(spans):
    found = union(spans)
    assert members(found) == instants(spans)
    assert canonical(found)
    assert found.length == len(instants(spans))


@given(SPANS, SPANS)
def test_or_and_minus(first, second):
    a, b = union(first), union(second)
    for found, expected in (
        (a | b, instants(first) | instants(second)),
        (a & b, instants(first) & instants(second)),
        (a - b, instants(first) - instants(second)),
    ):
        assert members(found) == expected
        assert canonical(found)


@given(SPANS, TIMES, TIMES)
def test_clip_and_gaps(spans, low, high):
    window = set(range(low, high))
    assert members(union(spans).clip(low, high)) == instants(spans) & window
    assert members(union(spans).gaps(low, high)) == window - instants(spans)


@given(SPANS, SPANS)
def test_covered(spans, asked):
    found = union(spans).covered([s for s, _ in asked], [e for _, e in asked]).tolist()
    assert found == [len(instants(spans) & set(range(s, e))) for s, e in asked]


@given(
    st.sets(st.integers(0, 60), min_size=40), st.lists(st.tuples(st.integers(-5, 200), st.integers(0, 90)), max_size=2)
)
def test_little_asked_of_many_intervals(places, asked):
    spans = [(3 * p, 3 * p + 1 + p % 2) for p in places]
    found = union(spans).covered([s for s, _ in asked], [s + n for s, n in asked]).tolist()
    assert found == [len(instants(spans) & set(range(s, s + n))) for s, n in asked]


@given(SPANS, st.lists(TIMES, max_size=8))
def test_contains(spans, asked):
    assert union(spans).contains(asked).tolist() == [t in instants(spans) for t in asked]


@given(st.lists(TIMES, max_size=12), st.lists(TIMES, max_size=12))
def test_places_of_instants(known, asked):
    found = places(np.array(sorted(known), np.int64), np.array(asked, np.int64))
    assert found.tolist() == [sum(t <= one for t in known) for one in asked]


def test_what_changes_nothing_is_not_copied():
    many = Intervals.union_of(range(0, 400, 4), range(2, 402, 4))
    assert (many & Intervals.union_of(range(0, 404, 4), range(3, 407, 4))) is many
    again = Intervals.union_of(many.start, many.end)
    assert np.shares_memory(again.start, many.start)
    assert np.shares_memory(again.end, many.end)


@given(SPANS)
def test_owned_gives_every_instant_to_the_first_to_start(spans):
    start, end = (a.tolist() for a in owned([s for s, _ in spans], [e for _, e in spans]))
    parts = [set(range(s, e)) for s, e in zip(start, end, strict=True)]
    assert set().union(*parts) == instants(spans)
    assert sum(map(len, parts)) == len(instants(spans))  # nothing twice
    for i, (s, e) in enumerate(spans):
        assert parts[i] <= set(range(s, e))
        for t in parts[i]:
            assert all(s <= other for other, until in spans if other <= t < until)


@given(st.lists(SPANS, max_size=4))
def test_any_of_several_sets(sets):
    found = Intervals.any_of(union(spans) for spans in sets)
    assert members(found) == set().union(*(instants(spans) for spans in sets))
    assert canonical(found)


@given(SPANS, SPANS)
def test_time_shared_without_the_intersection(first, second):
    a, b = union(first), union(second)
    assert a.shared(b) == b.shared(a) == len(instants(first) & instants(second))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8))
def test_pairs_of_runs_and_their_rows(runs):
    run, row = pairs(np.array([low for low, _ in runs], int), np.array([high for _, high in runs], int))
    expected = [(i, r) for i, (low, high) in enumerate(runs) for r in range(low, high)]
    assert list(zip(run.tolist(), row.tolist(), strict=True)) == expected


@given(SPANS, SPANS, st.sampled_from([0, 1 << 61]))
def test_time_of_many_spans_inside_a_set(spans, instants_of, offset):
    """Far from zero the sums wrap around."""
    forward = [(s + offset, e + offset) for s, e in spans if s <= e]
    held = union([(s + offset, e + offset) for s, e in instants_of])
    found = Spans([s for s, _ in forward], [e for _, e in forward])
    assert found.length == sum(e - s for s, e in forward)
    assert found.inside(held) == sum(len(range(s, e)) and len(members(held) & set(range(s, e))) for s, e in forward)
