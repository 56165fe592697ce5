"""NVTX paths of a device: what each part of the program sent to the GPU."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysparse.accounting.busy import Busy, Inside, clipped
from nsysparse.accounting.grouping import add_up, number_rows
from nsysparse.accounting.windows import Window
from nsysparse.intervals import Index, Times
from nsysparse.joins.nesting import FOREVER
from nsysparse.joins.order import count_codes
from nsysparse.joins.ranges import BY_THREAD, IN_TIME, NO_RANGE
from nsysparse.joins.work import Work
from nsysparse.nulls import filled, masked

FOUND_BY = (IN_TIME, NO_RANGE, BY_THREAD)  # as their texts are sorted
FIGURES = ("kernels", "kernel_ns", "copies", "copy_bytes", "copy_ns", "exposed_ns", "memsets", "graphs")


def table_paths(work: Work, inside: Inside, busy: Busy, chosen: pl.Series, rank: Index) -> pl.DataFrame:
    """What the calls under each NVTX path sent to the device.

    Args:
        work: One device's work.
        inside: What touches the window.
        busy: The window's unions.
        chosen: Which ranges belong to the window.
        rank: Place of each path's text among all of them.

    Returns:
        One row a (path, how it was found): ``text`` (labels from the outside in), ``depth``, ``path_by`` ("thread"; "in
        time" for calls of a thread without NVTX, counted apart; "none"), ``ranges`` (instances of the path in
        the window; NULL for "in time" and "none"), then own figures (calls directly under the path):
        ``kernels``, ``kernel_ns`` (sum, clipped), ``copies``, ``copy_bytes``, ``copy_ns``, ``exposed_ns`` (adds up to
        the window's), ``memsets``, ``graphs``; and the same prefixed ``total_`` with the paths below included.
    """
    paths = work.ranges.paths
    own_keys, own = _own_figures(inside, busy.window)
    keys, totals, mine = _with_ancestors(own_keys, own, paths["parent"].to_numpy())
    path, by = keys["path"].to_numpy(), keys["path_by"].to_list()
    order = np.lexsort((np.array([FOUND_BY.index(b) for b in by], np.int64), rank[path]))
    keys, path, mine = keys[order], path[order], mine[order]
    ranges = work.ranges.frame["path"].to_numpy()[(work.ranges.frame["push_pop"] & chosen).to_numpy()]
    instances = count_codes(ranges, paths.height)[path]
    # A path that only holds other paths has no operations of its own, but has totals.
    figures = {f: np.where(mine >= 0, values[mine], 0) for f, values in own.items()}
    return pl.DataFrame(
        {
            "text": paths["text"][path],
            "depth": paths["depth"][path],
            "path_by": keys["path_by"],
            "ranges": masked("ranges", instances, (keys["path_by"] == BY_THREAD).to_numpy()),
            **figures,
            **{f"total_{f}": values[order] for f, values in totals.items()},
        }
    )


def _own_figures(inside: Inside, window: Window) -> tuple[pl.DataFrame, dict[str, Times]]:
    """``path`` and ``path_by`` of each group of operations; FIGURES of each."""
    parts = inside.sent
    rows = pl.concat([frame.select("path", "path_by") for frame in parts.values()])
    number, first = number_rows(rows, ["path", "path_by"])
    ends = np.cumsum([frame.height for frame in parts.values()])
    of = {kind: number[end - frame.height : end] for (kind, frame), end in zip(parts.items(), ends, strict=True)}
    n, copies, group = first.size, inside.copies, of["copies"]
    counted = {kind: frame["counted"].to_numpy() for kind, frame in parts.items()}
    begun = np.flatnonzero(counted["copies"])
    sums = {
        "kernels": add_up(counted["kernels"], of["kernels"], n),
        "kernel_ns": add_up(clipped(inside.kernels, window), of["kernels"], n),
        "copies": add_up(copies["copy_count"].to_numpy()[begun], group[begun], n),
        "copy_bytes": add_up(filled(copies["bytes"])[begun], group[begun], n),
        "copy_ns": add_up(clipped(copies, window), group, n),
        "exposed_ns": add_up(copies["exposed_ns"], group, n),
        "memsets": add_up(counted["memsets"], of["memsets"], n),
        "graphs": add_up(counted["graphs"], of["graphs"], n),
    }
    return rows[first].with_columns(pl.col("path_by").cast(pl.String)), sums


def _with_ancestors(
    keys: pl.DataFrame, own: dict[str, Times], parent: Index
) -> tuple[pl.DataFrame, dict[str, Times], Index]:
    """Figures of each path with everything below it; one step a level.

    Returns:
        ``path`` and ``path_by``; FIGURES; and the row that has the path's own figures, -1 where it has none.
    """
    row, path = np.arange(keys.height), keys["path"].to_numpy()
    rows, above = [row], [path]
    while row.size:
        up = parent[path] > 0  # paths are numbered by their rows
        row, path = row[up], parent[path[up]]
        rows.append(row)
        above.append(path)
    every = np.concatenate(rows)
    steps = pl.DataFrame({"path": np.concatenate(above), "path_by": keys["path_by"].gather(every)})
    number, first = number_rows(steps, ["path", "path_by"])
    mine = np.full(first.size, -1, np.int64)
    mine[number[: keys.height]] = np.arange(keys.height)
    return steps[first], {f: add_up(values[every], number, first.size) for f, values in own.items()}, mine


def table_start_end(work: Work, chosen: pl.Series) -> pl.DataFrame:
    """Start/end ranges by label: they may cross threads and overlap, so they are no level of a path.

    Args:
        work: The work.
        chosen: Which ranges belong to the window.

    Returns:
        ``label``, ``count`` (in the window), ``across_threads``, ``unfinished``, ``mean_ns``, ``max_ns``
        (of the finished ones).
    """
    ranges = work.ranges.frame
    only_nested = ranges["push_pop"].all()  # as it mostly is
    there = np.flatnonzero([] if only_nested else (~ranges["push_pop"] & chosen).to_numpy())
    if not there.size:
        counts = dict.fromkeys(("count", "across_threads", "unfinished"), pl.Int64)
        return pl.DataFrame(schema={"label": pl.String, **counts, "mean_ns": pl.Float64, "max_ns": pl.Int64})
    took = (pl.col("end_ns") - pl.col("start_ns")).filter(pl.col("end_ns") < FOREVER)
    return (
        ranges.select("label", "thread", "end_thread", "start_ns", "end_ns", "finished")[there]
        .group_by(pl.col("label").cast(pl.String))
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            (pl.col("thread") != pl.col("end_thread")).sum().cast(pl.Int64).alias("across_threads"),
            (~pl.col("finished")).sum().cast(pl.Int64).alias("unfinished"),
            took.mean().alias("mean_ns"),
            took.max().alias("max_ns"),
        )
        .sort("count", "label", descending=[True, False])
    )


def project_ranges(work: Work) -> pl.DataFrame:
    """Push/pop ranges projected onto the GPU, by nsys's own definition, for comparison with ``nsys stats``.

    An operation belongs to every range of its call's thread that encloses the call. A range's projection runs from the
    first start to the last end of its operations; ranges without any are left out.

    Returns:
        ``name``, ``instances``, ``projected_ns`` (sum), ``range_ns`` (sum of the ranges' own lengths), ``operations``.
    """
    ops = work.all().filter(pl.col("path_by").cast(pl.String) == BY_THREAD).select("call", "start_ns", "end_ns")
    by_call = ops.group_by("call").agg(
        pl.col("start_ns").min(), pl.col("end_ns").max(), pl.len().cast(pl.Int64).alias("operations")
    )
    calls = work.calls.at(by_call["call"].to_numpy())
    nesting = work.ranges.nesting
    level = by_call.with_columns(node=pl.Series(nesting.enclosing(calls["thread"], calls["start_ns"], calls["end_ns"])))
    parents, rows, found = pl.Series(nesting.parent), pl.Series(nesting.row), []
    while True:
        level = level.with_columns(row=rows.gather(level["node"])).filter(pl.col("row") >= 0)
        if not level.height:
            break
        level = level.group_by("node").agg(
            pl.col("row").first(),
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            pl.col("operations").sum(),
        )
        found.append(level)
        level = level.with_columns(node=parents.gather(level["node"]))
    if not found:
        return pl.DataFrame(
            schema=dict.fromkeys(("name", "instances", "projected_ns", "range_ns", "operations"), pl.Int64)
        )
    each = (
        pl.concat(found)
        .group_by("row")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("operations").sum())
    )
    ranges = work.ranges.frame[each["row"]]
    return (
        each.with_columns(name=ranges["name"].cast(pl.String), range_ns=ranges["end_ns"] - ranges["start_ns"])
        .group_by("name")
        .agg(
            pl.len().cast(pl.Int64).alias("instances"),
            (pl.col("end_ns") - pl.col("start_ns")).sum().alias("projected_ns"),
            pl.col("range_ns").sum(),
            pl.col("operations").sum(),
        )
        .sort("projected_ns", "name", descending=[True, False])
    )


__all__ = ["IN_TIME", "project_ranges", "table_paths", "table_start_end"]
