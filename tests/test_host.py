"""What threads did, and which rows touch a window, against loops over the rows."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from nsysparse.accounting.busy import in_window, union_by_thread
from nsysparse.accounting.host import ACTIVITIES, Stretches, rows_near
from nsysparse.accounting.idle import _starting_at, class_of
from nsysparse.accounting.windows import Window
from nsysparse.intervals import Intervals
from nsysparse.rules._periods import MATCH, find_period
from nsysparse.rules._scene import rows_among

TIME = st.integers(0, 25)
SPAN = st.tuples(TIME, st.integers(0, 8)).map(lambda s: (s[0], s[0] + s[1]))
SPANS = st.lists(SPAN, max_size=12).map(sorted)


def arrays(spans):
    return np.array([s for s, _ in spans], np.int64), np.array([e for _, e in spans], np.int64)


@given(SPANS, SPAN)
def test_calls_near_a_window(spans, window):
    (start, end), (low, high) = arrays(spans), window
    rows = np.arange(start.size)[rows_near(start, end, low, high)]
    assert rows.tolist() == [i for i, (s, e) in enumerate(spans) if s < high and e > low]


@given(SPANS, SPAN.filter(lambda s: s[1] > s[0]))
def test_operations_that_touch_a_window(spans, bounds):
    low, high = bounds
    frame = pl.DataFrame(dict(zip(("start_ns", "end_ns"), arrays(spans), strict=True)))
    found = in_window(frame, Window("some", low, high, "a test"))
    touching = [(s, e) for s, e in spans if low <= s < high or (s < high and e > low)]
    assert found.select("start_ns", "end_ns").rows() == touching
    assert found.select("from_ns", "to_ns").rows() == [(max(s, low), min(e, high)) for s, e in touching]
    assert found["counted"].to_list() == [low <= s < high for s, _ in touching]


@given(SPANS, st.lists(SPAN, max_size=8), st.data())
def test_time_of_each_activity_in_each_gap(spans, gaps, data):
    apart = [s for i, s in enumerate(spans) if all(e <= s[0] for _, e in spans[:i])]
    does = data.draw(st.lists(st.integers(0, len(ACTIVITIES) - 1), min_size=len(apart), max_size=len(apart)))
    holes = Intervals.union_of(*arrays(sorted(gaps)))
    spent = Stretches(*arrays(apart), np.array(does, np.int8)).during(holes.start, holes.end)
    for gap, (low, high) in enumerate(zip(holes.start.tolist(), holes.end.tolist(), strict=True)):
        for activity in range(len(ACTIVITIES)):
            mine = [s for s, a in zip(apart, does, strict=True) if a == activity]
            assert spent[activity, gap] == sum(max(0, min(e, high) - max(s, low)) for s, e in mine)


@given(st.lists(st.tuples(st.sampled_from([7, 3, 5, None]), SPAN), max_size=12))
def test_unions_by_thread(rows):
    schema = {"thread": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
    found = union_by_thread(pl.DataFrame([(t, *s) for t, s in rows], schema=schema, orient="row"))
    assert list(found) == list(dict.fromkeys(t for t, _ in rows if t is not None))
    for thread, union in found.items():
        expected = Intervals.union_of(*arrays([s for t, s in rows if t == thread]))
        assert union.start.tolist() == expected.start.tolist()
        assert union.end.tolist() == expected.end.tolist()


@given(st.lists(TIME, max_size=12).map(sorted), st.sets(TIME, max_size=8).map(sorted))
def test_rows_that_start_at_an_instant(starts, instants):
    number, row = _starting_at(np.array(starts, np.int64), np.array(instants, np.int64))
    expected = [(i, r) for i, t in enumerate(instants) for r, s in enumerate(starts) if s == t]
    assert list(zip(number.tolist(), row.tolist(), strict=True)) == expected


@given(st.sets(TIME, max_size=8).map(sorted), st.lists(TIME, max_size=8))
def test_rows_of_known_values(known, wanted):
    found = rows_among(np.array(known, np.int64), np.array(wanted, np.int64))
    assert found.tolist() == [known.index(v) if v in known else -1 for v in wanted]


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=5), st.integers(1, 30), st.sets(st.integers(0, 149), max_size=9)
)
def test_a_period_is_the_first_lag_at_which_nearly_all_is_equal(unit, times, broken):
    values = np.array(unit * times)
    values[[at for at in broken if at < values.size]] = 9
    lags = range(1, values.size // 2 + 1)
    expected = next((n for n in lags if (values[n:] == values[:-n]).mean() >= MATCH), 0)
    assert find_period(values) == expected


def test_classes_of_gaps_begin_with_their_bounds():
    lengths = pl.Series([0, 9_999, 10_000, 99_999, 100_000, 999_999_999, 1_000_000_000, 10**12])
    assert class_of(lengths).tolist() == [0, 0, 1, 1, 2, 5, 6, 6]
