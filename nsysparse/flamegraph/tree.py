"""Paths of labels as a tree: nodes numbered level by level, so that a parent comes before its children."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nsysparse.intervals import Times
from nsysparse.stacks.chains import Index, Lists


@dataclass(frozen=True)
class Tree:
    """A tree of weighed paths; node 0 is the root, which has no label.

    Attributes:
        parent: Node above each; the root's is itself.
        label: Label of each; the root's is -1.
        depth: Labels from the root to it.
        total: Weights (nodes x weights) that end at it or below it.
    """

    parent: Index
    label: Index
    depth: Index
    total: Times

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


def build_tree(paths: Lists, values: Times) -> Tree:
    """Merge paths that begin alike.

    Args:
        paths: Labels of each path, root first.
        values: Weights of each path (paths x weights).
    """
    levels = _levels(paths)
    if levels is None:
        order = path_order(paths)
        paths, values = paths.take(order), values[order]
        levels = _levels(paths)
    assert levels is not None
    before = np.zeros((values.shape[1], len(paths) + 1), np.int64)  # a row a weight: it is added up along the rows
    np.cumsum(values.T, axis=1, out=before[:, 1:])
    total = np.concatenate([before[:, level.end] - before[:, level.first] for level in levels], axis=1).T
    depth = np.repeat(np.arange(len(levels)), [level.first.size for level in levels])
    parent, label = (np.concatenate([getattr(level, name) for level in levels]) for name in ("parent", "label"))
    return Tree(parent, label, depth, total)


class _Level(NamedTuple):
    """The nodes of one depth: node above, label, first path through it, and the one after the last."""

    parent: Index
    label: Index
    first: Index
    end: Index


def _levels(paths: Lists) -> list[_Level] | None:
    """The nodes level by level, the root's first; None where the paths through one are not neighbours."""
    n_labels, length = int(paths.value.max(initial=0)) + 1, paths.length
    node, following = np.zeros(len(paths), np.int64), 1
    one = np.zeros(1, np.int64)
    levels = [_Level(one, one - 1, one, one + len(paths))]
    for depth in range(int(length.max(initial=0))):  # levels, not paths
        rows = np.flatnonzero(length > depth)
        key = node[rows] * n_labels + paths.value[paths.start[rows] + depth]
        at = np.flatnonzero(np.diff(key, prepend=-1))
        count = np.diff(at, append=rows.size)
        first, end = rows[at], rows[at + count - 1] + 1
        if (key[1:] < key[:-1]).any() or (end - first != count).any():
            return None
        node[rows] = np.repeat(np.arange(following, following + at.size), count)
        levels.append(_Level(key[at] // n_labels, key[at] % n_labels, first, end))
        following += at.size
    return levels


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


def prune(tree: Tree, most: int) -> tuple[Tree, npt.NDArray[np.bool_], Index]:
    """Keep the nodes that matter most, whatever the weight; the rest is gathered under their parents.

    Args:
        tree: The tree.
        most: Nodes to keep, about.

    Returns:
        The smaller tree, in which what was left out counts as the parent's own; which nodes stayed; how many nodes each
        node that stayed has lost directly or further below.
    """
    if len(tree) <= most:
        return tree, np.ones(len(tree), np.bool_), np.zeros(len(tree), np.int64)
    share = np.zeros(len(tree))
    for column in tree.total.T:
        np.maximum(share, column / max(int(column[0]), 1), out=share)
    bar = np.partition(share, len(tree) - most)[len(tree) - most]
    keep = share > bar if (share > bar).any() else share >= bar
    keep[0] = True  # a parent's share is never below its child's, so what is kept hangs together
    home = np.arange(len(tree))
    left = np.flatnonzero(~keep)
    while left.size:
        home[left] = tree.parent[home[left]]
        left = left[~keep[home[left]]]
    number = np.cumsum(keep) - 1
    parent, label, depth = number[tree.parent[keep]], tree.label[keep], tree.depth[keep]
    lost = np.bincount(number[home[~keep]], minlength=parent.size)
    return Tree(parent, label, depth, tree.total[keep]), keep, lost
