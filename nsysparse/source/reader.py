"""The one function through which big tables are read: from their pages where they are plain, else by a statement.

See docs/reading.md for what was measured, and why there are two ways.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from nsysparse.errors import SchemaError
from nsysparse.side_by_side import cores
from nsysparse.source import statements
from nsysparse.source.columns import ReadNotes, checked, connect
from nsysparse.source.pages import PlainTable
from nsysparse.source.records import Array, NotPlainError

LEAST_LEAVES = 16  # a table of fewer pages is read by a statement before its pages are found
ALL_ROWS = 1 << 62
# Rows decoded at a time, about: with fewer the threads would wait for each other between NumPy's short calls, more do
# not stay in the processor's cache.
BATCH_ROWS = 48_000
BATCH_LEAVES = 1_024  # at most: the first page may hold fewer rows than others


def read_columns(file: Path, table: str, columns: Mapping[str, tuple[str, str]], notes: ReadNotes) -> pa.Table:
    """Read some columns of one table.

    Args:
        file: The database.
        table: The export's table.
        columns: Result column name to (export column, ``int``, ``text`` or ``blob``), in result order.
        notes: Takes the number of repaired texts.

    Returns:
        Arrow table with int64, string and binary columns, rows in the table's order.

    Raises:
        SchemaError: A cell of an integer column is no 64-bit integer; names table, column and row.
    """
    plain = _plain(file, table, columns)
    if plain is None:
        return statements.read_columns(file, table, columns, notes)
    whole = _joined(list(_from_pages(plain, file, table, columns, notes, ALL_ROWS)))
    return whole.cast(
        pa.schema([(f.name, pa.int64() if pa.types.is_integer(f.type) else f.type) for f in whole.schema])
    )


def read_chunks(
    file: Path, table: str, columns: Mapping[str, tuple[str, str]], notes: ReadNotes, rows: int
) -> Generator[pa.Table]:
    """The same piece by piece, for tables that do not fit in memory as they are.

    Args:
        file: The database.
        table: The export's table.
        columns: As for :func:`read_columns`.
        notes: Takes the number of repaired texts.
        rows: Rows a piece, about.

    Yields:
        Pieces in the table's order, at least one; integers may have any width.
    """
    plain = _plain(file, table, columns)
    if plain is None:
        yield from statements.read_chunks(file, table, columns, notes, rows)
    else:
        yield from _from_pages(plain, file, table, columns, notes, rows)


def _plain(file: Path, table: str, columns: Mapping[str, tuple[str, str]]) -> PlainTable | None:
    """The table's pages, where it is large and they can be read."""
    try:
        with closing(connect(file)) as connection:
            if statements.row_name(connection, table) is None:
                return None
            found = PlainTable(file, connection, table, columns)
        if found.leaves.size >= LEAST_LEAVES and found.rows_on(found.leaves[:1]):
            return found
        found.close()
    except (NotPlainError, OSError, sqlite3.DatabaseError):  # a statement reads it, or says what is wrong
        pass
    return None


def _from_pages(
    plain: PlainTable,
    file: Path,
    table: str,
    columns: Mapping[str, tuple[str, str]],
    notes: ReadNotes,
    rows: int,
) -> Generator[pa.Table]:
    """Pieces of a plain table; the next one is decoded by other threads while one is made use of."""
    leaves = plain.leaves
    pool = ThreadPoolExecutor(min(4, cores()))

    def decode(batch: Array) -> pa.Table | None:
        try:
            part = plain.decode(batch)
        except (NotPlainError, OSError):
            return None
        notes.watch.add(part.num_rows, part.nbytes)
        return part

    def begin(low: int, step: int) -> list[tuple[Array, Future[pa.Table | None]]]:
        piece = leaves[low : low + step]
        batches = [piece[at : at + many] for at in range(0, piece.size, many)]
        return [(batch, pool.submit(decode, batch)) for batch in batches]

    try:
        on_one = plain.rows_on(leaves[:1])
        step = min(max(rows // on_one, 1), leaves.size)
        many = min(max(BATCH_ROWS // on_one, 1), BATCH_LEAVES)
        first, last = plain.bounds(leaves)
        notes.watch.begin(table, last - first + 1)
        begun = begin(0, step)
        for low in range(0, leaves.size, step):
            current, begun = begun, begin(low + step, step)
            parts = []
            for batch, future in current:
                part = future.result()
                if part is None:
                    parts.append(statements.read_rows(file, table, columns, plain.bounds(batch), notes))
                    if parts[-1].num_rows != plain.rows_on(batch):
                        raise NotPlainError
                else:
                    parts.append(checked(part, table, columns, notes))
            yield _joined(parts)
    except (NotPlainError, OSError) as error:  # its rowids are not in order: SQLite may know what to call that
        statements.read_columns(file, table, columns, notes)
        raise SchemaError(f"table {table} is damaged", "copy it again from where it was made") from error
    finally:
        pool.shutdown(cancel_futures=True)
        plain.close()
        notes.watch.end()


def _joined(parts: list[pa.Table]) -> pa.Table:
    """One table of its parts, whose integers may differ in width."""
    return pa.concat_tables(parts, promote_options="permissive")
