"""Calls of the OS runtime by function."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.engine import summarize
from nsysparse.stats.events import TEXT, duration, extra_column, with_text
from nsysparse.stats.report import Report

# Event classes of the two marks that say when the profiler began and stopped to look: they are no calls.
MARKS = (31, 32)


def _rows(trace: Trace) -> pl.DataFrame:
    kind = extra_column(trace, "osrt", "eventClass", "event_class")
    calls = with_text(trace.frame("osrt").with_columns(kind), trace, "name_id", Name=TEXT)
    calls = calls.filter(~pl.col("event_class").is_in(MARKS).fill_null(False))
    return calls.select("Name", "name_id", duration(), "start_ns", "end_ns")


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    return summarize(rows, ["Name"], "Num Calls", ["name_id"])


REPORT = Report(
    "osrt_sum",
    "calls of the OS runtime by function",
    _rows,
    _shape,
    notes.of(notes.waiting_threads, notes.not_wall_time),
    needs=("osrt",),
)
