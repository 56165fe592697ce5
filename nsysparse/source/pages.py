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
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from nsysparse.source.records import WORD, Array, Bytes, NotPlainError, Records, varints, windows

INTERIOR, LEAF = 0x05, 0x0D  # kinds of the pages of a table
LEAF_HEADER, INTERIOR_HEADER = 8, 12
DEEPEST = 20  # levels that SQLite itself allows
MOST_PAGES = 256  # loaded at a time to find the leaves
SLACK = 1_024  # bytes after the last page: more than is looked at beyond the end of a record
NO_BYTES = np.zeros(0, np.uint8)
UTF8 = 1


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
            children = [part for low in range(0, level.size, MOST_PAGES) for part in self._children(level, low)]
            level = np.concatenate(children)
            if level.size > self._pages:
                break
        raise NotPlainError

    def _children(self, level: Array, low: int) -> Iterator[Array]:
        """Children of some interior pages of a level: one before each key, and the rightmost."""
        pages = self._load(level[low : low + MOST_PAGES])
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
        return int(self._counts(self._load(leaves), leaves.size).sum())

    def _counts(self, pages: Bytes, count: int) -> Array:
        """Number of rows on each page."""
        at = np.arange(count) * self._page + 3
        return pages.take(at).astype(np.int64) << 8 | pages.take(at + 1)

    def decode(self, leaves: Array) -> pa.Table:
        """The rows of some leaves.

        Returns:
            The columns: integers of any width, or binary.

        Raises:
            NotPlainError: A row, or a page, is not plain.
        """
        pages = self._load(leaves)
        begin, end, rowids = self._rows(pages, leaves.size)
        records = Records(pages, begin, end, max(place for _, place, _ in self._columns) + 1)
        found: dict[str, pa.Array] = {}
        for name, place, kind in self._columns:
            if kind == "rowid":
                if not records.is_null(place):
                    raise NotPlainError
                found[name] = pa.array(_long_varints(pages, rowids))
            else:
                found[name] = records.integers(place) if kind == "int" else records.texts(place)
        return pa.table(found)

    def _rows(self, pages: Bytes, count: int) -> tuple[Array, Array, Array]:
        """Where each row's record begins, where it ends, and where its rowid is."""
        grid = pages[: count * self._page].reshape(count, self._page)
        rows = self._counts(pages, count)
        if (grid[:, 0] != LEAF).any() or (LEAF_HEADER + 2 * rows > self._usable).any():
            raise NotPlainError
        most = int(rows.max())
        cells = grid[:, LEAF_HEADER : LEAF_HEADER + 2 * most].view(">u2")
        cell = cells[np.arange(most) < rows[:, None]].astype(np.int64)
        if not cell.size or cell.max() > self._usable - 4:
            raise NotPlainError
        page = np.repeat(np.arange(count) * self._page, rows)
        size, rowids, begin = _row_heads(pages, cell + page)
        if size.max() > self._usable - 35:  # the record goes on elsewhere
            raise NotPlainError
        end = begin + size
        if (end > page + self._usable).any():
            raise NotPlainError
        return begin, end, rowids


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


def _row_heads(pages: Bytes, at: Array) -> tuple[Array, Array, Array]:
    """Of the rows at some positions the record's size, where the rowid is, and where the record begins."""
    words = windows(pages, at, WORD).view("<u8").ravel()
    first = pages[at[0] : at[0] + WORD].tolist()
    sized = 1 if first[0] < 0x80 else 2
    length = next((n + 1 for n in range(sized, WORD) if first[n] < 0x80), WORD)
    # Nearly always these numbers take as many bytes in every row: the bits that say so are the same.
    bits = np.uint64(int.from_bytes(b"\x80" * length, "little"))
    if first[length - 1] >= 0x80 or first[sized - 1] >= 0x80 or ((words ^ words[0]) & bits).any():
        size, rowids = varints(pages, at)
        return size, rowids, _after_varints(pages, rowids)
    size = (words & np.uint64(0x7F)).view(np.int64)
    if sized == 2:
        size = size << 7 | (words >> np.uint64(8) & np.uint64(0x7F)).view(np.int64)
    return size, at + sized, at + length


def _after_varints(pages: Bytes, at: Array) -> Array:
    """The positions after numbers of up to eight bytes."""
    more, after = pages.take(at) >= 0x80, at + 1
    for _ in range(8):
        if not more.any():
            return after
        after += more
        more &= pages.take(after - 1) >= 0x80
    raise NotPlainError


def _long_varints(pages: Bytes, at: Array) -> Array:
    """The numbers of up to eight bytes (56 bits) at some positions."""
    byte = pages.take(at)
    value, more = (byte & 0x7F).astype(np.int64), byte >= 0x80
    while more.any():
        at = at + more
        byte = pages.take(at)
        value = np.where(more, value << 7 | (byte & 0x7F), value)
        more &= byte >= 0x80
    return value


def _after_varint(page: Bytes, at: int) -> int:
    for n in range(at, at + 8):
        if page[n] < 0x80:
            return n + 1
    return at + 9
