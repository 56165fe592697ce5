"""Kernels by name."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.engine import summarize
from nsysparse.stats.events import load_kernels
from nsysparse.stats.report import Report


def _rows(trace: Trace) -> pl.DataFrame:
    return load_kernels(trace).select("duration", "start_ns", "end_ns", pl.col("kernel").alias("Name"))


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    return summarize(rows, ["Name"], "Instances", ["Name"], longer_first=True)


REPORT = Report(
    "cuda_gpu_kern_sum", "kernels by name", _rows, _shape, notes.of(notes.not_wall_time), needs=("kernels",)
)
