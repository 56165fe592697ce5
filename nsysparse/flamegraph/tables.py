"""Call paths in tables: what copies cost and who sends them, what waiting costs and who waits, where threads sit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.flamegraph.flame import LEVELS, Flame
from nsysparse.schema import COPY_KINDS
from nsysparse.stacks.chains import Index, Lists

COPY_COLOURS = tuple(COPY_KINDS.values())
NATIVE_FRAMES = 5  # shown of a native call path; all of them where the row is opened


def table_copy_paths(flame: Flame) -> pl.DataFrame:
    """Call paths that send copies, most exposed time first, then most bytes.

    Returns:
        ``where`` (see :func:`_where`), ``operation``,
        ``exposed_ns`` (adds up to the window's), ``exposed_ratio`` (of the window), ``bytes``, ``copies``, ``busy_ns``,
        ``blocked_ns`` (time of the host in these copies), ``frames`` (labels from the thread down, list).
    """
    colour = flame.labels["colour"].is_in(COPY_COLOURS).to_numpy()
    rows = np.flatnonzero(flame.paths.any(flame.paths.each(colour)))
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


def table_os_paths(flame: Flame) -> pl.DataFrame:
    """Call paths in the OS runtime of the threads that feed the GPU, longest first.

    Returns:
        ``where``, ``api`` (the function), ``os_ns`` (each instant of a thread once), ``os_ratio`` (of the window),
        ``frames``.
    """
    there = "os_ns" in [w.key for w in flame.weights]
    rows = np.flatnonzero(flame.values[:, flame.column("os_ns")] > 0) if there else np.empty(0, np.int64)
    table = described(flame.labels, flame.paths.take(rows)).with_columns(os_ns=_values(flame, "os_ns", rows))
    return (
        table.with_columns(os_ratio=pl.col("os_ns") / flame.window_ns)
        .select("where", "api", "os_ns", "os_ratio", "frames")
        .sort("os_ns", "where", "api", descending=[True, False, False])
    )


def _values(flame: Flame, key: str, rows: Index) -> pl.Series:
    """One weight of some paths; 0 where the recording has none of it."""
    there = key in [w.key for w in flame.weights]
    values = flame.values[rows, flame.column(key)] if there else np.zeros(rows.size, np.int64)
    return pl.Series(values, dtype=pl.Int64)


def described(labels: pl.DataFrame, paths: Lists) -> pl.DataFrame:
    """``where``, ``api``, ``operation`` and ``frames`` of paths, in their order."""
    level = paths.each(labels["level"].to_numpy())
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
        paths.each(own.to_numpy()),
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
