from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nsysparse.census import dump, windows

from . import lines
from .fake import Fake


def cli(*arguments: object, status: int = 0, **env: str) -> str:
    """Run the real command line; return stdout, or stderr when it must fail."""
    command = [sys.executable, "-m", "nsysparse", "census", *map(str, arguments)]
    clean = {k: v for k, v in os.environ.items() if k != "CUDA_INJECTION64_PATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**clean, **env}, timeout=60)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


def test_show_totals_rates_and_per_request(tmp_path: Path) -> None:
    lines.server(tmp_path)
    text = cli("show", tmp_path, "--after", 3, "--requests", 7)
    table = {row.split("  ")[0]: row.split()[-3:] for row in text.splitlines()}
    assert table["kernels"] == ["7,000", "1,000", "1,000"]
    assert table["copies DtoH device to pageable"] == ["70", "10", "10"]
    assert "after the first 3 s" in text
    assert "100.0%" in text
    assert "0 H200 of 10 server" in text


def test_show_json_is_exact(tmp_path: Path) -> None:
    lines.server(tmp_path)
    (data,) = json.loads(cli("show", tmp_path, "--json"))
    (count,) = data["counts"]
    assert count["kernels"] == 10_000
    assert count["copies"][0]["bytes"] == 5_000_000
    assert count["copies"][1]["sizes"] == {"20": 100}
    assert count["coverage_ratio"] == 1.0


@pytest.mark.parametrize("per", ["process", "device"])
def test_show_per_process_and_device(tmp_path: Path, per: str) -> None:
    lines.server(tmp_path, 1)
    lines.server(tmp_path, 2)
    text = cli("show", tmp_path, "--per", per)
    assert text.count("process 1 server\n") == text.count("process 2 server\n") == 1
    assert text.count("10,000 ") == 2


def test_show_two_side_by_side_per_request(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    lines.server(before)
    lines.write(after, lines.header(), lines.totals(5, [lines.device(2500)], final=True))
    text = cli("show", before, after, "--requests", 10, "--requests-other", 5)
    row = next(line for line in text.splitlines() if line.startswith("kernels "))
    assert row.split()[-3:] == ["1,000", "500", "-50.0%"]
    row = next(line for line in text.splitlines() if line.startswith("copies DtoH device to pageable, bytes"))
    assert row.split()[-3:] == ["kB", "n/a", "n/a"]
    assert "Totals: requests are unknown" in cli("show", before, after)


def test_show_marks_and_times(tmp_path: Path) -> None:
    lines.server(tmp_path)
    marks = [
        {"unix_ns": lines.START + s * lines.SECOND, "label": n, "requests": r} for s, n, r in [(2, "a", 0), (4, "b", 2)]
    ]
    (tmp_path / "marks.jsonl").write_text("".join(json.dumps(m) + "\n" for m in marks))
    assert "Requests: 2\n" in cli("show", tmp_path, "--between", "a", "b")
    start = lines.START // lines.SECOND
    assert " 3,000 " in cli("show", tmp_path, "--since", start + 2, "--until", start + 5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--between", "x", "y"], "no mark 'x'"),
        (["--after", "100"], "only 10.0 s long"),
        (["--after", "1", "--since", "5"], "named in one way"),
        (["--since", "soon"], "is not a time"),
        (["--since", "9", "--until", "5"], "ends before it starts"),
    ],
)
def test_windows_that_make_no_sense(tmp_path: Path, arguments: list[str], said: str) -> None:
    lines.server(tmp_path)
    text = cli("show", tmp_path, *arguments, status=2)
    assert text.startswith("Error: ")
    assert said in text
    assert "Hint: " in text
    assert "Traceback" not in text


def test_show_without_work_and_with_notes(tmp_path: Path) -> None:
    note = {"record": "note", "unix_ns": 1, "text": "CUPTI is in use by another tool\x1b[2J"}
    lines.write(tmp_path, lines.header(), note)
    text = cli("show", tmp_path)
    assert "No GPU work was recorded" in text
    assert "in use by another tool" in text
    assert "\x1b" not in text


def test_unknown_values_are_shown_as_such(tmp_path: Path) -> None:
    lines.write(tmp_path, lines.header(), lines.totals(1, [lines.device(1) | {"kernels": None, "copies": None}]))
    text = cli("show", tmp_path)
    assert next(line for line in text.splitlines() if line.startswith("kernels")).split() == [
        "kernels",
        "n/a",
        "n/a",
    ]


def test_env_prints_variables_and_makes_the_folder(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.touch()
    out = tmp_path / "a folder"
    text = cli("env", "--out", out, "--library", library, "--on", 10, "--every", 60)
    assert f"export NSYSPARSE_CENSUS_DIR='{out}'\n" in text
    assert "export NSYSPARSE_CENSUS_EVERY=60\n" in text
    assert out.is_dir()
    assert f"CUDA_INJECTION64_PATH={library}\n" in cli("env", "--out", out, "--library", library, "--format", "plain")


def test_run_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.touch()
    base = ["run", "--library", library, "--out", tmp_path / "out"]
    assert "no program" in cli(*base, "--", "no-such-program", status=2)
    assert "already set" in cli(*base, "--", "true", status=2, CUDA_INJECTION64_PATH="/other/tool.so")
    assert "unknown record kind" in cli(*base, "--kinds", "all", "--", "true", status=2)
    (tmp_path / "file").touch()
    assert "cannot create" in cli("run", "--library", library, "--out", tmp_path / "file" / "x", "--", "true", status=2)


def test_run_mark_off_on_show_end_to_end(fake: Fake, tmp_path: Path) -> None:
    out, script = tmp_path / "out", tmp_path / "script"
    script.write_text("steady 4000 1000\nexit 7\n")
    command = [sys.executable, "-m", "nsysparse", "census", "run", "--library", fake.folder / "recorder.so",
               "--out", out, "--interval", "0.1", "--", fake.folder / "host", script]  # fmt: skip
    env = {**os.environ, "NSYSPARSE_CENSUS_CUPTI": str(fake.folder / "libcupti.so.13")}
    program = subprocess.Popen(list(map(str, command)), env=env, stderr=subprocess.PIPE, text=True)
    while not list(out.glob("census-*")):
        time.sleep(0.02)
    assert "1 of 1 recorders took note" in cli("mark", out, "begin", "--requests", 0)
    time.sleep(0.5)
    assert "1 of 1 recorders took note" in cli("mark", out, "end", "--requests", 4)
    assert cli("off", out) == f"Off: {out}\n"
    time.sleep(0.3)
    assert cli("on", out) == f"On: {out}\n"
    assert program.wait(timeout=30) == 7, "the exit status is the program's own"
    assert program.communicate()[1] == f"Recording into {out}\n"
    census = dump.read(out)
    window = windows.between_marks(census, "begin", "end")
    (c,) = windows.count(census, window)
    assert c.kernels is not None
    assert 300 < c.kernels < 3000
    assert {line["why"] for line in census.processes[0].lines()} >= {"interval", "mark", "off", "on", "exit"}
    assert "Requests: 4" in cli("show", out, "--between", "begin", "end")


def test_follow_ends_with_the_programs(fake: Fake, tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = fake.start(out, ["steady 2500 1000\n"])
    while not list(out.glob("census-*")):
        time.sleep(0.02)
    text = cli("show", out, "--follow")
    assert program.wait() == 0
    program.communicate()
    rows = text.splitlines()
    assert rows[0].startswith("time")
    assert len(rows) >= 3
    assert 300 < float(rows[1].split()[1].replace(",", "")) < 1500
