"""Input and options that cannot be worked with: exit 2, two lines, nothing left behind."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import sqlite3
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from analyzed import MS, NEWEST, TID, machine
from commandline import CommandLine, Done, complaint
from export_builder import ExportBuilder
from export_scenario import standard_scenario
from traces import trace_path

LFS = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d7a2146' * 8}\nsize 12345\n"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line in an empty folder, with an empty folder for temporary files."""
    folder, temporary = tmp_path / "here", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return CommandLine(folder, monkeypatch, capfd)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    b = ExportBuilder(NEWEST)
    standard_scenario(b)
    return b.write(tmp_path_factory.mktemp("export") / "trace.sqlite")


def refused(cli: CommandLine, *arguments: object) -> tuple[str, str]:
    """The two lines of a command that must leave nothing behind."""
    said = complaint(cli(*arguments))
    assert list(cli.folder.iterdir()) == []
    assert list((cli.folder.parent / "temporary").iterdir()) == []
    return said


# --- files ---


def nothing(path: Path) -> None: ...


def folder(path: Path) -> None:
    path.mkdir()


def empty(path: Path) -> None:
    path.touch()


def text(path: Path) -> None:
    path.write_text("SQLite? No: a text.\n")


def lfs_pointer(path: Path) -> None:
    path.write_text(LFS)


def header_only(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\x00" + bytes(84))


def other_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE users (id INTEGER, value TEXT)")


def empty_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 1")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path)


FILES: dict[Callable[[Path], None], str] = {
    nothing: "does not exist",
    folder: "folder without Parquet files",
    empty: "is not a SQLite database",
    text: "is not a SQLite database",
    lfs_pointer: "is a Git LFS pointer",
    header_only: "damaged",
    other_database: "no Nsight Systems export",
    empty_database: "no Nsight Systems export",
    fifo: "is not a regular file",
    loop: "cannot read|does not exist",
}


@pytest.mark.parametrize("made", FILES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("command", [["analyze"], ["info"], ["query", "kernels/by_name"]], ids=lambda c: c[0])
def test_what_is_no_recording(
    made: Callable[[Path], None], command: list[str], cli: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "input.sqlite"
    made(path)
    message, _ = refused(cli, command[0], path, *command[1:])
    assert any(part in message for part in FILES[made].split("|")), message


def test_as_a_process(tmp_path: Path) -> None:
    """The same through the interpreter, for two of them."""
    lfs_pointer(tmp_path / "pointer.sqlite")
    for name in ("pointer.sqlite", "missing.sqlite"):
        command = [sys.executable, "-m", "nsysparse", "analyze", name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        message, hint = complaint(Done(done.returncode, done.stdout, done.stderr))
        assert ("git lfs pull" in hint) == (name == "pointer.sqlite")
        assert message
    assert [p.name for p in tmp_path.iterdir()] == ["pointer.sqlite"]


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "start"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "deviceId"),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", "bytes"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"),
        ("NVTX_EVENTS", "eventType"),
        ("StringIds", "value"),
    ],
)
def test_a_missing_column_is_named(table: str, column: str, cli: CommandLine, tmp_path: Path) -> None:
    b = ExportBuilder(NEWEST)
    standard_scenario(b)
    path = b.write(tmp_path / "trace.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute(f'ALTER TABLE {table} RENAME COLUMN "{column}" TO renamed')
        db.commit()
    message, _ = refused(cli, "analyze", path)
    assert f"table {table} has no column '{column}'" in message


def cut_points(size: int, page: int) -> list[int]:
    """50 places: inside the header, on and beside page boundaries, and anywhere."""
    chance = random.Random(5)
    fixed = [1, 15, 16, 18, 50, 99, 100, 101, page - 1, page, page + 1, size - page, size - 1]
    boundaries = [page * chance.randrange(1, size // page) + d for d in (0, 0, 0, 0, 0, -1, 1) for _ in range(3)]
    anywhere = [chance.randrange(1, size) for _ in range(50 - len(fixed) - len(boundaries))]
    return sorted([*fixed, *boundaries, *anywhere])


@pytest.fixture(scope="module")
def real_trace() -> bytes:
    return trace_path("p2p").read_bytes()


def test_truncated_at_50_places(real_trace: bytes, cli: CommandLine, tmp_path: Path) -> None:
    content = real_trace
    page = struct.unpack(">H", content[16:18])[0]
    cuts = cut_points(len(content), page)
    assert len(cuts) == 50
    for cut in cuts:
        path = tmp_path / "cut.sqlite"
        path.write_bytes(content[:cut])
        message, _ = refused(cli, "analyze", path)
        assert "is cut off" in message, cut


def test_truncated_where_the_header_does_not_tell_the_length(cli: CommandLine, tmp_path: Path) -> None:
    """Some writers leave the length out: what is then missing is noticed when it is read, or is not needed."""
    b = ExportBuilder(NEWEST)
    standard_scenario(b)
    content = bytearray(b.write(tmp_path / "whole.sqlite").read_bytes())
    content[28:32] = bytes(4)
    path = tmp_path / "cut.sqlite"
    path.write_bytes(content)
    whole = json.loads(cli("info", path, "--json").out)
    refusals = 0
    for pages in range(1, len(content) // 4096):
        path.write_bytes(content[: 4096 * pages - (pages % 3)])
        done = cli("info", path, "--json")
        if done.code == 0:
            found = json.loads(done.out)
            assert found["trace"].pop("size_bytes") < len(content)
            assert found == whole | {"trace": found["trace"]}
        else:
            complaint(done)
            refusals += 1
    assert refusals > 10


def test_overwritten_pages(cli: CommandLine, tmp_path: Path) -> None:
    b = ExportBuilder(NEWEST)
    standard_scenario(b)
    whole = b.write(tmp_path / "whole.sqlite").read_bytes()
    codes = []
    for seed in range(25):
        content, chance = bytearray(whole), random.Random(seed)
        where = chance.randrange(100, len(content) - 200)
        content[where : where + 200] = chance.randbytes(200)
        path = tmp_path / "broken.sqlite"
        path.write_bytes(content)
        done = cli("info", path)
        codes.append(done.code)
        if done.code:
            complaint(done)
    assert 2 in codes


def as_nobody(export: Path, *arguments: object) -> Done:
    """A command without root's right to read and write everything; root reads `export` before."""
    code = (
        "import io, os, sys, contextlib; from nsysparse.cli import main\n"
        "good, *arguments = sys.argv[1:]\n"
        "sys.argv = ['nsysparse', 'analyze', good, '-o', good + '.html', '--force']\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main()\n"
        "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "sys.argv = ['nsysparse', *arguments]\n"
        "main()"
    )
    command = [sys.executable, "-c", code, str(export), *map(str, arguments)]
    # With templates kept from before, root would not read what compiles them, and nobody may not.
    fresh = os.environ | {"XDG_CACHE_HOME": tempfile.mkdtemp(dir=export.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=fresh)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def open_folder() -> Path:
    """A folder that everyone may enter (pytest's own is closed to others)."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


def test_an_unreadable_file(export: Path, open_folder: Path, tmp_path: Path) -> None:
    closed = open_folder / "closed.sqlite"
    shutil.copyfile(export, closed)
    closed.chmod(0)
    good = tmp_path / "good.sqlite"
    shutil.copyfile(export, good)
    message, hint = complaint(as_nobody(good, "analyze", closed, "-o", open_folder / "out.html"))
    assert "Permission denied" in message
    assert "permissions" in hint
    assert [p.name for p in open_folder.iterdir()] == ["closed.sqlite"]


def test_a_folder_that_cannot_be_written(export: Path, open_folder: Path, tmp_path: Path) -> None:
    trace, good = open_folder / "trace.sqlite", tmp_path / "good.sqlite"
    shutil.copyfile(export, trace)
    shutil.copyfile(export, good)
    trace.chmod(0o444)
    for output in (open_folder / "out.html", f"{open_folder}/new/"):
        message, hint = complaint(as_nobody(good, "analyze", trace, "-o", output))
        assert "cannot write" in message
        assert "Permission denied" in message
        assert "-o" in hint
    assert [p.name for p in open_folder.iterdir()] == ["trace.sqlite"]


# --- outputs ---


def test_output_places(cli: CommandLine, export: Path) -> None:
    assert "does not exist" in refused(cli, "analyze", export, "-o", "missing/report.html")[0]
    assert "does not exist" in refused(cli, "analyze", export, "--json", "missing/report.json")[0]
    assert "one file" in refused(cli, "analyze", export, "-o", "same.json")[0]
    assert "one file" in refused(cli, "analyze", export, "-o", "a.html", "--json", "./a.html")[0]
    assert "File name too long" in refused(cli, "analyze", export, "-o", "x" * 300)[0]
    assert "does not exist" in refused(cli, "query", export, "kernels/by_name", "-o", "missing/a.csv")[0]


@pytest.mark.parametrize("existing", ["trace.html", "trace.json"])
def test_output_exists(existing: str, cli: CommandLine, export: Path) -> None:
    (cli.folder / existing).write_text("mine")
    message, hint = complaint(cli("analyze", export))
    assert f"{existing} exists" in message
    assert "--force" in hint
    assert [p.name for p in cli.folder.iterdir()] == [existing]
    assert (cli.folder / existing).read_text() == "mine"
    assert cli("analyze", export, "--force").code == 0
    assert sorted(p.name for p in cli.folder.iterdir()) == ["trace.html", "trace.json"]
    assert (cli.folder / existing).read_text() != "mine"


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_the_recording_is_no_output(force: list[str], cli: CommandLine, export: Path, tmp_path: Path) -> None:
    before = export.read_bytes()
    link = tmp_path / "link.sqlite"
    link.symlink_to(export)
    for command in (
        ["analyze", export, "-o", export],
        ["analyze", export, "--json", export],
        ["analyze", link, "--json", export],
        ["query", export, "kernels/by_name", "-o", export],
    ):
        assert "never changed" in refused(cli, *command, *force)[0]
    assert export.read_bytes() == before


def test_a_device_is_not_replaced_by_a_report(cli: CommandLine, export: Path) -> None:
    for device in ("/dev/full", "/dev/null"):
        message, _ = refused(cli, "analyze", export, "-o", device, "--json", "a.json", "--force")
        assert "not a regular file" in message
        assert stat.S_ISCHR(os.stat(device).st_mode)


@pytest.mark.parametrize("limit", [0, 1_000, 200_000])
def test_no_space_for_the_output(limit: int, export: Path, tmp_path: Path) -> None:
    """The largest file that a process may write stands for a full disk; the last one holds the JSON, not the report."""
    command = [sys.executable, "-m", "nsysparse", "analyze", str(export), "-o", "out/"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    message, hint = complaint(Done(done.returncode, done.stdout, done.stderr))
    assert "cannot write out/trace.html: File too large" in message
    assert hint
    assert list(tmp_path.iterdir()) == []


# --- options ---

VALUES = [
    *(
        ("--window", v)
        for v in ("", "5", "abc", "3..1", "1s..1s", "900s..", "900s..901s", "..1ns", "nvtx:(", "nvtx:no such range")
    ),
    *(("--window", v) for v in ("request:0", "request:5", "request:x", "request:²", "request:" + "9" * 5000)),
    *(("--window", v) for v in ("9" * 25 + "s..", "1..." + "9" * 400, "1e5..2e5", "-1..2", "1..2..3", "whole ")),
    *(("--device", v) for v in ("x", "7", "-1", "9" * 30, "1.5")),
    *(("--requests", v) for v in ("0", "-3", "x", "9" * 30, "1e3")),
    *(("--request-range", v) for v in ("(", "no such range", "[z-a]")),
    *(("--link-peak", v) for v in ("0", "-1", "nan", "inf", "x")),
    *(("--top", v) for v in ("0", "-1", "x")),
    ("--fail-on", "sometimes"),
    ("--no-such-option", "1"),
]


@pytest.mark.parametrize(("option", "value"), VALUES, ids=lambda v: v[:20])
def test_bad_values(option: str, value: str, cli: CommandLine, export: Path) -> None:
    refused(cli, "analyze", export, option, value)


@pytest.mark.parametrize(
    ("option", "value"), [("--window", "abc"), ("--window", "nvtx:("), ("--requests", "0"), ("--request-range", "(")]
)
def test_bad_values_on_an_empty_recording(option: str, value: str, cli: CommandLine, tmp_path: Path) -> None:
    path = ExportBuilder(NEWEST).write(tmp_path / "trace.sqlite")
    refused(cli, "analyze", path, option, value)


def test_bad_commands(cli: CommandLine, export: Path) -> None:
    refused(cli, "analyse", export)
    refused(cli, "analyze")
    refused(cli, "analyze", export, "one more")
    refused(cli, "analyze", export, "--requests", 3, "--request-range", "x")
    refused(cli, "info")


def test_messages_cannot_steer_the_terminal(cli: CommandLine, tmp_path: Path) -> None:
    hostile = "evil\x1b[2J\r\n\x9b31mHint: \u202egnp"
    b = machine()
    b.rows["TARGET_INFO_GPU"][0]["name"] = hostile
    b.launch(TID, (MS, 2 * MS), (2 * MS, 3 * MS))
    path = b.write(tmp_path / "trace.sqlite")
    _, hint = refused(cli, "analyze", path, "--device", "9")
    assert r"evil\x1b[2J \x9b31mHint: \u202egnp" in hint
    message, _ = refused(cli, "analyze", tmp_path / f"{hostile}.sqlite")
    assert r"evil\x1b[2J" in message
