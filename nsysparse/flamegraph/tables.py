"""Call paths in tables: what copies cost and who sends them, what waiting costs and who waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse import units
from nsysparse.flamegraph.difference import Difference
from nsysparse.flamegraph.flame import LEVELS, Flame
from nsysparse.schema import COPY_KINDS
from nsysparse.stacks.chains import Index, Lists

COPY_COLOURS = tuple(COPY_KINDS.values())
MAX_ROWS = 20
NATIVE_FRAMES = 5  # shown of a native call path; all of them where the row is opened


def table_copy_paths(flame: Flame) -> pl.DataFrame:
    """Call paths that send copies, most exposed time first, then most bytes.

    Returns:
        ``where`` (see :func:`_where`), ``operation``,
        ``exposed_ns`` (adds up to the window's), ``exposed_ratio`` (of the window), ``bytes``, ``copies``, ``busy_ns``,
        ``blocked_ns`` (time of the host in these copies), ``frames`` (labels from the thread down, list).
    """
    colour = flame.labels["colour"].is_in(COPY_COLOURS).to_numpy()
    rows = np.flatnonzero(flame.paths.any(colour[flame.paths.value]))
    table = described(flame.labels, flame.paths.take(rows)).with_columns(
        **{key: _values(flame, key, rows) for key in ("exposed_ns", "bytes", "busy_ns", "blocked_ns")},
        copies=_values(flame, "operations", rows),
    )
    table = table.with_columns(exposed_ratio=pl.col("exposed_ns") / flame.window_ns)
    return table.select(
        *("where", "operation", "exposed_ns", "exposed_ratio", "bytes", "copies", "busy_ns", "blocked_ns", "frames")
    ).sort("exposed_ns", "bytes", "where", "operation", descending=[True, True, False, False])


def table_waiting_paths(flame: Flame) -> pl.DataFrame:
    """Call paths that wait for the GPU, most host-blocked time first.

    Returns:
        ``where``, ``api``, ``calls``, ``blocked_ns`` (added over threads), ``blocked_ratio`` (of the window),
        ``idle_ns`` (the GPU idled meanwhile; each instant counts once), ``idle_ratio``, ``frames``.
    """
    if "blocked_ns" not in [w.key for w in flame.weights]:
        rows = np.empty(0, np.int64)
    else:
        rows = np.flatnonzero(flame.values[:, flame.column("blocked_ns")] > 0)
    table = described(flame.labels, flame.paths.take(rows)).with_columns(
        **{key: _values(flame, key, rows) for key in ("calls", "blocked_ns", "idle_ns")}
    )
    return (
        table.with_columns(
            blocked_ratio=pl.col("blocked_ns") / flame.window_ns, idle_ratio=pl.col("idle_ns") / flame.window_ns
        )
        .select("where", "api", "calls", "blocked_ns", "blocked_ratio", "idle_ns", "idle_ratio", "frames")
        .sort("blocked_ns", "idle_ns", "where", "api", descending=[True, True, False, False])
    )


def _values(flame: Flame, key: str, rows: Index) -> pl.Series:
    """One weight of some paths; 0 where the recording has none of it."""
    there = key in [w.key for w in flame.weights]
    values = flame.values[rows, flame.column(key)] if there else np.zeros(rows.size, np.int64)
    return pl.Series(values, dtype=pl.Int64)


def described(labels: pl.DataFrame, paths: Lists) -> pl.DataFrame:
    """``where``, ``api``, ``operation`` and ``frames`` of paths, in their order."""
    level = labels["level"].to_numpy()[paths.value] if paths.value.size else np.empty(0, np.int64)
    texts = labels["text"]
    inside = paths.where(level > LEVELS.index("process"))
    frames = pl.DataFrame({"row": inside.owner(), "text": texts.gather(inside.value)})
    lists = frames.group_by("row", maintain_order=True).agg(pl.col("text").alias("frames"))
    table = pl.DataFrame(
        {
            "row": pl.Series(range(len(paths)), dtype=pl.Int64),
            "where": _where(labels, paths, level),
            "api": _texts(texts, _last(paths, level == LEVELS.index("api"))),
            "operation": _texts(texts, _last(paths, level == LEVELS.index("operation"))),
        }
    )
    return table.join(lists, on="row", how="left", maintain_order="left").drop("row")


def _where(labels: pl.DataFrame, paths: Lists, level: Index) -> pl.Series:
    """Where in the program a path is, in a few words.

    The innermost Python frame of the program's own files; else the innermost of any package; else the innermost native
    frames, innermost first; else the NVTX range; else the API call.
    """
    texts = labels["text"]
    own = (labels["level"] == LEVELS.index("python")) & ~labels["text"].str.contains("/", literal=True)
    place = np.full(len(paths), -1, np.int64)
    for marked in (
        level == LEVELS.index("api"),
        level == LEVELS.index("nvtx"),
        level == LEVELS.index("python"),
        own.to_numpy()[paths.value],
    ):  # the last that there is wins
        last = _last(paths, marked)
        place = np.where(last >= 0, last, place)
    native = paths.where(level == LEVELS.index("native"))
    inner = native.where(native.place() >= np.repeat(native.length - NATIVE_FRAMES, native.length))
    shown = pl.DataFrame({"row": inner.owner(), "text": texts.gather(inner.value)})
    chains = shown.group_by("row", maintain_order=True).agg(pl.col("text").reverse().str.join(" ← "))
    rows = pl.DataFrame({"row": pl.Series(range(len(paths)), dtype=pl.Int64), "other": _texts(texts, place)})
    has_python = pl.Series(paths.any(level == LEVELS.index("python")))
    return rows.join(chains, on="row", how="left", maintain_order="left").select(
        where=pl.when(has_python).then("other").otherwise(pl.coalesce("text", "other"))
    )["where"]


def _last(paths: Lists, marked: npt.NDArray[np.bool_]) -> Index:
    """The last marked label of each path, -1 for none."""
    place = paths.last(marked, -1)
    at = np.where(place >= 0, paths.start[:-1] + place, 0)
    if not paths.value.size:
        return place
    return np.where(place >= 0, paths.value[at], -1)


def _texts(texts: pl.Series, labels: Index) -> pl.Series:
    found = texts.gather(np.maximum(labels, 0)) if texts.len() else pl.Series([None] * labels.size, dtype=pl.String)
    nothing = pl.Series([None] * labels.size, dtype=pl.String)
    known: pl.Series = found.zip_with(pl.Series(labels >= 0), nothing)
    return known


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
