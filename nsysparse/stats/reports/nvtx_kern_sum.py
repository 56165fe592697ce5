"""Kernels by the NVTX ranges that they were launched from."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysparse import schema
from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.engine import grouped, statistics
from nsysparse.stats.kernel_calls import load_kernel_calls
from nsysparse.stats.projection import find_runs, ranges_of_calls
from nsysparse.stats.report import Report

KEYS = ("NVTX Range", "Style", "PID", "TID")


def _rows(trace: Trace) -> pl.DataFrame:
    pairs = load_kernel_calls(trace)
    ranges = ranges_of_calls(trace)
    if schema.TABLES["nvtx"].source(trace.tables) is None:  # nsys then prints nothing at all
        return _pairs_in(pairs.clear(), ranges.clear())
    calls = pairs.select("thread", start_ns="api_start_ns", end_ns="api_end_ns")
    inside, outside = [], np.ones(pairs.height, np.bool_)
    for runs in find_runs(ranges, calls):
        n = runs.high - runs.low
        within = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n) + np.repeat(runs.low, n)
        rows = runs.calls[within]
        outside[rows] = False
        inside.append(_pairs_in(pairs[rows], ranges[np.repeat(runs.ranges, n)]))
    return pl.concat([*inside, _pairs_in(pairs.filter(outside), None)])


def _pairs_in(pairs: pl.DataFrame, ranges: pl.DataFrame | None) -> pl.DataFrame:
    """Pairs beside the range that each lies in; without ranges, beside nothing."""
    rows = pairs.select(
        pl.lit(None, pl.Int64).alias("range_row"),
        pl.lit(None, pl.Categorical).alias("NVTX Range"),
        pl.lit(None, pl.Categorical).alias("Style"),
        pl.col("pid").alias("PID"),
        pl.col("tid").alias("TID"),
        pl.col("kernel").alias("Kernel Name"),
        "kernel_row",
        "duration",
        "twin",
    )
    if ranges is None:
        return rows
    return rows.with_columns(range_row=ranges["id"], Style=ranges["Style"]).with_columns(
        ranges["Range"].alias("NVTX Range")
    )


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    total = "Total Time (ns)"
    table = grouped(
        rows,
        [*KEYS, "Kernel Name"],
        pl.col("range_row").drop_nulls().n_unique().cast(pl.Int64).alias("NVTX Inst"),
        pl.col("kernel_row").n_unique().cast(pl.Int64).alias("Kern Inst"),
        pl.col("duration").sum().alias(total),
        *statistics("duration"),
    )
    descending = [*(False for _ in KEYS), True, False]
    table = table.sort(*KEYS, total, "Kernel Name", descending=descending, maintain_order=True)
    return table.select(pl.exclude("Kernel Name"), "Kernel Name")


REPORT = Report(
    "nvtx_kern_sum",
    "kernels by the NVTX ranges they were launched from",
    _rows,
    _shape,
    notes.of(notes.twin_rows, notes.every_level, notes.moved_ranges, notes.unfinished_ranges, notes.hidden_graphs),
    needs=("kernels",),
)
