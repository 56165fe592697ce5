"""The NVTX join against brute force, malformed input included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysparse.joins import nesting
from nsysparse.joins.nesting import FOREVER, Nesting

TIMES = st.integers(-6, 25)
RANGES = st.lists(st.tuples(st.integers(0, 2), TIMES, st.one_of(TIMES, st.just(FOREVER))), max_size=25)
CALLS = st.lists(st.tuples(st.integers(0, 3), TIMES, st.integers(0, 6)), max_size=15)


def around(ranges, group, start, end):
    """The range last in (start, -end, row) of those that enclose; -1 for none."""
    order = sorted(range(len(ranges)), key=lambda i: (ranges[i][1], -ranges[i][2], i))
    return next(
        (
            i
            for i in reversed(order)
            if ranges[i][0] == group and ranges[i][1] <= start and end <= ranges[i][2] >= ranges[i][1]
        ),
        -1,
    )


@pytest.mark.parametrize("jumps", [0, 1, 64])
@settings(max_examples=150, deadline=None)
@given(ranges=RANGES, calls=CALLS)
def test_innermost_range_of_each_call(jumps, ranges, calls):
    columns = [np.array([r[i] for r in ranges], np.int64) for i in range(3)]
    asked = [np.array([c[i] for c in calls], np.int64) for i in range(3)]
    before, nesting.JUMPS = nesting.JUMPS, jumps  # the tree of maxima must agree with pointer jumping
    try:
        found = Nesting(*columns)
        rows = found.rows_of(found.enclosing(asked[0], asked[1], asked[1] + asked[2])).tolist()
    finally:
        nesting.JUMPS = before
    assert rows == [around(ranges, g, s, s + d) for g, s, d in calls]


@settings(max_examples=150, deadline=None)
@given(ranges=RANGES)
def test_parent_encloses_and_depth_counts_parents(ranges):
    found = Nesting(*[np.array([r[i] for r in ranges], np.int64) for i in range(3)])
    rows, parents = found.row.tolist(), found.parent.tolist()
    for node, row in enumerate(rows):
        parent, depth, at = rows[parents[node]], 0, node
        if row >= 0 and parent >= 0:
            assert ranges[parent][0] == ranges[row][0]
            assert ranges[parent][1] <= ranges[row][1]
            assert ranges[parent][2] >= ranges[row][2]
        while rows[at] >= 0:
            at, depth = parents[at], depth + 1
        assert found.depth[node] == depth


@settings(max_examples=60, deadline=None)
@given(st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=4), max_leaves=20))
def test_well_nested_ranges_are_a_stack(tree):
    ranges, parents, clock = [], [], iter(range(10_000))

    def visit(children, parent):
        for child in children:
            start, row = next(clock), len(ranges)
            ranges.append(None)
            parents.append(parent)
            visit(child, row)
            ranges[row] = (start, next(clock))

    visit(tree, -1)
    found = Nesting([0] * len(ranges), [s for s, _ in ranges], [e for _, e in ranges])
    by_row = {row: found.row[found.parent[node]] for node, row in enumerate(found.row.tolist()) if row >= 0}
    assert by_row == dict(enumerate(parents))


def test_a_chain_deeper_than_pointer_jumping_reaches():
    n = 50_000
    row = np.arange(n)
    for start, end in ((row, 4 * n - row), (row, np.full(n, FOREVER)), (np.zeros(n, np.int64), n + row)):
        found = Nesting(np.zeros(n, np.int64), start, end)
        assert int(found.depth.max()) == n


@settings(max_examples=80, deadline=None)
@given(ranges=RANGES, data=st.data())
def test_nodes_bear_the_names_that_were_given(ranges, data):
    columns = [np.array([r[i] for r in ranges], np.int64) for i in range(3)]
    names = np.array(data.draw(st.permutations(range(100, 100 + len(ranges)))), np.int32)
    plain, named = Nesting(*columns), Nesting(*columns, names)
    assert named.row.tolist() == [names[r] if r >= 0 else -1 for r in plain.row.tolist()]
    assert named.parent.tolist() == plain.parent.tolist()


@pytest.mark.parametrize("n", [126, 127, 128, 129, 300])
def test_depths_do_not_overflow(n):
    depth = Nesting(np.zeros(n), np.arange(n), np.arange(2 * n, n, -1)).depth
    assert depth.tolist() == list(range(n + 1))
    assert (-depth.astype(np.int64)).tolist() == (-depth).tolist()
