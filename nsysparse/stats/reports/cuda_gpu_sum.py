"""Kernels and memory operations in one table."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.engine import summarize
from nsysparse.stats.events import KERNEL, MEMORY, load_kernels, load_memory
from nsysparse.stats.report import Report


def gpu_rows(trace: Trace) -> pl.DataFrame:
    """Kernels and memory operations: ``duration``, ``start_ns``, ``end_ns``, ``Category``, ``Operation``."""
    kernels = load_kernels(trace).select(
        "duration", "start_ns", "end_ns", pl.lit(KERNEL).alias("Category"), pl.col("kernel").alias("Operation")
    )
    memory = load_memory(trace).select(
        "duration", "start_ns", "end_ns", pl.lit(MEMORY).alias("Category"), pl.col("operation").alias("Operation")
    )
    return pl.concat([kernels, memory])


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    return summarize(rows, ["Category", "Operation"], "Instances", ["Operation", "Category"])


REPORT = Report(
    "cuda_gpu_sum",
    "kernels and memory operations in one table",
    gpu_rows,
    _shape,
    notes.of(notes.hidden_graphs, notes.not_wall_time),
    needs=("kernels", "copies", "memsets"),
)
