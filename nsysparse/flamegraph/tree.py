"""Paths of labels as a tree: nodes numbered level by level, so that a parent comes before its children."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nsysparse.intervals import Times
from nsysparse.lazy import cached_property
from nsysparse.stacks.chains import Codes, Index, Lists


@dataclass(frozen=True)
class Tree:
    """A tree of weighed paths; node 0 is the root, which has no label.

    Attributes:
        parent: Node above each; the root's is itself.
        label: Label of each; the root's is -1.
        depth: Labels from the root to it.
        total: Weights (nodes x weights) that end at it or below it.
        lost: Nodes left out below each, directly or below others that were left out.
    """

    parent: Index
    label: Index
    depth: Index
    total: Times
    lost: Index

    def __len__(self) -> int:
        return int(self.parent.size)

    @cached_property
    def own(self) -> Times:
        """Weights that end at each node: what its branch has beyond its children's."""
        own: Times = self.total.copy()
        add_rows(own, self.parent[1:], -self.total[1:])
        return own

    def paths(self) -> Lists:
        """Labels from the root to each node; the root's is empty."""
        lists = Lists.of_lengths(self.depth, np.empty(int(self.depth.sum()), np.int64))
        node, at = np.arange(len(self)), lists.start[1:] - 1
        while node.size:
            below = self.depth[node] > 0
            node, at = node[below], at[below]
            lists.value[at] = self.label[node]
            node, at = self.parent[node], at - 1
        return lists


def build_tree(paths: Lists, values: Times, most: int | None = None) -> Tree:
    """Merge paths that begin alike.

    Args:
        paths: Labels of each path, root first.
        values: Weights of each path (paths x weights).
        most: Nodes to keep, about: those that matter most, whatever the weight; what is left out counts as its parent's
            own. None: all.
    """
    shared = _shared(paths)
    if shared is None:
        order = path_order(paths)
        paths, values = paths.take(order), values[order]
        shared = _shared(paths)
    assert shared is not None
    added = np.concatenate(([1], paths.length - shared, [0])).cumsum()  # nodes of the root and the paths up to one
    n_nodes = int(added[-1])
    most = n_nodes if most is None else min(most, n_nodes)
    levels = list(_levels(paths, shared, values, most))
    parent, label, first, end, total, share = (np.concatenate(column) for column in zip(*levels, strict=True))
    depth = np.repeat(np.arange(len(levels)), [level.first.size for level in levels])
    # The first path through a node adds it and what it holds below it, the others what they add.
    size = added[end] - added[first + 1] + np.append(paths.length, 0)[first] - depth + 1
    bar = np.partition(share, share.size - most)[share.size - most]
    keep = share > bar if most < n_nodes and (share > bar).any() else share >= bar
    keep[0] = True  # a parent's share is never below its child's, so what is kept hangs together
    parent, size = (np.cumsum(keep) - 1)[parent[keep]], size[keep]
    lost = size - 1
    np.subtract.at(lost, parent[1:], size[1:])
    return Tree(parent, label[keep], depth[keep], total[keep], lost)


def _shared(paths: Lists) -> Index | None:
    """Labels that each path begins with as the one before it does; None where the paths are not in order."""
    length = paths.length
    before = np.append(0, length)[:-1]  # of the path before
    back = np.repeat(before, length)
    other = paths.value[np.arange(paths.value.size) - back]
    differs = (paths.place() >= back) | (paths.value != other)
    shared = paths.first(differs, length)
    ends = shared == length
    apart = (paths.start[:-1] + shared)[~ends & (shared < before)]
    if (length[ends] != before[ends]).any() or (paths.value[apart] < other[apart]).any():
        return None
    return shared


class _Level(NamedTuple):
    """Nodes of one depth: node above, label, first path through it, the one after the last, weights, largest share."""

    parent: Index
    label: Index | Codes
    first: Index
    end: Index
    total: Times
    share: npt.NDArray[np.float64]


def _levels(paths: Lists, shared: Index, values: Times, most: int) -> Iterator[_Level]:
    """The nodes level by level, the root's first, but for most of those that are not among the largest."""
    before = np.zeros((values.shape[1], len(paths) + 1), np.int64)  # a row a weight: it is added up along the rows
    np.cumsum(values.T, axis=1, out=before[:, 1:])
    length, one = paths.length, np.zeros(1, np.int64)
    level = _Level(one, one - 1, one, one + len(paths), *_weighed(before, one, one + len(paths)))
    yield level
    rows, node, nodes, largest = np.arange(len(paths)), np.zeros(len(paths), np.int64), 1, level.share
    for depth in range(int(length.max(initial=0))):  # levels, not paths
        further = length[rows] > depth
        rows, node = rows[further], node[further]
        at = np.flatnonzero(shared[rows] <= depth)
        count = np.diff(at, append=rows.size)
        first, end = rows[at], rows[at + count - 1] + 1
        total, share = _weighed(before, first, end)
        largest = np.concatenate((largest, share))
        bar = 0.0
        if largest.size > most:  # what is smaller than so many others is not kept, nor is what lies below it
            largest = np.partition(largest, largest.size - most)[largest.size - most :]
            bar = largest[0]
        stays = share >= bar
        label = paths.value[paths.start[first] + depth]
        level = _Level(node[at][stays], label[stays], first[stays], end[stays], total[stays], share[stays])
        yield level
        rows = rows[np.repeat(stays, count)]
        node = np.repeat(np.arange(nodes, nodes + level.first.size), count[stays])
        nodes += level.first.size


def _weighed(before: Times, first: Index, end: Index) -> tuple[Times, npt.NDArray[np.float64]]:
    """Weights of the paths from one to another (nodes x weights), and the largest share that they are of all."""
    total, share = (before[:, end] - before[:, first]).T, np.zeros(first.size)
    for weight, whole in zip(total.T, before[:, -1].tolist(), strict=True):
        np.maximum(share, weight / max(whole, 1), out=share)
    return total, share


def path_order(paths: Lists) -> Index:
    """Order of the paths by their labels' numbers, the root's first; a path before those that it begins."""
    order, length = np.arange(len(paths)), paths.length
    narrow = np.min_scalar_type(int(paths.value.max(initial=0)) + 1)  # numpy counts what fits 16 bits
    for depth in range(int(length.max(initial=0)) - 1, -1, -1):  # a stable sort a level, the deepest first
        label = np.zeros(order.size, narrow)
        has = np.flatnonzero(length > depth)
        label[has] = paths.value[paths.start[has] + depth] + 1
        order = order[np.argsort(label[order], kind="stable")]
    return order


def add_rows(total: Times, place: Index, values: Times) -> None:
    """Add rows of weights to the rows they belong to, as ``np.add.at`` does, in exact integers, and much faster.

    Args:
        total: What is added to.
        place: Row of ``total`` for each row of ``values``.
        values: What is added.
    """
    if (place[1:] < place[:-1]).any():
        order = np.argsort(place, kind="stable")
        values, place = values[order], place[order]
    first = np.flatnonzero(np.diff(place, prepend=-1))
    if first.size < place.size:
        values = np.add.reduceat(values, first, axis=0)
    total[place[first]] += values
