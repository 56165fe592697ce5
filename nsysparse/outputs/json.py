"""The analysis as JSON: exact integers, stable order, no time of writing: the same input gives the same bytes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

import polars as pl

from nsysparse.accounting.device import DeviceAccount
from nsysparse.analysis import Analysis
from nsysparse.findings import Failed, Finding, Outcome, Quiet, Skipped

if TYPE_CHECKING:
    from nsysparse.crosscheck import Crosscheck

FORMAT, FORMAT_VERSION = "nsysparse-analysis", 1
LONG = 64  # values of a list from which the encoder's C code pays
MAX_ROWS = 1_000  # of a table; ``rows_total`` says how many there are


def to_json(analysis: Analysis, max_rows: int = MAX_ROWS, crosscheck: Crosscheck | None = None) -> str:
    """The whole analysis as a JSON text; see docs/json.md for the fields."""
    return _written(to_dict(analysis, max_rows, crosscheck)) + "\n"


def to_dict(analysis: Analysis, max_rows: int = MAX_ROWS, crosscheck: Crosscheck | None = None) -> dict[str, Any]:
    """The whole analysis as plain data."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "nsysparse_version": analysis.version,
        "trace": analysis.trace,
        "options": _plain(dataclasses.asdict(analysis.options)),
        "verdict": list(analysis.verdict),
        "integrity": _plain(analysis.integrity.to_dict()),
        "coverage": _plain(analysis.coverage.to_dicts()),
        "recorded": [dataclasses.asdict(r) for r in analysis.recorded],
        "findings": [_finding(f) for f in analysis.findings],
        "rules": [_outcome(o) for o in analysis.outcomes],
        "lost_time": _plain(analysis.lost.to_dicts()),
        "devices": [_device(d, max_rows) for d in analysis.devices],
        "call_paths": _call_paths(analysis, max_rows),
        "crosscheck": None if crosscheck is None else _plain(crosscheck.to_dict()),
    }


def _call_paths(analysis: Analysis, max_rows: int) -> dict[str, Any] | None:
    if analysis.call_paths is None:
        return None
    flame = analysis.call_paths.flame
    totals = {w.key: flame.total(w.key) for w in flame.weights}
    tables = {name: table_to_dict(frame, max_rows) for name, frame in analysis.call_paths.tables.items()}
    return {"window_ns": flame.window_ns, "totals": totals, "stacks": dict(flame.stacks), "tables": tables}


def _device(account: DeviceAccount, max_rows: int) -> dict[str, Any]:
    requests = account.requests
    data = {
        "device": account.device,
        "window": dataclasses.asdict(account.window),
        "figures": account.figures(),
        "phases": account.phases,
        "loading": dataclasses.asdict(account.loading) if account.loading else None,
        "startup": dataclasses.asdict(account.startup) if account.startup else None,
        "requests": {
            "count": requests.count,
            "basis": requests.basis,
            "unclaimed_operations": requests.unclaimed,
        }
        if requests
        else None,
    }
    return dict(_plain(data)) | {
        "tables": {name: table_to_dict(frame, max_rows) for name, frame in account.tables.items()},
        "timeline": _known(account.timeline).to_dict(as_series=False),
    }


def table_to_dict(frame: pl.DataFrame, max_rows: int = MAX_ROWS) -> dict[str, Any]:
    """A table as its columns' names, how many rows there are, and the first of them."""
    shown = _known(frame.head(max_rows))
    return {
        "columns": frame.columns,
        "rows_total": frame.height,
        "rows": list(map(list, shown.rows())),
    }


def _known(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with NULL for numbers that JSON cannot hold, as :func:`_plain` has it for single values."""
    # A sum is quick, and finite where all values are.
    wrong = [c for c in frame if c.dtype.is_float() and not math.isfinite(c.sum()) and not c.is_finite().all()]
    return frame.with_columns(pl.when(c.is_finite()).then(c) for c in wrong) if wrong else frame


def _finding(finding: Finding) -> dict[str, Any]:
    severity = {"severity": finding.severity.name.lower()}
    return dict(_plain({"id": finding.id} | dataclasses.asdict(finding) | severity))


def _outcome(outcome: Outcome) -> dict[str, Any]:
    kinds = {Finding: "fired", Quiet: "quiet", Skipped: "skipped", Failed: "failed"}
    why = outcome.reason if isinstance(outcome, Skipped) else outcome.error if isinstance(outcome, Failed) else None
    return {"rule": outcome.rule, "device": outcome.device, "outcome": kinds[type(outcome)], "why": why}


def _plain(value: Any) -> Any:
    """Numbers that JSON cannot hold become null: unknown, never 0."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"JSON cannot hold {value}")
    return float.__repr__(value)


_TEXTS: dict[type, Callable[[Any], str]] = {
    str: encode_basestring,
    int: int.__repr__,
    float: _number,
    bool: lambda value: "true" if value else "false",
    type(None): lambda _: "null",
}


def _are_single(values: Iterable[Any]) -> bool:
    return _TEXTS.keys() >= set(map(type, values))


def _is_row(value: Any) -> bool:
    return type(value) is list and bool(value)


def _dumped(value: Sequence[Any], between: str) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(f",{between}", ": "))


def _written(value: Any, newline: str = "\n") -> str:
    """What ``json.dumps(value, ensure_ascii=False, indent=1)`` writes, which is slow: C code does it only unindented.

    A long list of single values, and a list of rows of them, is left to it all the same: what goes between its items is
    the line break, which no text holds, for it is escaped there.

    Args:
        value: Plain data.
        newline: What a new line of the text that holds it begins with.
    """
    inner = f"{newline} "
    if isinstance(value, dict):
        items = [f"{encode_basestring(str(k))}: {_written(v, inner)}" for k, v in value.items()]
        return f"{{{inner}{f',{inner}'.join(items)}{newline}}}" if items else "{}"
    if isinstance(value, (list, tuple)):
        if len(value) >= LONG and _are_single(value):
            return f"[{inner}{_dumped(value, inner)[1:-1]}{newline}]"
        if value and all(map(_is_row, value)) and _are_single(chain.from_iterable(value)):
            within = f"{inner} "
            rows = _dumped(value, within)[2:-2].replace(f"],{within}[", f"{inner}],{inner}[{within}")
            return f"[{inner}[{within}{rows}{inner}]{newline}]"
        items = [_TEXTS[type(v)](v) if type(v) in _TEXTS else _written(v, inner) for v in value]
        return f"[{inner}{f',{inner}'.join(items)}{newline}]" if items else "[]"
    single = _TEXTS.get(type(value))
    return single(value) if single else json.dumps(value, ensure_ascii=False, allow_nan=False)
