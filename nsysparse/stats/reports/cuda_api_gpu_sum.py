"""CUDA API calls, kernels and memory operations in one table."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.engine import summarize
from nsysparse.stats.events import API, load_api
from nsysparse.stats.report import Report
from nsysparse.stats.reports.cuda_gpu_sum import gpu_rows


def _rows(trace: Trace) -> pl.DataFrame:
    calls = load_api(trace).select(
        "duration",
        "start_ns",
        "end_ns",
        pl.lit(API).alias("Category"),
        pl.col("function").alias("Operation"),
        "event_class",
    )
    return pl.concat([calls, gpu_rows(trace).with_columns(event_class=pl.lit(None, pl.Int64))])


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    return summarize(rows, ["Category", "Operation"], "Instances", ["Operation", "Category"])


REPORT = Report(
    "cuda_api_gpu_sum",
    "CUDA API calls, kernels and memory operations in one table",
    _rows,
    _shape,
    notes.of(notes.backtrace_rows, notes.host_and_device, notes.not_wall_time),
    needs=("api", "kernels", "copies", "memsets"),
)
