"""What a recording can lie in: read-only folders, WAL mode, other people's files beside it, Parquet, reports."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from analyzed import NEWEST, TID, analyze_file, check, machine
from click.testing import CliRunner
from export_builder import ExportBuilder
from export_scenario import standard_scenario

from nsysparse.cli import cli
from nsysparse.errors import SourceError
from nsysparse.outputs.json import to_json
from nsysparse.source import open_trace

KERNEL, MEMCPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
HOT_JOURNAL = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """The standard scenario in a folder of its own."""
    folder = tmp_path / "recording"
    folder.mkdir()
    b = ExportBuilder(NEWEST)
    standard_scenario(b)
    return b.write(folder / "trace.sqlite")


@pytest.fixture
def expected(export: Path) -> str:
    return figures(export)


def figures(path: Path) -> str:
    """Every figure of the analysis, without what is said of the file itself (a hot journal is a finding)."""
    text = to_json(analyze_file(path))
    lines = [line for line in text.splitlines() if '"size_bytes": ' not in line]
    start = next(i for i, line in enumerate(lines) if line.startswith(' "coverage"'))
    end = next(i for i, line in enumerate(lines) if line.startswith(' "findings"'))
    devices = next(i for i, line in enumerate(lines) if line.startswith(' "devices"'))
    return "\n".join(lines[start:end] + lines[devices:])


Listing = dict[str, tuple[int, int, int, str]]


def listing(folder: Path) -> Listing:
    """Name, size, time of change, mode and content of each file of a folder."""
    found = {}
    for path in sorted(folder.iterdir()):
        facts = path.stat()
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[path.name] = (facts.st_size, facts.st_mtime_ns, facts.st_mode, content)
    return found


def read_only_folder(path: Path) -> None:
    path.parent.chmod(0o555)


def read_only_file(path: Path) -> None:
    path.chmod(0o444)


def wal_mode(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)


def foreign_wal(path: Path) -> None:
    Path(f"{path}-wal").write_bytes(b"\x37\x7f\x06\x82" + os.urandom(8_000))


def wal_of_another_page_size(path: Path) -> None:
    wal_mode(path)
    head = b"\x37\x7f\x06\x82" + (3_007_000).to_bytes(4, "big") + (1024).to_bytes(4, "big")
    Path(f"{path}-wal").write_bytes(head + os.urandom(8_000))


def empty_wal_and_index(path: Path) -> None:
    wal_mode(path)
    Path(f"{path}-wal").touch()
    Path(f"{path}-shm").write_bytes(bytes(32_768))


def hot_journal(path: Path) -> None:
    Path(f"{path}-journal").write_bytes(HOT_JOURNAL)


def cold_journal(path: Path) -> None:
    Path(f"{path}-journal").write_bytes(bytes(512))


def other_files(path: Path) -> None:
    path.with_suffix(".nsys-rep").write_bytes(b"report")
    Path(f"{path}.bak").write_bytes(b"backup")


def users_columns_indexes_and_views(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        for table in (KERNEL, MEMCPY, "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"):
            db.execute(f'ALTER TABLE {table} ADD COLUMN "my ""own"" column" TEXT DEFAULT \'x\'')
            db.execute(f"ALTER TABLE {table} ADD COLUMN duration INTEGER")
            db.execute(f'UPDATE {table} SET duration = "end" - start')
        db.execute(f'CREATE INDEX mine ON {KERNEL}(start, "end")')
        db.execute(f"CREATE INDEX mine_too ON {MEMCPY}(bytes DESC)")
        db.execute(f"CREATE VIEW kernels AS SELECT * FROM {KERNEL} LIMIT 1")
        db.execute("CREATE VIEW broken AS SELECT * FROM missing")
        db.execute('CREATE TABLE "my ""table"" of; notes" (note TEXT)')
        db.execute("CREATE TABLE api (id INTEGER)")
        db.execute("CREATE TRIGGER t AFTER INSERT ON api BEGIN DELETE FROM api; END")
        db.commit()


SITUATIONS: list[Callable[[Path], None]] = [
    read_only_folder,
    read_only_file,
    wal_mode,
    foreign_wal,
    wal_of_another_page_size,
    empty_wal_and_index,
    hot_journal,
    cold_journal,
    other_files,
    users_columns_indexes_and_views,
]


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_analysis_is_the_same_and_the_folder_is_untouched(
    situation: Callable[[Path], None], export: Path, expected: str
) -> None:
    situation(export)
    before = listing(export.parent)
    found = figures(export)
    for arguments in (["info", str(export)], ["query", str(export), "kernels/by_name"]):
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, done.output
    after = listing(export.parent)
    export.parent.chmod(0o755)
    assert after == before
    assert found == expected


def test_nothing_is_written_into_a_folder_that_cannot_be_written(export: Path) -> None:
    """As nobody, since root may write anywhere."""
    folder = Path(tempfile.mkdtemp())  # pytest's own is closed to others
    copy = folder / "trace.sqlite"
    shutil.copyfile(export, copy)
    copy.chmod(0o444)
    folder.chmod(0o555)
    code = (  # once before, so that everything is imported that only root may read
        "import os, sys; from nsysparse.source import open_trace; from nsysparse.analysis import analyze\n"
        "analyze(open_trace(sys.argv[2]))\n"
        "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "print(os.access(sys.argv[3], os.W_OK), analyze(open_trace(sys.argv[1])).work.kernels.height)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, copy, export, folder], capture_output=True, text=True, check=False
    )
    folder.chmod(0o755)
    shutil.rmtree(folder)
    assert (done.returncode, done.stdout.strip()) == (0, "False 17"), done.stderr


def test_what_was_unusual_is_said(export: Path) -> None:
    assert check(analyze_file(export), "file").status.value == "ok"
    foreign_wal(export)
    assert "foreign -wal" in check(analyze_file(export), "file").summary
    hot_journal(export)
    found = check(analyze_file(export), "file")
    assert (found.status.value, "hot journal" in found.summary) == ("suspect", True)


def test_rows_that_are_only_in_the_wal_are_read(tmp_path: Path) -> None:
    b = machine()
    b.launch(TID, (1000, 2000), (5000, 9000))
    path = b.write(tmp_path / "trace.sqlite")
    db = sqlite3.connect(path)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA wal_autocheckpoint=0")
        db.execute(f"INSERT INTO {KERNEL} SELECT * FROM {KERNEL}")
        db.execute(f'UPDATE {KERNEL} SET start = 10000, "end" = 20000 WHERE rowid = 2')
        db.commit()
        assert Path(f"{path}-wal").stat().st_size > 0
        before = listing(tmp_path)
        analysis = analyze_file(path)
        assert listing(tmp_path) == before
    finally:
        db.close()
    assert analysis.work.kernels["start_ns"].to_list() == [5000, 10000]
    assert "unmerged pages" in check(analysis, "file").summary


@pytest.fixture
def locked(export: Path) -> Iterator[Path]:
    """An export on which another process holds an exclusive lock."""
    code = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('PRAGMA locking_mode=EXCLUSIVE'); db.execute('BEGIN EXCLUSIVE')\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, export], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "locked"
        yield export
        holder.communicate()


def test_a_locked_file_is_read(locked: Path) -> None:
    with closing(sqlite3.connect(locked, timeout=0)) as db, pytest.raises(sqlite3.OperationalError, match="locked"):
        db.execute("SELECT * FROM StringIds").fetchall()
    assert analyze_file(locked).work.kernels.height == 17


def test_a_name_that_is_no_plain_uri(export: Path, expected: str) -> None:
    odd = export.with_name("a?b#c%20d;e 'é'.sqlite")
    export.rename(odd)
    assert figures(odd).replace(odd.name, "") == expected.replace(export.name, "")


def test_a_link_to_an_export_with_its_wal_elsewhere(export: Path, expected: str, tmp_path: Path) -> None:
    link = tmp_path / "link.sqlite"
    link.symlink_to(export)
    assert figures(link) == expected
    assert stat.S_ISLNK(link.lstat().st_mode)


# --- reports ---

SCRIPT = """#!/bin/sh
{commands}
"""


def report_and_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: str) -> Path:
    """A report, and a script called nsys as the only thing on PATH."""
    tools = tmp_path / "tools"
    tools.mkdir()
    nsys = tools / "nsys"
    nsys.write_text(SCRIPT.format(commands=commands))
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    report = tmp_path / "my report.nsys-rep"
    report.write_bytes(b"a report")
    return report


def test_a_report_is_exported_by_the_nsys_on_path(
    export: Path, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "arguments"
    commands = f"""for a in "$@"; do echo "$a" >> '{log}'; done
while [ "$1" != "--output" ]; do shift; done
/bin/cp '{export}' "$2" """
    report = report_and_nsys(tmp_path, monkeypatch, commands)
    before = listing(export.parent)
    found = figures(report)
    assert found == expected
    assert listing(export.parent) == before
    arguments = log.read_text().splitlines()
    assert arguments[:3] == ["export", "--type", "sqlite"]
    assert "--include-blobs=true" in arguments
    assert arguments[-1] == str(report)
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    ("commands", "said"),
    [
        ("echo 'cannot read this report' >&2; exit 3", "cannot read this report"),
        ("exit 0", "no message"),
        ("echo; echo; exit 1", "no message"),
    ],
)
def test_an_nsys_that_fails(commands: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_and_nsys(tmp_path, monkeypatch, commands)
    with pytest.raises(SourceError) as error:
        open_trace(report)
    assert said in error.value.message
    assert "nsys export --type sqlite --include-blobs=true" in error.value.hint
    assert list((tmp_path / "temporary").iterdir()) == []


def test_no_nsys_on_path_gives_the_export_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_and_nsys(tmp_path, monkeypatch, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="nsys is not on PATH") as error:
        open_trace(report)
    assert "nsys export --type sqlite" in error.value.hint
    assert "'my report.nsys-rep'" in error.value.hint  # quoted, to be pasted


@pytest.mark.parametrize(
    "sql",
    [
        f"UPDATE {MEMCPY} SET rowid = 1000000000000 WHERE rowid = (SELECT max(rowid) FROM {MEMCPY})",
        f"UPDATE {MEMCPY} SET rowid = -9223372036854775808 WHERE rowid = (SELECT min(rowid) FROM {MEMCPY})",
        f"UPDATE {KERNEL} SET rowid = rowid * 1000000007",
        f"ALTER TABLE {KERNEL} ADD COLUMN rowid TEXT DEFAULT 'a user''s'",
        f"ALTER TABLE {KERNEL} ADD COLUMN rowid INTEGER",
    ],
    ids=["far last row", "far first row", "wide apart", "a text called rowid", "an empty column called rowid"],
)
def test_rowids_that_only_other_tools_leave(export: Path, expected: str, sql: str) -> None:
    with closing(sqlite3.connect(export)) as database:
        database.execute(sql)
        database.commit()
    assert figures(export) == expected


def test_pieces_step_over_gaps(export: Path) -> None:
    with closing(sqlite3.connect(export)) as database:
        database.execute(f"UPDATE {KERNEL} SET rowid = rowid * 1000 + rowid % 3")
        database.commit()
        rows = database.execute(f"SELECT start FROM {KERNEL} ORDER BY rowid").fetchall()
    with open_trace(export) as trace:
        pieces = list(trace.chunks("kernels", 2))
    assert [s for p in pieces for s in p["start_ns"].to_list()] == [s for (s,) in rows]
    assert len(pieces) < 60


@pytest.mark.parametrize("kind", [pl.Int8, pl.Int16, pl.Int32, pl.Int64])
def test_texts_of_references_of_any_width(export: Path, kind: pl.DataType) -> None:
    with closing(sqlite3.connect(export)) as database:
        texts = dict(database.execute("SELECT id, value FROM StringIds WHERE id < 127").fetchall())
    assert len(texts) > 5
    wanted = [*list(texts)[1::2], None, *list(texts)[1::4], -1]  # a number that no text has
    with open_trace(export) as trace:
        found = trace.strings(pl.Series(wanted, dtype=kind))
    assert found["id"].dtype == kind
    assert dict(found.iter_rows()) == {number: texts[number] for number in list(texts)[1::2]}
    assert found.height == len(list(texts)[1::2])
