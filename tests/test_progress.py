"""Progress on the terminal only, interrupts that leave nothing behind, and a start that imports little."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from traces import trace_path

from nsysparse.cli import progress as showing
from nsysparse.cli.progress import Progress
from nsysparse.source import open_trace

HEAVY = ("polars", "pyarrow", "numpy", "jinja2", "rich", "altair", "sqlite_utils", "adbc_driver_sqlite", "vl_convert")
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still until it is set."""
    now = [100.0]
    monkeypatch.setattr(showing.time, "perf_counter", lambda: now[0])
    return now


def test_the_line_names_stage_rows_bytes_and_time_left(clock: list[float]) -> None:
    progress = Progress("trace.sqlite")
    progress("joining GPU work to its calls")
    clock[0] += 3
    assert progress.text() == "trace.sqlite: joining GPU work to its calls, 3 s"
    progress.begin("NVTX_EVENTS", 4_000_000)
    clock[0] += 0.5
    progress.add(500_000, 40_000_000)
    assert progress.text() == "trace.sqlite: reading NVTX_EVENTS, 500,000 of 4,000,000 rows, 40 MB, 4 s"
    clock[0] += 1.5
    progress.add(500_000, 40_000_000)
    assert progress.text() == "trace.sqlite: reading NVTX_EVENTS, 1,000,000 of 4,000,000 rows, 80 MB, 6 s left"
    progress.end()
    clock[0] += 1
    assert progress.text() == "trace.sqlite: joining GPU work to its calls, 6 s"


def test_no_time_left_is_made_up(clock: list[float]) -> None:
    progress = Progress("trace.sqlite")
    progress.begin("PROCESSES", None)
    clock[0] += 5
    progress.add(10, 100)
    assert progress.text() == "trace.sqlite: reading PROCESSES, 10 rows, 100 B, 5 s"


def test_each_second_is_charged_once(clock: list[float]) -> None:
    progress = Progress("trace.sqlite")
    clock[0] += 1
    progress("joining GPU work")
    clock[0] += 2
    progress.begin("A", None)
    progress.begin("B", None)  # two tables at a time
    clock[0] += 4
    progress.end()
    clock[0] += 8
    progress.end()
    clock[0] += 16
    progress("checking integrity")
    clock[0] += 32
    stages = progress.profile()["stages"]
    assert {k: s["wall_s"] for k, s in stages.items()} == {"opening": 1, "joining": 18, "reading": 12, "checking": 32}


def test_reading_tells_its_rows() -> None:
    path = trace_path("threads")
    progress = Progress("threads")
    with open_trace(path, watch=progress) as trace:
        height = trace.frame("api").height
    connection = sqlite3.connect(path)
    assert height == connection.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()[0]
    connection.close()
    assert progress.rows == height
    assert progress.size_bytes > 8 * height


SHOW = """
import sys, time
from nsysparse.cli import progress
progress.PATIENCE_S, progress.REFRESH_S = float(sys.argv[1]), 0.02
with progress.progress_line("a\\x1b[31mname") as line:
    line("joining GPU work")
    time.sleep(0.5)
"""


def on_terminal(patience: float) -> str:
    """What the line writes where stderr is a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", SHOW, str(patience)], stderr=theirs, stdout=theirs)
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 4096):
            text += part
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    return text.decode()


def test_the_line_is_shown_on_a_terminal_and_cleared() -> None:
    text = on_terminal(0.0)
    assert "a?[31mname: joining GPU work, 0 s" in text
    assert text.endswith("\r\x1b[K")


def test_what_is_quick_shows_nothing() -> None:
    assert on_terminal(60.0) == ""


def test_nothing_is_shown_in_a_pipe() -> None:
    done = subprocess.run([sys.executable, "-c", SHOW, "0"], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


@pytest.fixture(scope="module")
def long_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording whose analysis takes seconds."""
    target = tmp_path_factory.mktemp("long") / "trace.sqlite"
    subprocess.run([sys.executable, BENCHMARKS / "generate.py", "100000", target], check=True, capture_output=True)
    return target


@pytest.mark.parametrize("after", ["at once", "reading", "later"])
def test_an_interrupt_leaves_nothing_behind(long_trace: Path, tmp_path: Path, after: str) -> None:
    """In WAL mode the analysis works on a temporary copy: while that is there, it is not done."""
    trace, temporary, out, cache = (tmp_path / n for n in ("trace.sqlite", "tmp", "out", "cache"))
    for folder in (temporary, out):
        folder.mkdir()
    shutil.copyfile(long_trace, trace)
    writer = sqlite3.connect(trace)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("UPDATE ThreadNames SET priority = 1")
    writer.commit()
    command = [
        sys.executable,
        "-m",
        "nsysparse",
        "analyze",
        str(trace),
        "-o",
        str(out / "r.html"),
        "--cache",
        str(cache),
    ]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    there = {
        "at once": lambda: any(temporary.glob("nsysparse-*/trace.sqlite")),
        "reading": lambda: any(cache.glob("*/*.parquet")),
        "later": lambda: any(cache.glob("*/NVTX_EVENTS*.parquet")),
    }[after]
    while not there():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)
    writer.close()
    assert process.returncode == 130, said
    assert said[1].strip() == "Interrupted: nothing was written."
    assert list(temporary.iterdir()) == []
    assert list(out.iterdir()) == []
    assert [f for f in cache.rglob("*") if f.name.endswith(".tmp")] == []


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["-h"], ["analyze", "--help"]])
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys\nfrom nsysparse.cli import main\nsys.argv[1:] = " + repr(arguments) + "\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code, done.code\n"
        f"print('HEAVY:', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "nsysparse" in done.stdout
    assert done.stdout.splitlines()[-1] == "HEAVY: []"
