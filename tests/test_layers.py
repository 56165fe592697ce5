"""Imports point one way, modules stay small, and only the command line prints or exits."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "nsysparse"
# Each layer may import itself and those to its left.
LAYERS = (
    "_version beside errors units intervals findings nulls data definitions watch side_by_side shelf memory lazy",
    "schema",
    "cache",
    "source",
    "queries",
    "joins",
    "stacks",
    "accounting",
    "flamegraph",
    "integrity",
    "rules",
    "coverage recorded verdict",
    "analysis",
    "census",
    "crosscheck",
    "stats",
    "report outputs",
    "scrub batch",
    "__init__",
    "cli",
    "__main__",
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names.split()}
FILES = sorted(PACKAGE.rglob("*.py"))


def layer_of(parts):
    return "__init__" if not parts else parts[0]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(PACKAGE).as_posix())
def test_imports_point_one_way(file):
    own = layer_of([p.removesuffix(".py") for p in file.relative_to(PACKAGE).parts])
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "nsysparse":
            names = [f"nsysparse.{a.name}" for a in node.names]
        for name in (n for n in names if n.split(".")[0] == "nsysparse"):
            target = name.split(".")[1:2]
            target = target if target and target[0] in RANK else []
            assert RANK[layer_of(target)] <= RANK[own], f"{own} must not import {name}"


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(PACKAGE).as_posix())
def test_modules_and_functions_stay_small(file):
    text = file.read_text("utf-8")
    assert len(text.splitlines()) <= 420
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            doc = node.body[0] if ast.get_docstring(node) else None
            lines = node.end_lineno - node.body[0].lineno + 1 - (doc.end_lineno - doc.lineno + 1 if doc else 0)
            assert lines <= 45, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(PACKAGE).as_posix())
def test_only_the_command_line_prints_or_exits(file):
    if file.relative_to(PACKAGE).parts[0] in {"cli", "__main__.py"}:
        return
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in {"print", "sys.exit", "exit", "click.echo"}, f"{name} in {file.name}"
