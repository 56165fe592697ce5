"""Unified memory by address: migrations, page faults, throughput."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats.engine import hertz, megabytes
from nsysparse.stats.report import Report
from nsysparse.stats.unified import add_up, load_migrations

ROWS = 10  # that nsys prints
NAMES = ("HtoD Migration size (MB)", "DtoH Migration size (MB)", "CPU Page Faults", " GPU Page Faults")


def _rows(trace: Trace) -> pl.DataFrame:
    return load_migrations(trace)


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    moved, time = pl.col("to_device_bytes").sum() + pl.col("to_host_bytes").sum(), pl.col("duration").sum()
    table = rows.group_by(pl.col("address").alias("Virtual Address"), maintain_order=True).agg(
        *add_up(*NAMES),
        megabytes(moved * hertz(time)).alias("Migration Throughput (MB/s)"),
        moved.alias("moved"),
    )
    ordered = table.sort("moved", "Virtual Address", descending=[True, False], maintain_order=True)
    return ordered.drop("moved")


REPORT = Report(
    "um_sum",
    "unified memory by address: migrations, page faults, throughput",
    _rows,
    _shape,
    needs=("copies",),
    limit=ROWS,
    checked=False,
)
