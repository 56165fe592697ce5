"""Columns that were read once, kept as Parquet, so that the next command on the same recording skips reading.

A folder holds one entry a recording; an entry is a folder with one Parquet file a read (a table and the columns that
were asked for) and a ``entry.json`` that says what it is of. An entry's name is made of everything that tells one state
of a recording from another: its path, size, times, the first bytes of the file (in which SQLite counts changes), its
tables and their columns, and the version of nsysparse. So nothing in an entry can be stale: a recording that changed
has another entry.

Files are written under a temporary name and renamed: of two processes that write the same one, the last wins with the
same content. A file that is damaged is as good as one that is not there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nsysparse._version import __version__
from nsysparse.beside import file_beside
from nsysparse.errors import NsysparseError

FORMAT = 1
HEADER_BYTES = 100
_ENTRY = re.compile(r"trace-[0-9a-f]{32}")
_FACTS = "entry.json"


class CacheError(NsysparseError):
    """The folder of the cache cannot be used."""


@dataclass(frozen=True)
class Entry:
    """One recording in the cache.

    Attributes:
        folder: Its folder.
        name: File name of the recording.
        version: The nsysparse that wrote it.
        files: Number of reads that it holds.
        size_bytes: Their size.
        used: When it was last written or read, seconds since 1970.
    """

    folder: Path
    name: str
    version: str
    files: int
    size_bytes: int
    used: float


class Cache:
    """A folder of entries.

    Raises:
        CacheError: The folder cannot be made, or not written to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with _usable(folder):
            # What is in a trace is for the eyes of whoever may read the trace.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass

    def store(self, path: Path, tables: Mapping[str, list[str]]) -> Store | None:
        """What is kept of a recording in its present state.

        Args:
            path: The recording.
            tables: Its tables and their columns.

        Returns:
            None when the recording cannot be looked at.
        """
        state = state_of(path)
        if state is None:
            return None
        made_of = json.dumps([FORMAT, __version__, state, dict(tables)], sort_keys=True)
        key = hashlib.sha256(made_of.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return Store(self.folder / f"trace-{key}", path, state)


class Store:
    """What is kept of one state of one recording.

    Attributes:
        facts: Of the recording, kept with it; for JSON.
        problem: Why something could not be kept; None when nothing went wrong.
    """

    def __init__(self, folder: Path, path: Path, state: list[object]) -> None:
        self._folder, self._path, self._state = folder, path, state
        self.facts: dict[str, object] = {"name": path.name, "version": __version__}
        self.problem: str | None = None

    def kept_facts(self) -> dict[str, Any] | None:
        """The facts of the recording as they were kept; None when nothing was."""
        return _load(self._folder / _FACTS)

    def get(self, table: str, columns: Mapping[str, tuple[str, str]]) -> tuple[pa.Table, dict[str, int]] | None:
        """What was kept of a read.

        Returns:
            The columns and the repairs that reading them took; None when they are not there, or damaged.
        """
        file = self._file(table, columns)
        note = _load(file.with_suffix(".json"))
        try:
            if note is None or note["footer"] != _footer_sum(file):
                return None
            found = pq.read_table(file, page_checksum_verification=True)
        except (OSError, ValueError, pa.ArrowException):
            return None
        with contextlib.suppress(OSError):
            os.utime(self._folder / _FACTS)
        return found, note["repaired"]

    def put(
        self, table: str, columns: Mapping[str, tuple[str, str]], found: pa.Table, repaired: Mapping[str, int]
    ) -> None:
        """Keep a read, unless the recording changed meanwhile or the folder cannot take it; see ``problem``."""
        file = self._file(table, columns)
        options = {"compression": "lz4", "write_page_checksum": True}
        note: dict[str, object] = {"repaired": dict(repaired)}

        def write(temporary: Path) -> None:
            pq.write_table(found, temporary, **options)
            note["footer"] = _footer_sum(temporary)

        self._keep(file, write)
        self._keep(file.with_suffix(".json"), lambda temporary: _save(temporary, note))

    def rows(self, table: str) -> int | None:
        """The number of rows of a table, where it was kept."""
        kept = _load(self._rows_file(table))
        return kept["rows"] if kept and kept.get("table") == table else None

    def put_rows(self, table: str, number: int) -> None:
        """Keep the number of rows of a table."""
        self._keep(self._rows_file(table), lambda temporary: _save(temporary, {"table": table, "rows": number}))

    def _keep(self, file: Path, write: Callable[[Path], object]) -> None:
        if self.problem is not None or state_of(self._path) != self._state:
            return
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            facts = self._folder / _FACTS
            if not facts.exists():
                with _replacing(facts) as temporary:
                    _save(temporary, self.facts)
            with _replacing(file) as temporary:
                write(temporary)
        except (OSError, pa.ArrowException) as error:
            self.problem = str(getattr(error, "strerror", None) or error).splitlines()[0][:200]

    def _file(self, table: str, columns: Mapping[str, tuple[str, str]]) -> Path:
        asked = json.dumps([table, list(columns.items())])
        return self._folder / f"{_safe(table)}-{hashlib.sha256(asked.encode()).hexdigest()[:16]}.parquet"

    def _rows_file(self, table: str) -> Path:
        return self._folder / f"{_safe(table)}-{hashlib.sha256(table.encode()).hexdigest()[:16]}.rows.json"


REPORTS = (".nsys-rep", ".qdrep")  # read through an export by nsys, so that its state counts, too


def state_of(path: Path) -> list[object] | None:
    """Everything that tells one state of a recording from another without reading it; None: it cannot be looked at."""
    try:
        if path.is_dir():
            return [str(path.resolve()), *(_file_state(f) for f in sorted(path.glob("*.parquet")))]
        beside = [Path(f"{path}{suffix}") for suffix in ("-wal", "-journal")]
        if path.suffix in REPORTS and (nsys := shutil.which("nsys")):
            beside.append(Path(nsys).resolve())
        return [str(path.resolve()), _file_state(path), *(_file_state(f) for f in beside if f.exists())]
    except OSError:
        return None


def _file_state(path: Path) -> list[object]:
    facts = path.stat()
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    return [path.name, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino, header.hex()]


def list_entries(folder: Path) -> list[Entry]:
    """The entries of a cache, the one used last first.

    Raises:
        CacheError: The folder is not there, or cannot be read.
    """
    found = []
    for entry in _entries(folder):
        facts = _load(entry / _FACTS) or {}
        used = 0.0
        with contextlib.suppress(OSError):
            used = (entry / _FACTS).stat().st_mtime
        sizes = []
        for file in entry.glob("*.parquet"):
            with contextlib.suppress(OSError):  # another process cleared it
                sizes.append(file.stat().st_size)
        name, version = str(facts.get("name", "?")), str(facts.get("version", "?"))
        found.append(Entry(entry, name, version, len(sizes), sum(sizes), used))
    return sorted(found, key=lambda e: (-e.used, e.folder.name))


def clear_entries(folder: Path) -> list[Entry]:
    """Remove all entries, and nothing else that may lie in the folder.

    Returns:
        What was removed.

    Raises:
        CacheError: The folder is not there, or an entry cannot be removed.
    """
    entries = list_entries(folder)
    with _usable(folder):
        for entry in entries:
            _remove(entry.folder)
    return entries


def _remove(folder: Path) -> None:
    """Remove an entry, even while others clear it or write to it."""
    for last in (False, False, True):
        try:
            shutil.rmtree(folder)
            return
        except FileNotFoundError:  # another process clears it too
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or last:  # something was put there meanwhile
                raise


def _entries(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise CacheError(f"no cache in {folder}: no such folder", "name the folder that was given with --cache")
    with _usable(folder):
        return [f for f in folder.iterdir() if _ENTRY.fullmatch(f.name) and f.is_dir() and not f.is_symlink()]


def _save(file: Path, facts: Mapping[str, object]) -> None:
    """Write a small JSON file, with a sum that tells whether it is whole."""
    text = json.dumps(facts, sort_keys=True)
    file.write_text(json.dumps({"facts": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}), "utf-8")


def _load(file: Path) -> dict[str, Any] | None:
    """Read it back; None when it is not there, or damaged."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        kept = json.loads(file.read_text("utf-8"))
        if hashlib.sha256(kept["facts"].encode()).hexdigest() == kept["sha256"]:
            facts: dict[str, Any] = json.loads(kept["facts"])
            return facts
    return None


def _footer_sum(file: Path) -> str:
    """A sum of a Parquet file's length and footer, which no checksum of the format covers (each page has its own)."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        opened.seek(max(0, size - 8))
        length = int.from_bytes(opened.read(4), "little") + 8
        opened.seek(max(0, size - length))
        return hashlib.sha256(size.to_bytes(8, "little") + opened.read()).hexdigest()


def _safe(table: str) -> str:
    """A table's name as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_]", "_", table)[:64]


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A temporary file beside the target, which takes its place in the end."""
    with file_beside(target) as temporary:
        yield temporary
        os.replace(temporary, target)


@contextlib.contextmanager
def _usable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CacheError(
            f"cannot use the cache folder {folder}: {reason}", "check its permissions, or name another with --cache"
        ) from error
