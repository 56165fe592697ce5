"""The statistics behind every summary: total, share, count, mean, median, extremes, standard deviation.

The standard deviation is the sample's (n - 1 below the line), 0 for a single value, as nsys prints it. Shares are of
the listed total, which is not the time that passed: see the notes under each table.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

NS, MB = "ns", "MB"
BYTES_PER_MB = 1_000_000


def statistics(value: str, unit: str = NS, prefix: str = "") -> list[pl.Expr]:
    """Mean, median, extremes and standard deviation of a column, under nsys's names (``Avg (ns)``, ...)."""
    column = pl.col(value)
    deviation = pl.when(column.count() < 2).then(0.0).otherwise(column.std(ddof=1))
    return [
        (column.sum() / column.count()).fill_nan(None).alias(f"{prefix}Avg ({unit})"),
        column.median().alias(f"{prefix}Med ({unit})"),
        column.min().alias(f"{prefix}Min ({unit})"),
        column.max().alias(f"{prefix}Max ({unit})"),
        deviation.cast(pl.Float64).alias(f"{prefix}StdDev ({unit})"),
    ]


def share(total: str) -> pl.Expr:
    """``Time (%)``: a total's share of the listed total."""
    return (pl.col(total) * 100.0 / pl.col(total).sum()).alias("Time (%)")


def grouped(rows: pl.DataFrame, by: Sequence[str], *figures: pl.Expr) -> pl.DataFrame:
    """One row a group, in the order of first appearance; categorical keys become plain text, to be sorted as such."""
    table = rows.group_by(by, maintain_order=True).agg(figures)
    return table.with_columns(pl.col(pl.Categorical).cast(pl.String))


def summarize(rows: pl.DataFrame, by: Sequence[str], counted: str, value: str = "duration") -> pl.DataFrame:
    """Sum up time as nsys does: share, total, count and statistics of each group, longest first.

    Args:
        rows: Events; ``value`` is their time in ns.
        by: Columns of the group, under the names to print.
        counted: Name of the column of counts (``Num Calls``, ``Instances``, ``Count``).
        value: Column to measure.
    """
    total = "Total Time (ns)"
    table = grouped(
        rows, by, pl.col(value).sum().alias(total), pl.len().cast(pl.Int64).alias(counted), *statistics(value)
    )
    # Where totals are equal, nsys lists the longer average first, then goes by name.
    order = [total, "Avg (ns)", *reversed(by)]
    descending = [True, True, *(False for _ in by)]
    table = table.with_columns(share(total)).sort(order, descending=descending, maintain_order=True)
    figures = ["Time (%)", total, counted, *(c for c in table.columns if c not in {*by, "Time (%)", total, counted})]
    return table.select(*figures, *by)
