"""Tables as a template shows them: every cell is formatted here, with its exact value beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import polars as pl

from nsysparse import units
from nsysparse.definitions import DEFINITIONS
from nsysparse.report.text import clipped

Row = Mapping[str, Any]


class Cell(NamedTuple):
    """One value; a tuple, for a page holds ten thousands of them.

    Attributes:
        text: As it is read.
        exact: Every digit, with the unit; empty for texts.
        css: Class of the cell.
        more: A longer text to open, or None.
        bar: Length of the bar behind a share, 0 to 100, or None.
        marked: Whether this is a share of a window with a hole in it.
        term: Key of the definition that the text links to, or empty.
    """

    text: str
    exact: str = ""
    css: str = "text"
    more: str | None = None
    bar: str | None = None
    marked: bool = False
    term: str = ""


@dataclass(frozen=True)
class Head:
    """One column's header: its title, the key of its definition (or empty), its class."""

    title: str
    term: str
    css: str


@dataclass(frozen=True)
class TableView:
    """A table ready to be shown.

    Attributes:
        title: Caption.
        heads: Columns.
        rows: Cells.
        total: Rows that there are.
        order: What the first rows have most of, to be said when the table is cut.
    """

    title: str
    heads: tuple[Head, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total: int
    order: str

    @property
    def cut(self) -> str:
        """``20 of 134 shown, ...`` when rows were left out, else empty."""
        if self.total <= len(self.rows):
            return ""
        order = f", {self.order} first" if self.order else ""
        return f"{units.count(len(self.rows))} of {units.count(self.total)} shown{order}"


@dataclass(frozen=True)
class Format:
    """How a column's values are shown: the text, the unit of the exact value, the class of its cells."""

    text: Callable[[Any], str]
    unit: str
    css: str = "num"


FORMATS: dict[str, Format] = {
    "count": Format(units.count, ""),
    "size": Format(units.size, " B"),
    "duration": Format(units.duration, " ns"),
    "bandwidth": Format(units.bandwidth, " B/s"),
    "percent": Format(units.percent, ""),
    "share": Format(units.percent, ""),  # of a window: marked where that is over a hole
    "instant": Format(units.instant, " ns"),
}
_BY_SUFFIX = {"_ns": "duration", "bytes": "size", "_ratio": "percent", "bandwidth": "bandwidth"}
_BY_SUFFIX |= dict.fromkeys(("bytes_per_second", "reach"), "bandwidth")
_BY_UNIT = {"time": "duration", "bytes": "size", "number": "count"}


def cell(value: Any, kind: str, marked: bool = False) -> Cell:
    """One number.

    Args:
        value: A number, or None for unknown.
        kind: A key of FORMATS.
        marked: Whether shares are over a hole in the recording.
    """
    form = FORMATS[kind]
    text = form.text(value)
    if text == units.UNKNOWN:
        return Cell(text, "not known", "num unknown")
    share = kind == "share"
    return Cell(text, units.exact(value) + form.unit, form.css, marked=marked and share)


def table(
    data: pl.DataFrame | Sequence[Row],
    title: str,
    columns: Sequence[Sequence[str]],
    *,
    top: int,
    marked: bool = False,
    order: str = "",
    total: int | None = None,
) -> TableView:
    """Make a table.

    Args:
        data: A frame, or rows.
        title: Its caption.
        columns: For each column: its name in the data, its header, its format, and the key of its definition ("" for
            none). A format is a key of FORMATS or of the text formats; with a ``?`` at its end the column is left out
            when every value is unknown or 0, with ``+bar`` a bar shows the share.
        top: Rows to show at most.
        marked: Whether shares are over a hole in the recording; a row's own ``over_hole`` goes first.
        order: What the table is sorted by, in words.
        total: Rows there are, where the data is already cut.
    """
    rows: Sequence[Row] = data.head(top).to_dicts() if isinstance(data, pl.DataFrame) else data[:top]
    kept = [c for c in columns if not c[2].endswith("?") or _worth_showing(data, c[0])]
    heads, makers = [], []
    for name, header, style, term in kept:
        if term and term not in DEFINITIONS:
            raise KeyError(f"no definition of '{term}' (column '{header}')")
        maker = _maker(name, style.removesuffix("?"), marked)
        heads.append(Head(header, term, "num" if _is_number(style) else "text"))
        makers.append(maker)
    cells = tuple(tuple(make(row) for make in makers) for row in rows)
    return TableView(title, tuple(heads), cells, max(total or 0, len(data)), order)


def _worth_showing(data: Any, name: str) -> bool:
    if isinstance(data, pl.DataFrame):
        return bool(data[name].max() or data[name].min())
    return any(row.get(name) for row in data)


def _is_number(style: str) -> bool:
    return style.removesuffix("?").removesuffix("+bar") in {*FORMATS, "by unit", "by name"}


def _maker(name: str, style: str, marked: bool) -> Callable[[Row], Cell]:
    if style in _TEXTS:
        return lambda row: _TEXTS[style](row.get(name), row)
    if style == "by unit":
        return lambda row: cell(row[name], _BY_UNIT[row["unit"]])
    kind = style.removesuffix("+bar")
    if kind == style:
        return lambda row: cell(row[name], kind, row.get("over_hole", marked))
    return lambda row: _with_bar(cell(row[name], kind, row.get("over_hole", marked)), row[name])


def _with_bar(shown: Cell, value: Any) -> Cell:
    if not shown.exact or value is None:
        return shown
    length = f"{min(max(100 * value, 0), 100):.4g}"
    return Cell(shown.text, shown.exact, shown.css, None, length, shown.marked)


def _text(value: Any, _: Row) -> Cell:
    return Cell(clipped(str(value))) if value is not None else Cell(units.UNKNOWN, css="text unknown")


def _long(value: Any, row: Row) -> Cell:
    shown = _text(value, row)
    return Cell(shown.text, css=f"{shown.css} long")


def _short(value: Any, row: Row) -> Cell:
    shown = _text(value, row)
    return Cell(shown.text, css=f"{shown.css} short")


def _code(value: Any, _: Row) -> Cell:
    return Cell(clipped(str(value)), css="code") if value else Cell(units.UNKNOWN, css="text unknown")


def _path(value: Any, _: Row) -> Cell:
    return Cell(clipped(str(value)), css="code") if value else Cell("(no range)", css="text unknown")


def _kernel(value: Any, row: Row) -> Cell:
    whole = row.get("name")
    more = clipped(str(whole)) if whole and whole != value else None
    return Cell(clipped(str(value), 200), css="code", more=more)


def _call_path(value: Any, row: Row) -> Cell:
    frames = " → ".join(str(f) for f in row.get("frames") or ())
    if not value:
        return Cell(units.UNKNOWN, css="text unknown")
    return Cell(clipped(str(value), 300), css="code", more=clipped(frames, 2_000) or None)


def _term(value: Any, row: Row) -> Cell:
    text = str(value)
    css = "text indent" if text.startswith("\u2003") else "text"
    return Cell(text.strip(), css=css, term=DEFINITIONS[row["term"]].key)


def _memory(_: Any, row: Row) -> Cell:
    return Cell(f"{row['src']} to {row['dst']}", css="text short")


def _thread(value: Any, row: Row) -> Cell:
    name = row.get("thread_name", row.get("name"))
    if value is None:
        return Cell(str(name) if name else units.UNKNOWN, css="text" if name else "text unknown")
    ids = f"process {value >> 24 & 0xFFFFFF}, thread {value & 0xFFFFFF}"
    return Cell(f"{clipped(str(name or '(unnamed thread)'), 100)} ({ids})", css="text long")


_TEXTS: dict[str, Callable[[Any, Row], Cell]] = {
    "text": _text,
    "long": _long,
    "short": _short,
    "code": _code,
    "path": _path,
    "kernel": _kernel,
    "call path": _call_path,
    "thread": _thread,
    "memory": _memory,
    "term": _term,
}


def by_name(name: str, value: object) -> Cell:
    """A value of a finding's evidence, formatted by what its name ends in."""
    if isinstance(value, bool) or value is None or not isinstance(value, (int, float)):
        if isinstance(value, (list, tuple)):
            value = ", ".join(str(v) for v in value)
        elif isinstance(value, dict):
            value = ", ".join(f"{k}: {v}" for k, v in value.items())
        return Cell(clipped(units.exact(value)), css="text")
    if name in {"start_ns", "end_ns", "from_ns", "to_ns"}:
        return cell(value, "instant")
    return cell(value, next((kind for suffix, kind in _BY_SUFFIX.items() if name.endswith(suffix)), "count"))
