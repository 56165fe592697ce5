"""Exports of type ``parquetdir``: a folder with one Parquet file a table."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nsysparse.errors import SchemaError, SourceError
from nsysparse.source.columns import ReadNotes, quoted

EXPORT_HINT = "make one with: nsys export --type parquetdir --output folder report.nsys-rep"


class ParquetBackend:
    """One folder of Parquet files; the interface of :class:`nsysparse.source.sqlite.SqliteBackend`."""

    kind = "parquetdir"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.remarks: list[str] = []
        self.notes = ReadNotes({})
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        files = sorted(path.glob("*.parquet"))
        if not files:
            raise SourceError(f"{path} is a folder without Parquet files", EXPORT_HINT)
        self._files = {f.stem: f for f in files}
        try:
            self._tables = {name: list(pq.read_schema(f).names) for name, f in self._files.items()}
        except (pa.ArrowInvalid, OSError) as error:
            raise SourceError(
                f"a Parquet file of {path.name} is damaged: {str(error).splitlines()[0][:200]}",
                "export it again",
            ) from error

    @property
    def tables(self) -> Mapping[str, list[str]]:
        """The export's tables and their columns."""
        return self._tables

    @property
    def size_bytes(self) -> int:
        """Size of all files together."""
        return sum(f.stat().st_size for f in self._files.values())

    def row_count(self, table: str) -> int:
        """Number of rows of one of the export's tables."""
        return int(pq.read_metadata(self._files[table]).num_rows)

    def rows_expected(self, table: str) -> int | None:
        """Number of rows of one of the export's tables."""
        return self.row_count(table)

    def read(self, table: str, columns: Mapping[str, tuple[str, str]]) -> pa.Table:
        """Columns of one table as Arrow: int64 and string.

        Raises:
            SchemaError: An integer column holds something else; names table and column.
        """
        sources = list(dict.fromkeys(source for source, _ in columns.values()))
        try:
            found = pq.read_table(self._files[table], columns=sources)
        except (pa.ArrowInvalid, OSError) as error:
            raise SourceError(
                f"{self._files[table].name} is damaged: {str(error).splitlines()[0][:200]}", "export it again"
            ) from error
        result = [_typed(found.column(s), table, s, kind) for s, kind in columns.values()]
        return pa.table(result, names=list(columns))

    def chunks(self, table: str, columns: Mapping[str, tuple[str, str]], rows: int) -> Generator[pa.Table]:
        """The same in pieces of at most so many rows."""
        sources = list(dict.fromkeys(source for source, _ in columns.values()))
        try:
            for batch in pq.ParquetFile(self._files[table]).iter_batches(batch_size=rows, columns=sources):
                found = pa.Table.from_batches([batch])
                result = [_typed(found.column(s), table, s, kind) for s, kind in columns.values()]
                yield pa.table(result, names=list(columns))
        except (pa.ArrowInvalid, OSError) as error:
            raise SourceError(
                f"{self._files[table].name} is damaged: {str(error).splitlines()[0][:200]}", "export it again"
            ) from error

    def connect(self) -> sqlite3.Connection:
        """A connection to a temporary SQLite copy of the tables, so that SQL works as on a SQLite export."""
        return sqlite3.connect(self.uri, uri=True)

    @property
    def uri(self) -> str:
        """URI of that copy, read-only; it is made when first asked for and removed with the recording."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="nsysparse-")
            self._ingest(Path(self._folder.name) / "trace.sqlite")
        return f"file:{quote(self._folder.name)}/trace.sqlite?mode=ro"

    def _ingest(self, target: Path) -> None:
        import adbc_driver_sqlite.dbapi as adbc

        with adbc.connect(str(target)) as connection, connection.cursor() as cursor:
            for name, file in self._files.items():
                table = pq.read_table(file)
                columns = [_for_sql(table.column(i), name, f.name) for i, f in enumerate(table.schema)]
                if columns:
                    cursor.adbc_ingest(name, pa.table(columns, names=table.column_names))
                else:
                    cursor.execute(f"CREATE TABLE {quoted(name)} (empty INTEGER)")
            connection.commit()

    def close(self) -> None:
        """Remove the temporary copy, if one was made."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _is_text(dtype: pa.DataType) -> bool:
    if pa.types.is_dictionary(dtype):
        dtype = dtype.value_type
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype))


def _for_sql(column: pa.ChunkedArray, table: str, source: str) -> pa.ChunkedArray:
    """One column as SQLite can hold it; NULLs for what it cannot, so that no column is missing."""
    kind = column.type
    if _is_text(kind):
        return _typed(column, table, source, "text")
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return _typed(column, table, source, "int")
    if pa.types.is_boolean(kind):
        return column.cast(pa.int64())
    if pa.types.is_floating(kind):
        return column.cast(pa.float64())
    if pa.types.is_binary(kind):
        return column
    return pa.chunked_array([pa.nulls(len(column), pa.int64())])


def _typed(column: pa.ChunkedArray, table: str, source: str, kind: str) -> pa.ChunkedArray:
    """One column as int64 or string."""
    try:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if kind in {"text", "blob"}:
            return column.cast(pa.string() if kind == "text" else pa.binary())
        if pa.types.is_uint64(column.type):
            # Serialized thread ids use the top bits: the same 64 bits, as SQLite would hold them.
            wrapped = [
                pa.array(c.to_numpy(zero_copy_only=False).view("int64"))
                if not c.null_count
                else pc.cast(c, pa.int64(), safe=False)
                for c in column.chunks
            ]
            return pa.chunked_array(wrapped, pa.int64())
        if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
            raise TypeError(f"a {column.type} column where integers belong")
        return column.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise SchemaError(
            f"table {table}, column '{source}': {str(error).splitlines()[0][:160]}",
            "export the recording again",
        ) from error
