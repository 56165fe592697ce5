"""The command `query`: every shipped query against plain SQL, the user's own SQL, formats and parameters."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from analyzed import NEWEST
from commandline import CommandLine, complaint
from export_builder import RELEASES, ExportBuilder
from export_scenario import standard_scenario

from nsysparse import schema, units
from nsysparse.queries import load_queries


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    (tmp_path / "here").mkdir()
    return CommandLine(tmp_path / "here", monkeypatch, capfd)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    b = ExportBuilder(NEWEST)
    standard_scenario(b)
    return b.write(tmp_path_factory.mktemp("export") / "trace.sqlite")


K, C, R = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "RUNTIME"))
PLAIN = {
    "api/by_name": f"""SELECT s.value, COUNT(*), SUM(r."end" - r.start), AVG(r."end" - r.start), MAX(r."end" - r.start),
        SUM(returnValue != 0) FROM {R} r JOIN StringIds s ON s.id = nameId GROUP BY 1""",
    "copies/by_kind": f"""SELECT copyKind, srcKind, dstKind, COUNT(*), SUM(bytes), SUM("end" - start),
        SUM(bytes) * 1e9 / SUM("end" - start) FROM {C} GROUP BY 1, 2, 3""",
    "copies/largest": f"""SELECT start, "end" - start, bytes, copyKind, srcKind, dstKind, streamId,
        bytes * 1e9 / ("end" - start) FROM {C} ORDER BY bytes DESC, start LIMIT 20""",
    "host/osrt": """SELECT s.value, COUNT(*), SUM("end" - start), MAX("end" - start)
        FROM OSRT_API JOIN StringIds s ON s.id = nameId GROUP BY 1""",
    "host/overhead": """SELECT s.value, COUNT(*), SUM("end" - start)
        FROM PROFILER_OVERHEAD JOIN StringIds s ON s.id = nameId GROUP BY 1""",
    "kernels/by_name": f"""SELECT s.value, COUNT(*), SUM("end" - start), AVG("end" - start), MIN("end" - start),
        MAX("end" - start) FROM {K} JOIN StringIds s ON s.id = shortName GROUP BY 1""",
    "kernels/longest": f"""SELECT start, "end" - start, deviceId, streamId, gridX || ' x ' || gridY || ' x ' || gridZ,
        blockX || ' x ' || blockY || ' x ' || blockZ, s.value FROM {K} JOIN StringIds s ON s.id = shortName""",
    "nvtx/ranges": """SELECT COALESCE(s.value, text), IIF(eventType = 59, 'push/pop', 'start/end'),
        globalTid >> 24 & 16777215, domainId, COUNT(*),
        SUM("end" IS NULL), SUM("end" - start), AVG("end" - start), MAX("end" - start)
        FROM NVTX_EVENTS LEFT JOIN StringIds s ON s.id = textId WHERE eventType IN (59, 60) GROUP BY 1, 2, 3, 4""",
    "trace/diagnostics": "SELECT timestamp, severity, text FROM DIAGNOSTIC_EVENT",
    "trace/tables": "SELECT name, sql FROM sqlite_master WHERE type = 'table'",
}


def test_every_shipped_query_is_held_against_plain_sql() -> None:
    assert sorted(load_queries()) == sorted(PLAIN)


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_query_equals_plain_sql(name: str, cli: CommandLine, export: Path) -> None:
    done = cli("query", export, name, "--format", "json")
    assert (done.code, done.err) == (0, "")
    rows = json.loads(done.out)
    declared = [c.name for c in load_queries()[name].columns]
    assert all(list(row) == declared for row in rows)
    with closing(sqlite3.connect(export)) as db:
        expected = db.execute(PLAIN[name]).fetchall()
    assert len(rows) > 0
    found = sorted((tuple(row.values()) for row in rows), key=repr)
    for mine, plain in zip(found, sorted(expected, key=repr), strict=True):
        assert mine == pytest.approx(plain) if all(isinstance(v, (int, float)) for v in mine) else mine == plain


@pytest.mark.parametrize("release", RELEASES[::4])
def test_every_query_runs_on_every_release(release: str, cli: CommandLine) -> None:
    b = ExportBuilder(release)
    standard_scenario(b)
    path = b.write(cli.folder / "trace.sqlite")
    for name, query in load_queries().items():
        done = cli("query", path, name, "--format", "json")
        if name == "trace/diagnostics" and release.startswith(("before", "2021", "2022", "2023", "2024.1")):
            assert "was not recorded" in complaint(done)[0]
        else:
            assert list(json.loads(done.out)[0]) == [c.name for c in query.columns], name


def test_the_list_of_queries(cli: CommandLine, export: Path) -> None:
    for arguments in ([], [export]):
        done = cli("query", *arguments)
        for name, query in load_queries().items():
            assert f"{name}\n    {query.title}\n" in done.out
            assert all(f"-p {p.name}={p.default}" in done.out for p in query.parameters)
    listed = cli("query", "--tables").out
    assert all(f"\n{name}: " in f"\n{listed}" for name in schema.TABLES)


def test_formats_agree(cli: CommandLine, export: Path) -> None:
    rows = json.loads(cli("query", export, "kernels/by_name", "--format", "json").out)
    (table,) = [list(csv.DictReader(io.StringIO(cli("query", export, "kernels/by_name", "--format", "csv").out)))]
    assert [{k: str(v) for k, v in row.items()} for row in rows] == table
    for suffix in ("csv", "json", "parquet"):
        assert cli("query", export, "kernels/by_name", "-o", f"out.{suffix}").out == f"Wrote out.{suffix}\n"
    assert pl.read_parquet(cli.folder / "out.parquet").to_dicts() == rows
    assert json.loads((cli.folder / "out.json").read_text()) == rows
    assert pl.read_csv(cli.folder / "out.csv").to_dicts() == rows
    shown = cli("query", export, "kernels/by_name").out
    assert all(str(row["short_name"]) in shown and units.duration(row["time_ns"]) in shown for row in rows)
    raw = cli("query", export, "kernels/by_name", "--raw").out
    assert all(str(row["time_ns"]) in raw for row in rows)


def test_output_is_not_replaced_without_force(cli: CommandLine, export: Path) -> None:
    (cli.folder / "out.csv").write_text("mine")
    assert "exists" in complaint(cli("query", export, "kernels/by_name", "-o", "out.csv"))[0]
    assert (cli.folder / "out.csv").read_text() == "mine"
    assert cli("query", export, "kernels/by_name", "-o", "out.csv", "--force").code == 0
    assert (cli.folder / "out.csv").read_text().startswith("short_name,")
    assert [p.name for p in cli.folder.iterdir()] == ["out.csv"]


def test_parameters(cli: CommandLine, export: Path) -> None:
    def rows(*arguments: str) -> list[dict[str, Any]]:
        done = cli("query", export, "copies/largest", "--format", "json", *arguments)
        return list(json.loads(done.out))

    assert [r["bytes"] for r in rows("-p", "top=2")] == [50_000_000, 8_000_000]
    assert len(rows("-p", "top = 3")) == 3
    assert rows("-p", "top=0") == []
    for bad in ("top", "top=abc", "top=1.5.2", f"top={'9' * 30}", "size=3"):
        complaint(cli("query", export, "copies/largest", "-p", bad))


def test_sql(cli: CommandLine, export: Path) -> None:
    def rows(sql: str) -> Any:
        return json.loads(cli("query", export, "--sql", sql, "--format", "json").out)

    assert rows("SELECT COUNT(*) AS n FROM kernels") == [{"n": 17}]
    assert rows("SELECT COUNT(*) AS n FROM CUPTI_ACTIVITY_KIND_KERNEL") == [{"n": 17}]
    assert rows("SELECT name FROM api WHERE 0") == []
    same = "SELECT DISTINCT short_name AS a, short_name AS a FROM kernels ORDER BY 1 LIMIT 1"
    assert list(rows(same)[0]) == ["a", "a_1"]
    assert rows("SELECT NULL AS x, 1.5 AS y, 'é' AS z, x'00ff' AS b") == [{"x": None, "y": 1.5, "z": "é", "b": "00ff"}]
    assert rows("SELECT 1e999 AS x") == [{"x": None}]  # JSON has no infinity


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "SELECT nothing",
        "SELECT 1; SELECT 2",
        "DROP TABLE StringIds",
        "DELETE FROM StringIds",
        "UPDATE StringIds SET value = ''",
        "CREATE TABLE t (a)",
        "CREATE TEMP TABLE t (a)",
        "CREATE INDEX i ON StringIds(value)",
        "ATTACH 'other.sqlite' AS o",
        "VACUUM INTO 'other.sqlite'",
        "PRAGMA journal_mode = WAL",
        "PRAGMA user_version = 7",
        "BEGIN EXCLUSIVE",
        "SELECT load_extension('x')",
        "WITH RECURSIVE n(i) AS (SELECT 9223372036854775807) SELECT SUM(i) FROM (SELECT i FROM n UNION ALL SELECT 1)",
    ],
)
def test_sql_that_is_refused(sql: str, cli: CommandLine, export: Path) -> None:
    before = export.read_bytes()
    complaint(cli("query", export, "--sql", sql))
    assert export.read_bytes() == before
    assert list(cli.folder.iterdir()) == []
    assert [p.name for p in export.parent.iterdir()] == ["trace.sqlite"]


def test_query_that_cannot_be(cli: CommandLine, export: Path) -> None:
    assert "no query 'kernels'" in complaint(cli("query", export, "kernels"))[0]
    complaint(cli("query", export, "kernels/by_name", "--sql", "SELECT 1"))
    complaint(cli("query", export, "kernels/by_name", "--format", "xml"))
