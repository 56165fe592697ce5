"""Every NVTX push/pop range, with its place on its thread's stack."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.ranges import PUSH_POP, load_stats_ranges
from nsysparse.stats.report import Report, as_is
from nsysparse.stats.tree import with_tree


def _rows(trace: Trace) -> pl.DataFrame:
    # nsys walks down from the outermost ranges, and so lists none that it does not reach.
    ranges = with_tree(load_stats_ranges(trace, (PUSH_POP,))).filter(pl.col("level").is_not_null())
    indent = pl.lit("--").repeat_by("level").list.join("")
    return ranges.sort("start_ns", "end_ns", maintain_order=True).select(
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
    notes.of(notes.unfinished_ranges),
    needs=("nvtx",),
    lists_events=True,
)
