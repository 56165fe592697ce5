"""Memory operations by kind: time."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.engine import summarize
from nsysparse.stats.events import load_memory
from nsysparse.stats.report import Report


def _rows(trace: Trace) -> pl.DataFrame:
    return load_memory(trace).select("duration", "start_ns", "end_ns", pl.col("operation").alias("Operation"))


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    return summarize(rows, ["Operation"], "Count", ["Operation"])


REPORT = Report(
    "cuda_gpu_mem_time_sum",
    "copies and fills by kind: time",
    _rows,
    _shape,
    notes.of(notes.not_wall_time),
    needs=("copies", "memsets"),
)
