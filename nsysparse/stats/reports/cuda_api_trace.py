"""Every CUDA API call in the order of their starts."""

from __future__ import annotations

import polars as pl

from nsysparse import schema
from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.events import TEXT, extra_column, load_api, with_text
from nsysparse.stats.report import Report, as_is


def _rows(trace: Trace) -> pl.DataFrame:
    threads = with_text(trace.frame("threads"), trace, "name_id", thread_name=TEXT)
    named = threads.select("thread", "thread_name", extra_column(trace, "threads", "priority", "priority", zero=0))
    # A call of a thread with two names has two rows, as in nsys's plain join.
    calls = load_api(trace, "return_value").join(named, on="thread", how="left", maintain_order="left_right")
    return calls.sort("start_ns", maintain_order=True).select(
        pl.col("start_ns").alias("Start (ns)"),
        pl.col("duration").alias("Duration (ns)"),
        pl.col("function").alias("Name"),
        pl.col("return_value").alias("Result"),
        pl.col("correlation").alias("CorrID"),
        schema.pid_of(pl.col("thread")).alias("Pid"),
        schema.tid_of(pl.col("thread")).alias("Tid"),
        pl.col("priority").alias("T-Pri"),
        pl.col("thread_name").alias("Thread Name"),
        "event_class",
    )


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    return as_is(rows).drop("event_class")


REPORT = Report(
    "cuda_api_trace",
    "every CUDA API call",
    _rows,
    _shape,
    notes.of(notes.backtrace_rows),
    needs=("api",),
    lists_events=True,
)
