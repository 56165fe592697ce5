"""What is read from a file's pages is what SQLite reads, whatever the rows hold; the rest is left to SQLite."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsysparse import schema
from nsysparse.errors import NsysparseError
from nsysparse.source import open_trace, reader, statements
from nsysparse.source.columns import ReadNotes, uri_of
from nsysparse.source.pages import NotPlainError, PlainTable
from tests.traces import trace_path

COLUMNS = {"a": ("a", "int"), "t": ("t", "text"), "b": ("b", "int")}
INTEGERS = st.one_of(
    st.none(),
    st.integers(-2, 2),
    st.sampled_from([s * ((1 << b) + d) for b in (7, 8, 15, 16, 23, 31, 47, 62) for d in (-1, 0, 1) for s in (1, -1)]),
    st.integers(-(1 << 63), (1 << 63) - 1),
)
TEXTS = st.one_of(st.none(), st.text(max_size=8), st.sampled_from(["x" * n for n in (57, 58, 59, 300, 3_000, 9_000)]))
OTHERS = st.one_of(INTEGERS, TEXTS, st.floats(allow_nan=False), st.binary(max_size=200))


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables and small batches too."""
    monkeypatch.setattr(reader, "LEAST_LEAVES", 1)
    monkeypatch.setattr(reader, "BATCH_ROWS", 60)


def database(
    path: Path, rows: list[tuple[object, ...]], page: int = 512, table: str = "a INTEGER, o, t TEXT, b INT"
) -> Path:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page}")
        connection.execute(f"CREATE TABLE x ({table})")
        connection.executemany(f"INSERT INTO x VALUES ({', '.join('?' * len(rows[0]))})", rows)
        connection.commit()
    return path


def plain(path: Path, columns: dict[str, tuple[str, str]] = COLUMNS) -> PlainTable:
    with closing(sqlite3.connect(uri_of(path), uri=True)) as connection:
        return PlainTable(path, connection, "x", columns)


def by_pages(path: Path, columns: dict[str, tuple[str, str]] = COLUMNS) -> list[dict[str, object]]:
    """Read with no statement to fall back on."""
    table = plain(path, columns)
    try:
        found: pa.Table = table.decode(table.leaves)
    finally:
        table.close()
    texts = [name for name, (_, kind) in columns.items() if kind == "text"]
    for name in texts:
        found = found.set_column(found.schema.get_field_index(name), name, found[name].cast(pa.string()))
    return found.to_pylist()


def by_sqlite(path: Path, wanted: str = "a, t, b") -> list[dict[str, object]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f"SELECT {wanted} FROM x")]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(INTEGERS, OTHERS, TEXTS, INTEGERS), min_size=1, max_size=80),
    st.sampled_from([512, 1_024, 4_096, 65_536]),
)
def test_any_rows_are_what_sqlite_reads(tmp_path: Path, rows: list[tuple[object, ...]], page: int) -> None:
    path = database(tmp_path / "any.sqlite", rows, page)
    assert reader.read_columns(path, "x", COLUMNS, ReadNotes({})).to_pylist() == by_sqlite(path)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(INTEGERS, INTEGERS, st.text("aé", max_size=20), INTEGERS), min_size=1, max_size=200),
    st.sampled_from([512, 4_096]),
)
def test_plain_rows_need_no_statement(tmp_path: Path, rows: list[tuple[object, ...]], page: int) -> None:
    path = database(tmp_path / "plain.sqlite", rows, page)
    assert by_pages(path) == by_sqlite(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(-(1 << 63), (1 << 62) - 1), unique=True, min_size=1, max_size=60))
def test_rowids_of_any_size(tmp_path: Path, ids: list[int]) -> None:
    """The rowid is the value of an INTEGER PRIMARY KEY; those of nine bytes are left to SQLite."""
    path = database(tmp_path / "ids.sqlite", [(i, n) for n, i in enumerate(ids)], 512, "a INTEGER PRIMARY KEY, b INT")
    columns = {"a": ("a", "int"), "b": ("b", "int")}
    assert reader.read_columns(path, "x", columns, ReadNotes({})).to_pylist() == by_sqlite(path, "a, b")
    if all(0 <= i < 1 << 56 for i in ids):
        assert by_pages(path, columns) == by_sqlite(path, "a, b")


@pytest.mark.parametrize("key", ["INTEGER PRIMARY KEY DESC", "INT PRIMARY KEY", "INTEGER UNIQUE"])
def test_keys_that_are_no_rowid(tmp_path: Path, key: str) -> None:
    rows = [(None if n % 3 else 7 * n, n) for n in range(300)]
    path = database(tmp_path / "key.sqlite", rows, 512, f"a {key}, b INT")
    columns = {"a": ("a", "int"), "b": ("b", "int")}
    assert by_pages(path, columns) == by_sqlite(path, "a, b")


def test_a_rowid_that_seems_to_be_in_some_records_is_left_to_sqlite(tmp_path: Path) -> None:
    """One byte changed: SQLite reads the rowid all the same."""
    path = database(
        tmp_path / "odd.sqlite", [(n, n) for n in range(1_000, 1_300)], 4_096, "a INTEGER PRIMARY KEY, b INT"
    )
    content, record = path.read_bytes(), bytes((3, 0, 2, 1_100 >> 8, 1_100 & 255))
    assert content.count(record) == 1
    path.write_bytes(content.replace(record, bytes((3, 9, 2, 1_100 >> 8, 1_100 & 255))))
    columns = {"a": ("a", "int"), "b": ("b", "int")}
    with pytest.raises(NotPlainError):
        by_pages(path, columns)
    assert reader.read_columns(path, "x", columns, ReadNotes({})).to_pylist() == by_sqlite(path, "a, b")


def test_damage_beyond_the_first_batch_is_named(tmp_path: Path) -> None:
    """Arrow says another kind of error then; by a statement, since columns without a type are."""
    path = database(
        tmp_path / "late.sqlite", [(n, None, None, n) for n in range(150_000)], 4_096, "a, o, t TEXT, b INT"
    )
    content = bytearray(path.read_bytes())
    content[-4_096 * 20 : -4_096 * 10] = b"\xff" * 4_096 * 10
    path.write_bytes(content)
    with pytest.raises(NsysparseError, match="table x cannot be read"):
        reader.read_columns(path, "x", COLUMNS, ReadNotes({}))


@pytest.mark.parametrize("change", ["written", "replaced", "gone"])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "trace.sqlite"
    path.write_bytes(trace_path("train_item").read_bytes())
    with open_trace(path) as trace:
        trace.frame("strings")
        if change == "gone":
            path.unlink()
        elif change == "replaced":
            (tmp_path / "other").write_bytes(trace_path("eager_h2d").read_bytes())
            (tmp_path / "other").rename(path)
        else:
            with path.open("r+b") as file:
                file.write(path.read_bytes()[:100])
            os.utime(path, (1, 1))
        with pytest.raises(NsysparseError, match=r"was changed while it was read|cannot be opened"):
            trace.frame("kernels")


def test_several_levels_and_pieces(tmp_path: Path) -> None:
    rows = [(n, None, f"text {n % 7}", -n) for n in range(20_000)]
    path = database(tmp_path / "deep.sqlite", rows)
    pieces = list(reader.read_chunks(path, "x", COLUMNS, ReadNotes({}), 1_000))
    assert len(pieces) > 5
    assert [r for p in pieces for r in p.to_pylist()] == by_sqlite(path)
    assert plain(path).leaves.size > 512 // 12, "an interior page cannot list all leaves"


def test_gaps_between_rowids_and_deleted_rows(tmp_path: Path) -> None:
    path = database(tmp_path / "gaps.sqlite", [(n, n, "x" * (n % 60), n) for n in range(3_000)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM x WHERE a % 3 = 1 OR a BETWEEN 500 AND 1500")
        connection.execute("UPDATE x SET t = 'longer than it was', b = 1 << 40 WHERE a % 5 = 0")
        connection.execute("INSERT INTO x (rowid, a) VALUES (1 << 40, 7)")
        connection.commit()
    assert by_pages(path) == by_sqlite(path)


def test_one_row_that_is_not_plain_costs_no_other(tmp_path: Path) -> None:
    rows: list[tuple[object, ...]] = [(n, None, "t", n) for n in range(2_000)]
    rows[1_000] = (1_000, None, "long " * 5_000, 1_000)  # goes on elsewhere
    path = database(tmp_path / "long.sqlite", rows)
    with pytest.raises(NotPlainError):
        by_pages(path)
    assert reader.read_columns(path, "x", COLUMNS, ReadNotes({})).to_pylist() == by_sqlite(path)


@pytest.mark.parametrize("wrong", ["'twelve'", "12.5", "x'00'"])
def test_what_is_no_integer_is_named(tmp_path: Path, wrong: str) -> None:
    path = database(tmp_path / "wrong.sqlite", [(n, None, None, n) for n in range(1_000)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE x SET b = {wrong} WHERE a = 700")
        connection.commit()
    with pytest.raises(NsysparseError, match=r"table x, column 'b', row 701: a \w+ value"):
        reader.read_columns(path, "x", COLUMNS, ReadNotes({}))


def test_texts_that_are_not_utf8_are_counted(tmp_path: Path) -> None:
    path = database(tmp_path / "bytes.sqlite", [(n, None, "good", n) for n in range(500)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE x SET t = CAST(x'ff41' AS TEXT) WHERE a = 300")
        connection.commit()
    notes = ReadNotes({})
    texts = reader.read_columns(path, "x", COLUMNS, notes)["t"].to_pylist()
    assert notes.repaired_texts == {"x.t": 1}
    assert texts == ["good"] * 300 + ["\ufffdA"] + ["good"] * 199


# What is stored in another way than it is read, or not where it seems to be.
REFUSED = {
    "REAL affinity makes reals of integers": "CREATE TABLE x (a REAL, t TEXT, b INT)",
    "no rowid": "CREATE TABLE x (a INTEGER PRIMARY KEY, t TEXT, b INT) WITHOUT ROWID",
    "a computed column": "CREATE TABLE x (a INTEGER, t TEXT, b INT, c INT AS (a + 1) STORED)",
    "a view": "CREATE TABLE y (a INTEGER, t TEXT, b INT); CREATE VIEW x AS SELECT * FROM y",
    "texts of two bytes": "PRAGMA encoding = 'UTF-16'; CREATE TABLE x (a INTEGER, t TEXT, b INT)",
}


@pytest.mark.parametrize("script", REFUSED.values(), ids=REFUSED.keys())
def test_tables_that_are_left_to_sqlite(tmp_path: Path, script: str) -> None:
    with closing(sqlite3.connect(tmp_path / "no.sqlite")) as connection:
        connection.executescript(script)
    with pytest.raises(NotPlainError):
        plain(tmp_path / "no.sqlite")


def test_a_column_added_later_takes_its_default(tmp_path: Path) -> None:
    path = database(tmp_path / "added.sqlite", [(n, None, "t", n) for n in range(300)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE x ADD COLUMN d INTEGER DEFAULT 5")
        connection.execute("INSERT INTO x VALUES (1, 2, 'x', 4, 6)")
        connection.commit()
    columns = {"a": ("a", "int"), "d": ("d", "int")}
    assert reader.read_columns(path, "x", columns, ReadNotes({})).to_pylist() == by_sqlite(path, "a, d")


def test_damaged_files_are_read_as_sqlite_reads_them_or_refused(tmp_path: Path) -> None:
    """Random bytes in a page: no internal error, and no other rows than SQLite's."""
    whole = database(tmp_path / "whole.sqlite", [(n, n << 20, "t" * (n % 9), -n) for n in range(1_500)]).read_bytes()
    damaged, chance, equal, refused = tmp_path / "damaged.sqlite", random.Random(7), 0, 0
    for _ in range(400):
        content = bytearray(whole)
        for _ in range(chance.choice([1, 1, 4])):
            content[chance.randrange(1_024, len(content))] = chance.choice(
                [0, 1, 9, 127, 128, 255, chance.randrange(256)]
            )
        damaged.write_bytes(content)
        try:
            found = reader.read_columns(damaged, "x", COLUMNS, ReadNotes({})).to_pylist()
            # A text that seems to reach beyond its page SQLite itself refuses at one time and reads at another.
            expected = statements.read_columns(damaged, "x", COLUMNS, ReadNotes({})).to_pylist()
        except NsysparseError:
            refused += 1
            continue
        assert found == expected
        equal += 1
    assert equal > 100
    assert refused > 10


@pytest.mark.parametrize("name", ["llama_default", "train_item", "eager_h2d"])
def test_real_traces(name: str) -> None:
    """Every canonical table of a recording, from pages and by statements."""
    path, from_pages = trace_path(name), 0
    for source, columns in _tables(path):
        whole = reader.read_columns(path, source, columns, ReadNotes({}))
        assert whole.equals(statements.read_columns(path, source, columns, ReadNotes({})))
        pieces = list(reader.read_chunks(path, source, columns, ReadNotes({}), 500))
        assert pa.concat_tables(pieces, promote_options="permissive").cast(whole.schema).equals(whole)
        found = reader._plain(path, source, columns)
        if found is not None:
            found.close()
            from_pages += 1
    assert from_pages > 5


def _tables(path: Path) -> Iterator[tuple[str, dict[str, tuple[str, str]]]]:
    with open_trace(path) as trace:
        for table in schema.TABLES.values():
            source = table.source(trace.tables)
            if source is not None:
                kinds = {c.name: c.kind for c in table.columns}
                found = table.resolve(source, trace.tables[source])
                yield source, {name: (column, kinds[name]) for name, column in found.items()}
