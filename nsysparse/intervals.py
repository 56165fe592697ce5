"""Interval algebra on columns: unions, gaps, overlaps, and who owns an instant.

Intervals are half-open ``[start, end)`` in ns. Everything is a sort, a running maximum or a binary search over arrays,
of long ones a piece at a time; there is no loop over rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nsysparse.lazy import cached_property
from nsysparse.side_by_side import by_piece

Times = npt.NDArray[np.int64]
Index = npt.NDArray[np.int64]
PIECE = 1 << 15  # intervals looked at together: what is worked out for them stays in the processor's cache
FEW = 16  # times as many intervals as look-ups, from which these are few
BLOCK = 1024  # intervals from one known sum of them to the next


def times(values: npt.ArrayLike) -> Times:
    """An int64 array of whatever holds integers."""
    if hasattr(values, "to_numpy"):  # a column's own way is twenty times as fast as numpy's
        values = values.to_numpy()
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
        if s.size <= PIECE:
            return cls._united(s, e)
        if (s[1:] > e[:-1]).all() and (e > s).all():
            return cls(s, e)
        if (s[1:] < s[:-1]).any():
            order = np.argsort(s, kind="stable")
            s, e = s[order], e[order]
        return cls._merged(by_piece(lambda piece: cls._united(s[piece], e[piece]), s.size, PIECE))

    @classmethod
    def any_of(cls, sets: Iterable[Intervals]) -> Intervals:
        """Instants in any of some sets."""
        some = [s for s in sets if len(s)]
        if len(some) < 2:
            return some[0] if some else cls.none()
        cuts = max(some, key=len).start[PIECE::PIECE]
        bounds = [[0, *np.searchsorted(s.start, cuts).tolist(), len(s)] for s in some]

        def piece(some_cuts: slice) -> Intervals:
            parts = [(s, slice(*b[some_cuts.start : some_cuts.start + 2])) for s, b in zip(some, bounds, strict=True)]
            start, end = ([getattr(s, edge)[part] for s, part in parts] for edge in ("start", "end"))
            return cls._united(np.concatenate(start), np.concatenate(end))

        return cls._merged(by_piece(piece, cuts.size + 1, 1))

    @classmethod
    def _merged(cls, pieces: Iterable[Intervals]) -> Intervals:
        """The union of sets of which each starts no earlier than those before."""
        starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        held = cls.none()  # the last one so far, from which the next set may go on
        for some in pieces:
            reached = int(np.searchsorted(some.start, held.end[0], side="right")) if len(held) else 0
            if reached:
                held = Intervals(held.start, np.maximum(held.end, some.end[reached - 1]))
            if reached < len(some):
                starts += held.start, some.start[reached:-1]
                ends += held.end, some.end[reached:-1]
                held = Intervals(some.start[-1:], some.end[-1:])
        return cls(np.concatenate((*starts, held.start)), np.concatenate((*ends, held.end)))

    @classmethod
    def _united(cls, s: Times, e: Times) -> Intervals:
        """The union of intervals, all at once."""
        keep = e > s
        if not keep.all():
            some = np.flatnonzero(keep)
            s, e = s[some], e[some]
        if not s.size:
            return cls.none()
        if (s[1:] < s[:-1]).any():
            order = np.argsort(s, kind="stable")
            s, e = s[order], e[order]
        if (e[1:] < e[:-1]).any():
            e = np.maximum.accumulate(e)
        edge = np.ones(s.size + 1, np.bool_)  # whether a new interval begins with this row, and ends before it
        np.greater(s[1:], e[:-1], out=edge[1:-1])
        if edge.all():
            return cls(s, e)
        return cls(s[np.flatnonzero(edge[:-1])], e[np.flatnonzero(edge[1:])])  # thrice as fast as by truth values

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
        # Sums may wrap around; what they differ by does not.
        return int((self.end.sum(keepdims=True) - self.start.sum(keepdims=True))[0])

    def __or__(self, other: Intervals) -> Intervals:
        """Instants in either."""
        return Intervals.any_of((self, other))

    def __and__(self, other: Intervals) -> Intervals:
        """Instants in both."""
        if len(self) > len(other):  # fewer to look up
            return other & self
        found = by_piece(lambda piece: Intervals(self.start[piece], self.end[piece])._cut_by(other), len(self), PIECE)
        if all(whole for whole, _ in found):
            return self
        return Intervals(np.concatenate([f.start for _, f in found]), np.concatenate([f.end for _, f in found]))

    def _cut_by(self, other: Intervals) -> tuple[bool, Intervals]:
        """Whether all lies inside the other; instants in both, all at once."""
        first = int(np.searchsorted(other.end, self.start[0], side="right"))
        last = int(np.searchsorted(other.start, self.end[-1], side="left"))
        if first >= last:
            return False, Intervals.none()
        start, end = other.start[first:last], other.end[first:last]
        begun = np.searchsorted(start, self.start, side="right")
        reach = np.where(begun > 0, end[begun - 1], self.start)  # how far what has begun goes on
        cut = np.flatnonzero(reach < self.end)
        if not cut.size:
            return True, self
        high = begun.copy()
        high[cut] = np.searchsorted(start, self.end[cut], side="left")
        mine, theirs = pairs(begun - (reach > self.start), high)
        found = Intervals(np.maximum(self.start[mine], start[theirs]), np.minimum(self.end[mine], end[theirs]))
        return False, found

    def __sub__(self, other: Intervals) -> Intervals:
        """Instants in this set and not in the other."""
        if not len(self) or not len(other):
            return self
        return self & other.gaps(int(self.start[0]), int(self.end[-1]))

    def clip(self, start: int, end: int) -> Intervals:
        """Instants inside a window; views where nothing is cut."""
        if self.start.size and start <= self.start[0] and self.end[-1] <= end:
            return self
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
        """Instants of a window that are not in this set; views where it begins and ends inside the set."""
        inner = self.clip(start, end)
        if not len(inner):
            return Intervals.span(start, end)
        s, e = inner.end[:-1], inner.start[1:]  # what does not touch leaves a gap
        if start < inner.start[0]:
            s, e = np.concatenate(([start], s)), np.concatenate((inner.start[:1], e))
        if end > inner.end[-1]:
            s, e = np.concatenate((s, inner.end[-1:])), np.concatenate((e, [end]))
        return Intervals(s, e)

    def covered(self, start: npt.ArrayLike, end: npt.ArrayLike) -> Times:
        """For each of many intervals, how many ns of it lie in this set."""
        s, e = times(start), times(end)
        if not len(self):
            return np.zeros(s.shape, np.int64)
        found = np.empty(s.shape, np.int64)

        def cover(piece: slice) -> None:
            first, last = s[piece], e[piece]
            found[piece] = np.where(last > first, self._before(last) - self._before(first), 0)

        by_piece(cover, s.size, PIECE)
        return found

    def shared(self, other: Intervals) -> int:
        """Time in both, ns: the length of their intersection, without making it."""
        few, many = sorted((self, other), key=len)
        return int(many.covered(few.start, few.end).sum())

    def contains(self, instants: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """For each of many instants, whether it lies in this set."""
        t = times(instants)
        if not len(self):
            return np.zeros(t.shape, np.bool_)
        i = places(self.start, t) - 1
        return (i >= 0) & (t < self.end[np.maximum(i, 0)])

    def _before(self, instants: Times) -> Times:
        """Time covered before each instant: all that began earlier without what is still to come of the last."""
        begun = places(self.start, instants)
        end = self.end[np.maximum(begun - 1, 0)]
        return np.where(begun > 0, self._first(begun) - (end - np.minimum(instants, end)), 0)

    def _first(self, n: Index) -> Times:
        """Time covered by the first n intervals, for some n that are mostly near each other."""
        low, high = int(n.min()) // BLOCK, int(n.max())
        before, low = self._blocks[low], low * BLOCK
        if high - low <= FEW * n.size:
            total = np.full(high - low + 1, before)
            total[1:] += np.cumsum(self.end[low:high] - self.start[low:high])
            return total[n - low]
        cuts = np.unique(np.append(n, low))  # adding up what lies between them is quicker than a sum after each
        pieces = (np.add.reduceat(edge[low:high], cuts[:-1] - low) for edge in (self.end, self.start))
        total = before + np.append(0, np.cumsum(np.subtract(*pieces)))  # may wrap around, as in length
        return times(total[np.searchsorted(cuts, n)])

    @cached_property
    def _blocks(self) -> Times:
        """Time covered by the first 0, BLOCK, 2 BLOCK, ... intervals, and by all."""
        first = np.arange(0, len(self), BLOCK)
        return np.append(0, np.cumsum(np.add.reduceat(self.end, first) - np.add.reduceat(self.start, first)))


class Spans:
    """Intervals that may overlap, each for itself, ready to be set against many sets of instants.

    Before an instant t lie, of those that began, t - start each, less t - end of those that ended. Sums may wrap
    around; what they differ by does not.
    """

    def __init__(self, start: npt.ArrayLike, end: npt.ArrayLike) -> None:
        """Sort and add up.

        Args:
            start: Starts, in any order.
            end: Ends, none before its start.
        """
        self._start, self._end = (v if (v[1:] >= v[:-1]).all() else np.sort(v) for v in (times(start), times(end)))
        self._begun, self._ended = (np.concatenate(([0], np.cumsum(v))) for v in (self._start, self._end))

    @property
    def length(self) -> int:
        """Time of all of them added, ns."""
        return int((self._end - self._start).sum())

    def inside(self, instants: Intervals) -> int:
        """Time of all of them added, ns, that lies in a set."""
        if self._start.size < len(instants):  # fewer to look up
            return int(instants.covered(self._start, self._end).sum())
        return int((self._before(instants.end) - self._before(instants.start)).sum())

    def _before(self, t: Times) -> Times:
        begun, ended = places(self._start, t), places(self._end, t)
        before: Times = (begun - ended) * t - (self._begun[begun] - self._ended[ended])
        return before


def places(known: Times, instants: Times) -> Index:
    """How many of some ascending times are no later than each of many instants.

    Instants of neighbouring rows are mostly near each other: then those of a piece are looked for in a part of the
    times that stays in the processor's cache.
    """
    found = np.empty(instants.size, np.int64)
    for at in range(0, instants.size, PIECE):
        some = instants[at : at + PIECE]
        low, high = np.searchsorted(known, (some.min(), some.max()), side="right").tolist()
        np.add(np.searchsorted(known[low:high], some, side="right"), low, out=found[at : at + PIECE])
    return found


def pairs(low: Index, high: Index) -> tuple[Index, Index]:
    """Everything that belongs to many runs of rows.

    Args:
        low: First row of each run.
        high: The row after its last; a run is empty where this is no larger.

    Returns:
        For each row of each run, the run's number and the row, run by run.
    """
    n = np.maximum(high - low, 0)
    if n.max(initial=0) <= 1:
        run = np.flatnonzero(n)
        return run, low[run]
    end = np.cumsum(n)
    run = np.repeat(np.arange(n.size), n)
    return run, np.arange(run.size) + (low - end + n)[run]


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
