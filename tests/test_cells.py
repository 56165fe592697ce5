"""Cells that are not what their column should hold, and tables large enough to be read in parallel."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from analyzed import NEWEST, PID, TID, analyze_file, check, machine
from export_builder import DEVICE, HTOD, PINNED, ExportBuilder
from export_scenario import standard_scenario

from nsysparse.errors import SchemaError
from nsysparse.outputs.json import to_json
from nsysparse.source import open_trace

KERNEL, MEMCPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"


def test_a_broken_cell_is_named(tmp_path: Path) -> None:
    b = machine()
    for i in range(5):
        b.launch(TID, (1000 * i, 1000 * i + 1), (1000 * i + 10, 1000 * i + 20))
    path = b.write(tmp_path / "trace.sqlite")
    for value, kind in (("'soon'", "text"), ("1.5", "real"), ("x'00ff'", "blob")):
        with closing(sqlite3.connect(path)) as db:
            db.execute(f"UPDATE {KERNEL} SET start = {value} WHERE rowid = 4")
            db.commit()
        with pytest.raises(SchemaError) as error:
            analyze_file(path)
        where = f"table {KERNEL}, column 'start', row 4: a {kind} value where a 64-bit integer belongs"
        assert error.value.message == where
        assert error.value.hint


def test_an_integer_in_a_text_column_is_its_digits(tmp_path: Path) -> None:
    b = machine()
    b.launch(TID, (1000, 2000), (5000, 9000), name="gemm")
    path = b.write(tmp_path / "trace.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE s (id INTEGER NOT NULL PRIMARY KEY, value)")  # no affinity: 7 stays an integer
        db.execute("INSERT INTO s SELECT id, CASE value WHEN 'gemm' THEN 7 ELSE value END FROM StringIds")
        db.execute("DROP TABLE StringIds")
        db.execute("ALTER TABLE s RENAME TO StringIds")
        db.commit()
    (device,) = analyze_file(path).devices
    assert device.tables["kernels"]["short_name"].to_list() == ["7"]


def test_invalid_utf8_and_nul_bytes_in_names(tmp_path: Path) -> None:
    b = machine()
    names = {"broken": b"bro\xff\xfeken", "nul": b"nul\x00 and the rest", "gone": b"\x00", "é": "é".encode()}
    for i, name in enumerate(names):
        b.launch(TID, (1000 * i, 1000 * i + 1), (1000 * i + 10, 1000 * i + 20), name=name)
    path = b.write(tmp_path / "trace.sqlite")
    with closing(sqlite3.connect(path)) as db:
        for name, raw in names.items():
            db.execute("UPDATE StringIds SET value = CAST(? AS TEXT) WHERE value = ?", (raw, name))
        db.commit()
    analysis = analyze_file(path)
    shown = analysis.devices[0].tables["kernels"]["short_name"].to_list()
    assert sorted(shown) == sorted(["bro\ufffd\ufffdken", "nul", "", "é"])
    texts = check(analysis, "texts")
    assert (texts.status.value, texts.evidence) == ("note", {"repaired": {"StringIds.value": 1}})
    to_json(analysis).encode("utf-8")


REQUIRED = {
    KERNEL: ("start", "end", "deviceId", "demangledName", "shortName", "correlationId", "globalPid"),
    MEMCPY: ("start", "end", "deviceId", "bytes", "copyKind", "correlationId", "globalPid"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "nameId", "correlationId", "eventClass"),
    "NVTX_EVENTS": ("start", "eventType", "globalTid", "textId", "domainId"),
    "OSRT_API": ("start", "end", "globalTid", "nameId"),
}


@pytest.mark.parametrize(
    ("table", "column"), [(table, column) for table, names in REQUIRED.items() for column in names]
)
def test_a_null_where_a_value_belongs(table: str, column: str, tmp_path: Path) -> None:
    """One row without a value costs at most that row."""
    b = ExportBuilder(NEWEST)
    truth = standard_scenario(b)
    b.tables[table] = [[c[0], c[1]] for c in b.columns(table) or ()]
    b.rows[table][0][column] = None
    analysis = analyze_file(b.write(tmp_path / "trace.sqlite"), window="whole")
    expected = (truth["kernels"], sum(count for count, _ in truth["copies"].values()))
    found = (analysis.work.kernels.height, analysis.work.copies.height)
    untimed = column in {"start", "end"}
    assert found == (expected[0] - (untimed and table == KERNEL), expected[1] - (untimed and table == MEMCPY))
    assert all(d.device["label"] for d in analysis.devices)
    to_json(analysis)


@pytest.mark.parametrize("broken", [None, "text"])
def test_200_000_rows_in_parallel_equal_plain_sqlite(broken: str | None, tmp_path: Path) -> None:
    path = machine().write(tmp_path / "trace.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"CREATE TABLE {MEMCPY} AS SELECT 0 AS start, 0 AS 'end', 0 AS deviceId, 0 AS bytes, 0 AS copyKind")
        db.execute(f"ALTER TABLE {MEMCPY} ADD COLUMN globalPid INTEGER")
        db.execute(f"DELETE FROM {MEMCPY}")
        db.execute(
            f"INSERT INTO {MEMCPY} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 250000)"
            f" SELECT i * 1000, i * 1000 + i % 700, 0, (i * 2654435761) % 1000003, i % 3, {TID - PID} FROM n"
        )
        db.execute(f"DELETE FROM {MEMCPY} WHERE rowid % 7 = 3 OR rowid BETWEEN 60000 AND 130000")  # holes in rowid
        if broken:
            db.execute(f"UPDATE {MEMCPY} SET bytes = 'x' WHERE rowid = 200001")
        db.commit()
        columns = ["start", "end", "bytes", "copyKind"]
        plain = db.execute(f'SELECT start, "end", bytes, copyKind FROM {MEMCPY}').fetchall()
    with open_trace(path) as trace:
        if broken:
            with pytest.raises(SchemaError, match="column 'bytes', row 200001: a text value"):
                trace.frame("copies")
            return
        frame = trace.frame("copies").select("start_ns", "end_ns", "bytes", "kind")
    assert frame.rows() == plain
    assert len(columns) == frame.width


def test_a_table_without_rowids(tmp_path: Path) -> None:
    b = machine()
    b.memcpy(TID, (1000, 2000), (5000, 9000), 77, HTOD, PINNED, DEVICE)
    path = b.write(tmp_path / "trace.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE s (id INTEGER PRIMARY KEY, value TEXT) WITHOUT ROWID")
        db.execute("INSERT INTO s SELECT * FROM StringIds")
        db.execute("DROP TABLE StringIds")
        db.execute("ALTER TABLE s RENAME TO StringIds")
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET rowid = -9000000000000000000")
        db.commit()
    (device,) = analyze_file(path).devices
    assert device.tables["copies_by_api"].select("api", "bytes").rows() == [("cudaMemcpyAsync", 77)]
