"""Tables of the flame graph's page: call paths that open to their frames, shares of samples, coverage, changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from nsysparse import units
from nsysparse.flamegraph.difference import PER_REQUEST, Difference
from nsysparse.flamegraph.tables import described

MAX_ROWS = 20


@dataclass(frozen=True)
class Cell:
    """One cell: its text, its exact value where it is a number, the frames behind it where it is a call path."""

    text: str
    exact: str = ""
    frames: tuple[str, ...] = ()


@dataclass(frozen=True)
class Head:
    """One column's title, and whether it holds numbers."""

    title: str
    number: bool


@dataclass(frozen=True)
class View:
    """A table as the page shows it."""

    title: str
    note: str
    heads: tuple[Head, ...]
    rows: tuple[tuple[Cell, ...], ...]


# Column -> (title, formatter); a formatter of None is text, "path" a text with frames behind it.
Columns = dict[str, tuple[str, Callable[..., str] | str | None]]


def _view(title: str, note: str, table: pl.DataFrame, columns: Columns, most: int = MAX_ROWS) -> View:
    rows = []
    for row in table.head(most).iter_rows(named=True):
        cells = []
        for column, (_, form) in columns.items():
            value = row[column]
            if form == "path":
                cells.append(Cell(value or "n/a", frames=tuple(row["frames"] or ())))
            elif callable(form):
                cells.append(Cell(form(value), units.exact(value)))
            else:
                cells.append(Cell("n/a" if value is None else str(value)))
        rows.append(tuple(cells))
    cut = f"the first {most} of {units.count(table.height)}" if table.height > most else ""
    heads = tuple(Head(title, callable(form)) for title, form in columns.values())
    return View(title, " ".join(part for part in (note, f"Shown: {cut}." if cut else "") if part), heads, tuple(rows))


def show_copy_paths(table: pl.DataFrame) -> View:
    """The table of :func:`table_copy_paths`."""
    return _view(
        "Who sends the copies",
        "By call path, most exposed time first; a row opens to its frames, from the thread down.",
        table,
        {
            "where": ("Sent by", "path"),
            "operation": ("Copy", None),
            "exposed_ns": ("Exposed", units.duration),
            "exposed_ratio": ("Of the window", units.percent),
            "bytes": ("Bytes", units.size),
            "copies": ("Copies", units.count),
            "blocked_ns": ("Host blocked", units.duration),
        },
    )


def show_waiting_paths(table: pl.DataFrame) -> View:
    """The table of :func:`table_waiting_paths`."""
    return _view(
        "Who waits for the GPU",
        "Synchronize calls and copies that block, by call path, most host-blocked time first.",
        table,
        {
            "where": ("Called by", "path"),
            "api": ("Call", None),
            "calls": ("Calls", units.count),
            "blocked_ns": ("Host blocked", units.duration),
            "blocked_ratio": ("Of the window", units.percent),
            "idle_ns": ("GPU idle meanwhile", units.duration),
            "idle_ratio": ("Of the window", units.percent),
        },
    )


def show_shares(shares: pl.DataFrame) -> View:
    """The table of :func:`nsysparse.accounting.samples.share_samples`."""
    return _view(
        "What the threads were doing when sampled",
        "Told by the sample's stack, and by its time: whether it fell inside such a call of its thread.",
        shares,
        {
            "name": ("Thread", None),
            "tid": ("Id", None),
            "samples": ("CPU samples", units.count),
            "copy_on_stack": ("Copy on the stack", units.count),
            "sync_on_stack": ("Synchronize on the stack", units.count),
            "either_ratio": ("Either", units.percent),
            "inside_copy": ("Inside a copy call", units.count),
            "inside_sync": ("Inside a synchronize call", units.count),
            "inside_ratio": ("Either", units.percent),
        },
        most=10,
    )


def show_coverage(coverage: pl.DataFrame) -> View:
    """The table of :func:`nsysparse.stacks.attribution.measure_stacks`."""
    return _view(
        "How much has a stack",
        "",
        coverage,
        {
            "kind": ("Kind", None),
            "stack": ("Stack", None),
            "by_call": ("Recorded with the call", units.count),
            "by_sample": ("Seen by a sample inside the call", units.count),
            "of_operations": ("Of", units.count),
            "operations_ratio": ("Covered", units.percent),
            "time_ratio": ("Of their time", units.percent),
        },
    )


def show_os_paths(table: pl.DataFrame) -> View:
    """The table of :func:`table_os_paths`."""
    return _view(
        "Where the threads that feed the GPU sit in the OS runtime",
        "Reads, locks and waits, by call path. Only calls that took long have a stack.",
        table,
        {
            "where": ("Called by", "path"),
            "api": ("Call", None),
            "os_ns": ("Time", units.duration),
            "os_ratio": ("Of the window", units.percent),
        },
        most=10,
    )


def show_totals(difference: Difference, names: tuple[str, str]) -> View:
    """Both recordings as a whole."""
    rows = []
    for row in difference.totals().iter_rows(named=True):
        form = {"ns": units.duration, "bytes": units.size}.get(row["unit"], units.count)
        figures = [row[c] for c in ("base", "new", "base_per", "new_per", "change_per")]
        cells = [Cell(row["title"]), *(Cell(form(v), units.exact(v)) for v in figures)]
        rows.append((*cells, Cell(units.percent(row["change_ratio"]), units.exact(row["change_ratio"]))))
    per = difference.per
    titles = (*names, f"{names[0]}, per {per}", f"{names[1]}, per {per}", f"Change per {per}", "Change")
    if per == PER_REQUEST:
        note = ""
    elif difference.base.requests and difference.new.requests:
        note = "Wall time is per request, the other rows are per second of the window."
    else:
        note = "How many requests each holds is not known, so wall time cannot be compared: --requests N says it."
    return View("In all", note, (Head("", False), *(Head(t, True) for t in titles)), tuple(rows))


def show_changes(difference: Difference, names: tuple[str, str]) -> list[View]:
    """Paths that changed most, a table a weight."""
    forms: dict[str, Callable[..., str]] = {"ns": units.duration, "bytes": units.size}
    views = []
    for weight in difference.weights:
        if weight.key not in {"exposed_ns", "bytes", "busy_ns", "blocked_ns"}:
            continue
        form = forms.get(weight.unit, units.count)
        table = difference.table(weight.key).filter(pl.col("change_per") != 0)
        told = described(difference.labels, difference.paths.take(table["row"].to_numpy()))
        table = table.hstack(told).with_columns(sent=pl.coalesce("operation", "api"))
        columns: Columns = {
            "where": ("Sent by", "path"),
            "sent": ("Operation or call", None),
            "base_per": (names[0], form),
            "new_per": (names[1], form),
            "change_per": ("Change", form),
        }
        views.append(_view(f"{weight.title} per {difference.per}: what changed most", "", table, columns, most=12))
    return views
