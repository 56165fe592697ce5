"""Unified memory: migrations and page faults in one row."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats.report import Report
from nsysparse.stats.unified import add_up, load_migrations

NAMES = (
    *("Total HtoD Migration Size (MB)", "Total DtoH Migration Size (MB)"),
    *("Total CPU Page Faults", "Total GPU PageFaults"),
)


def _rows(trace: Trace) -> pl.DataFrame:
    return load_migrations(trace)


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    if not rows.height:
        return rows.select(add_up(*NAMES)).clear()
    return rows.select(
        *add_up(*NAMES),
        pl.col("address").min().alias("Minimum Virtual Address"),
        pl.col("address").max().alias("Maximum Virtual Address"),
    )


REPORT = Report(
    "um_total_sum", "unified memory: migrations and page faults", _rows, _shape, needs=("copies",), checked=False
)
