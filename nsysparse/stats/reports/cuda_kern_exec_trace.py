"""Every kernel with its launch: time in the call, in the queue, on the GPU."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.events import grid
from nsysparse.stats.report import Report
from nsysparse.stats.reports.cuda_kern_exec_sum import phases


def _rows(trace: Trace) -> pl.DataFrame:
    waited = pl.col("queue").is_not_null()
    return (
        phases(trace)
        .sort("api_start_ns", maintain_order=True)
        .select(
            pl.col("api_start_ns").alias("API Start (ns)"),
            pl.col("call").alias("API Dur (ns)"),
            pl.when(waited).then("api_end_ns").alias("Queue Start (ns)"),
            pl.col("queue").alias("Queue Dur (ns)"),
            pl.col("start_ns").alias("Kernel Start (ns)"),
            pl.col("duration").alias("Kernel Dur (ns)"),
            pl.col("total").alias("Total Dur (ns)"),
            pl.col("pid").alias("PID"),
            pl.col("tid").alias("TID"),
            pl.col("ordinal").alias("DevId"),
            pl.col("api").alias("API Function"),
            grid("grid").alias("GridXYZ"),
            grid("block").alias("BlockXYZ"),
            pl.col("kernel").alias("Kernel Name"),
            "kernel_row",
            "twin",
        )
    )


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.drop("kernel_row", "twin")


REPORT = Report(
    "cuda_kern_exec_trace",
    "every kernel with its launch: time in the call, in the queue, on the GPU",
    _rows,
    _shape,
    notes.of(notes.twin_rows, notes.graph_queue, notes.hidden_graphs),
    needs=("kernels",),
    lists_events=True,
)
