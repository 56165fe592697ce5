"""The README's commands, their outputs and its Python example are true."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from traces import trace_path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
CONSOLE = re.findall(r"```console\n(.*?)```", README, re.S)
PYTHON = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", README, re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the README's reader sits: a folder with the recording in it."""
    where = tmp_path_factory.mktemp("readme")
    shutil.copyfile(trace_path("llama_default"), where / "llama_default.sqlite")
    shutil.copyfile(trace_path("state_checkpoint"), where / "state_checkpoint.sqlite")
    return where


def run(command, folder):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return (done.stdout + done.stderr).rstrip("\n")


def matches(shown, printed):
    """Equal, where a line of three dots stands for any lines."""
    parts = [re.escape(p) for p in re.split(r"(?m)^\.\.\.$\n?", shown.rstrip("\n") + "\n")]
    return re.fullmatch(r"(?:.*\n)*?".join(parts), printed + "\n") is not None


def commands():
    for block in CONSOLE:
        for part in re.split(r"(?m)^\$ ", block)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


@pytest.mark.parametrize(("command", "shown"), list(commands()), ids=[c for c, _ in commands()])
def test_command(command, shown, folder):
    printed = run(command, folder)
    assert matches(shown, printed), f"README shows:\n{shown}\nprinted:\n{printed}"


@pytest.mark.parametrize(("code", "shown"), PYTHON)
def test_python_example(code, shown, folder):
    (folder / "example.py").write_text(code)
    assert matches(shown, run(f"{sys.executable} example.py", folder))


def test_the_readme_shows_its_main_commands():
    shown = " ".join(c for c, _ in commands())
    for command in ("nsysparse analyze", "nsysparse info", "nsysparse query"):
        assert command in shown
    assert PYTHON
    assert "make demo" in README
    assert "make test" in README
