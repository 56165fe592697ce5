"""The cache: the same bytes, never stale, never in the way."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from traces import trace_path

from nsysparse import cache as caching
from nsysparse.analysis import analyze
from nsysparse.cache import Cache, CacheError, clear_entries, list_entries
from nsysparse.cli import cli
from nsysparse.outputs.json import to_json
from nsysparse.source import Trace, open_trace, sqlite

ENTRY = "trace-*"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    target = tmp_path / "trace.sqlite"
    shutil.copyfile(trace_path("threads"), target)
    return target


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tables that were read from a SQLite export."""
    seen: list[str] = []
    real_read, real_count = sqlite.SqliteBackend.read, sqlite.SqliteBackend.row_count
    real_chunks = sqlite.SqliteBackend.chunks

    def read(self, table, columns):
        seen.append(table)
        return real_read(self, table, columns)

    def chunks(self, table, columns, rows):
        seen.append(table)
        yield from real_chunks(self, table, columns, rows)

    def row_count(self, table):
        seen.append(f"rows of {table}")
        return real_count(self, table)

    monkeypatch.setattr(sqlite.SqliteBackend, "read", read)
    monkeypatch.setattr(sqlite.SqliteBackend, "chunks", chunks)
    monkeypatch.setattr(sqlite.SqliteBackend, "row_count", row_count)
    return seen


def json_of(trace: Path, folder: Path | None = None) -> str:
    with open_trace(trace, folder) as opened:
        return to_json(analyze(opened))


def change(trace: Path, statement: str) -> None:
    connection = sqlite3.connect(trace)
    connection.execute(statement)
    connection.commit()
    connection.close()


def kept_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{ENTRY}/*.parquet"))


def leftovers(folder: Path) -> list[Path]:
    return [f for f in folder.rglob("*") if f.name.endswith(".tmp") or f.name.startswith(".")]


@pytest.mark.parametrize("name", ["threads", "pinned_overlap_lossy", "p2p", "graph_replay_node"])
def test_the_same_bytes_without_while_filling_and_from_the_cache(name: str, folder: Path) -> None:
    plain, filling, kept = (json_of(trace_path(name), f) for f in (None, folder, folder))
    assert plain == filling == kept
    assert kept_files(folder)
    assert not leftovers(folder)


def test_a_second_command_reads_nothing(trace: Path, folder: Path, reads: list[str]) -> None:
    first = json_of(trace, folder)
    assert "CUPTI_ACTIVITY_KIND_RUNTIME" in reads
    reads.clear()
    assert json_of(trace, folder) == first
    assert reads == []


def test_repaired_texts_are_reported_from_the_cache_too(trace: Path, folder: Path) -> None:
    change(trace, "UPDATE StringIds SET value = CAST(x'ff41' AS TEXT) WHERE id = (SELECT min(id) FROM StringIds)")
    plain, filling, kept = (json_of(trace, f) for f in (None, folder, folder))
    assert plain == filling == kept
    with open_trace(trace, folder) as opened:
        opened.frame("strings")
        assert opened.backend.notes.repaired_texts == {"StringIds.value": 1}


def test_a_changed_recording_is_read_again(trace: Path, folder: Path) -> None:
    before, facts = json_of(trace, folder), trace.stat()
    change(trace, 'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "end" = "end" + 1')
    assert trace.stat().st_size == facts.st_size
    os.utime(trace, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # and nobody can see it from the time
    after = json_of(trace, folder)
    assert after == json_of(trace)
    assert after != before
    assert len(list(folder.glob(ENTRY))) == 2


def test_another_file_of_the_same_size_and_time_is_read(trace: Path, folder: Path) -> None:
    before, facts = json_of(trace, folder), trace.stat()
    other = bytearray(trace.read_bytes())
    trace.unlink()
    trace.write_bytes(other)
    change(trace, "DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE rowid % 2")
    os.utime(trace, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert json_of(trace, folder) == json_of(trace) != before


def test_a_file_that_changes_while_it_is_read_is_not_kept(
    trace: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sqlite.SqliteBackend.read

    def read(self, table, columns):
        found = real(self, table, columns)
        os.utime(trace)
        return found

    monkeypatch.setattr(sqlite.SqliteBackend, "read", read)
    with open_trace(trace, folder) as opened:
        opened.frame("kernels")
    assert kept_files(folder) == []


def test_another_version_has_entries_of_its_own(
    trace: Path, folder: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    json_of(trace, folder)
    monkeypatch.setattr(caching, "__version__", "999")
    reads.clear()
    json_of(trace, folder)
    assert "CUPTI_ACTIVITY_KIND_KERNEL" in reads
    assert sorted(e.version for e in list_entries(folder))[-1] == "999"


@pytest.mark.parametrize("how", ["cut", "empty", "flipped", "other", "gone", "folder"])
def test_damaged_entries_are_read_again(trace: Path, folder: Path, how: str) -> None:
    plain = json_of(trace, folder)
    for file in folder.glob(f"{ENTRY}/*"):
        data = bytearray(file.read_bytes())
        if how == "flipped":
            for at in range(4, len(data), 97):
                data[at] ^= 0x10
        file.unlink()
        if how == "other":
            shutil.copyfile(trace, file)
        elif how == "folder":
            file.mkdir()
        elif how != "gone":
            file.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "flipped": data}[how])
    assert json_of(trace, folder) == plain
    assert not leftovers(folder)
    if how != "folder":  # and the next command finds them whole
        assert all(pq.read_table(f).num_rows >= 0 for f in kept_files(folder))


def test_one_flipped_bit_anywhere_is_noticed(trace: Path, folder: Path) -> None:
    columns = {"id": ("id", "int"), "value": ("value", "text")}
    with open_trace(trace, folder) as opened:
        expected = opened.backend.read("StringIds", columns)
        store = opened.backend.store
    (file,) = (f for f in kept_files(folder) if f.name.startswith("StringIds"))
    whole = file.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 500)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        found = store.get("StringIds", columns)
        assert found is None or found[0].equals(expected), at


def test_two_processes_that_race_both_succeed(trace: Path, folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nsysparse", "info", str(trace), "--json", "--cache", str(folder)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = [r.communicate() for r in runs]
    assert [r.returncode for r in runs] == [0, 0], said
    assert said[0] == said[1]
    assert not leftovers(folder)
    assert all(pq.read_table(f).num_rows >= 0 for f in kept_files(folder))


def test_clearing_under_a_running_command_does_no_harm(
    trace: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sqlite.SqliteBackend.read

    def read(self, table, columns):
        clear_entries(folder)
        return real(self, table, columns)

    plain = json_of(trace)
    monkeypatch.setattr(sqlite.SqliteBackend, "read", read)
    assert json_of(trace, folder) == plain


def test_a_folder_that_cannot_be_used_is_a_clear_error(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CacheError, match="cannot use the cache folder") as caught:
            json_of(trace, folder)
        assert caught.value.hint
    command = [sys.executable, "-m", "nsysparse", "info", str(trace), "--cache", str(tmp_path / "file" / "below")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].startswith("Error: cannot use the cache folder")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission_is_a_clear_error(trace: Path, folder: Path) -> None:
    folder.mkdir(mode=0o500)
    with pytest.raises(CacheError, match="Permission denied"):
        json_of(trace, folder)


def test_a_full_disk_costs_the_cache_and_not_the_result(
    trace: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    plain = json_of(trace)
    monkeypatch.setattr(caching.pq, "write_table", full)
    assert json_of(trace, folder) == plain
    assert not leftovers(folder)
    arguments = ["analyze", str(trace), "-o", str(tmp_path / "r.html"), "--cache", str(folder)]
    said = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert said.exit_code == 0, said.output
    assert "not everything was kept in the cache: No space left on device" in said.stderr
    monkeypatch.undo()
    assert json_of(trace, folder) == plain


def test_only_its_owner_may_read_what_was_kept(trace: Path, folder: Path) -> None:
    json_of(trace, folder)
    modes = {stat.S_IMODE(p.stat().st_mode) & 0o077 for p in (folder, *folder.rglob("*"))}
    assert modes == {0}


def test_list_and_clear(trace: Path, folder: Path) -> None:
    json_of(trace, folder)
    (folder / "notes.txt").write_text("mine")
    (folder / "trace-mine").mkdir()
    run = CliRunner()
    listed = run.invoke(cli, ["cache", "list", str(folder)])
    assert listed.exit_code == 0
    assert "trace.sqlite" in listed.output
    assert len(listed.output.splitlines()) == 2
    cleared = run.invoke(cli, ["cache", "clear", str(folder)])
    assert cleared.output.startswith("Removed 1 recording, ")
    assert sorted(p.name for p in folder.iterdir()) == ["notes.txt", "trace-mine"]
    assert list_entries(folder) == []
    missing = run.invoke(cli, ["cache", "list", str(folder / "none")])
    assert isinstance(missing.exception, CacheError)


def test_a_parquet_folder_is_cached_and_noticed_when_it_changes(
    trace: Path, folder: Path, tmp_path: Path, reads: list[str]
) -> None:
    export = tmp_path / "export"
    export.mkdir()
    with open_trace(trace) as opened:
        for table in ("StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "TARGET_INFO_GPU"):
            pq.write_table(_whole(opened, table), export / f"{table}.parquet")
    plain, filling, kept = (json_of(export, f) for f in (None, folder, folder))
    assert plain == filling == kept
    one = export / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    pq.write_table(pq.read_table(one).slice(1), one)
    assert json_of(export, folder) == json_of(export) != plain


def _whole(trace: Trace, table: str):
    names = [c for c in trace.tables[table] if c not in {"name", "value", "busLocation", "uuid", "chipName"}]
    kinds = {c: (c, "text" if c in {"value"} else "int") for c in names}
    if table == "StringIds":
        kinds["value"] = ("value", "text")
    kinds = {c: k for c, k in kinds.items() if c not in {"ctxswDevPath", "ctrlDevPath"}}
    return trace.backend.read(table, kinds)


@pytest.fixture
def nsys(tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ``nsys`` that exports a recording, and writes down that it did."""
    log, program = tmp_path / "exports.log", tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\necho export >> {log}\nwhile [ $# -gt 0 ]; do\n"
        f'  [ "$1" = --output ] && cp {trace} "$2"\n  shift\ndone\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    log.touch()
    return log


def test_a_report_is_exported_once(nsys: Path, folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"a report")
    plain = json_of(report)
    assert json_of(report, folder) == plain
    assert len(nsys.read_text().splitlines()) == 2
    assert json_of(report, folder) == plain
    assert len(nsys.read_text().splitlines()) == 2
    with open_trace(report, folder) as opened:  # SQL needs the export
        connection = opened.backend.connect()
        assert connection.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0] > 0
        connection.close()
    assert len(nsys.read_text().splitlines()) == 3
    report.write_bytes(b"another!")
    json_of(report, folder)
    assert len(nsys.read_text().splitlines()) == 4


def test_a_cache_can_be_shared_by_recordings_of_one_name(tmp_path: Path, folder: Path) -> None:
    plain = []
    for name in ("threads", "p2p"):
        target = tmp_path / name / "trace.sqlite"
        target.parent.mkdir()
        shutil.copyfile(trace_path(name), target)
        plain.append(json_of(target, folder))
    assert [json_of(tmp_path / n / "trace.sqlite", folder) for n in ("threads", "p2p")] == plain
    assert plain[0] != plain[1]
    assert isinstance(Cache(folder), Cache)


def test_pieces_are_the_same_through_the_cache(trace: Path, folder: Path) -> None:
    whole = []
    for cache in (None, folder, folder):
        with open_trace(trace, cache) as opened:
            assert len(list(opened.chunks("api", 1_000))) > 1
            whole.append(pl.concat(opened.chunks("api", 1_000)))
            whole.append(pl.concat(opened.chunks("api", 10**6)))
            whole.append(opened.frame("api"))
    assert all(frame.equals(whole[0]) for frame in whole[1:])
