"""Unified memory: migrations between host and device, and the page faults of either.

No recording with unified memory is among those whose nsys reports are at hand: what is here follows the documentation.
"""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats.cut import CutTrace
from nsysparse.stats.engine import BYTES_PER_MB
from nsysparse.stats.events import duration, extra_column

TO_DEVICE, TO_HOST = 11, 12
FAULTS = {"cpu_faults": "CUDA_UM_CPU_PAGE_FAULT_EVENTS", "gpu_faults": "CUDA_UM_GPU_PAGE_FAULT_EVENTS"}
COLUMNS = ("address", "to_device_bytes", "to_host_bytes", "duration", "cpu_faults", "gpu_faults")


def load_migrations(trace: Trace) -> pl.DataFrame:
    """Migrations and faults: the columns of COLUMNS; what a row is not about is 0."""
    copies = trace.frame("copies").with_columns(extra_column(trace, "copies", "virtualAddress", "address"), duration())
    kind = pl.col("kind")
    moves = copies.filter(kind.is_in([TO_DEVICE, TO_HOST])).select(
        "address",
        pl.when(kind == TO_DEVICE).then("bytes").otherwise(0).alias("to_device_bytes"),
        pl.when(kind == TO_HOST).then("bytes").otherwise(0).alias("to_host_bytes"),
        "duration",
        cpu_faults=pl.lit(0, pl.Int64),
        gpu_faults=pl.lit(0, pl.Int64),
    )
    return pl.concat([moves, *(_faults(trace, name, table) for name, table in FAULTS.items())])


def _faults(trace: Trace, name: str, table: str) -> pl.DataFrame:
    """One row a fault record; a GPU's record stands for ``numberOfPageFaults`` faults where the export says so."""
    zero = pl.lit(0, pl.Int64)
    present = trace.tables.get(table, ())
    wanted = {
        new: (old, "int")
        for new, old in {"address": "address", "faults": "numberOfPageFaults", "time_ns": "start"}.items()
        if old in present
    }
    if "address" not in wanted:
        frame = pl.DataFrame(schema={"address": pl.Int64})
    else:
        read = pl.from_arrow(trace.backend.read(table, wanted))
        assert isinstance(read, pl.DataFrame)
        frame = _inside(read, trace)
    count = pl.col("faults").fill_null(1) if "faults" in frame.columns else pl.lit(1, pl.Int64)
    return frame.with_columns(
        to_device_bytes=zero, to_host_bytes=zero, duration=zero, cpu_faults=zero, gpu_faults=zero
    ).select(count.alias(c) if c == name else pl.col(c) for c in COLUMNS)


def _inside(faults: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """The faults of the recording's part, where it is one."""
    window = trace.window if isinstance(trace, CutTrace) else None
    if window is None or "time_ns" not in faults.columns:
        return faults
    return faults.filter((pl.col("time_ns") >= window[0]) & (pl.col("time_ns") < window[1]))


def add_up(prefix: str) -> list[pl.Expr]:
    """Sizes moved and faults, under the names to print."""
    return [
        (pl.col("to_device_bytes").sum() / BYTES_PER_MB).alias(f"{prefix}HtoD Migration Size (MB)"),
        (pl.col("to_host_bytes").sum() / BYTES_PER_MB).alias(f"{prefix}DtoH Migration Size (MB)"),
        pl.col("cpu_faults").sum().alias(f"{prefix}CPU Page Faults"),
        pl.col("gpu_faults").sum().alias(f"{prefix}GPU Page Faults"),
    ]
