"""One recording behind one interface: canonical frames, whatever kind and release the export is."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from nsysparse import schema
from nsysparse.errors import SourceError
from nsysparse.memory import give_back
from nsysparse.shelf import Shelf
from nsysparse.source.columns import ReadNotes

# Tables of which at least one is in every export; a database without any is not one.
MARKS_OF_AN_EXPORT = ("StringIds", "TARGET_INFO_GPU", "TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT")


CHUNK_ROWS = 500_000  # rows read at a time of a large table


class Backend(Protocol):
    """What a kind of export must offer."""

    kind: str
    path: Path
    remarks: list[str]
    notes: ReadNotes

    @property
    def tables(self) -> Mapping[str, list[str]]:
        """The export's tables and their columns."""

    @property
    def uri(self) -> str:
        """URI of a SQLite database with its tables, to be read only."""

    @property
    def size_bytes(self) -> int:
        """Size of the recording."""

    def row_count(self, table: str) -> int:
        """Number of rows of one of the export's tables."""

    def rows_expected(self, table: str) -> int | None:
        """About how many rows one of the export's tables has; None: it takes long to find out."""

    def read(self, table: str, columns: Mapping[str, tuple[str, str]]) -> pa.Table:
        """Columns of one table: result name to (export column, ``int``, ``text`` or ``blob``)."""

    def chunks(self, table: str, columns: Mapping[str, tuple[str, str]], rows: int) -> Generator[pa.Table]:
        """The same piece by piece."""

    def connect(self) -> sqlite3.Connection:
        """A read-only connection for SQL."""

    def close(self) -> None:
        """Give back temporary files."""


class Trace:
    """A recording, opened read-only.

    Use it as a context manager, or call :meth:`close`. Frames are read when first asked for, and kept.

    Attributes:
        path: What the user named.
        kind: ``sqlite``, ``parquetdir`` or ``nsys-rep``.
        shelf: Where large tables are kept.
        left_out: Rows that could be placed nowhere, by canonical table; whoever leaves them out says so here.
    """

    def __init__(self, backend: Backend, shelf: Shelf | None = None) -> None:
        self.backend = backend
        self.shelf = shelf or Shelf()
        self.path = backend.path
        self.kind = backend.kind
        self.left_out: dict[str, int] = {}
        self._frames: dict[str, pl.DataFrame] = {}
        self._domains: pl.DataFrame | None = None
        self._ranges: int | None = None
        self._backtraces: int | None = None
        self._rows: dict[str, int] = {}  # of the export's tables: counting in SQLite is a scan
        if not any(name in backend.tables for name in MARKS_OF_AN_EXPORT) and not self._any_known():
            raise SourceError(
                f"{backend.path.name} is a database, but no Nsight Systems export",
                "make one with: nsys export --type sqlite --output trace.sqlite report.nsys-rep",
            )

    def _any_known(self) -> bool:
        return any(t.source(self.backend.tables) for t in schema.TABLES.values())

    @property
    def tables(self) -> Mapping[str, list[str]]:
        """The export's own tables and their columns."""
        return self.backend.tables

    def has(self, name: str) -> bool:
        """Whether a canonical table was recorded with at least one row."""
        source = schema.TABLES[name].source(self.tables)
        return source is not None and self.row_count(name) > 0

    def row_count(self, name: str) -> int:
        """Rows of a canonical table; 0 when the export has no such table."""
        source = schema.TABLES[name].source(self.tables)
        return 0 if source is None else self.rows_of(source)

    def rows_of(self, table: str) -> int:
        """Rows of one of the export's own tables; 0 when it has no such table."""
        if table not in self._rows:
            self._rows[table] = self.backend.row_count(table) if table in self.tables else 0
        return self._rows[table]

    def frame(self, name: str) -> pl.DataFrame:
        """A canonical table.

        Args:
            name: A key of :data:`nsysparse.schema.TABLES`.

        Returns:
            All its columns, typed as the schema says; no rows when it was not recorded.

        Raises:
            SchemaError: A required column is missing, or a cell has the wrong type.
        """
        if name not in self._frames:
            self._frames[name] = self._read(schema.TABLES[name])
        return self._frames[name]

    def narrow(self, name: str, keep: Collection[str]) -> pl.DataFrame:
        """A canonical table in as little memory as holds it, read piece by piece; nothing is kept.

        Args:
            name: A key of :data:`nsysparse.schema.TABLES`.
            keep: Columns that stay Int64; every other integer column gets the smallest type that holds its values.
        """
        source = schema.TABLES[name].source(self.tables)
        if name in self._frames or not source:
            return self.frame(name)
        frame = self.shelf.keep(self._shrunk(name, keep), self.backend.rows_expected(source))
        if frame.height > CHUNK_ROWS:
            give_back()
        return frame

    def _shrunk(self, name: str, keep: Collection[str]) -> Iterator[pl.DataFrame]:
        empty = True
        for piece in self._pieces(name, CHUNK_ROWS):
            empty = False
            yield piece.select(
                c if not c.dtype.is_integer() else c.cast(pl.Int64) if c.name in keep else _small(c) for c in piece
            )
        if empty:
            yield schema.TABLES[name].empty()

    def release(self, name: str) -> None:
        """Forget a frame that is no longer needed."""
        self._frames.pop(name, None)

    def chunks(self, name: str, rows: int = CHUNK_ROWS) -> Iterator[pl.DataFrame]:
        """A canonical table piece by piece, in its own order, for tables too large to hold; nothing is kept.

        Args:
            name: A key of :data:`nsysparse.schema.TABLES`.
            rows: Rows a piece, about.
        """
        types = schema.TABLES[name].empty().schema
        for piece in self._pieces(name, rows):
            yield piece.cast(types)

    def _pieces(self, name: str, rows: int) -> Iterator[pl.DataFrame]:
        """The same, with integers of any width."""
        table = schema.TABLES[name]
        source = table.source(self.tables)
        if source is None:
            return
        found = table.resolve(source, self.tables[source])
        kinds = {c.name: c.kind for c in table.columns}
        wanted = {name: (column, kinds[name]) for name, column in found.items()}
        total = 0
        with closing(self.backend.chunks(source, wanted, rows)) as pieces:
            for arrow in pieces:
                total += arrow.num_rows
                yield _canonical(arrow, table)
        self._rows[source] = total

    def part(self, name: str, columns: Sequence[str]) -> pl.DataFrame:
        """Some columns of a canonical table, read alone; nothing is kept.

        Args:
            name: A key of :data:`nsysparse.schema.TABLES`.
            columns: Columns of it, in the order of the result.
        """
        if name in self._frames:
            return self._frames[name].select(columns)
        return self._read(schema.TABLES[name], columns).select(columns)

    def _read(self, table: schema.Table, only: Collection[str] | None = None) -> pl.DataFrame:
        source = table.source(self.tables)
        if source is None:
            return table.empty()
        found = table.resolve(source, self.tables[source])
        kinds = {c.name: c.kind for c in table.columns}
        if not found:
            return table.empty()
        if only is not None:  # one column at least: it says how many rows there are
            found = {c: v for c, v in found.items() if c in only} or dict([next(iter(found.items()))])
        arrow = self.backend.read(source, {name: (column, kinds[name]) for name, column in found.items()})
        self._rows[source] = arrow.num_rows
        return _canonical(arrow, table)

    def api(self) -> pl.DataFrame:
        """The rows of ``api``, narrow; only the number of backtrace rows is kept."""
        rows = self.narrow("api", ("start_ns", "end_ns", "thread"))
        self._backtraces = int((rows["event_class"] == schema.BACKTRACE_CLASS).sum())
        return rows

    @property
    def api_events(self) -> int:
        """How many rows of ``api`` are events: the profiler does not count backtrace rows."""
        if self._backtraces is None:
            self._backtraces = int((self.part("api", ["event_class"])["event_class"] == schema.BACKTRACE_CLASS).sum())
        return self.row_count("api") - self._backtraces

    def nvtx(self) -> pl.DataFrame:
        """The rows of ``nvtx``, narrow; only their domains and the number of ranges are kept."""
        rows = self.narrow("nvtx", ("start_ns", "end_ns", "thread", "end_thread", "domain"))
        domain = (pl.col("type") == schema.NVTX_DOMAIN) & pl.col("thread").is_not_null()
        registered = rows.select(domain.arg_true()).to_series()  # gathered: what a filter takes can be a view of all
        self._domains = rows[registered].cast({"text_id": pl.Int64})
        self._ranges = int(rows["type"].is_in([schema.NVTX_PUSH_POP, schema.NVTX_START_END]).sum())
        return rows

    @property
    def nvtx_domains(self) -> pl.DataFrame:
        """The rows of ``nvtx`` that register a domain."""
        if self._domains is None:
            self.nvtx()
        assert self._domains is not None
        return self._domains

    @property
    def nvtx_ranges(self) -> int:
        """How many rows of ``nvtx`` are ranges."""
        if self._ranges is None:
            self.nvtx()
        assert self._ranges is not None
        return self._ranges

    def strings(self, ids: pl.Series) -> pl.DataFrame:
        """Texts behind string references.

        Args:
            ids: References, with repeats and NULLs or not.

        Returns:
            Columns ``id`` (of the type of ``ids``) and ``value``, one row a distinct reference; a dangling
            one has no row. A text ends at its first NUL byte (exports hold fixed-size buffers).
        """
        table = self.frame("strings")
        wanted = _distinct(ids.drop_nulls()).cast(pl.Int64)
        return (
            table.filter(pl.col("id").is_in(wanted.implode()))
            .unique("id", keep="first", maintain_order=True)
            .with_columns(pl.col("id").cast(ids.dtype), pl.col("value").str.split("\x00").list.first())
        )

    def metadata(self, *tables: str) -> dict[str, str]:
        """Name-value pairs of the first of these export tables that is present; a name seen twice keeps its last."""
        for table in tables:
            if {"name", "value"} <= set(self.tables.get(table, ())):
                arrow = self.backend.read(table, {"name": ("name", "text"), "value": ("value", "text")})
                return {str(n): str(v) for n, v in zip(*arrow.to_pydict().values(), strict=True)}
        return {}

    def metadata_value(self, table: str, column: str) -> int | None:
        """The integer in the first row of one of the export's own tables; None when there is none."""
        if column not in self.tables.get(table, ()):
            return None
        values = self.backend.read(table, {column: (column, "int")}).column(column).to_pylist()
        return values[0] if values else None

    def close(self) -> None:
        """Give back temporary files and memory."""
        self._frames.clear()
        self.shelf.close()
        self.backend.close()

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _distinct(ids: pl.Series) -> pl.Series:
    """The different values of a column without NULLs; of few bits they are marked: that is quicker than hashing."""
    if ids.dtype not in (pl.Int8, pl.Int16):
        return ids.unique()
    numbers = ids.to_numpy()
    bits = numbers.view(f"u{numbers.itemsize}")
    seen = np.zeros(1 << 8 * bits.itemsize, np.bool_)
    seen[bits] = True
    return pl.Series(np.flatnonzero(seen).astype(bits.dtype).view(numbers.dtype))


def _small(column: pl.Series) -> pl.Series:
    """In the smallest type that holds its values; what comes narrow is as narrow as it can be."""
    if column.null_count() == column.len():
        column = column.cast(pl.Int8)
    return column if column.dtype != pl.Int64 else column.shrink_dtype()


def _canonical(arrow: pa.Table, table: schema.Table) -> pl.DataFrame:
    """All columns of a canonical table, in its order, of what an export has of it."""
    frame = pl.from_arrow(arrow, rechunk=False)  # whoever keeps it puts the chunks together
    assert isinstance(frame, pl.DataFrame)
    defaults = {c.name: c.default for c in table.columns}
    return frame.with_columns(
        pl.lit(None, c.dtype).alias(c.name) for c in table.columns if c.name not in frame.columns
    ).select(
        pl.col(c.name).fill_null(defaults[c.name]) if defaults[c.name] is not None else pl.col(c.name)
        for c in table.columns
    )
