"""Interval algebra on columns: unions, gaps, overlaps, and who owns an instant.

Intervals are half-open ``[start, end)`` in ns. Everything is a sort, a running maximum or a binary search over whole
arrays; there is no loop over rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]


def times(values: npt.ArrayLike) -> Times:
    """An int64 array of whatever holds integers."""
    return np.asarray(values, dtype=np.int64)


@dataclass(frozen=True)
class Intervals:
    """A set of instants: sorted, disjoint, non-empty intervals that do not touch.

    Attributes:
        start: Starts, ascending.
        end: Ends, ascending; ``end[i] < start[i + 1]``.
    """

    start: Times
    end: Times

    @classmethod
    def union_of(cls, start: npt.ArrayLike, end: npt.ArrayLike) -> Intervals:
        """The union of any intervals, in any order; empty and reversed ones are left out."""
        s, e = times(start), times(end)
        keep = e > s
        if not keep.all():
            s, e = s[keep], e[keep]
        if not s.size:
            return cls.none()
        if (s[1:] < s[:-1]).any():
            order = np.argsort(s, kind="stable")
            s, e = s[order], e[order]
        reach = np.maximum.accumulate(e)
        first = np.flatnonzero(np.concatenate(([True], s[1:] > reach[:-1])))
        last = np.concatenate((first[1:] - 1, [s.size - 1]))
        return cls(s[first], reach[last])

    @classmethod
    def none(cls) -> Intervals:
        """The empty set."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def span(cls, start: int, end: int) -> Intervals:
        """One interval; empty when it would be reversed."""
        return cls(times([start]), times([end])) if end > start else cls.none()

    def __len__(self) -> int:
        return int(self.start.size)

    @property
    def length(self) -> int:
        """Time covered, ns."""
        return int((self.end - self.start).sum())

    def __or__(self, other: Intervals) -> Intervals:
        """Instants in either."""
        if not len(self) or not len(other):
            return self if len(self) else other
        return Intervals.union_of(np.concatenate((self.start, other.start)), np.concatenate((self.end, other.end)))

    def __and__(self, other: Intervals) -> Intervals:
        """Instants in both."""
        if len(self) > len(other):  # fewer to look up
            return other & self
        low = np.searchsorted(other.end, self.start, side="right")
        high = np.searchsorted(other.start, self.end, side="left")
        n = np.maximum(high - low, 0)
        mine = np.repeat(np.arange(len(self)), n)
        if not mine.size:
            return Intervals.none()
        theirs = np.arange(mine.size) - np.repeat(np.cumsum(n) - n, n) + np.repeat(low, n)
        start = np.maximum(self.start[mine], other.start[theirs])
        return Intervals(start, np.minimum(self.end[mine], other.end[theirs]))

    def __sub__(self, other: Intervals) -> Intervals:
        """Instants in this set and not in the other."""
        if not len(self) or not len(other):
            return self
        return self & other.gaps(int(self.start[0]), int(self.end[-1]))

    def clip(self, start: int, end: int) -> Intervals:
        """Instants inside a window; views where nothing is cut."""
        low = int(np.searchsorted(self.end, start, side="right"))
        high = max(int(np.searchsorted(self.start, end, side="left")), low)
        s, e = self.start[low:high], self.end[low:high]
        if start >= end or not s.size:
            return Intervals.none()
        return Intervals(
            s if s[0] >= start else np.maximum(s, start),
            e if e[-1] <= end else np.minimum(e, end),
        )

    def gaps(self, start: int, end: int) -> Intervals:
        """Instants of a window that are not in this set."""
        inner = self.clip(start, end)
        s = np.concatenate(([start], inner.end))
        e = np.concatenate((inner.start, [end]))
        keep = e > s
        return Intervals(times(s[keep]), times(e[keep]))

    def covered(self, start: npt.ArrayLike, end: npt.ArrayLike) -> Times:
        """For each of many intervals, how many ns of it lie in this set."""
        s, e = times(start), times(end)
        return np.where(e > s, self._before(e) - self._before(s), 0)

    def contains(self, instants: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """For each of many instants, whether it lies in this set."""
        t = times(instants)
        if not len(self):
            return np.zeros(t.shape, np.bool_)
        i = np.searchsorted(self.start, t, side="right") - 1
        return (i >= 0) & (t < self.end[np.maximum(i, 0)])

    def _before(self, instants: Times) -> Times:
        """Time covered before each instant."""
        if not len(self):
            return np.zeros(instants.shape, np.int64)
        total = np.concatenate(([0], np.cumsum(self.end - self.start)))
        i = np.searchsorted(self.start, instants, side="right")
        j = np.maximum(i - 1, 0)
        inside = np.where(i > 0, np.minimum(instants, self.end[j]) - self.start[j], 0)
        return times(np.where(i > 0, total[j], 0) + inside)


def owned(start: npt.ArrayLike, end: npt.ArrayLike) -> tuple[Times, Times]:
    """Split the union of intervals among them: every instant goes to the interval that started first.

    Figures by group that are made of these parts add up to the union's, however the intervals overlap.

    Args:
        start: Starts, in any order.
        end: Ends.

    Returns:
        The part that each interval owns, in the given order; empty (start = end) where others own it all.
    """
    s, e = times(start), times(end)
    if not s.size:
        return s, e
    order = slice(None) if (s[1:] > s[:-1]).all() else _by_start(s, e)
    sorted_end = np.maximum(e[order], s[order])
    reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(sorted_end)[:-1]))
    own_start = np.minimum(np.maximum(s[order], reach), sorted_end)
    out_start, out_end = np.empty_like(s), np.empty_like(e)
    out_start[order], out_end[order] = own_start, sorted_end
    return out_start, out_end


def _by_start(start: Times, end: Times) -> Times:
    """The order of intervals by start, the longest first of those that start together."""
    order = np.argsort(start, kind="stable")  # merges runs that are in order, as columns one after another are
    begun = start[order]
    same = np.zeros(start.size + 1, np.bool_)
    np.equal(begun[1:], begun[:-1], out=same[1:-1])
    together = np.flatnonzero(same[1:] | same[:-1])
    rows = order[together]
    order[together] = rows[np.lexsort((-end[rows], begun[together]))]
    return times(order)
