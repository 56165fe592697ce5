"""Exports of type parquetdir give the analysis of the SQLite export, whatever integer types their columns have."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from analyzed import NEWEST, analyze_file
from click.testing import CliRunner
from export_builder import RELEASES, ExportBuilder
from export_scenario import standard_scenario
from test_sources import figures, listing

from nsysparse.cli import cli
from nsysparse.errors import NsysparseError, SchemaError, SourceError
from nsysparse.queries import load_queries
from nsysparse.source import open_trace

HIGH_BITS = -(1 << 62)  # a serialized id with its top bits set is negative in SQLite and large in uint64
WIDE = {"globalTid", "globalPid", "endGlobalTid", "globalVid"}
Column = list[Any]


def as_int64(_name: str, values: Column, text: bool) -> pa.Array:
    return pa.array(values, pa.string() if text else pa.int64())


def as_nsys_may(name: str, values: Column, text: bool) -> pa.Array:
    """Ids as uint64, small numbers as int32, repeated texts as dictionaries, empty columns without a type."""
    if all(v is None for v in values):
        return pa.nulls(len(values))
    if text:
        return pa.array(values, pa.string()).dictionary_encode()
    if name in WIDE:
        return pa.array([None if v is None else v % (1 << 64) for v in values], pa.uint64())
    fits = all(v is None or -(1 << 31) <= v < 1 << 31 for v in values)
    return pa.array(values, pa.int32() if fits else pa.int64())


def as_others_may(name: str, values: Column, text: bool) -> pa.Array:
    """Large strings, unsigned and 16-bit numbers."""
    if text:
        return pa.array(values, pa.large_string())
    known = [v for v in values if v is not None]
    for kind, low, high in ((pa.uint16(), 0, 1 << 16), (pa.int16(), -(1 << 15), 1 << 15), (pa.uint32(), 0, 1 << 32)):
        if all(low <= v < high for v in known):
            return pa.array(values, kind)
    return as_nsys_may(name, values, text)


def tables_of(path: Path) -> dict[str, dict[str, tuple[Column, bool]]]:
    """Table -> column -> values, and whether they are texts; blobs and reals are left as they are."""
    found = {}
    with closing(sqlite3.connect(path)) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            kinds = [(row[1], row[2] == "TEXT") for row in db.execute(f'PRAGMA table_info("{table}")')]
            rows = db.execute(f'SELECT * FROM "{table}"').fetchall()
            found[table] = {name: ([row[i] for row in rows], text) for i, (name, text) in enumerate(kinds)}
    return found


def parquetdir(path: Path, typed: Callable[[str, Column, bool], pa.Array], group: int = 5) -> Path:
    folder = path.with_suffix("") if path.suffix else path.with_name("parquet")
    folder.mkdir()
    for table, columns in tables_of(path).items():
        made = pa.table({name: typed(name, values, text) for name, (values, text) in columns.items()})
        pq.write_table(made, folder / f"{table}.parquet", row_group_size=group)
    return folder


def scenario(folder: Path, release: str = NEWEST, high_bits: bool = False) -> Path:
    b = ExportBuilder(release)
    standard_scenario(b)
    if high_bits:
        for row in (row for rows in b.rows.values() for row in rows):
            row.update({name: row[name] | HIGH_BITS for name in WIDE & row.keys() if row[name]})
    return b.write(folder / "trace.sqlite")


@pytest.mark.parametrize("typed", [as_int64, as_nsys_may, as_others_may])
@pytest.mark.parametrize("high_bits", [False, True])
def test_the_analysis_is_that_of_the_sqlite_export(
    typed: Callable[[str, Column, bool], pa.Array], high_bits: bool, tmp_path: Path
) -> None:
    path = scenario(tmp_path, high_bits=high_bits)
    folder = parquetdir(path, typed)
    before = listing(folder)
    assert figures(folder) == figures(path)
    assert listing(folder) == before


@pytest.mark.parametrize("release", RELEASES[::8])
def test_other_releases(release: str, tmp_path: Path) -> None:
    path = scenario(tmp_path, release)
    assert figures(parquetdir(path, as_nsys_may)) == figures(path)


def test_files_that_polars_wrote(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    folder = tmp_path / "polars"
    folder.mkdir()
    for table, columns in tables_of(path).items():
        frame = pl.DataFrame({n: pl.Series(v, dtype=pl.String if t else pl.Int64) for n, (v, t) in columns.items()})
        frame.write_parquet(folder / f"{table}.parquet")
    assert figures(folder) == figures(path)


def test_columns_that_are_not_read_may_hold_anything(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    folder = parquetdir(path, as_int64)
    nvtx = pq.read_table(folder / "NVTX_EVENTS.parquet")
    for name, column in {
        "doubleValue": pa.array([0.5] * nvtx.num_rows),
        "binaryData": pa.array([b"\x00\xff"] * nvtx.num_rows),
        "user": pa.array([{"a": 1}] * nvtx.num_rows),
        "flag": pa.array([True] * nvtx.num_rows),
        "when": pa.array([1] * nvtx.num_rows, pa.timestamp("ns")),
    }.items():
        here = nvtx.schema.get_field_index(name)
        nvtx = nvtx.remove_column(here) if here >= 0 else nvtx
        nvtx = nvtx.append_column(name, column)
    pq.write_table(nvtx, folder / "NVTX_EVENTS.parquet")
    assert figures(folder) == figures(path)
    done = CliRunner().invoke(cli, ["query", str(folder), "nvtx/ranges", "--format", "json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)
    sql = "SELECT doubleValue, hex(binaryData) AS blob, user, flag FROM NVTX_EVENTS LIMIT 1"
    done = CliRunner().invoke(cli, ["query", str(folder), "--sql", sql, "--format", "json"])
    assert json.loads(done.output) == [{"doubleValue": 0.5, "blob": "00FF", "user": None, "flag": 1}]


@pytest.mark.parametrize("query", sorted(load_queries()))
def test_queries_give_the_same(query: str, tmp_path: Path) -> None:
    if query == "trace/tables":
        pytest.skip("shows how the tables were made")
    path = scenario(tmp_path)
    results = []
    for trace in (path, parquetdir(path, as_nsys_may)):
        done = CliRunner().invoke(cli, ["query", str(trace), query, "--format", "json"])
        assert done.exit_code == 0, done.output
        results.append(json.loads(done.output))
    assert results[0]
    assert results[0] == results[1]


def _damaged(folder: Path, table: str) -> None:
    file = folder / f"{table}.parquet"
    file.write_bytes(file.read_bytes()[:-30])


def _text(folder: Path, table: str) -> None:
    (folder / f"{table}.parquet").write_text("not Parquet")


def _overwritten(folder: Path, table: str) -> None:
    file = folder / f"{table}.parquet"
    content = bytearray(file.read_bytes())
    content[8 : len(content) // 2] = b"\xa5" * (len(content) // 2 - 8)
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [_damaged, _text, _overwritten])
def test_a_damaged_file_is_named(damage: Callable[[Path, str], None], tmp_path: Path) -> None:
    folder = parquetdir(scenario(tmp_path), as_int64)
    damage(folder, "CUPTI_ACTIVITY_KIND_KERNEL")
    with pytest.raises(NsysparseError) as error:
        analyze_file(folder)
    assert error.value.hint
    assert "\n" not in error.value.message


def test_a_column_of_another_type_is_named(tmp_path: Path) -> None:
    folder = parquetdir(scenario(tmp_path), as_int64)
    file = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    table = pq.read_table(file)
    column = pa.array([v + 0.5 for v in table.column("start").to_pylist()])
    pq.write_table(table.set_column(table.schema.get_field_index("start"), "start", column), file)
    with pytest.raises(SchemaError, match="table CUPTI_ACTIVITY_KIND_KERNEL, column 'start'"):
        analyze_file(folder)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    folder = parquetdir(scenario(tmp_path), as_int64)
    file = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    pq.write_table(pq.read_table(file).drop_columns("deviceId"), file)
    with pytest.raises(SchemaError, match="CUPTI_ACTIVITY_KIND_KERNEL has no column 'deviceId'"):
        analyze_file(folder)


def test_folders_that_are_no_export(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="folder without Parquet files"):
        open_trace(tmp_path)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(SourceError, match="no Nsight Systems export"):
        open_trace(tmp_path)
