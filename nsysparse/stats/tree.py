"""The tree that nsys makes of ranges: a range's parent is the shortest range of its thread that contains it.

For ranges that nest properly this is what :class:`nsysparse.joins.nesting.Nesting` finds. Where ranges cross, its
parent is the containing range that started last, which need not be the shortest. The one that ends first is found by
the same class with the time running backwards. If both are the same range, it is the shortest: every other one around
starts no later and ends no earlier. Only for the few ranges where they differ are the others looked at.

Of containing ranges of equal length the one that comes first in the export is the parent. So ranges with the same start
and end on a thread are each other's parents; neither they nor what is inside them is below any outermost range.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.intervals import Times, times
from nsysparse.joins.nesting import Nesting

Index = npt.NDArray[np.int64]
NONE = -1


def with_tree(ranges: pl.DataFrame) -> pl.DataFrame:
    """Add each range's place among those of its thread.

    Args:
        ranges: In the order of the export: ``id``, ``thread``, ``start_ns``, ``end_ns``, ``duration``. One without
            a thread or an end, or that ends before it starts, is an outermost one.

    Returns:
        The ranges with ``parent`` (id, NULL for an outermost one), ``level`` (0 outermost), ``children``,
        ``children_ns`` (time of its direct children) and ``stack`` (ids from the outermost one, ``:1:4:9``).
        ``parent``, ``level`` and ``stack`` are NULL for ranges that share start, end and thread with another, and
        for what is inside these.
    """
    parent = _parents(ranges)
    level, lost = _levels(parent)
    ids = ranges["id"].to_numpy()
    inside = parent != NONE
    below = pl.DataFrame({"id": ids[parent[inside]], "length": ranges["duration"].to_numpy()[inside]})
    children = below.group_by("id").agg(
        pl.len().cast(pl.Int64).alias("children"), pl.col("length").sum().cast(pl.Int64).alias("children_ns")
    )
    placed = pl.Series(~lost)
    tree = ranges.with_columns(
        pl.when(placed & pl.Series(inside)).then(pl.Series(ids[parent])).alias("parent"),
        pl.when(placed).then(pl.Series(level)).alias("level"),
    ).join(children, on="id", how="left", maintain_order="left")
    tree = tree.with_columns(pl.col("children", "children_ns").fill_null(0))
    stacks = _stacks(tree.filter(placed).select("id", "parent", "level"))
    return tree.join(stacks, on="id", how="left", maintain_order="left")


def _parents(ranges: pl.DataFrame) -> Index:
    """Row of each range's parent, NONE for an outermost one."""
    parent = np.full(ranges.height, NONE, np.int64)
    fit = pl.col("thread").is_not_null() & (pl.col("end_ns") >= pl.col("start_ns"))
    rows = times(ranges.select(fit.fill_null(False).arg_true()).to_series())
    part = ranges.select("thread", "start_ns", "end_ns")
    if rows.size < ranges.height:
        part = part[rows]
    thread, start, end = (times(part[c]) for c in part.columns)
    nesting = Nesting(thread, start, end)
    above = _rows_above(nesting, start.size)
    first, second = _twins(nesting, thread, start, end)
    if _any_cross(nesting, start, end):
        _mend(above, nesting, first, thread, start, end)
    found = np.where(above != NONE, first[above], NONE)
    alike = second != NONE
    found[alike] = np.where(first[alike] == np.flatnonzero(alike), second[alike], first[alike])
    parent[rows] = np.where(found != NONE, rows[found], NONE) if rows.size else found
    return parent


def _rows_above(nesting: Nesting, n: int) -> Index:
    """Row of the parent that the nesting gives each row."""
    above = np.full(n, NONE, np.int64)
    inside = nesting.row >= 0
    above[nesting.row[inside]] = nesting.row[nesting.parent[inside]]
    return above


def _twins(nesting: Nesting, thread: Times, start: Times, end: Times) -> tuple[Index, Index]:
    """For each row the first row of the same thread, start and end; and the second, NONE where it is alone."""
    order = times(nesting.row[nesting.row >= 0])  # twins follow each other, in the order of their rows
    n = order.size
    same = np.zeros(n + 1, np.bool_)
    same[1:-1] = True
    for key in (start, end, thread):
        sorted_key = key[order]
        same[1:-1] &= sorted_key[1:] == sorted_key[:-1]
    first, second = np.arange(n), np.full(n, NONE, np.int64)
    if same.any():
        head = np.maximum.accumulate(np.where(same[:-1], 0, np.arange(n)))
        first[order] = order[head]
        alike = same[:-1] | same[1:]
        second[order[alike]] = order[head[alike] + 1]
    return first, second


def _any_cross(nesting: Nesting, start: Times, end: Times) -> bool:
    """Whether two ranges of a thread may cross: of two that follow each other in a parent, one reaches into the next.

    Ranges that touch matter only to one without length that lies in both.
    """
    nodes = np.flatnonzero(nesting.row >= 0)
    nodes = nodes[np.argsort(nesting.parent[nodes], kind="stable")]
    siblings = nesting.parent[nodes[1:]] == nesting.parent[nodes[:-1]]
    rows = nesting.row[nodes]
    ends, starts = end[rows[:-1]][siblings], start[rows[1:]][siblings]
    reach = ends >= starts if (start == end).any() else ends > starts
    return bool(reach.any())


def _mend(above: Index, nesting: Nesting, first: Index, thread: Times, start: Times, end: Times) -> None:
    """Put the shortest containing range where the one that started last is not known to be it.

    As many rounds as ranges cross around one, each over those for which a shorter one may still be found.
    """
    soonest = _rows_above(Nesting(thread, -end, -start), start.size)  # of the containing ranges the one that ends first
    todo = np.flatnonzero(above != NONE)
    todo = todo[first[above[todo]] != first[soonest[todo]]]
    at = above[todo]
    while todo.size:
        # The next one to the left that contains the range; of those that start together this is the shortest.
        at = nesting.rows_of(nesting.enclosing(thread[todo], start[at] - 1, end[todo]))
        on = (at != NONE) & (start[at] >= start[soonest[todo]])
        todo, at = todo[on], at[on]
        best, new = first[above[todo]], first[at]
        length, shortest = end[new] - start[new], end[best] - start[best]
        better = (length < shortest) | ((length == shortest) & (new < best))
        above[todo[better]] = new[better]


def _levels(parent: Index) -> tuple[Index, npt.NDArray[np.bool_]]:
    """Levels below the outermost ranges, and which ranges are below none, by pointer doubling."""
    n = parent.size
    hop = np.append(np.where(parent == NONE, n, parent), n)
    lost = np.zeros(n + 1, np.bool_)
    own = np.arange(n)
    lost[:n] = hop[hop[:n]] == own  # the first two of ranges that are all alike are each other's parents
    hop[lost] = n
    level = (hop != n).astype(np.int64)
    while True:
        further = level[hop]
        if not further.any() and not (lost[hop] & ~lost).any():
            return level[:n], lost[:n]
        level += further
        lost |= lost[hop]
        hop = hop[hop]


def _stacks(tree: pl.DataFrame) -> pl.DataFrame:
    """``stack`` of each ``id``, level by level: as many joins as the ranges are deep."""
    above = pl.DataFrame(schema={"id": pl.Int64, "stack": pl.String})
    done = []
    deepest = tree["level"].max()
    for level in range(deepest + 1 if isinstance(deepest, int) else 0):
        here = tree.filter(pl.col("level") == level).join(
            above.rename({"id": "parent", "stack": "above"}), on="parent", how="left"
        )
        above = here.select("id", stack=pl.format("{}:{}", pl.col("above").fill_null(""), "id"))
        done.append(above)
    return pl.concat(done) if done else above
