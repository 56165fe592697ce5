"""Plain columns straight from the pages of a SQLite file, a few hundred pages at a time.

Of a large table nearly every row is *plain*: integers, NULLs and short texts, whole on its page. Such rows are decoded
here, all rows of a batch at once, several times as fast as a statement can step through them. Anything else is SQLite's
work and a :class:`NotPlainError`: a value of another kind, a row that goes on elsewhere, a column added later, a page
that is not as it should be. Nothing is guessed, so that what is read is what SQLite reads (tests/test_pages.py).

The format is SQLite's own description of it, https://www.sqlite.org/fileformat2.html: a table is a tree of pages; a
leaf lists its rows' positions; a row is its size, its rowid, and a record: the kind of each value, then the values.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Kinds = npt.NDArray[np.integer[Any]]

INTERIOR, LEAF = 0x05, 0x0D  # kinds of the pages of a table
LEAF_HEADER, INTERIOR_HEADER = 8, 12
DEEPEST = 20  # levels that SQLite itself allows
BATCH_LEAVES = 192  # pages decoded at a time: what they hold stays in the processor's cache
SLACK = 32_768  # bytes after the last page: a record that is cut short is looked at beyond its end before it is refused
WORD = 8  # bytes of the longest integer
NO_BYTES = np.zeros(0, np.uint8)
UTF8 = 1

# Of each kind of value (its "serial type") the bytes it takes.
SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((t - 12) // 2 for t in range(12, 1 << 14))], np.int64)
WIDTHS = {0: 1, 1: 1, 2: 2, 3: 4, 4: 4, 6: 8, 8: 8}  # bytes of the number that holds so many bytes
# Of each width, by how many bits so many bytes from a value's start are too many, for each kind of integer.
SHIFTS = {w: np.array([8 * max(w - n, 0) for n in SIZES[: 9 + 1].tolist()], f"i{w}") for w in (1, 2, 4, 8)}
NULL, REAL, ZERO, ONE, TEXT = 0, 7, 8, 9, 13


class NotPlainError(Exception):
    """These pages are SQLite's work."""


class PlainTable:
    """One table of a file, if its columns can be read from pages.

    Args:
        file: The database; what it holds must not change, and no journal or WAL may belong to it.
        connection: A connection to it.
        table: The export's table.
        columns: Result column name to (export column, ``int`` or ``text``).

    Raises:
        NotPlainError: The table, or a column, is not one that can be read so.
        OSError: The file cannot be read.

    Attributes:
        leaves: Numbers of its leaf pages, in the order of rowids.
    """

    def __init__(
        self, file: Path, connection: sqlite3.Connection, table: str, columns: Mapping[str, tuple[str, str]]
    ) -> None:
        if not hasattr(os, "preadv"):  # not on every system
            raise NotPlainError
        root, self._columns = _layout(connection, table, columns)
        self._buffer = threading.local()
        self._file = os.open(file, os.O_RDONLY)
        try:
            head = os.pread(self._file, 100, 0)
            size = int.from_bytes(head[16:18], "big")
            self._page = 65_536 if size == 1 else size
            self._usable = self._page - head[20]
            self._pages = os.fstat(self._file).st_size // self._page
            if head[56:60] != bytes((0, 0, 0, UTF8)):
                raise NotPlainError
            self.leaves = self._find_leaves(root)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _load(self, pages: Array) -> Bytes:
        """The bytes of some pages, one after the other; pages that follow each other are read in one go.

        They are the thread's only until it loads others: memory that was used before is warm.
        """
        if pages.size and (pages.min() < 2 or pages.max() > self._pages):
            raise NotPlainError
        size = pages.size * self._page + SLACK
        if getattr(self._buffer, "bytes", NO_BYTES).size < size:
            self._buffer.bytes = np.zeros(size, np.uint8)
        result: Bytes = self._buffer.bytes[:size]
        view, at = memoryview(result), 0  # type: ignore[arg-type]
        for run in np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1):
            size = run.size * self._page
            if os.preadv(self._file, [view[at : at + size]], (int(run[0]) - 1) * self._page) != size:
                raise NotPlainError
            at += size
        return result

    def _find_leaves(self, root: int) -> Array:
        """Leaf pages from left to right, level by level from the root."""
        level = np.array([root], np.int64)
        for _ in range(DEEPEST):
            first = self._load(level[:1])
            if first[0] == LEAF:
                return level
            children = [part for low in range(0, level.size, BATCH_LEAVES) for part in self._children(level, low)]
            level = np.concatenate(children)
            if level.size > self._pages:
                break
        raise NotPlainError

    def _children(self, level: Array, low: int) -> Iterator[Array]:
        """Children of some interior pages of a level: one before each key, and the rightmost."""
        pages = self._load(level[low : low + BATCH_LEAVES])
        for at in range(0, pages.size - SLACK, self._page):
            page = pages[at : at + self._page]
            count = int.from_bytes(page[3:5], "big")
            if page[0] != INTERIOR or INTERIOR_HEADER + 2 * count > self._usable:
                raise NotPlainError
            cells = page[INTERIOR_HEADER : INTERIOR_HEADER + 2 * count].view(">u2").astype(np.int64)
            if count and cells.max() > self._usable - 4:
                raise NotPlainError
            numbers = np.append(cells, 8)  # the rightmost child's number is in the page's header
            yield (page[numbers[:, None] + np.arange(4)] @ np.array([1 << 24, 1 << 16, 1 << 8, 1])).astype(np.int64)

    def bounds(self, leaves: Array) -> tuple[int, int]:
        """First and last rowid on some leaves.

        Raises:
            NotPlainError: A page is not as it should be.
        """
        return self._rowid(self._load(leaves[:1]), 0), self._rowid(self._load(leaves[-1:]), -1)

    def _rowid(self, page: Bytes, which: int) -> int:
        cells = page[LEAF_HEADER : LEAF_HEADER + 2 * int.from_bytes(page[3:5], "big")].view(">u2")
        if page[0] != LEAF or not cells.size or cells[which] > self._usable - 4:
            raise NotPlainError
        at = _after_varint(page, int(cells[which]))
        value, end = 0, _after_varint(page, at)
        for n, byte in enumerate(page[at:end].tolist()):
            value = (value << 8) | byte if n == 8 else (value << 7) | (byte & 0x7F)
        return value - (1 << 64) if value >> 63 else value

    def rows_on(self, leaves: Array) -> int:
        """Number of rows on some leaves."""
        pages = self._load(leaves)
        return int(_words(pages, ">u2")[np.arange(leaves.size) * self._page + 3].sum(dtype=np.int64))

    def decode(self, leaves: Array) -> pa.Table:
        """The rows of some leaves.

        Returns:
            The columns: integers of any width, or binary.

        Raises:
            NotPlainError: A row, or a page, is not plain.
        """
        pages = self._load(leaves)
        rowid, begin, end = self._rows(pages, leaves.size)
        last = max(place for _, place, _ in self._columns)
        records = _Records(pages, begin, end, last + 1)
        wanted = {place: (name, kind) for name, place, kind in self._columns}
        found: dict[str, pa.Array] = {}
        for place in range(last + 1):
            kinds = records.next(place)
            if place in wanted:
                name, kind = wanted[place]
                if kind == "rowid":
                    if not isinstance(kinds, int) or kinds != NULL:
                        raise NotPlainError
                    found[name] = pa.array(rowid)
                else:
                    found[name] = records.integers(kinds) if kind == "int" else records.texts(kinds)
        records.check()
        return pa.table({name: found[name] for name, _, _ in self._columns})

    def _rows(self, pages: Bytes, count: int) -> tuple[Array, Array, Array]:
        """Each row's rowid, where its record begins, and where it ends."""
        base = np.arange(count) * self._page
        two = _words(pages, ">u2")
        rows = two[base + 3].astype(np.int64)
        if (pages[base] != LEAF).any() or (LEAF_HEADER + 2 * rows > self._usable).any():
            raise NotPlainError
        page = np.repeat(base, rows)
        slot = np.arange(page.size) - np.repeat(np.cumsum(rows) - rows, rows)
        cell = two[page + 2 * slot + LEAF_HEADER].astype(np.int64)
        if not cell.size or cell.max() > self._usable - 4:
            raise NotPlainError
        size, at = _varints(pages, cell + page)
        if size.max() > self._usable - 35:  # the record goes on elsewhere
            raise NotPlainError
        rowid, begin = _long_varints(pages, at)
        end = begin + size
        if (end > page + self._usable).any():
            raise NotPlainError
        return rowid, begin, end


class _Records:
    """The records of a batch, walked through column by column."""

    def __init__(self, pages: Bytes, begin: Array, end: Array, columns: int) -> None:
        head = pages[begin]
        if (head >= 0x80).any():
            raise NotPlainError
        self._pages, self._end, self._values = pages, end, begin + head
        self._kinds, self._listed = _kinds(pages, begin + 1, columns)
        # The column's value is _shift bytes beyond _value, the next one's _size bytes further.
        self._value, self._shift = self._values, 0
        self._size: Array | int = 0
        if (self._values > end).any():
            raise NotPlainError

    def next(self, place: int) -> Kinds | int:
        """On to the next column: its kind in each record; a number where all are of one kind, as is common."""
        if isinstance(self._size, int):
            self._shift += self._size
        else:
            self._value = self._value + self._size
        kinds: Kinds = self._kinds[place]
        first = int(kinds[0])
        if (kinds == first).all():
            self._size = int(SIZES[first])
            if self._size > WORD:
                self._stop_beyond()
            return first
        self._value, self._shift, self._size = self._value + self._shift, 0, SIZES[kinds]
        self._stop_beyond()
        return kinds

    def _stop_beyond(self) -> Array:
        """Where the column ends; in no record beyond the record's end."""
        end: Array = self._value + (self._shift + self._size)
        if (end > self._end).any():
            raise NotPlainError
        return end

    def check(self) -> None:
        """Every record is as long as its values.

        Raises:
            NotPlainError: One had fewer columns, since one was added later; or it is damaged.
        """
        end = self._stop_beyond()
        if (self._listed > self._values).any() or (end != self._end)[self._listed == self._values].any():
            raise NotPlainError

    def integers(self, kinds: Kinds | int) -> pa.Array:
        """The column, in the type of its longest value."""
        rows = self._value.size
        if isinstance(kinds, int):
            if kinds == NULL:
                return pa.nulls(rows, pa.int8())
            if kinds in (ZERO, ONE):
                return pa.array(np.full(rows, kinds - ZERO, np.int8))
            if kinds >= REAL:
                raise NotPlainError
            width = WIDTHS[SIZES[kinds]]
            return pa.array(self._words(width) >> SHIFTS[width][kinds])
        if ((kinds == REAL) | (kinds > ONE)).any():
            raise NotPlainError
        width = WIDTHS[SIZES[kinds].max()]
        values = self._words(width) >> SHIFTS[width][kinds]
        for constant in (ZERO, ONE):
            values[kinds == constant] = constant - ZERO
        return pa.array(values, mask=kinds == NULL)

    def _words(self, width: int) -> npt.NDArray[np.signedinteger[Any]]:
        """So many bytes from where the value is, as numbers."""
        words: npt.NDArray[Any] = _words(self._pages, f">i{width}")[self._shift :][self._value]
        native = words.dtype.newbyteorder("=")
        return words.byteswap(inplace=True).view(native) if sys.byteorder == "little" else words.view(native)

    def texts(self, kinds: Kinds | int) -> pa.Array:
        """The column as it is written, whatever its encoding."""
        rows = self._value.size
        if isinstance(kinds, int):
            if kinds == NULL:
                return pa.nulls(rows, pa.binary())
            kinds = np.full(rows, kinds)
        null = kinds == NULL
        if (~null & ((kinds < TEXT) | (kinds % 2 == 0))).any():
            raise NotPlainError
        sizes = SIZES[kinds]
        ends = np.concatenate(([0], np.cumsum(sizes)))
        data = self._pages[np.repeat(self._value + self._shift - ends[:-1], sizes) + np.arange(ends[-1])]
        valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
        return pa.Array.from_buffers(
            pa.binary(), rows, [valid, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
        )


def _layout(
    connection: sqlite3.Connection, table: str, columns: Mapping[str, tuple[str, str]]
) -> tuple[int, list[tuple[str, int, str]]]:
    """The table's first page; name, place in the record and kind of each wanted column.

    Only what is declared as integer or text, and stored as it is declared, can be read from pages.
    """
    found = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
    ).fetchone()
    rows = connection.execute("SELECT name, type, pk, hidden FROM pragma_table_xinfo(?)", (table,)).fetchall()
    if not found or not found[0] or any(hidden for *_, hidden in rows):
        raise NotPlainError
    places = {str(name): (i, str(declared).upper(), key) for i, (name, declared, key, _) in enumerate(rows)}
    # Only of the rowid itself there is no index: INTEGER PRIMARY KEY DESC is a column like others.
    indexes = connection.execute("SELECT 1 FROM pragma_index_list(?) WHERE origin = 'pk'", (table,)).fetchall()
    alone = sum(key > 0 for _, _, key, _ in rows) == 1 and not indexes
    wanted = []
    for name, (source, kind) in columns.items():
        place, declared, key = places.get(source, (0, "", 0))
        if _affinity(declared) != kind:
            raise NotPlainError
        # An INTEGER PRIMARY KEY is the rowid, and NULL in the record.
        wanted.append((name, place, "rowid" if key and alone and declared == "INTEGER" else kind))
    return found[0], wanted


def _affinity(declared: str) -> str:
    """What SQLite makes of a declared type, where it is one of the two that are stored as they are read."""
    if "INT" in declared:
        return "int"
    return "text" if any(word in declared for word in ("CHAR", "CLOB", "TEXT")) else "other"


def _words(pages: Bytes, kind: str) -> npt.NDArray[Any]:
    """Every position of the pages as the begin of a number of some bytes."""
    words: npt.NDArray[Any] = np.ndarray((pages.size - np.dtype(kind).itemsize + 1,), kind, pages, strides=(1,))
    return words


def _varints(pages: Bytes, at: Array) -> tuple[Array, Array]:
    """Numbers of one or two bytes at some positions, and the positions after them."""
    first = pages[at].astype(np.int64)
    two = first >= 0x80
    if not two.any():
        return first, at + 1
    second = pages[at + 1]
    if (two & (second >= 0x80)).any():
        raise NotPlainError
    return np.where(two, (first & 0x7F) << 7 | second, first), at + 1 + two


def _kinds(pages: Bytes, at: Array, columns: int) -> tuple[npt.NDArray[Any], Array]:
    """Kinds of the first values of each record, whose list begins at some positions, and the positions after them.

    Returns:
        One row a column.
    """
    listed = np.lib.stride_tricks.sliding_window_view(pages, columns)[at].T
    if not (listed >= 0x80).any():
        return np.ascontiguousarray(listed), at + columns
    found = []
    for _ in range(columns):
        kinds, at = _varints(pages, at)
        found.append(kinds)
    return np.stack(found), at


def _long_varints(pages: Bytes, at: Array) -> tuple[Array, Array]:
    """Numbers of up to eight bytes (56 bits) at some positions, and the positions after them."""
    byte = pages[at]
    value, after = (byte & 0x7F).astype(np.int64), at + 1
    more = byte >= 0x80
    for _ in range(8):
        if not more.any():
            return value, after
        byte = pages[after]
        value = np.where(more, value << 7 | (byte & 0x7F), value)
        after += more
        more &= byte >= 0x80
    raise NotPlainError


def _after_varint(page: Bytes, at: int) -> int:
    for n in range(at, at + 8):
        if page[n] < 0x80:
            return n + 1
    return at + 9
