"""Every kernel, copy and fill in the order of their starts."""

from __future__ import annotations

import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.devices import device_names
from nsysparse.stats.engine import hertz, megabytes
from nsysparse.stats.events import extra_column, load_kernels, load_memory
from nsysparse.stats.report import Report, as_is

SIZES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers")
COLUMNS = (
    *SIZES,
    *("correlation", "context", "stream", "process", "ordinal", "static_shared_bytes", "dynamic_shared_bytes"),
)
PRINTED = ("GrdX", "GrdY", "GrdZ", "BlkX", "BlkY", "BlkZ", "Reg/Trd")
NO_INT, NO_FLOAT, NO_TEXT = (pl.lit(None, t) for t in (pl.Int64, pl.Float64, pl.String))


def _rows(trace: Trace) -> pl.DataFrame:
    kernels = load_kernels(trace, *COLUMNS).with_columns(
        extra_column(trace, "kernels", "greenContextId", "green_context"), src=NO_TEXT, dst=NO_TEXT
    )
    memory = load_memory(trace)
    parts = [
        kernels.select(
            *_lead(),
            *(pl.col(c).alias(p) for c, p in zip(SIZES, PRINTED, strict=True)),
            megabytes(pl.col("static_shared_bytes")).alias("StcSMem (MB)"),
            megabytes(pl.col("dynamic_shared_bytes")).alias("DymSMem (MB)"),
            NO_FLOAT.alias("Bytes (MB)"),
            NO_FLOAT.alias("Throughput (MB/s)"),
            *_tail("kernel"),
        ),
        memory.select(
            *_lead(),
            *(NO_INT.alias(p) for p in PRINTED),
            NO_FLOAT.alias("StcSMem (MB)"),
            NO_FLOAT.alias("DymSMem (MB)"),
            megabytes(pl.col("bytes")).alias("Bytes (MB)"),
            # A whole division, as nsys has it, which makes long copies look slower than they are.
            megabytes(pl.col("bytes") * hertz(pl.col("duration"))).alias("Throughput (MB/s)"),
            *_tail("operation"),
        ),
    ]
    rows = pl.concat(parts).sort("Start (ns)", maintain_order=True)
    names = device_names(trace)
    named = rows.join(names, on=["process", "ordinal"], how="left", maintain_order="left", nulls_equal=True)
    return named.with_columns(pl.col("device").alias("Device")).drop("process", "ordinal", "device")


def _lead() -> list[pl.Expr]:
    return [
        pl.col("start_ns").alias("Start (ns)"),
        pl.col("duration").alias("Duration (ns)"),
        pl.col("correlation").alias("CorrId"),
    ]


def _tail(name: str) -> list[pl.Expr]:
    return [
        pl.col("src").alias("SrcMemKd"),
        pl.col("dst").alias("DstMemKd"),
        NO_TEXT.alias("Device"),
        pl.col("context").alias("Ctx"),
        pl.col("green_context").alias("GreenCtx"),
        pl.col("stream").replace(0, None).alias("Strm"),
        pl.col(name).alias("Name"),
        pl.col("process"),
        pl.col("ordinal"),
    ]


REPORT = Report(
    "cuda_gpu_trace",
    "every kernel, copy and fill",
    _rows,
    as_is,
    notes.of(notes.throughput_rounding),
    needs=("kernels", "copies", "memsets"),
    lists_events=True,
)
