"""nsys's rule on synchronous fills, which block the host."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.events import MEMORY_LABELS, MEMSET
from nsysparse.stats.report import Report
from nsysparse.stats.rules_engine import TOP, memory_calls, memory_table

KINDS = tuple(MEMORY_LABELS[kind] for kind in (1, 4))  # pinned and managed: filling other memory does not block


def _rows(trace: Trace) -> pl.DataFrame:
    fill = pl.col("api").str.starts_with("cudaMemset") & ~pl.col("api").str.contains("Async")
    return memory_calls(trace).filter((pl.col("operation") == MEMSET) & fill & pl.col("src").is_in(KINDS))


REPORT = Report(
    "cuda_memset_sync",
    "synchronous fills, which block the host",
    _rows,
    lambda rows: memory_table(rows, {"src": "Memory Kind"}),
    notes.of(notes.backtrace_rows),
    needs=("memsets",),
    lists_events=True,
    limit=TOP,
)
