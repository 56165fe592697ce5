"""Where large tables are kept: in memory, or in files of a temporary folder that are mapped into it.

A mapped column is used like any other, but its pages are the file's: the system takes them back when it needs the
memory. What a recording's tables need is then bounded by the disk, and what is left is what is being worked on.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

PIECE_ROWS = 1_000_000  # rows worked on at a time
PLAIN: dict[Any, Any] = {
    **{pl.Int8: pa.int8(), pl.Int16: pa.int16(), pl.Int32: pa.int32(), pl.Int64: pa.int64()},
    **{pl.UInt8: pa.uint8(), pl.UInt16: pa.uint16(), pl.UInt32: pa.uint32()},
}
Index = npt.NDArray[np.int64]


class Shelf:
    """Keeps tables in memory.

    Attributes:
        at_once: How many devices may be worked on at a time.
    """

    at_once = 4

    def keep(self, pieces: Iterable[pl.DataFrame]) -> pl.DataFrame:
        """One table of its pieces; integer columns get the widest type that a piece has."""
        return pl.concat(pieces, how="vertical_relaxed", rechunk=True)

    def reorder(self, frame: pl.DataFrame, rows: Index) -> pl.DataFrame:
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

    def keep(self, pieces: Iterable[pl.DataFrame]) -> pl.DataFrame:
        """One table of its pieces, mapped; texts stay in memory."""
        columns: dict[str, _Column] = {}
        for piece in pieces:
            for series in piece:
                if series.name not in columns:
                    columns[series.name] = _Column(self._file())
                columns[series.name].add(series)
        return pl.DataFrame([column.series(name) for name, column in columns.items()])

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


class _Column:
    """One column on its way into a file; texts and truth values stay in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._kept: list[pl.Series] = []
        self._written: list[tuple[pl.DataType, Any, int]] = []  # type, type of its numbers, rows
        self._nulls: list[tuple[int, npt.NDArray[np.bool_]]] = []
        self._rows = 0

    def add(self, series: pl.Series) -> None:
        """Append a piece."""
        numbers = series.to_physical()
        if numbers.dtype not in PLAIN:
            self._kept.append(series)
            return
        if series.null_count():
            self._nulls.append((self._rows, series.is_null().to_numpy()))
        self._file = self._file or self._path.open("wb")
        numbers.fill_null(0).to_numpy().tofile(self._file)
        self._written.append((series.dtype, numbers.dtype, series.len()))
        self._rows += series.len()

    def series(self, name: str) -> pl.Series:
        """All of it."""
        if self._file is None:
            whole: pl.Series = pl.concat(self._kept).rename(name).rechunk()
            return whole
        self._file.close()
        widest = max((numbers for _, numbers, _ in self._written), key=lambda t: _numpy(t)().itemsize)
        if any(numbers != widest for _, numbers, _ in self._written):
            self._widen(widest)
        series: pl.Series = _mapped(self._path, widest, self._rows, self._validity())
        kind = self._written[0][0]
        if kind.base_type() in (pl.Categorical, pl.Enum):
            series = series.cat.to(kind)
        return series.rename(name)

    def _widen(self, widest: Any) -> None:
        """Write the file again with one type."""
        target = self._path.with_suffix(".wide")
        with self._path.open("rb") as old, target.open("wb") as new:
            for _, numbers, n in self._written:
                values = np.frombuffer(old.read(n * _numpy(numbers)().itemsize), _numpy(numbers))
                values.astype(_numpy(widest)).tofile(new)
        self._path.unlink()
        self._path = target

    def _validity(self) -> pa.Buffer | None:
        """Arrow's bitmap of what is no NULL."""
        if not self._nulls:
            return None
        valid = np.ones(self._rows, np.bool_)
        for first, nulls in self._nulls:
            valid[first : first + nulls.size] = ~nulls
        return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _numpy(kind: Any) -> Any:
    return PLAIN[kind].to_pandas_dtype()


def _mapped(path: Path, kind: Any, rows: int, validity: pa.Buffer | None) -> pl.Series:
    if not rows:
        return pl.Series([], dtype=kind)
    mapped = np.memmap(path, _numpy(kind), "r", shape=(rows,))
    series = pl.from_arrow(pa.Array.from_buffers(PLAIN[kind], rows, [validity, pa.py_buffer(mapped)]))
    assert isinstance(series, pl.Series)
    return series
