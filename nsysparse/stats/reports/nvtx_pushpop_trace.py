"""Every NVTX push/pop range, with its place on its thread's stack."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats.ranges import load_stats_ranges, with_tree
from nsysparse.stats.report import Report, as_is


def _rows(trace: Trace) -> pl.DataFrame:
    ranges = with_tree(load_stats_ranges(trace).filter(pl.col("Style") == "PushPop"))
    indent = pl.lit("--").repeat_by("level").list.join("")
    return ranges.sort("start_ns", maintain_order=True).select(
        pl.col("start_ns").alias("Start (ns)"),
        pl.col("end_ns").alias("End (ns)"),
        pl.col("duration").alias("Duration (ns)"),
        pl.col("children_ns").alias("DurChild (ns)"),
        (pl.col("duration") - pl.col("children_ns")).alias("DurNonChild (ns)"),
        pl.col("Range").alias("Name"),
        pl.col("pid").alias("PID"),
        pl.col("tid").alias("TID"),
        pl.col("level").alias("Lvl"),
        pl.col("children").alias("NumChild"),
        pl.col("id").alias("RangeId"),
        pl.col("parent").alias("ParentId"),
        pl.col("stack").alias("RangeStack"),
        (indent + pl.col("Range").cast(pl.String)).alias("NameTree"),
    )


REPORT = Report(
    "nvtx_pushpop_trace",
    "every NVTX push/pop range with its place on the stack",
    _rows,
    as_is,
    needs=("nvtx",),
    lists_events=True,
)
