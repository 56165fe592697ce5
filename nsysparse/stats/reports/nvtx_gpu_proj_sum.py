"""NVTX ranges by name, with the GPU work that was sent from inside them."""

from __future__ import annotations

import polars as pl

from nsysparse.stats import notes
from nsysparse.stats.engine import grouped, statistics
from nsysparse.stats.report import Report
from nsysparse.stats.reports.nvtx_gpu_proj_trace import projected


def _shape(rows: pl.DataFrame) -> pl.DataFrame:
    total = "Total Proj Time (ns)"
    table = grouped(
        rows.rename({"Name": "Range"}),
        ["Range", "Style"],
        pl.col("Projected Duration (ns)").sum().alias(total),
        pl.col("Orig Duration (ns)").sum().alias("Total Range Time (ns)"),
        pl.len().cast(pl.Int64).alias("Range Instances"),
        *statistics("Projected Duration (ns)", prefix="Proj "),
        pl.col("NumGPUOps").sum().alias("Total GPU Ops"),
        pl.col("NumGPUOps").mean().alias("Avg GPU Ops"),
        pl.col("Lvl").mean().alias("Avg Range Lvl"),
        pl.col("NumChild").mean().alias("Avg Num Child"),
    )
    return table.sort(total, "Range", "Style", descending=[True, False, False], maintain_order=True)


REPORT = Report(
    "nvtx_gpu_proj_sum",
    "NVTX ranges by name with the GPU work sent from inside them",
    projected,
    _shape,
    notes.of(notes.moved_ranges, notes.unfinished_ranges, notes.hidden_graphs, notes.projection),
    needs=("nvtx",),
)
