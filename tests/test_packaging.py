"""The wheel holds what the checkout holds, and works outside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from traces import trace_path

ROOT = Path(__file__).parent.parent
MOVED = {"queries/": "nsysparse/_data/queries/", "reports/templates/": "nsysparse/_data/templates/"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


def checkout():
    files = set()
    for folder in ("nsysparse", "queries", "reports/templates"):
        for file in (ROOT / folder).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                name = file.relative_to(ROOT).as_posix()
                for source, target in MOVED.items():
                    name = target + name.removeprefix(source) if name.startswith(source) else name
                files.add(name)
    return files


def test_the_wheel_lists_what_the_checkout_lists(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {n for n in archive.namelist() if ".dist-info/" not in n}
    assert packed == checkout()
    assert any(n.endswith(".sql") for n in packed)
    assert any(n.endswith("report.html") for n in packed)


def test_the_installed_wheel_works_from_another_folder(wheel, tmp_path):
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    environment = os.environ | {"PYTHONPATH": str(site)}

    def run(*arguments):
        command = [sys.executable, "-m", "nsysparse", *arguments]
        return subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)

    where = [sys.executable, "-c", "import nsysparse; print(nsysparse.__file__)"]
    found = subprocess.run(where, cwd=elsewhere, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(site))
    done = run("analyze", str(trace_path("llama_default")))
    assert done.returncode == 0, done.stderr
    assert (elsewhere / "llama_default.html").stat().st_size > 10_000
    assert json.loads((elsewhere / "llama_default.json").read_text())["format"] == "nsysparse-analysis"
    listed = run("query", str(trace_path("llama_default")), "copies/by_kind", "--format", "csv")
    assert "1444380672" in listed.stdout
