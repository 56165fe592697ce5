"""nsys's rule on asynchronous copies that are none: ``Async`` calls from or to pageable memory."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.events import MEMORY_LABELS
from nsysparse.stats.report import Report
from nsysparse.stats.rules_engine import TOP, memory_calls, memory_table

KINDS = {"src": "Src Kind", "dst": "Dst Kind"}


def _rows(trace: Trace) -> pl.DataFrame:
    pageable = MEMORY_LABELS[0]
    rows = memory_calls(trace).filter(pl.col("dst").is_not_null() & pl.col("api").str.contains("Async"))
    return rows.filter((pl.col("src") == pageable) | (pl.col("dst") == pageable))


REPORT = Report(
    "cuda_memcpy_async",
    "asynchronous copies that block because their memory is pageable",
    _rows,
    lambda rows: memory_table(rows, KINDS),
    notes.of(notes.backtrace_rows),
    needs=("copies",),
    lists_events=True,
    limit=TOP,
)
