"""Memory operations by kind: size."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats.engine import BYTES_PER_MB, MB, grouped, statistics
from nsysparse.stats.events import load_memory
from nsysparse.stats.report import Report


def _rows(trace: Trace) -> pl.DataFrame:
    return load_memory(trace).select("bytes", pl.col("operation").alias("Operation"))


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    total = "Total (MB)"
    sizes = grouped(
        rows.with_columns(size=pl.col("bytes") / BYTES_PER_MB),
        ["Operation"],
        (pl.col("bytes").sum() / BYTES_PER_MB).alias(total),
        pl.len().cast(pl.Int64).alias("Count"),
        *statistics("size", MB),
    )
    return sizes.sort(total, descending=True, maintain_order=True).select(pl.exclude("Operation"), "Operation")


REPORT = Report("cuda_gpu_mem_size_sum", "copies and fills by kind: size", _rows, _shape, needs=("copies", "memsets"))
