"""Unified memory: migrations between host and device, and the page faults of either.

No recording with unified memory is among those whose nsys reports are at hand: what is here follows nsys's figures for
a made one.
"""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats.cut import CutTrace
from nsysparse.stats.engine import known_sum, megabytes
from nsysparse.stats.events import duration, extra_column

TO_DEVICE, TO_HOST = 11, 12
FAULTS = {"cpu_faults": "CUDA_UM_CPU_PAGE_FAULT_EVENTS", "gpu_faults": "CUDA_UM_GPU_PAGE_FAULT_EVENTS"}
COLUMNS = ("address", "to_device_bytes", "to_host_bytes", "duration", "cpu_faults", "gpu_faults")
NOTHING = pl.lit(None, pl.Int64)


def load_migrations(trace: Trace) -> pl.DataFrame:
    """Migrations and faults: the columns of COLUMNS; what a row is not about is NULL."""
    copies = trace.frame("copies").with_columns(extra_column(trace, "copies", "virtualAddress", "address"), duration())
    kind = pl.col("kind")
    moves = copies.filter(kind.is_in([TO_DEVICE, TO_HOST])).select(
        "address",
        pl.when(kind == TO_DEVICE).then("bytes").alias("to_device_bytes"),
        pl.when(kind == TO_HOST).then("bytes").alias("to_host_bytes"),
        "duration",
        cpu_faults=NOTHING,
        gpu_faults=NOTHING,
    )
    return pl.concat([moves, *(_faults(trace, name, table) for name, table in FAULTS.items())])


def _faults(trace: Trace, name: str, table: str) -> pl.DataFrame:
    """One row a fault record; a GPU's record stands for ``numberOfPageFaults`` faults where the export says so."""
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
        to_device_bytes=NOTHING, to_host_bytes=NOTHING, duration=NOTHING, cpu_faults=NOTHING, gpu_faults=NOTHING
    ).select(count.alias(c) if c == name else pl.col(c) for c in COLUMNS)


def _inside(faults: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """The faults of the recording's part, where it is one."""
    window = trace.window if isinstance(trace, CutTrace) else None
    if window is None or "time_ns" not in faults.columns:
        return faults
    return faults.filter((pl.col("time_ns") >= window[0]) & (pl.col("time_ns") < window[1]))


def add_up(*names: str) -> list[pl.Expr]:
    """Sizes moved to the device and to the host, faults of the CPU and of the GPU, under these names."""
    sizes = [megabytes(known_sum(c)) for c in COLUMNS[1:3]]
    return [e.alias(n) for e, n in zip([*sizes, *(known_sum(c) for c in COLUMNS[4:])], names, strict=True)]
