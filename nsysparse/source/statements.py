"""Columns of a SQLite table into Arrow by an SQL statement: for all that is not plain enough for :mod:`.pages`.

The ADBC driver fetches in C, column by column, without a Python object a cell. It guesses a column's type from the
first batch, so every statement begins with one typed row, which is cut off again. Nothing is CAST to a number in SQL:
that would turn text and reals silently into wrong integers. See docs/reading.md for what else was measured.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pyarrow as pa

from nsysparse.errors import SchemaError
from nsysparse.side_by_side import cores
from nsysparse.source.columns import ReadNotes, checked, connect, quoted, uri_of

BATCH_ROWS = 65_536
SEEDS = {"int": "0", "text": "''", "blob": "x''"}  # the typed row that each statement begins with
SPARSE = 8  # a piece with so many times fewer rows than rowids is followed by one so many times as long
PARALLEL_ROWS = 200_000  # below this a second connection costs more than it brings


def read_columns(
    file: Path, table: str, columns: Mapping[str, tuple[str, str]], notes: ReadNotes, threads: int | None = None
) -> pa.Table:
    """Read some columns of one table.

    Args:
        file: The database.
        table: The export's table.
        columns: Result column name to (export column, ``int``, ``text`` or ``blob``), in result order.
        notes: Takes the number of repaired texts.
        threads: Connections to read with; by default one a core, four at most.

    Returns:
        Arrow table with int64, string and binary columns, rows in the table's order.

    Raises:
        SchemaError: A cell of an integer column is no 64-bit integer; names table, column and row.
    """
    try:
        with _naming_bad_cells(file, table, columns):
            ranges = _row_ranges(file, table, threads or min(4, cores()))
            rows = None if ranges[0] is None else ranges[-1][1] - ranges[0][0] + 1  # type: ignore[index]
            notes.watch.begin(table, rows)
            parts = _fetch_all(file, table, columns, ranges, notes)
            return pa.concat_tables([checked(part, table, columns, notes) for part in parts])
    finally:
        notes.watch.end()


def read_chunks(
    file: Path, table: str, columns: Mapping[str, tuple[str, str]], notes: ReadNotes, rows: int
) -> Generator[pa.Table]:
    """As :func:`nsysparse.source.reader.read_chunks`; one piece where the table has no rowids."""
    bounds = row_bounds(file, table)
    if bounds is None:
        yield read_columns(file, table, columns, notes, threads=1)
        return
    low: int | None
    low, last, span = bounds[0], bounds[1], rows
    notes.watch.begin(table, last - bounds[0] + 1)
    try:
        while low is not None:
            high = min(low + span - 1, last)
            piece = read_rows(file, table, columns, (low, high), notes)
            yield piece
            # Only what another tool wrote has gaps: they are stepped over, in longer and longer steps.
            span = rows if piece.num_rows * SPARSE >= span else span * SPARSE
            low = _next_row(file, table, high) if high < last else None
    finally:
        notes.watch.end()


def _next_row(file: Path, table: str, after: int) -> int | None:
    """The first rowid beyond another, None where there is none."""
    connection = connect(file)
    try:
        name = row_name(connection, table)
        found = connection.execute(f"SELECT min({name}) FROM {quoted(table)} WHERE {name} > ?", (after,)).fetchone()[0]
        return None if found is None else int(found)
    finally:
        connection.close()


def _named_row(file: Path, table: str) -> str:
    connection = connect(file)
    try:
        return row_name(connection, table) or "rowid"
    finally:
        connection.close()


def row_name(connection: sqlite3.Connection, table: str) -> str | None:
    """A name of the rowid that no column of the table takes; None where all are taken."""
    taken = {str(row[1]).lower() for row in connection.execute(f"PRAGMA table_info({quoted(table)})")}
    return next((name for name in ("rowid", "_rowid_", "oid") if name not in taken), None)


def read_rows(
    file: Path, table: str, columns: Mapping[str, tuple[str, str]], rows: tuple[int, int], notes: ReadNotes
) -> pa.Table:
    """The rows from one rowid to another of a table that has rowids; else as :func:`read_columns`."""
    with _naming_bad_cells(file, table, columns):
        parts = _fetch_all(file, table, columns, _split(rows, min(4, cores())), notes)
        return pa.concat_tables([checked(part, table, columns, notes) for part in parts])


def _fetch_all(
    file: Path,
    table: str,
    columns: Mapping[str, tuple[str, str]],
    ranges: list[tuple[int, int] | None],
    notes: ReadNotes,
) -> list[pa.Table]:
    """Fetch ranges of rows, each on a connection of its own; an interrupt stops them all at their next batch."""
    stop = Event()

    def seen(rows: int, size_bytes: int) -> None:
        notes.watch.add(rows, size_bytes)
        if stop.is_set():
            raise InterruptedError

    if len(ranges) == 1:
        return [_fetch(file, table, columns, ranges[0], seen)]
    with ThreadPoolExecutor(len(ranges)) as pool:
        try:
            return list(pool.map(lambda r: _fetch(file, table, columns, r, seen), ranges))
        except BaseException:
            stop.set()
            raise


def row_bounds(file: Path, table: str) -> tuple[int, int] | None:
    """First and last rowid; None for an empty table or one without rowids."""
    connection = connect(file)
    try:
        name, of_table = row_name(connection, table), f"FROM {quoted(table)}"
        if name is None:
            return None
        # Two sub-selects use the b-tree's ends; one SELECT of both scans the table.
        low, high = connection.execute(
            f"SELECT (SELECT min({name}) {of_table}), (SELECT max({name}) {of_table})"
        ).fetchone()
    except sqlite3.OperationalError:
        return None
    finally:
        connection.close()
    return None if low is None else (low, high)


def _row_ranges(file: Path, table: str, threads: int) -> list[tuple[int, int] | None]:
    """Ranges of rowid to read in parallel; one None for a small table or one without rowids."""
    bounds = row_bounds(file, table)
    if bounds is None or bounds[1] - bounds[0] < PARALLEL_ROWS or threads < 2:
        return [None]
    return _split(bounds, threads)


def _split(bounds: tuple[int, int], threads: int) -> list[tuple[int, int] | None]:
    """A range in parts of about the same size; one where it is small."""
    low, high = bounds
    if high - low < PARALLEL_ROWS:
        return [bounds]
    step = (high - low) // threads + 1
    return [(low + i * step, min(high, low + (i + 1) * step - 1)) for i in range(threads)]


def _fetch(
    file: Path,
    table: str,
    columns: Mapping[str, tuple[str, str]],
    rows: tuple[int, int] | None,
    seen: Callable[[int, int], None],
) -> pa.Table:
    import adbc_driver_sqlite.dbapi as adbc  # needs its shared library only when something is read

    seed = ", ".join(f"{SEEDS[kind]} AS {quoted(n)}" for n, (_, kind) in columns.items())
    wanted = ", ".join(quoted(source) for source, _ in columns.values())
    where = f" WHERE {_named_row(file, table)} BETWEEN {rows[0]} AND {rows[1]}" if rows else ""
    with adbc.connect(uri_of(file)) as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
        cursor.execute(f"SELECT {seed} UNION ALL SELECT {wanted} FROM {quoted(table)}{where}")
        batches: list[pa.RecordBatch] = []
        reader = cursor.fetch_record_batch()
        for batch in reader:
            seen(batch.num_rows - (not batches), batch.nbytes)  # the first row of the first batch is the typed one
            batches.append(batch)
        return pa.Table.from_batches(batches, reader.schema).slice(1)


@contextmanager
def _naming_bad_cells(file: Path, table: str, columns: Mapping[str, tuple[str, str]]) -> Iterator[None]:
    """What goes wrong in a statement said by table, column and row."""
    try:
        yield
    except InterruptedError:
        raise
    except (pa.ArrowInvalid, TypeError, OSError, sqlite3.DatabaseError) as error:  # of a late batch Arrow says OSError
        raise _bad_cell(file, table, columns, str(error)) from error
    except Exception as error:
        if type(error).__module__.startswith("adbc_driver_manager"):
            raise _bad_cell(file, table, columns, str(error)) from error
        raise


def _bad_cell(file: Path, table: str, columns: Mapping[str, tuple[str, str]], reason: str) -> SchemaError | Exception:
    """Find the first cell that is not what its column must hold."""
    hint = "the export was changed after nsys wrote it: export the .nsys-rep again"
    connection = connect(file)
    connection.text_factory = bytes
    try:
        for source, kind in columns.values():
            if kind != "int":
                continue
            row = connection.execute(
                f"SELECT rowid, typeof({quoted(source)}) FROM {quoted(table)}"
                f" WHERE typeof({quoted(source)}) NOT IN ('integer', 'null') LIMIT 1"
            ).fetchone()
            if row:
                found = row[1].decode() if isinstance(row[1], bytes) else row[1]
                return SchemaError(
                    f"table {table}, column '{source}', row {row[0]}: a {found} value where a 64-bit integer belongs",
                    hint,
                )
    except sqlite3.DatabaseError as error:
        reason = str(error)
    finally:
        connection.close()
    return SchemaError(f"table {table} cannot be read: {' '.join(reason.split())[:200]}", hint)
