"""A recording whose columns may have been read before; see :mod:`nsysparse.cache`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from nsysparse.cache import REPORTS, Cache, Store
from nsysparse.source.columns import ReadNotes
from nsysparse.source.trace import Backend


class CachedBackend:
    """Another backend, of which every read is kept. SQL still goes to the recording itself."""

    def __init__(self, backend: Backend, store: Store) -> None:
        self._backend, self.store = backend, store
        self.kind, self.path, self.remarks, self.notes = backend.kind, backend.path, backend.remarks, backend.notes

    @property
    def tables(self) -> Mapping[str, list[str]]:
        """The export's tables and their columns."""
        return self._backend.tables

    @property
    def size_bytes(self) -> int:
        """Size of the recording."""
        return self._backend.size_bytes

    def row_count(self, table: str) -> int:
        """Number of rows of one of the export's tables."""
        number = self.store.rows(table)
        if number is None:
            number = self._backend.row_count(table)
            self.store.put_rows(table, number)
        return number

    def rows_expected(self, table: str) -> int | None:
        """About how many rows a table has, where that is known."""
        return self.store.rows(table) or self._backend.rows_expected(table)

    def read(self, table: str, columns: Mapping[str, tuple[str, str]]) -> pa.Table:
        """Columns of one table, from the cache if they are there."""
        kept = self._get(table, columns)
        if kept is not None:
            return kept
        before = dict(self.notes.repaired_texts)
        found = self._backend.read(table, columns)
        repaired = {k: n - before.get(k, 0) for k, n in self.notes.repaired_texts.items() if n != before.get(k, 0)}
        self.store.put(table, columns, found, repaired)
        return found

    def chunks(self, table: str, columns: Mapping[str, tuple[str, str]], rows: int) -> Generator[pa.Table]:
        """The same piece by piece, each kept as it is read; complete once their number is kept."""
        number = self.store.rows(f"{table} in pieces of {rows}")
        done = 0
        while number is not None and done < number:
            kept = self._get(table, _piece(columns, rows, done))
            if kept is None:  # damaged: what has been given out is the same either way
                break
            yield kept
            done += 1
        if number is not None and done == number:
            return
        before = dict(self.notes.repaired_texts)
        count = 0
        with closing(self._backend.chunks(table, columns, rows)) as pieces:
            for found in pieces:
                repaired = {
                    k: n - before.get(k, 0) for k, n in self.notes.repaired_texts.items() if n != before.get(k, 0)
                }
                before = dict(self.notes.repaired_texts)
                self.store.put(table, _piece(columns, rows, count), found, repaired)
                count += 1
                if count > done:
                    yield found
        self.store.put_rows(f"{table} in pieces of {rows}", count)

    def _get(self, table: str, columns: Mapping[str, tuple[str, str]]) -> pa.Table | None:
        watch = self.notes.watch
        watch.begin(table, None)
        try:
            kept = self.store.get(table, columns)
            if kept is None:
                return None
            found, repaired = kept
            watch.add(found.num_rows, found.nbytes)
        finally:
            watch.end()
        for column, number in repaired.items():
            self.notes.repaired_texts[column] = self.notes.repaired_texts.get(column, 0) + number
        return found

    @property
    def uri(self) -> str:
        """URI of the recording itself as a database."""
        return self._backend.uri

    def connect(self) -> sqlite3.Connection:
        """A read-only connection for SQL."""
        return self._backend.connect()

    def close(self) -> None:
        """Give back temporary files."""
        self._backend.close()


def _piece(columns: Mapping[str, tuple[str, str]], rows: int, number: int) -> dict[str, tuple[str, str]]:
    """What a piece is filed under."""
    return {**columns, f"piece {number}": (f"of {rows} rows", "piece")}


class DeferredReport:
    """A report that is exported only if something is asked for that the cache does not hold."""

    kind = "nsys-rep"

    def __init__(self, path: Path, opener: Callable[[], Backend], facts: Mapping[str, Any]) -> None:
        self.path, self.notes, self.remarks = path, ReadNotes({}), list(facts["remarks"])
        self._tables, self._opener = dict(facts["tables"]), opener
        self._opened: Backend | None = None

    def _backend(self) -> Backend:
        if self._opened is None:
            self._opened = self._opener()
            self._opened.notes = self.notes
        return self._opened

    @property
    def tables(self) -> Mapping[str, list[str]]:
        """The export's tables and their columns."""
        return self._tables

    @property
    def size_bytes(self) -> int:
        """Size of the report."""
        return self.path.stat().st_size

    def row_count(self, table: str) -> int:
        """Number of rows of one of the export's tables."""
        return self._backend().row_count(table)

    def rows_expected(self, table: str) -> int | None:
        """About how many rows a table has, once the report is exported."""
        return None if self._opened is None else self._opened.rows_expected(table)

    def read(self, table: str, columns: Mapping[str, tuple[str, str]]) -> pa.Table:
        """Columns of one table."""
        return self._backend().read(table, columns)

    def chunks(self, table: str, columns: Mapping[str, tuple[str, str]], rows: int) -> Generator[pa.Table]:
        """The same piece by piece."""
        return self._backend().chunks(table, columns, rows)

    @property
    def uri(self) -> str:
        """URI of the export as a database."""
        return self._backend().uri

    def connect(self) -> sqlite3.Connection:
        """A read-only connection for SQL."""
        return self._backend().connect()

    def close(self) -> None:
        """Remove the temporary export, if one was made."""
        if self._opened is not None:
            self._opened.close()


def open_cached(path: Path, opener: Callable[[], Backend], cache: Cache) -> Backend:
    """Open a recording through a cache.

    Args:
        path: The recording.
        opener: Opens it without the cache.
        cache: The cache.
    """
    if path.suffix not in REPORTS:
        backend = opener()
        store = cache.store(path, backend.tables)
        return backend if store is None else CachedBackend(backend, store)
    # The tables of a report are known only once it is exported, and that is what takes long.
    store = cache.store(path, {})
    if store is None:
        return opener()
    kept = store.kept_facts() or {}
    if "tables" in kept and "remarks" in kept:
        return CachedBackend(DeferredReport(path, opener, kept), store)
    backend = opener()
    store.facts |= {"tables": dict(backend.tables), "remarks": backend.remarks}
    return CachedBackend(backend, store)
