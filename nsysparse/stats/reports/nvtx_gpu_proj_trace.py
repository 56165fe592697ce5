"""Every NVTX range with the GPU work that was sent from inside it."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.projection import project
from nsysparse.stats.report import Report, as_is


def projected(trace: Trace) -> pl.DataFrame:
    """The projected ranges under nsys's names, in the order of the export."""
    return project(trace).select(
        pl.col("Range").alias("Name"),
        pl.col("gpu_start_ns").alias("Projected Start (ns)"),
        (pl.col("gpu_end_ns") - pl.col("gpu_start_ns")).alias("Projected Duration (ns)"),
        pl.col("start_ns").alias("Orig Start (ns)"),
        pl.col("duration").alias("Orig Duration (ns)"),
        "Style",
        pl.col("pid").alias("PID"),
        pl.col("tid").alias("TID"),
        pl.col("operations").alias("NumGPUOps"),
        pl.col("level").alias("Lvl"),
        pl.col("children").alias("NumChild"),
        pl.col("id").alias("RangeId"),
        pl.col("parent").alias("ParentId"),
        pl.col("stack").alias("RangeStack"),
    )


REPORT = Report(
    "nvtx_gpu_proj_trace",
    "every NVTX range with the GPU work sent from inside it",
    projected,
    as_is,
    notes.of(notes.moved_ranges, notes.unfinished_ranges, notes.hidden_graphs, notes.projection),
    needs=("nvtx",),
    lists_events=True,
)
