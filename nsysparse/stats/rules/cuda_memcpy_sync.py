"""nsys's rule on synchronous copies, which block the host."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.report import Report
from nsysparse.stats.rules.cuda_memcpy_async import KINDS
from nsysparse.stats.rules_engine import TOP, memory_calls, memory_table

TO_DEVICE = "[CUDA memcpy Host-to-Device]"
SMALL_BYTES = 64_000  # to the device, nsys leaves out what is no larger: such a copy need not block


def _rows(trace: Trace) -> pl.DataFrame:
    # The driver's own functions are left out; so are a graph's launch and a kernel's, whatever copies they hold.
    copy = pl.col("api").str.starts_with("cudaMemcpy") & ~pl.col("api").str.contains("Async")
    small = (pl.col("operation") == TO_DEVICE) & (pl.col("bytes") <= SMALL_BYTES)
    return memory_calls(trace).filter(pl.col("dst").is_not_null() & copy & ~small)


REPORT = Report(
    "cuda_memcpy_sync",
    "synchronous copies, which block the host",
    _rows,
    lambda rows: memory_table(rows, KINDS),
    notes.of(notes.backtrace_rows),
    needs=("copies",),
    lists_events=True,
    limit=TOP,
)
