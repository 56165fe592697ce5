"""NVTX paths of a device: what each part of the program sent to the GPU."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysparse.accounting.busy import Busy, in_window
from nsysparse.accounting.windows import ranges_in
from nsysparse.joins.nesting import FOREVER
from nsysparse.joins.ranges import BY_THREAD, IN_TIME
from nsysparse.joins.work import Work

FIGURES = ("kernels", "kernel_ns", "copies", "copy_bytes", "copy_ns", "exposed_ns", "memsets", "graphs")


def table_paths(work: Work, kernels: pl.DataFrame, copies: pl.DataFrame, busy: Busy) -> pl.DataFrame:
    """What the calls under each NVTX path sent to the device.

    Args:
        work: One device's work.
        kernels: Those that touch the window, as :func:`nsysparse.accounting.busy.in_window` returns them.
        copies: As :func:`nsysparse.accounting.copies.detail_copies` returns them.
        busy: The window's unions.

    Returns:
        One row a (path, how it was found): ``text`` (labels from the outside in), ``depth``, ``path_by`` ("thread"; "in
        time" for calls of a thread without NVTX, counted apart; "none"), ``ranges`` (instances of the path in
        the window; NULL for "in time" and "none"), then own figures (calls directly under the path):
        ``kernels``, ``kernel_ns`` (sum, clipped), ``copies``, ``copy_bytes``, ``copy_ns``, ``exposed_ns`` (adds up to
        the window's), ``memsets``, ``graphs``; and the same prefixed ``total_`` with the paths below included.
    """
    own = _own_figures(work, kernels, copies, busy)
    paths = work.ranges.paths
    instances = _instances(work, busy)
    table = own.join(paths, on="path", how="left")
    totals = _with_ancestors(own, paths)
    by_thread = pl.col("path_by") == BY_THREAD
    # A path that only holds other paths has no operations of its own, but has totals.
    table = (
        totals.join(paths, on="path")
        .join(own, on=["path", "path_by"], how="left")
        .with_columns(pl.col(FIGURES).fill_null(0))
    )
    return (
        table.join(instances, on="path", how="left")
        .with_columns(ranges=pl.when(by_thread).then(pl.col("ranges").fill_null(0)))
        .select("text", "depth", "path_by", "ranges", *FIGURES, *(f"total_{f}" for f in FIGURES))
        .sort("text", "path_by")
    )


def _own_figures(work: Work, kernels: pl.DataFrame, copies: pl.DataFrame, busy: Busy) -> pl.DataFrame:
    group = ["path", "path_by"]
    counted, clipped = pl.col("counted"), pl.col("to_ns") - pl.col("from_ns")

    def number(name: str) -> pl.Expr:
        return counted.sum().cast(pl.Int64).alias(name)

    parts = [
        kernels.group_by(group).agg(number("kernels"), clipped.sum().alias("kernel_ns")),
        copies.group_by(group).agg(
            pl.col("copy_count").filter(counted).sum().alias("copies"),
            pl.col("bytes").filter(counted).sum().alias("copy_bytes"),
            clipped.sum().alias("copy_ns"),
            pl.col("exposed_ns").sum(),
        ),
        in_window(work.memsets, busy.window).group_by(group).agg(number("memsets")),
        in_window(work.graphs, busy.window).group_by(group).agg(number("graphs")),
    ]
    merged = pl.concat([p.with_columns(pl.col("path_by").cast(pl.String)) for p in parts], how="diagonal")
    for figure in FIGURES:
        if figure not in merged.columns:
            merged = merged.with_columns(pl.lit(None, pl.Int64).alias(figure))
    return merged.group_by(group).agg(pl.col(FIGURES).sum()).sort(group)


def _with_ancestors(own: pl.DataFrame, paths: pl.DataFrame) -> pl.DataFrame:
    """Figures of each path with everything below it; one step a level."""
    parent = paths["parent"].to_numpy()  # paths are numbered by their rows
    row, path = np.arange(own.height), own["path"].to_numpy()
    rows, above = [row], [path]
    while row.size:
        row, path = row[parent[path] > 0], parent[path][parent[path] > 0]
        rows.append(row)
        above.append(path)
    figures = own.select("path_by", *FIGURES)[np.concatenate(rows)]
    return (
        figures.with_columns(path=pl.Series(np.concatenate(above), dtype=pl.Int32))
        .group_by("path", "path_by")
        .agg(pl.col(f).sum().alias(f"total_{f}") for f in FIGURES)
    )


def _instances(work: Work, busy: Busy) -> pl.DataFrame:
    ranges = work.ranges.frame
    inside = ranges.select(pl.col("push_pop") & ranges_in(busy.window, work)).to_series()
    count = np.bincount(ranges["path"].filter(inside).to_numpy())
    path = np.flatnonzero(count)
    return pl.DataFrame({"path": path.astype(np.int32), "ranges": count[path]})


def table_start_end(work: Work, busy: Busy) -> pl.DataFrame:
    """Start/end ranges by label: they may cross threads and overlap, so they are no level of a path.

    Returns:
        ``label``, ``count`` (in the window), ``across_threads``, ``unfinished``, ``mean_ns``, ``max_ns``
        (of the finished ones).
    """
    ranges = work.ranges.frame
    inside = ranges.select(~pl.col("push_pop") & ranges_in(busy.window, work)).to_series()
    chosen = ranges.select("label", "start_ns", "end_ns", "thread", "end_thread", "finished").filter(inside)
    took = (pl.col("end_ns") - pl.col("start_ns")).filter(pl.col("end_ns") < FOREVER)
    return (
        chosen.group_by(pl.col("label").cast(pl.String))
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
    ranges = work.ranges.frame[pl.Series(work.ranges.nodes).gather(each["row"])]
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
