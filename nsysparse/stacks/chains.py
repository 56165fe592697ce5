"""Stacks as numbers: equal chains of frames become one stack, without a loop over chains.

A chain's hash is the sum of mixed (frame, depth) pairs; chains with equal hashes are then compared frame by
frame with the first of their kind, and hashed again with another seed should two different ones have met. So
the numbering is exact, at the price of two passes over the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from nsysparse.intervals import Times, times

Index = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Given = TypeVar("Given", bound=np.generic)
PIECE = 500_000  # elements looked at together: the 64-bit temporaries stay small, and near the processor


@dataclass(frozen=True)
class Lists:
    """Many short lists of numbers, end to end.

    Attributes:
        start: Where each begins; one more than there are lists.
        value: All their elements.
    """

    start: Index
    value: Index | Codes

    def __len__(self) -> int:
        return self.start.size - 1

    @property
    def length(self) -> Index:
        """Elements of each."""
        return np.diff(self.start)

    @classmethod
    def of_lengths(cls, length: npt.ArrayLike, value: Index | Codes) -> Lists:
        """Lists of known lengths."""
        return cls(np.concatenate((np.zeros(1, np.int64), np.cumsum(times(length)))), value)

    @classmethod
    def singles(cls, value: Index | Codes) -> Lists:
        """Lists of one element each; none where the element is negative."""
        return cls.of_lengths(value >= 0, value[value >= 0])

    def take(self, rows: Index) -> Lists:
        """The lists at these rows; an empty one for a negative row."""
        there = rows >= 0
        row = np.where(there, rows, 0)
        length = np.where(there, self.length[row], 0) if len(self) else np.zeros(rows.size, np.int64)
        begin = self.start[row] if len(self) else np.zeros(rows.size, np.int64)
        result = Lists.of_lengths(length, np.empty(int(length.sum()), self.value.dtype))
        for low, high in result.pieces():
            taken = self.value[_spread(begin[low:high], length[low:high])]
            result.value[result.start[low] : result.start[high]] = taken
        return result

    def each(self, of: npt.NDArray[Given]) -> npt.NDArray[Given]:
        """``of[v]`` for each element v of all the lists."""
        result = np.empty(self.value.size, of.dtype)
        for piece in self._slices():
            result[piece] = of[self.value[piece]]
        return result

    def coded(self, codes: npt.NDArray[Any]) -> Lists:
        """The same lists with ``codes[v]`` in place of each element v."""
        return Lists(self.start, self.each(codes))

    def used(self, size: int) -> npt.NDArray[np.bool_]:
        """Which of the numbers below ``size`` are an element."""
        result = np.zeros(size, np.bool_)
        for piece in self._slices():
            result[self.value[piece]] = True
        return result

    def where(self, keep: npt.NDArray[np.bool_]) -> Lists:
        """The lists with only the marked elements."""
        return Lists(self._before(keep), self.value[keep])

    def any(self, marked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Whether each list has a marked element."""
        return np.diff(self._before(marked)) > 0

    def first(self, marked: npt.NDArray[np.bool_], missing: npt.ArrayLike) -> Index:
        """Place of the first marked element of each list; ``missing`` where it has none."""
        at = np.flatnonzero(marked)
        following = np.searchsorted(at, self.start[:-1])
        found = np.append(at, self.value.size)[following]
        return times(np.where(found < self.start[1:], found - self.start[:-1], missing))

    def last(self, marked: npt.NDArray[np.bool_], missing: npt.ArrayLike) -> Index:
        """Place of the last marked element of each list; ``missing`` where it has none."""
        at = np.flatnonzero(marked)
        preceding = np.searchsorted(at, self.start[1:]) - 1
        found = np.append(at, -1)[preceding]  # -1 takes the appended -1
        return times(np.where(found >= self.start[:-1], found - self.start[:-1], missing))

    def repeats(self) -> npt.NDArray[np.bool_]:
        """Whether each list equals the one before it."""
        length = self.length
        alike = np.flatnonzero(length[1:] == length[:-1]) + 1
        result = np.zeros(len(self), np.bool_)
        for rows in np.array_split(alike, self.value.size // PIECE + 1):  # what is compared stays small
            n = length[rows]
            here, before = (self.value[_spread(self.start[at], n)] for at in (rows, rows - 1))
            result[rows] = ~Lists.of_lengths(n, here).any(here != before)
        return result

    def to_lists(self) -> list[list[int]]:
        """As Python lists."""
        if not len(self):
            return []
        return [part.tolist() for part in np.split(self.value, self.start[1:-1])]

    def owner(self) -> Index:
        """Row of the list behind each element."""
        return np.repeat(np.arange(len(self)), self.length)

    def place(self) -> Index:
        """Place of each element in its list."""
        return np.arange(self.value.size) - np.repeat(self.start[:-1], self.length)

    def _slices(self) -> Iterator[slice]:
        """All elements, PIECE at a time: numpy makes indices of 8 bytes of them."""
        return (slice(low, low + PIECE) for low in range(0, self.value.size, PIECE))

    def pieces(self) -> list[tuple[int, int]]:
        """Ranges of rows with about PIECE elements each."""
        cuts = np.searchsorted(self.start, np.arange(PIECE, int(self.start[-1]), PIECE))
        bounds = np.unique(np.concatenate(([0], cuts, [len(self)])))
        return list(pairwise(bounds.tolist()))

    def _before(self, marked: npt.NDArray[np.bool_]) -> Index:
        """How many elements are marked before each list, and in all."""
        result = np.zeros(self.start.size, np.int64)
        for low, high in self.pieces():
            begin = self.start[low]
            within = np.concatenate((np.zeros(1, np.int64), np.cumsum(marked[begin : self.start[high]])))
            result[low + 1 : high + 1] = result[low] + within[self.start[low + 1 : high + 1] - begin]
        return result


def joined(parts: list[Lists]) -> Lists:
    """Row by row, the parts' lists one after another; their elements fit into 32 bits."""
    length = sum((p.length for p in parts), np.zeros(len(parts[0]), np.int64))
    result = Lists.of_lengths(length, np.empty(int(length.sum()), np.int32))
    at = result.start[:-1].copy()
    for part in parts:
        n = part.length
        if int(n.max(initial=0)) < 2:  # then where a list begins is where its element goes
            result.value[at[n > 0]] = part.value
        else:
            for low, high in part.pieces():
                piece = part.value[part.start[low] : part.start[high]]
                result.value[_spread(at[low:high], n[low:high])] = piece
        at += n
    return result


def _spread(begin: Index, length: Index) -> Index:
    """begin[i], begin[i] + 1, ... (length[i] of them), for all i."""
    total = np.concatenate((np.zeros(1, np.int64), np.cumsum(length)))
    place: Index = np.repeat(begin - total[:-1], length)
    place += np.arange(total[-1])
    return place


class Chains:
    """Chains of frames, gathered from pieces of a table in the table's order.

    Tables are nearly always in order of chain and depth, so a chain is kept as its id and its length; the depths of
    rows, which can be 100 million, are not. Rows out of order are refused: see :func:`chains_of`.
    """

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None
        self._ids: list[Times] = []
        self._lengths: list[Index] = []
        self._frames: list[Codes] = []

    def add(self, chain: Index, depth: Codes, frame: Codes) -> bool:
        """Add rows; False, and nothing is added, where they are not in order."""
        if not chain.size:
            return True
        first = (int(chain[0]), int(depth[0]))
        if (self._last is not None and first < self._last) or _falls(chain, depth):
            return False
        begin = np.flatnonzero(np.concatenate(([True], chain[1:] != chain[:-1])))
        self._ids.append(chain[begin])
        self._lengths.append(np.diff(np.append(begin, chain.size)))
        self._frames.append(frame)
        self._last = (int(chain[-1]), int(depth[-1]))
        return True

    def finish(self) -> tuple[Times, Lists]:
        """The chains' ids, ascending, and their frames, leaf first."""
        if not self._ids:
            return times([]), Lists(np.zeros(1, np.int64), np.empty(0, np.int32))
        ids, length = np.concatenate(self._ids), np.concatenate(self._lengths)
        frame = np.concatenate(self._frames)
        self._frames.clear()
        first = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))  # a chain may lie in two pieces
        return times(ids[first]), Lists.of_lengths(np.add.reduceat(length, first), frame)


def _falls(chain: Index, depth: Index | Codes) -> bool:
    """Whether rows are out of order."""
    same = chain[1:] == chain[:-1]
    return bool(((chain[1:] < chain[:-1]) | (same & (depth[1:] < depth[:-1]))).any())


def chains_of(chain: npt.ArrayLike, depth: npt.ArrayLike, frame: Codes) -> tuple[Times, Lists]:
    """Chains of rows in any order.

    Args:
        chain: Chain of each row.
        depth: Depth of the row's frame, 0 at the leaf.
        frame: Its frame.

    Returns:
        As :meth:`Chains.finish`.
    """
    ids, level = np.asarray(chain), np.asarray(depth)
    if _falls(ids, level):
        order = np.lexsort((level, ids))
        ids, level, frame = ids[order], level[order], frame[order]
    chains = Chains()
    chains.add(ids, level, frame)
    return chains.finish()


def number_chains(chains: Lists) -> tuple[Index, Lists]:
    """Find the distinct stacks among chains.

    Args:
        chains: Frames of each chain, leaf first.

    Returns:
        The stack of each chain; the stacks' frames, root first. Stacks are numbered in the order of their first chain.
    """
    stack, representative = distinct_lists(chains)
    stacks = chains if representative.size == len(chains) else chains.take(representative)
    last = np.repeat(stacks.start[1:] - 1, stacks.length)  # from leaf first to root first
    return stack, Lists(stacks.start, stacks.value[last - stacks.place()])


def distinct_lists(lists: Lists) -> tuple[Index, Index]:
    """Number equal lists alike.

    Returns:
        Number of each list, in order of first appearance; the row of the first list with each number.
    """
    for seed in range(1, 9):
        key = _hashes(lists, seed)
        order = np.argsort(key)
        ordered = key[order]
        new = np.concatenate((np.ones(min(key.size, 1), np.bool_), ordered[1:] != ordered[:-1]))
        if new.all():  # nothing is alike
            return np.arange(key.size), np.arange(key.size)
        first = np.minimum.reduceat(order, np.flatnonzero(new))
        representative = np.sort(first)
        number = np.empty(key.size, np.int64)
        number[order] = np.searchsorted(representative, first)[np.cumsum(new) - 1]
        if _same(lists, representative[number]):
            return number, representative
    raise AssertionError("eight hashes of 64 bits met by chance")


def _hashes(lists: Lists, seed: int) -> npt.NDArray[np.uint64]:
    result = np.zeros(len(lists), np.uint64)
    for low, high in lists.pieces():
        part = Lists(lists.start[low : high + 1] - lists.start[low], lists.value[lists.start[low] : lists.start[high]])
        total = np.concatenate((np.zeros(1, np.uint64), np.cumsum(_mixed(part, seed), dtype=np.uint64)))
        result[low:high] = total[part.start[1:]] - total[part.start[:-1]]  # wraps, as it may
    return result


def _mixed(part: Lists, seed: int) -> npt.NDArray[np.uint64]:
    """One well-spread 64-bit number for each (frame, place): the finalizer of SplitMix64."""
    x: npt.NDArray[np.uint64] = part.value.astype(np.uint64)
    x *= np.uint64(0x9E3779B97F4A7C15)
    x += (part.place().astype(np.uint64) + np.uint64(seed)) * np.uint64(0xD1342543DE82EF95)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def _same(lists: Lists, other: Index) -> bool:
    """Whether each list equals the one at the given row."""
    length = lists.length
    if (length != length[other]).any():
        return False
    for low, high in lists.pieces():
        mine = lists.value[lists.start[low] : lists.start[high]]
        theirs = lists.value[_spread(lists.start[other[low:high]], length[low:high])]
        if (mine != theirs).any():
            return False
    return True
