"""SQL on any export: the shipped queries, and views that make every release look the same.

A query is one file, ``queries/<area>/<name>.sql``. Its leading comment is its contract::

    -- Title on the first line
    -- requires: kernels, api            canonical tables that must have been recorded
    -- param: top 20 how many rows       name, default, meaning; used as :top
    -- column: name text meaning         name, type (int, real, text), meaning; in output order
    -- note: anything else the reader of its result should know

On each connection the canonical tables of :mod:`nsysparse.schema` are temporary views with their canonical columns
(NULL where the export has none) and, for each string reference, the text behind it. The export's own tables stay
reachable.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from nsysparse import schema
from nsysparse.data import data_folder
from nsysparse.errors import SchemaError, UsageError
from nsysparse.source import Trace
from nsysparse.source.columns import quoted

TYPES = {"int": pl.Int64(), "real": pl.Float64(), "text": pl.String()}
_NAME = re.compile(r"^[a-z][a-z0-9_]*$")


@dataclass(frozen=True)
class Parameter:
    """A named parameter of a query, with the value taken when none is given."""

    name: str
    default: str
    meaning: str


@dataclass(frozen=True)
class ResultColumn:
    """A column of a query's result."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True)
class Query:
    """One shipped query: its contract and its text."""

    name: str
    title: str
    requires: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    columns: tuple[ResultColumn, ...]
    notes: tuple[str, ...]
    sql: str


def load_queries() -> dict[str, Query]:
    """Every shipped query by its name, ``area/name``."""
    folder = data_folder("queries")
    files = sorted(folder.glob("*/*.sql"))
    return {name: parse_query(name, f.read_text("utf-8")) for f in files if (name := _query_name(folder, f))}


def _query_name(folder: Path, file: Path) -> str:
    return file.relative_to(folder).with_suffix("").as_posix()


def parse_query(name: str, text: str) -> Query:
    """Read a query's contract.

    Raises:
        ValueError: The header is not as this module's docstring says.
    """
    header = [line[2:].strip() for line in text.splitlines() if line.startswith("--")]
    if not header or ":" in header[0].split(" ")[0]:
        raise ValueError(f"{name}: the first comment line must be the title")
    requires: list[str] = []
    parameters, columns, notes = [], [], []
    for line in header[1:]:
        key, _, rest = line.partition(":")
        words = rest.split()
        if key == "requires":
            requires = [w.strip(",") for w in words]
        elif key == "param" and len(words) >= 3:
            parameters.append(Parameter(words[0], words[1], " ".join(words[2:])))
        elif key == "column" and len(words) >= 3 and words[1] in TYPES and _NAME.match(words[0]):
            columns.append(ResultColumn(words[0], words[1], " ".join(words[2:])))
        elif key == "note":
            notes.append(rest.strip())
        else:
            raise ValueError(f"{name}: cannot read the header line '{line}'")
    if not columns:
        raise ValueError(f"{name}: a query must declare its columns")
    return Query(name, header[0], tuple(requires), tuple(parameters), tuple(columns), tuple(notes), text)


@contextmanager
def connect(trace: Trace) -> Iterator[sqlite3.Connection]:
    """A read-only connection with the canonical views."""
    with closing(trace.backend.connect()) as connection:
        connection.execute("PRAGMA temp_store = MEMORY")
        for statement in view_statements(trace.tables):
            connection.execute(statement)
        connection.set_authorizer(_reads_only)
        yield connection


_READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
    sqlite3.SQLITE_PRAGMA,
}


def _reads_only(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Allow reading and nothing else: no ATTACH (it would make files), no change of any kind."""
    if action == sqlite3.SQLITE_PRAGMA and (second is not None and first not in {"table_info", "table_xinfo"}):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY


def view_statements(tables: Mapping[str, list[str]]) -> list[str]:
    """The statements that make the canonical views on an export with these tables."""
    statements = []
    for table in schema.TABLES.values():
        source = table.source(tables)
        found = table.resolve(source, tables[source]) if source else {}
        columns = []
        for column in table.columns:
            value = quoted(found[column.name]) if column.name in found else "NULL"
            if column.default is not None:
                value = f"ifnull({value}, {column.default})" if column.name in found else str(column.default)
            columns.append(f"{value} AS {column.name}")
            if column.text:
                known = column.name in found and "StringIds" in tables
                text = (
                    f"(SELECT value FROM main.StringIds WHERE id = t.{quoted(found[column.name])})" if known else "NULL"
                )
                columns.append(f"{text} AS {column.text}")
        body = f"FROM main.{quoted(source)} AS t" if source else "WHERE 0"
        statements.append(f"CREATE TEMP VIEW {quoted(table.name)} AS SELECT {', '.join(columns)} {body}")
    return statements


def run_query(trace: Trace, query: Query, values: Mapping[str, str] | None = None) -> pl.DataFrame:
    """Run a shipped query.

    Args:
        trace: The recording.
        query: The query.
        values: Values of its parameters; the others take their defaults.

    Returns:
        A frame with the columns and types of the contract, also when it is empty.

    Raises:
        UsageError: A required table was not recorded, or a parameter is not the query's.
    """
    missing = [t for t in query.requires if not trace.has(t)]
    if missing:
        table = schema.TABLES[missing[0]]
        how = f"record it with: {table.flag}" if table.flag else "this release of nsys does not export it"
        raise UsageError(f"{query.name} needs {table.sources[0]}, which was not recorded", how)
    given = dict(values or {})
    unknown = sorted(set(given) - {p.name for p in query.parameters})
    if unknown:
        listed = ", ".join(f"{p.name} ({p.meaning})" for p in query.parameters) or "none"
        raise UsageError(f"{query.name} has no parameter '{unknown[0]}'", f"its parameters: {listed}")
    bound = {p.name: _number(given.get(p.name, p.default)) for p in query.parameters}
    try:
        with connect(trace) as connection:
            rows = connection.execute(query.sql, bound).fetchall()
    except (sqlite3.Error, OverflowError) as error:
        given_text = ", ".join(f"{n}={v}" for n, v in given.items())
        hint = f"check the parameters: {given_text}" if given else "look into the recording with: nsysparse info TRACE"
        raise UsageError(f"{query.name}: {error}", hint) from error
    types = {c.name: TYPES[c.type] for c in query.columns}
    try:
        return pl.DataFrame(rows, schema=types, orient="row")
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise SchemaError(
            f"{query.name}: a value is not of its column's type: {str(error).splitlines()[0][:160]}",
            "export the .nsys-rep again: this file was changed",
        ) from error


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def run_sql(trace: Trace, sql: str) -> pl.DataFrame:
    """Run the user's own SQL, read-only.

    Returns:
        The result; a column's type is that of its values, text where they are mixed.

    Raises:
        UsageError: The statement is wrong, or is no query.
    """
    with connect(trace) as connection:
        try:
            cursor = connection.execute(sql)
            names = [d[0] for d in cursor.description or ()]
            rows = cursor.fetchall()
        except (sqlite3.Error, sqlite3.Warning) as error:
            hint = "the canonical tables and their columns: nsysparse query --tables"
            raise UsageError(f"SQL: {error}", hint) from error
    if not names:
        raise UsageError("the statement returns no rows: it is no query", "begin with SELECT or WITH")
    unique = [n if n not in names[:i] else f"{n}_{i}" for i, n in enumerate(names)]
    return pl.DataFrame([_column(n, [r[i] for r in rows]) for i, n in enumerate(unique)])


def _column(name: str, values: list[object]) -> pl.Series:
    kinds = {type(v) for v in values if v is not None}
    if kinds <= {int}:
        return pl.Series(name, values, pl.Int64)
    if kinds <= {int, float}:
        return pl.Series(name, values, pl.Float64, strict=False)
    texts = [v.hex() if isinstance(v, bytes) else None if v is None else str(v) for v in values]
    return pl.Series(name, texts, pl.String)
