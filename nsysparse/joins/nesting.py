"""Which range encloses which, for millions of ranges, well nested or not.

Ranges of a group (a thread, say) are put in the order of start ascending, end descending, row ascending. Then

* the *enclosing* range of an instant is the last one in that order that starts at or before it and ends at or after it;
* the *parent* of a range is the last one before it whose end is at or after its own end.

For ranges that nest properly this is the stack of push and pop. For any others it is still defined, every range has
one parent that contains it, and nothing is counted twice. The parent is the "previous greater or equal element" of the
ends, found for all ranges at once by pointer jumping, and by a tree of maxima where the data is made to defeat that:
the work is O((n + m) log n) whatever the input. A sentinel that encloses everything opens each group, so that no search
leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from nsysparse.intervals import Times, times
from nsysparse.joins.order import by_start, codes_of, places_of

FOREVER = np.iinfo(np.int64).max
JUMPS = 64  # rounds of pointer jumping before the tree of maxima takes over
Index = npt.NDArray[np.int64]
Nodes = npt.NDArray[np.signedinteger[Any]]  # 4 bytes each, where that holds them


class Nesting:
    """The forest of ranges in each group.

    Attributes:
        row: Row of the caller's range behind each node, or what the caller names it by; -1 for a sentinel.
        parent: Node of the parent; a sentinel is its own.
        depth: 0 for a sentinel, 1 for an outermost range, and so on.
    """

    def __init__(
        self, group: npt.ArrayLike, start: npt.ArrayLike, end: npt.ArrayLike, names: Nodes | None = None
    ) -> None:
        """Build the forest.

        Args:
            group: Group of each range.
            start: Starts, ns.
            end: Ends, ns; ``FOREVER`` for a range that never ended. A range with end < start is left out.
            names: Numbers from 0 that ``row`` gives in place of rows.
        """
        g, s, e = times(group), times(start), times(end)
        row = np.flatnonzero(e >= s)
        if row.size < e.size:
            g, s, e = g[row], s[row], e[row]
        self._groups, codes = codes_of(g)
        order, bounds = by_start(codes, self._groups.size, s, -e)
        if order is not None:
            codes, s, e, row = codes[order], s[order], e[order], row[order]
        n = self._groups.size
        self._first = bounds + np.arange(n + 1)
        narrow = np.int32 if e.size + n < np.iinfo(np.int32).max else np.int64
        at = np.arange(1, row.size + 1, dtype=narrow)  # a sentinel before each group
        np.add(at, codes, out=at, casting="unsafe")
        self._start = np.full(row.size + n, np.iinfo(np.int64).min)
        self._end, self.row = np.full(row.size + n, FOREVER), np.full(row.size + n, -1, narrow)
        self._start[at], self._end[at], self.row[at] = s, e, row if names is None else names[row]
        self._tree: list[Times] | None = None
        self.parent = self._parents()
        depth = self._depths()
        self.depth = depth.astype(np.min_scalar_type(-int(depth.max(initial=0)) - 1))  # with a sign: it is subtracted

    def enclosing(self, group: npt.ArrayLike, start: npt.ArrayLike, end: npt.ArrayLike | None = None) -> Nodes:
        """The innermost range around each of many instants or intervals.

        Args:
            group: Group to look in.
            start: Instants, or starts of intervals.
            end: Ends of the intervals; without it, instants.

        Returns:
            Node of the range (its row is ``self.row[node]``), a sentinel's where none encloses it, -1 where the group
            has no ranges.
        """
        g, s = times(group), times(start)
        e = s if end is None else times(end)
        node = np.full(s.size, -1, self.row.dtype)
        if not self._groups.size:
            return node
        code = places_of(g, self._groups)
        known = code < self._groups.size
        order, bounds = by_start(code, self._groups.size + 1, s)
        for i in np.flatnonzero(np.diff(bounds[:-1])):  # once a group; the search itself is over whole arrays
            low, high = self._first[i], self._first[i + 1]
            these = slice(bounds[i], bounds[i + 1]) if order is None else order[bounds[i] : bounds[i + 1]]
            node[these] = low + np.searchsorted(self._start[low:high], s[these], side="right") - 1
        if known.all():
            return self._climb(node, e)
        found = np.flatnonzero(known)
        node[found] = self._climb(node[found], e[found])
        return node

    def outermost(self) -> Iterator[tuple[int, Times, Times]]:
        """Each group, with starts and ends of its ranges that no other one encloses, by start."""
        for i, group in enumerate(self._groups.tolist()):
            nodes = np.flatnonzero(self.depth[self._first[i] : self._first[i + 1]] == 1) + self._first[i]
            yield group, self._start[nodes], self._end[nodes]

    def rows_of(self, node: Nodes) -> Nodes:
        """Rows of the ranges at these nodes; -1 for a sentinel and for -1."""
        if (node >= 0).all():
            return self.row[node]
        return np.where(node >= 0, self.row[np.maximum(node, 0)] if self.row.size else -1, -1)

    def _climb(self, node: Nodes, end: Times) -> Nodes:
        """From each node up to the nearest that ends at or after ``end``."""
        node = node.copy()
        active = np.flatnonzero(self._end[node] < end)
        for _ in range(JUMPS):
            if not active.size:
                return node
            above = self.parent[node[active]]
            node[active] = above
            active = active[self._end[above] < end[active]]
        if active.size:
            node[active] = self._last_reaching(node[active], end[active])
        return node

    def _parents(self) -> Nodes:
        parent = np.arange(-1, self._end.size - 1, dtype=self.row.dtype)
        parent[self._first[:-1]] = self._first[:-1]
        for low, high in pairwise(self._first.tolist()):  # what ends after all before it has only the sentinel around
            reach = np.maximum.accumulate(self._end[low + 1 : high - 1])
            parent[low + 2 : high][self._end[low + 2 : high] > reach] = low
        active = np.flatnonzero(self._end[parent] < self._end) if parent.size else parent
        for _ in range(JUMPS):
            if not active.size:
                return parent
            # Everything between parent and node ends before the node does: true before and after each jump.
            above = parent[parent[active]]
            parent[active] = above
            active = active[self._end[above] < self._end[active]]
        if active.size:
            parent[active] = self._last_reaching(parent[active], self._end[active])
        return parent

    def _last_reaching(self, node: Nodes, end: Times) -> Nodes:
        """The last position at or before each node whose end is at or after ``end`` (one exists: the sentinel)."""
        if self._tree is None:
            self._tree = _maxima(self._end)
        tree, level = self._tree, np.zeros(node.size, np.int64)
        at: Nodes = node.copy()
        active = np.arange(node.size)
        for height, layer in enumerate(tree):
            active = active[layer[at[active]] < end[active]]
            if not active.size:
                break
            at[active] = (at[active] - 1) >> 1  # to the left neighbour's parent
            level[active] = height + 1
        for height in range(int(level.max(initial=0)), 0, -1):
            down = np.flatnonzero(level >= height)
            right = 2 * at[down] + 1
            layer = tree[height - 1]
            inside = np.minimum(right, layer.size - 1)
            at[down] = np.where((right < layer.size) & (layer[inside] >= end[down]), right, right - 1)
        return at

    def _depths(self) -> Nodes:
        """Levels below the sentinel, by pointer doubling: log2 of the deepest chain in rounds."""
        depth = (self.row >= 0).astype(self.row.dtype)
        hop = self.parent.copy()
        while True:
            further = depth[hop]
            if not further.any():
                return depth
            depth += further
            hop = hop[hop]


def _maxima(values: Times) -> list[Times]:
    """Layers of pairwise maxima, the values first."""
    layers = [values]
    while layers[-1].size > 1:
        layer = layers[-1]
        if layer.size & 1:
            layer = np.append(layer, np.iinfo(np.int64).min)
        layers.append(np.maximum(layer[::2], layer[1::2]))
    return layers
