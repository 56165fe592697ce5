"""SQLite exports: probing the file, and reading it without ever changing it or its folder.

The file is opened ``immutable``: no lock, no ``-shm``, no journal roll-back, so that a read-only folder, a foreign
``-wal`` beside it and another program's lock make no difference. The one case where that would lose rows, a database
in WAL mode with a live ``-wal``, is read from a temporary copy of both.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path

import pyarrow as pa

from nsysparse.errors import SourceError
from nsysparse.source.columns import ReadNotes, connect, quoted, uri_of
from nsysparse.source.reader import read_chunks, read_columns
from nsysparse.source.statements import row_bounds

MAGIC = b"SQLite format 3\x00"
LFS = b"version https://git-lfs"
WAL_MAGIC = (0x377F0682, 0x377F0683)
LEAST_ROW_BYTES = 5  # what the shortest row takes in a file
EXPORT_HINT = "make one with: nsys export --type sqlite --output trace.sqlite report.nsys-rep"


class SqliteBackend:
    """One SQLite export.

    Attributes:
        path: The file that the user named.
        remarks: What was unusual about opening it, for the integrity section.
        notes: Repairs made while reading.
    """

    kind = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.remarks: list[str] = []
        self.notes = ReadNotes({})
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        header = _header(path)
        self._opened = self._settle_sidecars(header)
        self._state = _state(self._opened)
        self.uri = uri_of(self._opened)
        self._tables = self._read_catalog()

    def _settle_sidecars(self, header: bytes) -> Path:
        """Decide what the files beside the database mean, and which file to open."""
        wal = Path(f"{self.path}-wal")
        journal = Path(f"{self.path}-journal")
        if _starts_with(journal, b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"):
            self.remarks.append("a hot journal lies beside the file: whoever wrote it was interrupted")
        if not _has_bytes(wal):
            return self.path
        if header[18] != 2 or not _wal_fits(wal, header):
            self.remarks.append("a foreign -wal file lies beside the export and was not read")
            return self.path
        self.remarks.append("the export was in WAL mode with unmerged pages: read from a temporary copy")
        self._folder = tempfile.TemporaryDirectory(prefix="nsysparse-")
        copy = Path(self._folder.name) / "trace.sqlite"
        shutil.copyfile(self.path, copy)
        shutil.copyfile(wal, f"{copy}-wal")
        connection = sqlite3.connect(copy)
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.close()
        return copy

    def _read_catalog(self) -> dict[str, list[str]]:
        connection = self.connect()
        try:
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            found = {}
            for (name,) in names:
                with contextlib.suppress(sqlite3.OperationalError):  # a user's virtual table of a module not here
                    found[str(name)] = [str(r[1]) for r in connection.execute(f"PRAGMA table_info({quoted(name)})")]
            return {name: columns for name, columns in found.items() if not name.startswith("sqlite_")}
        except sqlite3.DatabaseError as error:
            raise SourceError(
                f"{self.path.name} is damaged: {error}",
                "copy it again from where it was made, or export it again",
            ) from error
        finally:
            connection.close()

    @property
    def tables(self) -> Mapping[str, list[str]]:
        """The export's tables and their columns."""
        return self._tables

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self.path.stat().st_size

    def connect(self) -> sqlite3.Connection:
        """A read-only connection on which no text can fail to decode."""
        connection = connect(self._opened)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return connection

    def row_count(self, table: str) -> int:
        """Number of rows of one of the export's tables."""
        connection = self.connect()
        try:
            return int(connection.execute(f"SELECT count(*) FROM {quoted(table)}").fetchone()[0])
        except sqlite3.DatabaseError as error:
            raise SourceError(f"table {table} of {self.path.name} is damaged: {error}", "export it again") from error
        finally:
            connection.close()

    def rows_expected(self, table: str) -> int | None:
        """Rows of a table by its first and last rowid: what nsys wrote has no gaps."""
        try:
            bounds = row_bounds(self._opened, table)
        except sqlite3.DatabaseError:
            return None
        rows = 0 if bounds is None else bounds[1] - bounds[0] + 1
        return rows if 0 < rows <= self.size_bytes // LEAST_ROW_BYTES else None

    def read(self, table: str, columns: Mapping[str, tuple[str, str]]) -> pa.Table:
        """Columns of one table as Arrow; see :func:`nsysparse.source.reader.read_columns`."""
        found = read_columns(self._opened, table, columns, self.notes)
        self._stop_if_changed()
        return found

    def chunks(self, table: str, columns: Mapping[str, tuple[str, str]], rows: int) -> Generator[pa.Table]:
        """The same in pieces; see :func:`nsysparse.source.reader.read_chunks`."""
        for piece in read_chunks(self._opened, table, columns, self.notes, rows):
            self._stop_if_changed()
            yield piece

    def _stop_if_changed(self) -> None:
        """What was read of two states of a file belongs to neither."""
        if _state(self._opened) != self._state:
            raise SourceError(
                f"{self.path.name} was changed while it was read", "run again when nothing writes to it any more"
            )

    def close(self) -> None:
        """Remove the temporary copy, if one was made."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _header(path: Path) -> bytes:
    """The first 100 bytes of a database, after the checks that tell a useful error from a puzzling one."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(100)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}", "check the path and its permissions") from error
    if head.startswith(LFS):
        raise SourceError(f"{path.name} is a Git LFS pointer, not the trace itself", "fetch it with: git lfs pull")
    if head[:16] != MAGIC[: len(head[:16])] or not head:
        raise SourceError(f"{path.name} is not a SQLite database", EXPORT_HINT)
    if len(head) < 100:
        raise SourceError(f"{path.name} is cut off after {size} bytes", "copy or export it again")
    page = struct.unpack(">H", head[16:18])[0]
    page = 65_536 if page == 1 else page
    pages, change, valid_for = struct.unpack(">I", head[28:32])[0], head[24:28], head[92:96]
    if change == valid_for and pages and size < pages * page:
        raise SourceError(
            f"{path.name} is cut off: {size:,} bytes of {pages * page:,}", "copy or export it again, whole"
        )
    return head


def _state(file: Path) -> tuple[int, ...] | None:
    """What tells one state of a file from another; None where it is gone."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _has_bytes(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:  # not there, or a name too long to be
        return False


def _starts_with(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


def _wal_fits(wal: Path, header: bytes) -> bool:
    """Whether a ``-wal`` can belong to the database: right magic and page size, and at least one whole frame."""
    page = struct.unpack(">H", header[16:18])[0]
    page = 65_536 if page == 1 else page
    try:
        with wal.open("rb") as file:
            head = file.read(32)
    except OSError:
        return False
    if len(head) < 32 or os.path.getsize(wal) < 32 + 24 + page:
        return False
    magic, _, wal_page = struct.unpack(">III", head[:12])
    return magic in WAL_MAGIC and wal_page == page
