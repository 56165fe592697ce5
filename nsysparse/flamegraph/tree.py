"""Paths of labels as a tree: nodes numbered level by level, so that a parent comes before its children."""

from __future__ import annotations

from dataclasses import dataclass

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
        own: Weights (nodes x weights) that end at it.
        total: Weights that end at it or below it.
    """

    parent: Index
    label: Index
    depth: Index
    own: Times
    total: Times

    def __len__(self) -> int:
        return int(self.parent.size)

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
    n_labels = int(paths.value.max(initial=0)) + 1
    node = np.zeros(len(paths), np.int64)
    parents, labels, depths, following = [np.zeros(1, np.int64)], [np.array([-1])], [np.zeros(1, np.int64)], 1
    length = paths.length
    longest = int(length.max(initial=0))
    for depth in range(longest):  # levels, not paths
        rows = np.flatnonzero(length > depth)
        key = node[rows] * n_labels + paths.value[paths.start[rows] + depth]
        distinct, code = _distinct(key)
        node[rows] = following + code
        parents.append(distinct // n_labels)
        labels.append(distinct % n_labels)
        depths.append(np.full(distinct.size, depth + 1))
        following += distinct.size
    parent, label, level = (np.concatenate(part) for part in (parents, labels, depths))
    own = np.zeros((parent.size, values.shape[1]), np.int64)
    add_rows(own, node, values)
    return Tree(parent, label, level, own, _totals(parent, level, own))


def _totals(parent: Index, depth: Index, own: Times) -> Times:
    """Weights of whole branches, from the deepest level up."""
    total: Times = own.copy()
    cuts = np.searchsorted(depth, np.arange(1, int(depth.max(initial=0)) + 2))
    for low, high in zip(cuts[-2::-1], cuts[:0:-1], strict=True):
        add_rows(total, parent[low:high], total[low:high])
    return total


def _distinct(key: Index) -> tuple[Index, Index]:
    """The distinct keys, ascending, and which of them each is; a flame's paths are in order and need no sort."""
    if (key[1:] < key[:-1]).any():
        distinct, code = np.unique(key, return_inverse=True)
        return distinct, code.ravel()
    new = np.diff(key, prepend=-1) != 0
    return key[new], np.cumsum(new) - 1


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
    number, total = np.cumsum(keep) - 1, tree.total[keep]
    parent, label, depth = number[tree.parent[keep]], tree.label[keep], tree.depth[keep]
    own = total.copy()  # a node's own is what its branch has beyond its children's
    add_rows(own, parent[1:], -total[1:])
    lost = np.bincount(number[home[~keep]], minlength=parent.size)
    return Tree(parent, label, depth, own, total), keep, lost
