"""What rules ask of the host's turns, against loops over the calls."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from nsysparse.joins.calls import DOES, WORK
from nsysparse.rules._turns import PAUSE_NS, Marks


def turns_of(seed: int) -> pl.DataFrame:
    """Calls of some threads, by thread and start; some lie inside others, some are far apart."""
    random = np.random.default_rng(seed)
    parts, first = [], 0
    for thread in sorted(random.choice(1_000, int(random.integers(1, 5)), replace=False).tolist()):
        n = int(random.integers(1, 40))
        start = np.sort(random.integers(0, 20 * PAUSE_NS, n))
        does = random.choice(DOES.categories.to_list(), n).tolist()
        parts.append(
            pl.DataFrame(
                {
                    "call": pl.Series(np.arange(first, first + n), dtype=pl.Int32),
                    "start_ns": start,
                    "end_ns": start + random.integers(0, 3 * PAUSE_NS, n),
                    "thread": pl.Series([thread] * n, dtype=pl.Int64),
                    "does": pl.Series(does, dtype=DOES),
                    "waits": random.random(n) < 0.5,
                }
            )
        )
        first += n + int(random.integers(0, 9))  # calls outside the window have numbers too
    return pl.concat(parts)


@pytest.mark.parametrize("seed", range(30))
def test_marks_equal_a_walk_over_the_calls(seed):
    turns = turns_of(seed)
    feeders = turns["thread"].unique().to_list()[:1]
    marks = Marks(turns, feeders)
    pauses, stretches, last_works = [], [], []
    stretch, thread, reach, sent = 0, None, 0, -1
    for row in turns.iter_rows(named=True):
        new = row["thread"] != thread
        pause = 0 if new else row["start_ns"] - reach
        reach = row["end_ns"] if new else max(reach, row["end_ns"])
        sent = row["call"] if row["does"] in WORK else -1 if new else sent
        stretch += new or pause > PAUSE_NS
        thread = row["thread"]
        pauses.append(pause)
        stretches.append(stretch)
        last_works.append(sent)
    assert marks.pauses().tolist() == pauses
    assert marks.stretch.tolist() == stretches
    assert marks.last_work.tolist() == last_works
    assert marks.feeds.tolist() == turns["thread"].is_in(feeders).to_list()
    for rows, does in ((marks.syncs, "synchronize"), (marks.allocations, "allocate")):
        assert rows.tolist() == [i for i, d in enumerate(turns["does"]) if d == does]


def test_no_turns_have_no_marks():
    marks = Marks(turns_of(0).clear(), [])
    assert marks.pauses().size == marks.stretch.size == marks.syncs.size == 0
