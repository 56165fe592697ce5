"""nsys's rule on synchronization: calls that block the host until the GPU has caught up."""

from __future__ import annotations

import polars as pl

from nsysparse import schema
from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.events import load_api
from nsysparse.stats.report import Report
from nsysparse.stats.rules_engine import TOP

# The two functions that the documentation names, with or without a version.
CALLS = r"^cuda(Device|Stream)Synchronize(_|$)"


def _rows(trace: Trace) -> pl.DataFrame:
    return load_api(trace).filter(pl.col("api").cast(pl.String).str.contains(CALLS))


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    ordered = rows.sort("duration", "start_ns", descending=[True, False], maintain_order=True)
    return ordered.select(
        pl.col("duration").alias("Duration (ns)"),
        pl.col("start_ns").alias("Start (ns)"),
        schema.pid_of(pl.col("thread")).alias("PID"),
        schema.tid_of(pl.col("thread")).alias("TID"),
        pl.col("api").alias("API Name"),
    )


REPORT = Report(
    "cuda_api_sync",
    "calls that block the host until the GPU has caught up",
    _rows,
    _shape,
    notes.of(notes.backtrace_rows, notes.other_waits),
    needs=("api",),
    lists_events=True,
    limit=TOP,
)
