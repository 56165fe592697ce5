"""The exported tables as Parquet, Arrow, CSV and SQLite, each with what the format can say about a column."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa

from nsysparse.outputs.files import staged_file, staged_folder
from nsysparse.outputs.frames import TEXT, Exported

COLUMNS = "columns"  # the table that describes the others, where the format has no place for it
BATCH_ROWS = 50_000


def to_arrow(table: Exported) -> pa.Table:
    """A table whose schema carries units and meanings."""
    arrow = table.frame.to_arrow()
    described = [arrow.schema.field(f.name).with_metadata({"unit": f.unit, "meaning": f.meaning}) for f in table.fields]
    return pa.Table.from_arrays(
        arrow.columns, schema=pa.schema(described, {"table": table.name, "meaning": table.meaning})
    )


def write_parquet(tables: Sequence[Exported], folder: Path) -> None:
    """One Parquet file a table."""
    import pyarrow.parquet as pq

    for table in tables:
        pq.write_table(to_arrow(table), folder / f"{table.name}.parquet", compression="zstd")


def write_arrow(tables: Sequence[Exported], folder: Path) -> None:
    """One Arrow IPC file a table, uncompressed: it can be mapped into memory."""
    for table in tables:
        arrow = to_arrow(table)
        with pa.OSFile(str(folder / f"{table.name}.arrow"), "wb") as sink, pa.ipc.new_file(sink, arrow.schema) as out:
            out.write_table(arrow)


def write_csv(tables: Sequence[Exported], folder: Path) -> None:
    """One CSV file a table, and ``columns.csv`` with units and meanings."""
    for table in tables:
        table.frame.write_csv(folder / f"{table.name}.csv")
    describe(tables).write_csv(folder / f"{COLUMNS}.csv")


def describe(tables: Sequence[Exported]) -> pl.DataFrame:
    """``table``, ``column``, ``unit``, ``meaning`` of every column."""
    rows = [(t.name, f.name, f.unit, f.meaning) for t in tables for f in t.fields]
    return pl.DataFrame(rows, schema=["table", "column", "unit", "meaning"], orient="row")


def write_tables(tables: Sequence[Exported], form: str, target: Path, force: bool, recording: Path) -> None:
    """Write all tables as ``parquet``, ``arrow``, ``csv`` (a folder of files) or ``sqlite`` (one file).

    Raises:
        OutputError: The target exists, or could not be written; nothing is left behind.
    """
    if form == "sqlite":
        with staged_file(target, force, recording) as file:
            write_sqlite(tables, file)
        return
    with staged_folder(target, force, recording) as folder:
        {"parquet": write_parquet, "arrow": write_arrow, "csv": write_csv}[form](tables, folder)


def write_sqlite(tables: Sequence[Exported], path: Path) -> None:
    """One SQLite database with keys, foreign keys and indexes; tables without rows are left out."""
    from sqlite_utils.db import Database, Table

    database = Database(path)
    try:
        connection = database.conn
        assert connection is not None
        connection.execute("PRAGMA synchronous = OFF")  # the file is renamed into place only when it is whole
        present = [t for t in tables if t.frame.height]
        names = {t.name for t in present}
        for table in present:
            types = {f.name: str if f.unit == TEXT else int for f in table.fields}
            keys = [(c, other, c) for c, other in table.refers.items() if other in names]
            Table(database, table.name).create(types, pk=table.key or None, foreign_keys=keys)
        with connection:
            for table in present:
                marks = ", ".join("?" * len(table.fields))
                for part in table.frame.iter_slices(BATCH_ROWS):
                    connection.executemany(f'INSERT INTO "{table.name}" VALUES ({marks})', part.rows())
        for table in present:
            columns = {f.name for f in table.fields}
            for column in ("start_ns", "name", "kind", *table.refers):
                if column in columns:
                    Table(database, table.name).create_index([column])
        Table(database, COLUMNS).insert_all(describe(present).to_dicts())
        connection.execute("ANALYZE")
        connection.commit()
    finally:
        database.close()
