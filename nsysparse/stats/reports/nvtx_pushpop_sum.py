"""NVTX ranges of style PushPop by name."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.engine import summarize
from nsysparse.stats.ranges import PUSH_POP, load_stats_ranges
from nsysparse.stats.report import Report


def _rows(trace: Trace) -> pl.DataFrame:
    ranges = load_stats_ranges(trace, (PUSH_POP,), closed_by_all=True)
    return ranges.select("duration", "start_ns", "end_ns", "Range")


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    return summarize(rows, ["Range"], "Instances", ["Range"])


REPORT = Report(
    "nvtx_pushpop_sum",
    "NVTX ranges of style PushPop by name",
    _rows,
    _shape,
    notes.of(notes.nested_ranges, notes.unfinished_ranges),
    needs=("nvtx",),
)
