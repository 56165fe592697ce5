"""Memory operations by kind: size."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats.engine import MB, grouped, megabytes, statistics
from nsysparse.stats.events import load_memory
from nsysparse.stats.report import Report


def _rows(trace: Trace) -> pl.DataFrame:
    return load_memory(trace).select("bytes", pl.col("operation").alias("Operation"))


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    total = "Total (MB)"
    sizes = grouped(
        rows.with_columns(size=megabytes(pl.col("bytes"))),
        ["Operation"],
        megabytes(pl.col("bytes").sum()).alias(total),
        pl.len().cast(pl.Int64).alias("Count"),
        *statistics("size", MB),
    )
    sizes = sizes.sort(total, "Operation", descending=[True, False], maintain_order=True)
    return sizes.select(pl.exclude("Operation"), "Operation")


REPORT = Report("cuda_gpu_mem_size_sum", "copies and fills by kind: size", _rows, _shape, needs=("copies", "memsets"))
