"""The command line: help, info, query, exit statuses, and what reaches the terminal."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from analyzed import MS, NEWEST, TID, US, analyze_file, machine
from commandline import CommandLine
from export_builder import DEVICE, HTOD, PINNED, ExportBuilder
from export_scenario import standard_scenario

from nsysparse import __version__, units
from nsysparse.analysis import analyze
from nsysparse.cli import COMMANDS
from nsysparse.cli.options import progress_line
from nsysparse.findings import Finding, Severity

HOSTILE = "ev\x1b[2J\x07il\x9b31m\u202e"
SHOWN = r"ev\x1b[2J\x07il\x9b31m\u202e"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    (tmp_path / "here").mkdir()
    return CommandLine(tmp_path / "here", monkeypatch, capfd)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    b = ExportBuilder(NEWEST)
    standard_scenario(b)
    return b.write(tmp_path_factory.mktemp("export") / "trace.sqlite")


# --- help ---


def test_help_and_version(cli: CommandLine) -> None:
    overview = cli("--help")
    assert overview.code == 0
    shown = " ".join(overview.out.split())
    assert all(f"{name} {text}" in shown for name, (_, text) in COMMANDS.items())
    assert cli("--version").out == f"nsysparse {__version__}\n"
    assert cli("-h").out == overview.out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--window", "1s..2s"], "--window is about a trace"),
        (["--device", "9"], "--device is about a trace"),
        (["--fail-on", "medium"], "--fail-on is about a trace"),
        (["--set", "launch_bound.low=0.3"], "--set is about a trace"),
    ],
)
def test_options_of_a_trace_without_one(given: list[str], said: str, cli: CommandLine) -> None:
    """A report of a census alone must not look as if it had passed what was never asked."""
    done = cli("analyze", "--census", "census", *given)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_options_of_a_census_without_one(export: Path, cli: CommandLine) -> None:
    done = cli("analyze", str(export), "--marks", "a", "b")
    assert (done.code, done.out) == (2, "")
    assert "--marks is about a census" in done.err


@pytest.mark.parametrize("command", [("analyze", "--json"), ("flamegraph", "-o"), ("stats", "-o"), ("scrub", "-o")])
def test_a_dash_is_no_file(command: tuple[str, str], export: Path, cli: CommandLine) -> None:
    done = cli(command[0], str(export), command[1], "-")
    assert (done.code, done.out) == (2, "")
    assert "'-' is no name of a file" in done.err
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_of_each_command(command: str, cli: CommandLine) -> None:
    done = cli(command, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: nsysparse {command} ")
    for line in done.out.split("Options:")[1].splitlines():  # every option says what it does
        assert not line.strip().startswith("--") or "  " in line.strip() or len(line) > 30, line


def test_what_help_offers_works(cli: CommandLine) -> None:
    said = cli("analyze", "--help").out
    assert all(word in said for word in ("--window", "--device", "--request-range", "--requests", "--top", "--fail-on"))
    assert "Examples:" in said


def test_help_imports_no_library_that_takes_long() -> None:
    code = (
        "import sys; sys.argv = ['nsysparse', '--help']\n"
        "from nsysparse.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'polars', 'pyarrow', 'numpy', 'jinja2', 'altair', 'sqlite_utils', 'adbc_driver_sqlite', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("arguments", "status"), [(["rules"], 0), (["info", "no such file"], 2)])
def test_the_program_ends_with_its_status_and_all_that_it_said(arguments: list[str], status: int) -> None:
    run = f"import sys; sys.argv[1:] = {arguments!r}; from nsysparse.cli import run; print('first'); run()"
    ended, whole = (
        subprocess.run([sys.executable, *how], capture_output=True, text=True, check=False)
        for how in (["-c", run], ["-m", "nsysparse", *arguments])
    )
    assert (ended.returncode, whole.returncode) == (status, status)
    assert (ended.stdout, ended.stderr) == ("first\n" + whole.stdout, whole.stderr)


# --- info ---


def test_info(cli: CommandLine, export: Path) -> None:
    done = cli("info", export)
    assert (done.code, done.err) == (0, "")
    assert f"trace.sqlite: sqlite, {units.size(export.stat().st_size)}, exported by nsys {NEWEST}" in done.out
    for line in (
        "  0: NVIDIA L4, 58 SMs, 150.1 GB",
        "  0: GPU 0 (NVIDIA L4) (process 70001, 70002)",
        "            17  kernels",
        "            23  memory copies",
        "  stack frames of CUDA calls: --cudabacktrace=all (the code behind each copy)",
        "100.0% of operations, 100.0% of time  have the API call that sent them",
        "Integrity: ok",
    ):
        assert line in done.out, line


def test_info_as_json(cli: CommandLine, export: Path) -> None:
    facts = json.loads(cli("info", "--json", export).out)
    assert facts["trace"]["release"] == NEWEST
    assert {r["what"]: r["rows"] for r in facts["recorded"]}["kernels"] == 17
    assert [d["label"] for d in facts["devices"]] == ["GPU 0 (NVIDIA L4)", "GPU 1 (NVIDIA H200)"]
    assert facts["integrity"]["status"] == "ok"
    assert facts["coverage"][0]["operations"] == 17 + 23 + 4


# --- exit statuses ---


def find(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    """Let these be what the rules find."""
    monkeypatch.setattr(
        "nsysparse.analysis.analyze", lambda *given: dataclasses.replace(analyze(*given), outcomes=findings)
    )


@pytest.mark.parametrize(
    ("fail_on", "code"), [("info", 1), ("low", 1), ("medium", 1), ("high", 0), ("never", 0), ("incomplete", 0)]
)
def test_exit_status_of_findings(
    fail_on: str, code: int, cli: CommandLine, export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = Finding("fake", Severity.MEDIUM, "high", 0, "a title", "a detail", "a remedy", 1000)
    find(monkeypatch, finding)
    done = cli("analyze", export, "--fail-on", fail_on)
    named = f"Failed, as --fail-on {fail_on} asks: [medium] a title\n" if code else ""
    assert (done.code, done.err) == (code, named)
    assert "[medium] a title\n    a detail\n    What to do: a remedy" in done.out
    assert sorted(p.name for p in cli.folder.iterdir()) == ["trace.html", "trace.json"]  # written all the same


def test_exit_status_of_an_incomplete_recording(cli: CommandLine) -> None:
    b = machine()
    b.launch(TID, (MS, MS + US), (2 * MS, 3 * MS))
    b.api("cudaLaunchKernel_v7000", 2 * MS, 2 * MS + US, TID)
    path = b.write(cli.folder / "trace.sqlite")
    assert cli("analyze", path, "--fail-on", "incomplete").code == 1
    assert cli("analyze", path, "--force").code == 0


def test_no_findings_is_no_failure(cli: CommandLine, export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find(monkeypatch)
    assert cli("analyze", export, "--fail-on", "info").code == 0


# --- analyze ---


def test_where_the_results_go(cli: CommandLine, export: Path) -> None:
    def made(*arguments: object) -> list[str]:
        done = cli("analyze", export, *arguments, "--force")
        assert done.code == 0, done.err
        return [line.removeprefix("Wrote ") for line in done.out.splitlines() if line.startswith("Wrote ")]

    (cli.folder / "there").mkdir()
    assert made() == ["trace.html", "trace.json"]
    assert made("-o", "there") == made("-o", "there/") == ["there/trace.html", "there/trace.json"]
    assert made("-o", "new/deep/") == ["new/deep/trace.html", "new/deep/trace.json"]
    assert made("-o", "a.html", "--json", "there/b.json") == ["a.html", "there/b.json"]
    assert not list(cli.folder.rglob("*.tmp"))
    assert (cli.folder / "a.html").read_bytes() == (cli.folder / "new/deep/trace.html").read_bytes()


def test_devices(cli: CommandLine, export: Path) -> None:
    def gpus(*arguments: str) -> list[int]:
        assert cli("analyze", export, "--force", *arguments).code == 0
        return [d["device"]["gpu"] for d in json.loads((cli.folder / "trace.json").read_text())["devices"]]

    assert gpus() == [0, 1]
    assert gpus("--device", "1") == [1]
    assert gpus("--device", "1", "--device", "0", "--device", "1") == [1, 0]


WINDOWS = {
    "1001ms..1002ms": (1_001_000_000, 1_002_000_000),
    "1.0015..1.0016s": (1_001_500_000, 1_001_600_000),
    "..1s": (980_050_000, 1_000_000_000),
    "nvtx:^request:[12]$": (1_001_000_000, 1_002_900_000),
    "request:3": (1_002_000_000, 1_003_900_000),
    "ranges": (1_000_000_000, 1_003_900_000),
    "steady": (1_001_000_000, 1_003_900_000),
}


@pytest.mark.parametrize("asked", WINDOWS)
def test_windows(asked: str, export: Path) -> None:
    (device,) = analyze_file(export, window=asked, devices=(1,)).devices
    assert (device.window.start_ns, device.window.end_ns) == WINDOWS[asked]


def test_names_do_not_steer_the_terminal(cli: CommandLine) -> None:
    b = machine()
    b.rows["TARGET_INFO_GPU"][0]["name"] = HOSTILE
    b.thread(*(TID >> 24 & 0xFFFFFF, TID & 0xFFFFFF), HOSTILE)
    for i in range(3):
        b.push_pop(HOSTILE, *((i + 1) * MS, (i + 2) * MS - US), TID)
        b.memcpy(
            TID, ((i + 1) * MS, (i + 1) * MS + US), ((i + 1) * MS, (i + 1) * MS + 9 * US), 100, HTOD, PINNED, DEVICE
        )
        b.launch(TID, ((i + 1) * MS, (i + 1) * MS + US), ((i + 1) * MS + 10 * US, (i + 1) * MS + 90 * US), name=HOSTILE)
    path = b.write(cli.folder / "trace.sqlite")
    for arguments in (
        ["analyze", path],
        ["info", path],
        ["query", path, "kernels/by_name"],
        ["query", path, "nvtx/ranges"],
    ):
        done = cli(*arguments)
        assert done.code == 0
        assert SHOWN in done.out
        assert not [c for c in done.out if c in HOSTILE and not c.isprintable()], arguments


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_every_format_is_safe_on_a_terminal(form: str, tmp_path: Path) -> None:
    b = machine()
    b.launch(TID, (MS, MS + US), (2 * MS, 3 * MS), name=HOSTILE)
    path = b.write(tmp_path / "trace.sqlite")
    command = [sys.executable, "-m", "nsysparse", "query", str(path), "kernels/by_name", "--format", form]
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(command, stdout=slave, stderr=slave, stdin=slave, env=env) as process:
        os.close(slave)
        seen = b""
        try:
            while chunk := os.read(master, 65_536):
                seen += chunk
        except OSError:  # the other end is closed
            pass
        os.close(master)
    assert process.returncode == 0
    assert b"\x1b[2J" not in seen
    assert b"\x07" not in seen
    assert "\x9b".encode() not in seen
    assert b"[2J" in seen  # its letters are there


def test_a_pipe_gets_the_bytes_as_they_are(cli: CommandLine) -> None:
    b = machine()
    b.launch(TID, (MS, MS + US), (2 * MS, 3 * MS), name=HOSTILE)
    path = b.write(cli.folder / "trace.sqlite")
    assert HOSTILE in cli("query", path, "kernels/by_name", "--format", "csv").out


def test_output_that_nobody_reads(export: Path) -> None:
    query = f"'{sys.executable}' -m nsysparse query '{export}' trace/tables --format csv"
    command = f"{query} | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode in {0, 141}
    assert done.stderr == ""


def test_a_terminal_that_knows_only_ascii(export: Path, tmp_path: Path) -> None:
    b = machine()
    b.rows["TARGET_INFO_GPU"][0]["name"] = "GPU é"
    b.launch(TID, (MS, MS + US), (2 * MS, 3 * MS), name="é")
    path = b.write(tmp_path / "trace.sqlite")
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for arguments in (["info"], ["query", "kernels/by_name"]):
        command = [sys.executable, "-m", "nsysparse", arguments[0], str(path), *arguments[1:]]
        done = subprocess.run(command, capture_output=True, env=env, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert "é".encode() in done.stdout or rb"\xe9" in done.stdout


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_progress_line_shows_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("nsysparse.cli.progress.PATIENCE_S", 0.0)
    with progress_line("[/red] trace") as progress:
        progress("stage [/b]")
        for _ in range(500):  # until the line's thread has had its turn
            if terminal.getvalue():
                break
            time.sleep(0.01)
    assert "[/red] trace" in terminal.getvalue()


def test_no_progress_line_without_a_terminal(cli: CommandLine, export: Path) -> None:
    assert cli("info", export).err == ""


@pytest.mark.parametrize("command", [["analyze", "--force"], ["stats"], ["query", "copies/by_kind"], ["info"]])
def test_what_nobody_reads_is_no_finding(command: list[str], export: Path, tmp_path: Path) -> None:
    """A closed pipe ends a command as SIGPIPE ends others: 1 would say that something was found."""
    reader, writer = os.pipe()
    os.close(reader)
    name, *options = command
    done = subprocess.run(
        [sys.executable, "-m", "nsysparse", name, str(export), *options],
        cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ""
    assert {f.suffix for f in tmp_path.iterdir()} == ({".html", ".json"} if name == "analyze" else set())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_terminal_is_said_plainly(export: Path, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "nsysparse", "info", str(export)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: no space is left where output goes\nHint: ")


def test_what_fails_is_named(cli: CommandLine, export: Path) -> None:
    done = cli("analyze", export, "--fail-on", "info")
    findings = json.loads((cli.folder / "trace.json").read_text())["findings"]
    assert done.code == 1
    assert findings
    assert len(re.findall(r"^Failed, as --fail-on info asks: \[\w+\] ", done.err, re.M)) == len(findings)
