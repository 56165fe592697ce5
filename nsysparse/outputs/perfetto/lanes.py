"""Lanes on which slices can be drawn: either none overlaps another, or all nest."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from nsysparse.intervals import Times, times
from nsysparse.joins.nesting import Nesting

Index = npt.NDArray[np.int64]


def flat_lanes(group: npt.ArrayLike, start: npt.ArrayLike, end: npt.ArrayLike) -> Index:
    """Lanes of each group on which no interval overlaps another: as few as possible, the lowest free one first.

    Args:
        group: Group of each interval.
        start: Starts, ns.
        end: Ends, ns.

    Returns:
        Lane of each interval, from 0.
    """
    g, s, e = times(group), times(start), times(end)
    lane = np.zeros(s.size, np.int64)
    for one in np.unique(g):
        rows = np.flatnonzero(g == one)
        rows = rows[np.lexsort((e[rows], s[rows]))]
        lane[rows] = _first_free(s[rows], e[rows])
    return lane


def _first_free(start: Times, end: Times) -> Index:
    """Lanes of intervals sorted by their start."""
    lane = np.zeros(start.size, np.int64)
    reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]))
    alone = start >= reach  # begins after all before it have ended
    alone &= np.append(alone[1:], True)
    crowded = np.flatnonzero(~alone)
    ends: list[tuple[int, int]] = []  # of busy lanes
    free: list[int] = []
    lanes = 0
    # One interval depends on the one before it: this is a loop, but only over those that overlap another.
    for row, s, e in zip(crowded.tolist(), start[crowded].tolist(), end[crowded].tolist(), strict=True):
        while ends and ends[0][0] <= s:
            heapq.heappush(free, heapq.heappop(ends)[1])
        if not free:
            heapq.heappush(free, lanes)
            lanes += 1
        mine = heapq.heappop(free)
        lane[row] = mine
        heapq.heappush(ends, (e, mine))
    return lane


def nested_lanes(group: npt.ArrayLike, start: npt.ArrayLike, end: npt.ArrayLike) -> Index:
    """Lanes of each group on which intervals nest: lane 0 for all, but for those that cross another."""
    g, s, e = times(group), times(start), times(end)
    lane = np.zeros(s.size, np.int64)
    rows, number = np.arange(s.size), 0
    while rows.size:
        moved: list[Index] = []
        while (crossing := _crossing(g[rows], s[rows], e[rows])).size:
            moved.append(rows[crossing])
            rows = np.delete(rows, crossing)
        lane[rows] = number
        rows, number = (np.sort(np.concatenate(moved)) if moved else np.empty(0, np.int64)), number + 1
    return lane


def _crossing(group: Index, start: Times, end: Times) -> Index:
    """Intervals that begin inside a sibling and end after it."""
    nesting = Nesting(group, start, end)
    nodes = np.flatnonzero(nesting.row >= 0)
    nodes = nodes[np.lexsort((nodes, nesting.parent[nodes]))]
    rows, parents = nesting.row[nodes], nesting.parent[nodes]
    siblings = parents[1:] == parents[:-1]
    return times(rows[1:][siblings & (start[rows[1:]] < end[rows[:-1]])])


def depth_first(group: Index, start: Times, end: Times) -> tuple[Index, Index]:
    """Where the begin and the end of each interval come when every group is walked depth first.

    Args:
        group: Groups of intervals that nest.
        start: Starts.
        end: Ends.

    Returns:
        Positions of the begins and of the ends, all different, in order of time within each group.
    """
    nesting = Nesting(group, start, end)
    size = np.ones(nesting.row.size, np.int64)
    order = np.argsort(-nesting.depth, kind="stable")
    cuts = np.flatnonzero(np.diff(nesting.depth[order])) + 1
    for level in np.split(order, cuts):  # from the deepest up
        inner = level[nesting.depth[level] > 0]
        np.add.at(size, nesting.parent[inner], size[inner])
    nodes = np.flatnonzero(nesting.row >= 0)
    # Sentinels stand in this order too, so that groups follow each other.
    begin, finish = np.empty(start.size, np.int64), np.empty(start.size, np.int64)
    depth = nesting.depth[nodes]
    begin[nesting.row[nodes]] = 2 * nodes - depth
    finish[nesting.row[nodes]] = 2 * nodes + 2 * size[nodes] - depth - 1
    return begin, finish
