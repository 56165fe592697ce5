"""nsys's rule on synchronous copies, which block the host."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.report import Report
from nsysparse.stats.rules.cuda_memcpy_async import KINDS
from nsysparse.stats.rules_engine import TOP, memory_calls, memory_table


def _rows(trace: Trace) -> pl.DataFrame:
    # A graph's launch and a kernel's are no copy calls, whatever copies they hold.
    copy = pl.col("api").str.contains("Memcpy") & ~pl.col("api").str.contains("Async")
    return memory_calls(trace).filter(pl.col("dst").is_not_null() & copy)


REPORT = Report(
    "cuda_memcpy_sync",
    "synchronous copies, which block the host",
    _rows,
    lambda rows: memory_table(rows, KINDS),
    notes.of(notes.backtrace_rows),
    needs=("copies",),
    lists_events=True,
    limit=TOP,
    checked=False,
)
