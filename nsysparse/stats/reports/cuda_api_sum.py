"""CUDA API calls by function."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.engine import summarize
from nsysparse.stats.events import load_api, without_version
from nsysparse.stats.report import Report


def _rows(trace: Trace) -> pl.DataFrame:
    return load_api(trace).select("api", "name_id", "duration", "event_class", "start_ns", "end_ns")


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    # The groups are those of the full name: a function is listed once for each variant of its name.
    table = summarize(rows, ["api"], "Num Calls", ["name_id"])
    return table.with_columns(without_version(pl.col("api")).alias("Name")).drop("api")


REPORT = Report(
    "cuda_api_sum",
    "CUDA API calls by function",
    _rows,
    _shape,
    notes.of(notes.backtrace_rows, notes.not_wall_time),
    needs=("api",),
)
