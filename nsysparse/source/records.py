"""The records of a batch of a table's rows, decoded column by column, all rows at once.

A record lists the kind of each of its values (its "serial type", which says how many bytes it takes), then the values.
Records of one table come in few *patterns*: rows with the same kinds have every value at the same place. Rows are put
together by pattern, their values are copied side by side into a matrix, and a column is then a few slabs of that.
"""

from __future__ import annotations

import threading
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nsysparse.lazy import cached_property

Array = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.signedinteger[Any]]

WORD = 8  # bytes of the longest integer
WIDEST = 248  # bytes of values that are copied side by side; what lies beyond is fetched row by row
SLAB_ROWS = (256, 128)  # a slab of fewer rows costs more than fetching them one by one: single bytes; longer ones
PATTERN_ROWS = 8  # with fewer rows a pattern it is not worth to put them together
MOST_PATTERNS = 1 << 16
SLOTS = 18  # bits of a hash of a pattern
FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93)  # odd, of random bits

# Of each kind of value the bytes it takes.
SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((t - 12) // 2 for t in range(12, 1 << 14))], np.int64)
BYTES = SIZES[:10].tolist()
WIDTHS = {0: 1, 1: 1, 2: 2, 3: 4, 4: 4, 6: 8, 8: 8}  # bytes of the number that holds so many bytes
NULL, REAL, ZERO, ONE, TEXT = 0, 7, 8, 9, 13


_scratch = threading.local()  # memory that was used before is warm


class NotPlainError(Exception):
    """These pages are SQLite's work."""


class Records:
    """The records of a batch of rows.

    Args:
        pages: Where they lie, with some bytes to spare after the last.
        begin: Where each record begins.
        end: Where it ends.
        columns: How many of its values are looked at, from the first on.

    Raises:
        NotPlainError: One has fewer columns, since one was added later; or is not as long as its values.
    """

    def __init__(self, pages: Bytes, begin: Array, end: Array, columns: int) -> None:
        heads = pages.take(begin)
        if (heads >= 0x80).any() or (heads <= columns).any():
            raise NotPlainError
        head = int(heads[0]) if (heads == heads[0]).all() else heads.astype(np.int64)
        self._pages, self._values, self._rows = pages, begin + head, begin.size
        lists = _lists(pages, begin + 1, columns)
        short = int(lists.max()) < 0x80  # every kind is one byte
        if not short:
            lists = _lists(pages, begin + 1, int(heads.max()) - 1)
            lists[np.arange(lists.shape[1]) >= (heads - 1)[:, None]] = 0  # beyond its own list
        first, self._pattern = _patterns(lists)
        self._kinds, listed = _kinds(lists[first], columns, short)
        sizes = SIZES[self._kinds]
        ends = sizes.cumsum(axis=0)
        self._offsets = ends - sizes
        stop, left = self._values + self._of_rows(ends[-1]), head - 1 - self._of_rows(listed)
        if (stop > end).any() or (left < 0).any() or ((left == 0) & (stop != end)).any():
            raise NotPlainError
        rows = begin.size // first.size if self._pattern is None else np.bincount(self._pattern)
        self._bounds = np.append(0, np.broadcast_to(rows, first.size).cumsum())
        self._width = -(-(min(int(self._offsets.max()), WIDEST) + WORD) // WORD) * WORD
        # Of each column, for all of them at once: there may be hundreds of patterns.
        self._changes = self._kinds[:, 1:] != self._kinds[:, :-1]
        self._changes |= self._offsets[:, 1:] != self._offsets[:, :-1]
        self._slabs = (np.count_nonzero(self._changes, axis=1) + 1).tolist()
        self._nulls = np.count_nonzero(self._kinds == NULL, axis=1).tolist()
        self._longest = sizes.max(axis=1).tolist()
        self._furthest = self._offsets.max(axis=1).tolist()
        self._integer = (~((self._kinds == REAL) | (self._kinds > ONE)).any(axis=1)).tolist()

    def _of_rows(self, figures: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What is known of each pattern, for each row; one figure where it is the same for all."""
        return figures if self._pattern is None else figures.take(self._pattern)

    @cached_property
    def _order(self) -> tuple[Array, Array] | None:
        """Rows by pattern, and each row's place among them; None where they are in that order."""
        if self._pattern is None:
            return None
        order = self._pattern.astype(np.uint16).argsort(kind="stable")  # quickest for numbers of 16 bits
        place = np.empty(order.size, np.int64)
        place[order] = np.arange(order.size)
        return order, place

    @cached_property
    def _matrix(self) -> Bytes:
        """The begin of each row's values, by pattern."""
        return windows(self._pages, self._values if self._order is None else self._values[self._order[0]], self._width)

    def is_null(self, place: int) -> bool:
        """Whether a column is NULL in every record."""
        return bool(self._nulls[place] == self._kinds.shape[1])

    def integers(self, place: int) -> pa.Array:
        """A column, in the type of its longest value.

        Raises:
            NotPlainError: It holds something else.
        """
        if not self._integer[place]:
            raise NotPlainError
        if self.is_null(place):
            return pa.nulls(self._rows, pa.int8())
        width = WIDTHS[self._longest[place]]
        few = (self._slabs[place] - 1) * SLAB_ROWS[width > 1] < self._rows
        if few and self._furthest[place] + WORD <= self._width:
            values = self._by_slab(place, width)
        else:
            values = self._by_row(place, width)
        return pa.array(values, mask=self._of_rows(self._kinds[place] == NULL) if self._nulls[place] else None)

    def _by_slab(self, place: int, width: int) -> Numbers:
        """Integers of rows that have them at the same place, slab by slab."""
        values = np.empty(self._rows, f"i{width}")
        first = np.append(0, np.flatnonzero(self._changes[place]) + 1)
        bounds = [*self._bounds[first].tolist(), self._rows]
        kinds, offsets = self._kinds[place][first].tolist(), self._offsets[place][first].tolist()
        for (low, high), kind, offset in zip(pairwise(bounds), kinds, offsets, strict=True):
            slab = values[low:high]
            if size := BYTES[kind]:
                at = low * self._width + offset
                words = np.ndarray((high - low,), f">i{width}", self._matrix, at, (self._width,))
                np.right_shift(words, 8 * (width - size), out=slab)
            else:
                slab[:] = kind == ONE
        return values if self._order is None else values.take(self._order[1])

    def _by_row(self, place: int, width: int) -> Numbers:
        """Integers, each from where it is."""
        kinds = self._kinds[place]
        at = self._values + self._of_rows(self._offsets[place])
        if width == 1:
            values: Numbers = self._pages.take(at).view(np.int8)
        else:
            words = np.ndarray((self._pages.size - width + 1,), f">i{width}", self._pages, strides=(1,))[at]
            values = words >> self._of_rows((8 * (width - SIZES[kinds])).astype(f"i{width}"))
        constant = (kinds == NULL) | (kinds >= ZERO)
        if constant.any():
            np.copyto(values, self._of_rows((kinds == ONE).view(np.int8)), where=self._of_rows(constant))
        return values

    def texts(self, place: int) -> pa.Array:
        """A column as it is written, whatever its encoding.

        Raises:
            NotPlainError: It holds something else.
        """
        if self.is_null(place):
            return pa.nulls(self._rows, pa.binary())
        kinds = self._kinds[place]
        null = kinds == NULL
        if (~null & ((kinds < TEXT) | (kinds % 2 == 0))).any():
            raise NotPlainError
        sizes = np.broadcast_to(self._of_rows(SIZES[kinds]), self._rows)
        ends = np.concatenate(([0], np.cumsum(sizes)))
        at = self._values + self._of_rows(self._offsets[place])
        data = self._pages.take(np.repeat(at - ends[:-1], sizes) + np.arange(ends[-1]))
        valid = np.broadcast_to(self._of_rows(~null), self._rows)
        return pa.Array.from_buffers(
            pa.binary(),
            self._rows,
            [
                pa.py_buffer(np.packbits(valid, bitorder="little")),
                pa.py_buffer(ends.astype(np.int32)),
                pa.py_buffer(data),
            ],
        )


def windows(pages: Bytes, at: Array, width: int) -> Bytes:
    """So many bytes from some positions on, one row a position."""
    every = np.ndarray((pages.size - width + 1,), f"V{width}", pages, strides=(1,))
    found: Bytes = every[at].view(np.uint8).reshape(at.size, width)
    return found


def _lists(pages: Bytes, at: Array, width: int) -> Bytes:
    """So many bytes of each list of kinds, filled up with zeros to whole words."""
    lists = windows(pages, at, -(-width // WORD) * WORD)
    lists[:, width:] = 0
    return lists


def _patterns(lists: Bytes) -> tuple[Array, Array | None]:
    """Which records have the same kinds.

    Returns:
        One row of each pattern, in the order of their bytes, so that patterns that begin alike are neighbours; and the
        pattern of each row: None where there is one, or where every row is taken for one of its own.
    """
    rows = np.arange(len(lists))
    words = list(np.ascontiguousarray(lists.view(np.uint64).T))
    if int(lists.max()) < 16:  # as of numbers and NULLs: two words are put into one
        words = [a | b << np.uint64(4) for a, b in zip_longest(words[::2], words[1::2], fillvalue=np.uint64(0))]
    varying = [word for word in words if (word != word[0]).any()]
    if not varying:
        return rows[:1], None
    if not hasattr(_scratch, "seen"):
        _scratch.seen = np.empty(1 << SLOTS, np.int64)
    seen: Array = _scratch.seen  # a row of each hash; of others nothing is asked
    for factor in FACTORS:
        mixed = varying[0] * np.uint64(factor)
        for word in varying[1:]:
            mixed = (mixed ^ word) * np.uint64(factor)
        slot = (mixed >> np.uint64(64 - SLOTS)).view(np.int64)
        seen[slot] = rows
        same = seen.take(slot)
        first = np.flatnonzero(same == rows)
        if first.size * PATTERN_ROWS > rows.size or first.size > MOST_PATTERNS:
            return rows, None
        if all((word.take(same) == word).all() for word in varying):
            break
    else:
        return rows, None
    first = first[np.lexsort(lists[first].view(">u8").T[::-1])]
    seen[slot[first]] = np.arange(first.size)
    return first, seen.take(slot)


def _kinds(lists: Bytes, columns: int, short: bool) -> tuple[Array, Array]:
    """Kinds of the first values of some records, and how many bytes of the list they take.

    Args:
        lists: One list a row.
        columns: How many values.
        short: Each kind is one byte.

    Returns:
        One row a column, one column a record.
    """
    count = len(lists)
    if short:
        return lists[:, :columns].T.astype(np.int64), np.full(count, columns)
    flat = np.append(lists, np.zeros(2 * columns, np.uint8))  # a list may end too early: that is seen by its length
    begin = np.arange(count) * lists.shape[1]
    found, at = [], begin
    for _ in range(columns):
        kinds, at = varints(flat, at)
        found.append(kinds)
    return np.stack(found), at - begin


def varints(data: Bytes, at: Array) -> tuple[Array, Array]:
    """Numbers of one or two bytes at some positions, and the positions after them.

    Raises:
        NotPlainError: One is longer.
    """
    first = data.take(at).astype(np.int64)
    two = first >= 0x80
    if not two.any():
        return first, at + 1
    second = data.take(at + 1)
    if (two & (second >= 0x80)).any():
        raise NotPlainError
    return np.where(two, (first & 0x7F) << 7 | second, first), at + 1 + two
