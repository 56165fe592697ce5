"""NVTX ranges by name and style."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.engine import summarize
from nsysparse.stats.ranges import load_stats_ranges
from nsysparse.stats.report import Report


def _rows(trace: Trace) -> pl.DataFrame:
    return load_stats_ranges(trace, closed_by_all=True).select("duration", "start_ns", "end_ns", "Style", "Range")


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    return summarize(rows, ["Style", "Range"], "Instances", ["Range", "Style"])


REPORT = Report(
    "nvtx_sum",
    "NVTX ranges by name and style",
    _rows,
    _shape,
    notes.of(notes.nested_ranges, notes.unfinished_ranges),
    needs=("nvtx",),
)
