"""Kernels joined plainly to the API rows that launched them: one row for each pair, as nsys's reports have it."""

from __future__ import annotations

import polars as pl

from nsysparse import schema
from nsysparse.source import Trace
from nsysparse.stats.events import load_api, load_kernels

SIZES = tuple(f"{a}_{d}" for a in ("grid", "block") for d in "xyz")
COLUMNS = ("ordinal", "process", "correlation", *SIZES)


def load_kernel_calls(trace: Trace) -> pl.DataFrame:
    """Pairs of a kernel and an API row of its process and correlation id.

    Returns:
        ``kernel_row``, ``kernel``, ``start_ns``, ``end_ns``, ``duration``, ``ordinal``, the grid's and block's sizes;
        ``api`` (without its version), ``api_start_ns``, ``api_end_ns``, ``thread``, ``pid``, ``tid``; ``twin`` (the
        kernel has another pair).
    """
    kernels = load_kernels(trace, *COLUMNS).with_row_index("kernel_row").cast({"kernel_row": pl.Int64})
    calls = load_api(trace).select(
        "process",
        "correlation",
        pl.col("function").alias("api"),
        pl.col("start_ns").alias("api_start_ns"),
        pl.col("end_ns").alias("api_end_ns"),
        "thread",
        schema.pid_of(pl.col("thread")).alias("pid"),
        schema.tid_of(pl.col("thread")).alias("tid"),
    )
    return (
        kernels.select(
            *("kernel_row", "kernel", "start_ns", "end_ns", "duration", "ordinal", "process", "correlation"), *SIZES
        )
        .join(calls, on=["process", "correlation"], how="inner", maintain_order="left_right")
        .with_columns(twin=pl.col("kernel_row").is_duplicated())
    )
