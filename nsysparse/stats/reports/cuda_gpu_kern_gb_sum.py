"""Kernels by name, grid and block."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.engine import summarize
from nsysparse.stats.events import grid, load_kernels
from nsysparse.stats.report import Report

SIZES = tuple(f"{axis}_{d}" for axis in ("grid", "block") for d in "xyz")


def _rows(trace: Trace) -> pl.DataFrame:
    return load_kernels(trace, *SIZES).select(
        "duration",
        "start_ns",
        "end_ns",
        *SIZES,
        pl.col("kernel").alias("Name"),
    )


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    table = summarize(rows, [*SIZES, "Name"], "Instances", ["Name", *SIZES], longer_first=True)
    sizes = [grid("grid").alias("GridXYZ"), grid("block").alias("BlockXYZ")]
    return table.select(pl.exclude("Name", *SIZES), *sizes, "Name")


REPORT = Report(
    "cuda_gpu_kern_gb_sum",
    "kernels by name, grid and block",
    _rows,
    _shape,
    notes.of(notes.not_wall_time),
    needs=("kernels",),
)
