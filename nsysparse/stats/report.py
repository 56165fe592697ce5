"""What a report is, and how reports are found: one module below :mod:`nsysparse.stats.reports` each.

A report has two steps. ``rows`` reads one recording into a frame of single events (or of whatever the report lists);
``shape`` turns such rows into the printed table. Several recordings are combined by putting their rows together before
the second step, so that medians and standard deviations stay exact.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import polars as pl

from nsysparse.errors import UsageError
from nsysparse.source import Trace
from nsysparse.stats.cut import CutTrace

TRACE = "Trace"  # leading column where a table lists recordings apart
ROW_NUMBERS, ROWS_A_TRACE = ("kernel_row", "range_row"), 1 << 40

Rows = Callable[[Trace], pl.DataFrame]
Shape = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True)
class Shown:
    """What a note can look at: the recordings, the rows behind the table, and the table."""

    traces: Sequence[Trace]
    rows: pl.DataFrame
    table: pl.DataFrame


Notes = Callable[[Shown], Sequence[str]]


def no_notes(shown: Shown) -> Sequence[str]:
    """Nothing to warn of."""
    return ()


def as_is(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows that are the table already."""
    return rows


@dataclass(frozen=True)
class Report:
    """One of nsys's statistics reports or analysis rules.

    Attributes:
        name: Its name on the command line, the same as nsys's.
        title: One line for the list of reports.
        rows: Reads one recording.
        shape: Rows to the table; column names, order and units are nsys's.
        notes: Sentences that go under the table, given its rows and the table.
        needs: Canonical tables of which at least one must have been recorded for the table to have rows.
        lists_events: Whether a row is an event: such tables are never combined, they get a column for the recording.
        limit: Rows that nsys prints by default, 0 for all.
        options: Numbers that the user may choose, with their defaults.
        build: Makes the report for other options.
        checked: Whether the definition was checked against nsys's own output, or only against its documentation.
    """

    name: str
    title: str
    rows: Rows
    shape: Shape
    notes: Notes = no_notes
    needs: tuple[str, ...] = ()
    lists_events: bool = False
    limit: int = 0
    options: Mapping[str, int] = field(default_factory=dict)
    build: Callable[[Mapping[str, int]], Report] | None = None
    checked: bool = True


@dataclass(frozen=True)
class Table:
    """A report's result.

    Attributes:
        report: What was asked for.
        frame: The table, figures unrounded.
        notes: Where a figure misleads, and why.
        rows_total: Rows before the limit.
    """

    report: Report
    frame: pl.DataFrame
    notes: tuple[str, ...] = ()
    rows_total: int = field(default=0)


@cache
def find_reports(package: str = "nsysparse.stats.reports") -> dict[str, Report]:
    """All reports of a package by name: every module of it that has a ``REPORT``."""
    parent = importlib.import_module(package)
    found = {}
    for info in pkgutil.iter_modules(parent.__path__):
        report = importlib.import_module(f"{package}.{info.name}").REPORT
        assert isinstance(report, Report)
        found[report.name] = report
    return dict(sorted(found.items()))


def list_names(kind: str) -> list[str]:
    """Names of the ``reports`` or ``rules``, without importing them."""
    package = importlib.import_module(f"nsysparse.stats.{kind}")
    return sorted(info.name for info in pkgutil.iter_modules(package.__path__))


def find_rules() -> dict[str, Report]:
    """The analysis rules of nsys by name."""
    return find_reports("nsysparse.stats.rules")


def pick(name: str, known: dict[str, Report], what: str = "report") -> Report:
    """One report by its name.

    Raises:
        UsageError: There is none; the hint names the nearest.
    """
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, 1, 0.5)
    raise UsageError(
        f"no {what} named '{name}'", f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
    )


def make_table(report: Report, traces: Sequence[Trace], by_trace: bool = False, top: int | None = None) -> Table:
    """Run a report.

    Args:
        report: The report.
        traces: One recording, or several.
        by_trace: Make one table a recording and put them below each other, with a column ``Trace`` in front.
        top: Rows to keep (of each recording); None for nsys's default, 0 for all.
    """
    keep = report.limit if top is None else top
    apart = len(traces) > 1 and (by_trace or report.lists_events)
    rows = [_apart(report.rows(t), i) for i, t in enumerate(traces)]
    if apart:
        tables = [report.shape(r) for r in rows]
        total = sum(t.height for t in tables)
        named = [
            _cut(t, keep).select(pl.lit(name).alias(TRACE), pl.all())
            for t, name in zip(tables, _names(traces), strict=True)
        ]
        frame = pl.concat(named, how="vertical_relaxed")
    else:
        whole = report.shape(pl.concat(rows, how="vertical_relaxed"))
        total, frame = whole.height, _cut(whole, keep)
    shown = Shown(traces, pl.concat(rows, how="vertical_relaxed"), frame)
    notes = (*(report.notes(shown) if total else ()), *_always_said(shown))
    return Table(report, frame, notes, total)


def _always_said(shown: Shown) -> Iterator[str]:
    """What is said under any table: which part of the recording it is of, and events that end before they start."""
    yield from dict.fromkeys(n for t in shown.traces if isinstance(t, CutTrace) for n in t.notes)
    column = next((c for c in ("duration", "Duration (ns)") if c in shown.rows.columns), None)
    backwards = int((shown.rows[column] < 0).sum()) if column is not None else 0
    if backwards:
        yield (
            f"{backwards:,} of these events end before they start: a clock was off. nsys adds their negative durations"
            " up with the others, and so does this table."
        )


def _apart(rows: pl.DataFrame, number: int) -> pl.DataFrame:
    """Keep what is counted by its row apart from the rows of other recordings."""
    if not number:
        return rows
    return rows.with_columns(pl.col(c) + number * ROWS_A_TRACE for c in ROW_NUMBERS if c in rows.columns)


def _cut(frame: pl.DataFrame, keep: int) -> pl.DataFrame:
    return frame.head(keep) if keep else frame


def _names(traces: Sequence[Trace]) -> list[str]:
    """Names of the files, numbered where two are the same."""
    names = [t.path.name for t in traces]
    return [n if names.count(n) == 1 else f"{i}:{n}" for i, n in enumerate(names)]
