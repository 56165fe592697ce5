"""Where large tables are kept: in memory, or in files of a temporary folder that are mapped into it.

A mapped column is used like any other, but its pages are the file's: the system takes them back when it needs the
memory. What a recording's tables need is then bounded by the disk, and what is left is what is being worked on.
"""

from __future__ import annotations

import itertools
import mmap
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from nsysparse.nulls import column_of

PIECE_ROWS = 1_000_000  # rows worked on at a time
PLAIN = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)
Index = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.integer[Any]]


class Shelf:
    """Keeps tables in memory.

    Attributes:
        at_once: How many devices may be worked on at a time.
    """

    at_once = 4

    def keep(self, pieces: Iterable[pl.DataFrame], expected: int | None = None) -> pl.DataFrame:
        """One table of its pieces; integer columns get the widest type that a piece has.

        Args:
            pieces: At least one.
            expected: How many rows they have, about: each is then put in its place and forgotten. Where that is not
                known, all are held until the last has come.
        """
        if expected is None:
            return pl.concat(pieces, how="vertical_relaxed", rechunk=True)
        return _together(pieces, lambda: _Filled(expected))

    def reorder(self, frame: pl.DataFrame, rows: Numbers) -> pl.DataFrame:
        """Some rows of a table, in a given order."""
        return self.keep(frame[rows[part]] for part in self.parts(rows.size))

    def put(self, frame: pl.DataFrame) -> pl.DataFrame:
        """A table that is done, and kept for later."""
        return frame

    def put_array(self, values: Index) -> Index:
        """The same of a column of times."""
        return values

    def parts(self, rows: int) -> Iterator[slice]:
        """How to cut a table for work that takes much memory; one part where there is room. Never none."""
        yield slice(0, rows)

    def close(self) -> None:
        """Give back what was taken."""


class MappedShelf(Shelf):
    """Keeps tables in files, which are gone with it, also after an error or an interrupt.

    Args:
        folder: Where to make the temporary folder; the system's by default.
    """

    at_once = 1

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="nsysparse-", dir=folder, ignore_cleanup_errors=True)
        self._numbers = itertools.count()

    def parts(self, rows: int) -> Iterator[slice]:
        """Pieces of PIECE_ROWS."""
        for low in range(0, max(rows, 1), PIECE_ROWS):
            yield slice(low, min(low + PIECE_ROWS, rows))

    def keep(self, pieces: Iterable[pl.DataFrame], expected: int | None = None) -> pl.DataFrame:
        """One table of its pieces, mapped; texts stay in memory."""
        return _together(pieces, lambda: _Written(self._file()))

    def put(self, frame: pl.DataFrame) -> pl.DataFrame:
        """A table, mapped."""
        return self.keep(frame[part] for part in self.parts(frame.height)) if frame.width else frame

    def put_array(self, values: Index) -> Index:
        """A column of times, mapped."""
        if not values.size:
            return values
        path = self._file()
        values.tofile(path)
        return np.memmap(path, np.int64, "r")

    def _file(self) -> Path:
        return Path(self._folder.name) / str(next(self._numbers))

    def close(self) -> None:
        """Remove the files; on Linux and macOS what is still mapped stays usable."""
        self._folder.cleanup()


def _together(pieces: Iterable[pl.DataFrame], new: Callable[[], _Column]) -> pl.DataFrame:
    """One table of pieces, each of whose columns is put together by itself."""
    columns: dict[str, _Column] = {}
    for piece in pieces:
        for series in piece:
            if series.name not in columns:
                columns[series.name] = new()
            columns[series.name].add(series)
    return pl.DataFrame([column.series(name) for name, column in columns.items()])


class _Column:
    """One column that is put together; texts and truth values stay as they are until the end."""

    def __init__(self) -> None:
        self._kept: list[pl.Series] = []
        self._kind: Any = None
        self._nulls: list[tuple[int, npt.NDArray[np.bool_]]] = []
        self._rows = 0

    def _append(self, values: Numbers) -> None:
        """Put some numbers after those that are there."""
        raise NotImplementedError

    def _whole(self) -> Numbers:
        """All numbers, in the widest of their types."""
        raise NotImplementedError

    def add(self, series: pl.Series) -> None:
        """Append a piece."""
        numbers = series.to_physical()
        if numbers.dtype not in PLAIN:
            self._kept.append(series)
            return
        self._kind = series.dtype
        if series.null_count():
            self._nulls.append((self._rows, series.is_null().to_numpy()))
            numbers = numbers.fill_null(0)
        for chunk in numbers.get_chunks():
            self._append(chunk.to_numpy())
        self._rows += series.len()

    def series(self, name: str) -> pl.Series:
        """All of it."""
        if self._kind is None:
            whole: pl.Series = pl.concat(self._kept).rename(name).rechunk()
            return whole
        values = self._whole()
        parts = [self._validity(), pa.py_buffer(values)]
        series = column_of(name, pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), self._rows, parts))
        if self._kind.base_type() in (pl.Categorical, pl.Enum):
            series = series.cat.to(self._kind)
        return series

    def _validity(self) -> pa.Buffer | None:
        """Arrow's bitmap of what is no NULL."""
        if not self._nulls:
            return None
        valid = np.ones(self._rows, np.bool_)
        for first, nulls in self._nulls:
            valid[first : first + nulls.size] = ~nulls
        return pa.py_buffer(np.packbits(valid, bitorder="little"))


class _Filled(_Column):
    """A column in memory.

    Args:
        room: Rows that are expected; what is not filled takes no memory, for its pages are never touched.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room, self._filled = room, 0
        self._values: Numbers = np.empty(0, np.int8)

    def _append(self, values: Numbers) -> None:
        end = self._filled + values.size
        if end > self._values.size or values.itemsize > self._values.itemsize:
            self._room = self._room if end <= self._room else 2 * end
            kind = max(values.dtype, self._values.dtype, key=lambda kind: kind.itemsize)
            larger = _untouched(self._room, kind)
            larger[: self._filled] = self._values[: self._filled]
            self._values = larger
        self._values[self._filled : end] = values
        self._filled = end

    def _whole(self) -> Numbers:
        return self._values[: self._filled]


def _untouched(rows: int, kind: np.dtype[Any]) -> Numbers:
    """Room for a column, straight from the system.

    NumPy would ask for huge pages; where a virtual machine's free memory is its host's, these cost many times as much.
    """
    size = max(rows * kind.itemsize, 1)
    if sys.platform == "win32":
        memory = mmap.mmap(-1, size)
    else:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, kind, rows)


class _Written(_Column):
    """A column in a file, which is mapped in the end."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file: IO[bytes] | None = None
        self._pieces: list[tuple[np.dtype[Any], int]] = []  # type and rows

    def _append(self, values: Numbers) -> None:
        self._file = self._file or self._path.open("wb")
        values.tofile(self._file)
        self._pieces.append((values.dtype, values.size))

    def _whole(self) -> Numbers:
        assert self._file is not None
        self._file.close()
        widest = max((kind for kind, _ in self._pieces), key=lambda kind: kind.itemsize)
        if any(kind != widest for kind, _ in self._pieces):
            self._widen(widest)
        if not self._rows:  # nothing can be mapped of an empty file
            return np.empty(0, widest)
        return np.memmap(self._path, widest, "r", shape=(self._rows,))

    def _widen(self, widest: np.dtype[Any]) -> None:
        """Write the file again with one type."""
        target = self._path.with_suffix(".wide")
        with self._path.open("rb") as old, target.open("wb") as new:
            for kind, rows in self._pieces:
                np.frombuffer(old.read(rows * kind.itemsize), kind).astype(widest).tofile(new)
        self._path.unlink()
        self._path = target
