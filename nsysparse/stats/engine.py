"""The statistics behind every summary: total, share, count, mean, median, extremes, standard deviation.

The standard deviation is the sample's (n - 1 below the line), 0 for a single value, as nsys prints it. Shares are of
the listed total, which is not the time that passed: see the notes under each table.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

NS, MB = "ns", "MB"
BYTES_PER_MB, NS_PER_S = 1_000_000, 1_000_000_000


def quotient(above: pl.Expr, below: pl.Expr | int) -> pl.Expr:
    """A division proper.

    Polars multiplies by the reciprocal where the divisor is one value for all rows, which is off in the last bit for
    three in ten, and then in the last digit printed where the value is half way. Here the divisor is a column.
    """
    return above / (above * 0 + below).cast(pl.Float64)


def megabytes(size: pl.Expr) -> pl.Expr:
    """A size or a rate in bytes, in MB."""
    return quotient(size, BYTES_PER_MB)


def hertz(time: pl.Expr) -> pl.Expr:
    """How many whole times this fits into a second; NULL for no time. nsys makes its throughputs of it."""
    return pl.when(time > 0).then(NS_PER_S // time)


def known_sum(value: str) -> pl.Expr:
    """The sum, NULL where there is nothing to add up."""
    column = pl.col(value)
    return pl.when(column.count() > 0).then(column.sum())


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
    return quotient(pl.col(total) * 100.0, pl.col(total).sum()).fill_nan(None).alias("Time (%)")


def grouped(rows: pl.DataFrame, by: Sequence[str], *figures: pl.Expr) -> pl.DataFrame:
    """One row a group, in the order of first appearance; categorical keys become plain text, to be sorted as such."""
    table = rows.group_by(by, maintain_order=True).agg(figures)
    return table.with_columns(pl.col(pl.Categorical).cast(pl.String))


def summarize(
    rows: pl.DataFrame, by: Sequence[str], counted: str, ties: Sequence[str], longer_first: bool = False
) -> pl.DataFrame:
    """Sum up time as nsys does: share, total, count and statistics of each group, longest first.

    Args:
        rows: Events; ``duration`` is their time in ns.
        by: Columns of the group, under the names to print.
        counted: Name of the column of counts (``Num Calls``, ``Instances``, ``Count``).
        ties: Columns by which nsys orders groups of equal totals: some of ``by``, or another of the rows, of which the
            least in the group counts.
        longer_first: Whether the longer average goes before these.
    """
    total = "Total Time (ns)"
    others = [pl.col(c).min() for c in ties if c not in by]
    table = grouped(
        rows,
        by,
        known_sum("duration").alias(total),
        pl.len().cast(pl.Int64).alias(counted),
        *statistics("duration"),
        *others,
    )
    first = [total, "Avg (ns)"] if longer_first else [total]
    descending = [*(True for _ in first), *(False for _ in ties)]
    table = table.with_columns(share(total)).sort(
        *first, *ties, descending=descending, nulls_last=True, maintain_order=True
    )
    moved = {*by, *ties, "Time (%)", total, counted}
    return table.select("Time (%)", total, counted, *(c for c in table.columns if c not in moved), *by)
