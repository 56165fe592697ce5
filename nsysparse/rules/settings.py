"""Thresholds of the rules: their defaults with their sources, and how a user changes them.

A threshold has a name, ``rule.threshold``. It is changed with ``--set rule.threshold=value``, or in the table
``[tool.nsysparse]`` of the nearest ``nsysparse.toml`` or ``pyproject.toml``::

    [tool.nsysparse]
    "scalar_readback.max_bytes" = 16

    [tool.nsysparse.launch_bound]
    low = 0.3
    high = 0.7

The command line wins over the file.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsysparse.errors import UsageError

TIGHT = (
    "Careful runs tell 5% from noise; 10% is worth a change of the program; winning 20% makes it 1.25 times as fast."
)
LOOSE = "The bound is loose: kernels need some host, somebody has to do its work, and the profiler adds to every call."
FILES = ("nsysparse.toml", "pyproject.toml")


@dataclass(frozen=True)
class Threshold:
    """One number that a rule judges by.

    Attributes:
        value: The default.
        unit: ``ratio``, ``ns``, ``bytes`` or ``number``.
        why: Where the number comes from, one sentence.
    """

    value: float
    unit: str
    why: str


def shares(
    low: float = 0.05, medium: float = 0.10, high: float = 0.20, *, floor: float = 0.005, why: str = TIGHT
) -> dict[str, Threshold]:
    """The four thresholds that turn a share of wall time or of request latency into a severity.

    The defaults are for rules whose bound is tight; see TIGHT.
    """
    return {
        "floor": Threshold(floor, "ratio", "Below this share the rule says nothing: it is not worth reading."),
        "low": Threshold(low, "ratio", f"{why} From this share on: low."),
        "medium": Threshold(medium, "ratio", "From this share on: medium."),
        "high": Threshold(high, "ratio", "From this share on: high."),
    }


def resolve(defaults: Mapping[str, Threshold], changed: Mapping[str, float]) -> dict[str, float]:
    """All thresholds, the changed ones in place.

    Args:
        defaults: Full name to threshold.
        changed: Full name to the user's value.

    Raises:
        UsageError: A name that no rule has, or a value that is no positive number.
    """
    for name, value in changed.items():
        if name not in defaults:
            raise UsageError(f"no threshold '{name}'", _known(name, list(defaults)))
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise UsageError(f"threshold '{name}': {value!r} is no number from 0 up", "give a number")
    return {name: float(changed.get(name, t.value)) for name, t in defaults.items()}


def _known(name: str, known: list[str]) -> str:
    rule = name.partition(".")[0]
    same = [k for k in known if k.startswith(f"{rule}.")]
    near = same or difflib.get_close_matches(name, known, 5)
    return "known thresholds: " + ", ".join(near or known)


def parse_pairs(pairs: Iterable[str]) -> dict[str, float]:
    """Read ``rule.threshold=value`` as it stands on a command line.

    Raises:
        UsageError: It is no such pair.
    """
    found = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            separator = ""
        if not separator or "." not in name:
            raise UsageError(f"--set {pair}: not of the form rule.threshold=value", "as in --set launch_bound.low=0.3")
    return found


def gather_settings(pairs: Iterable[str], folder: Path) -> dict[str, float]:
    """Thresholds of the nearest settings file at or above a folder, and of the command line, which wins.

    Raises:
        UsageError: One of them cannot be read.
    """
    file = find_file(folder)
    return (read_file(file) if file else {}) | parse_pairs(pairs)


def find_file(start: Path) -> Path | None:
    """The nearest settings file at or above a folder with a table for nsysparse; unreadable ones are passed over."""
    for folder in (start, *start.parents):
        for path in (folder / name for name in FILES):
            try:
                if path.is_file() and _table(path) is not None:
                    return path
            except UsageError:
                continue
    return None


def read_file(path: Path) -> dict[str, float]:
    """Thresholds of a settings file: dotted names, or a table a rule.

    Raises:
        UsageError: The file is no TOML, or holds something that is no number.
    """
    found: dict[str, float] = {}
    for name, value in (_table(path) or {}).items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        for threshold, number in inner:
            full = f"{name}.{threshold}" if threshold else name
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise UsageError(f"{path.name}: threshold '{full}' is no number", "give a number")
            found[full] = float(number)
    return found


def _table(path: Path) -> dict[str, Any] | None:
    """The file's table for nsysparse; None when it has none."""
    try:
        document = _toml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path.name}", "check its permissions and that it is UTF-8") from error
    except ValueError as error:
        raise UsageError(f"{path.name} is no TOML: {' '.join(str(error).split())[:120]}", "correct it") from error
    tool = document.get("tool")
    table = tool.get("nsysparse") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else None


def _toml(text: str) -> dict[str, Any]:
    try:
        reader = importlib.import_module("tomllib")
    except ModuleNotFoundError:
        return _simple_toml(text)
    document: dict[str, Any] = reader.loads(text)
    return document


def _simple_toml(text: str) -> dict[str, Any]:
    """Tables and numbers of a TOML file, for Python 3.10, which has no reader of its own; all else is passed over."""
    document: dict[str, Any] = {}
    table: dict[str, Any] | None = document
    for line in (raw.strip() for raw in text.splitlines()):
        if line.startswith("["):
            table = _enter(document, line) if line.endswith("]") and not line.startswith("[[") else None
            continue
        key, _, value = line.partition("=")
        with contextlib.suppress(ValueError):
            number = float(value.partition("#")[0])
            if table is not None:
                table[key.strip().strip("\"'")] = number
    return document


def _enter(document: dict[str, Any], header: str) -> dict[str, Any] | None:
    table = document
    for part in header.strip("[]").split("."):
        table = table.setdefault(part.strip().strip("\"'"), {})
        if not isinstance(table, dict):
            return None
    return table
