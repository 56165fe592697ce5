"""Kernels by launching thread, API function and name: time in the call, in the queue, on the GPU."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.engine import grouped, statistics
from nsysparse.stats.kernel_calls import load_kernel_calls
from nsysparse.stats.report import Report

KEYS = ("PID", "TID", "DevId", "API Name", "Kernel Name")


def phases(trace: Trace) -> pl.DataFrame:
    """Kernel and call pairs with ``total``, ``call`` and ``queue`` (NULL when it began before the call returned)."""
    queue = pl.col("start_ns") - pl.col("api_end_ns")
    return load_kernel_calls(trace).with_columns(
        total=pl.max_horizontal("api_end_ns", "end_ns") - pl.col("api_start_ns"),
        call=pl.col("api_end_ns") - pl.col("api_start_ns"),
        queue=pl.when(queue > 0).then(queue),
    )


def _rows(trace: Trace) -> pl.DataFrame:
    return phases(trace).select(
        pl.col("pid").alias("PID"),
        pl.col("tid").alias("TID"),
        pl.col("ordinal").alias("DevId"),
        pl.col("api").alias("API Name"),
        pl.col("kernel").alias("Kernel Name"),
        *("kernel_row", "twin", "total", "call", "queue", "duration"),
    )


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    measures = {"total": "T", "call": "A", "queue": "Q", "duration": "K"}
    table = grouped(
        rows,
        KEYS,
        pl.len().cast(pl.Int64).alias("Count"),
        pl.col("queue").count().cast(pl.Int64).alias("QCount"),
        *(e for column, prefix in measures.items() for e in statistics(column, prefix=prefix)),
    )
    average = pl.col("TAvg (ns)").round(1, mode="half_away_from_zero")  # nsys orders by what it prints
    table = table.sort(average, *KEYS, descending=[True, *(False for _ in KEYS)], maintain_order=True)
    return table.select(*KEYS[:3], pl.exclude(KEYS), *KEYS[3:])


REPORT = Report(
    "cuda_kern_exec_sum",
    "kernels by launching thread: time in the call, in the queue, on the GPU",
    _rows,
    _shape,
    notes.of(notes.twin_rows, notes.graph_queue, notes.hidden_graphs),
    needs=("kernels",),
)
