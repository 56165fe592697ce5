"""Cadence: how regularly something happens, and which NVTX range has the same period."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.accounting.windows import Window
from nsysparse.joins.work import Work

REGULAR = 0.25  # half the distance between the quartiles, over the median, up to which a period is called regular
SAME = 0.1  # relative difference of two periods that are called the same
MATCH = 0.95  # share of a sequence that must repeat
LONGEST = 2_048  # longest period looked for in a sequence
LOOK_AT = 20_000  # entries of a sequence looked at


def find_period(values: npt.NDArray[np.int64]) -> int:
    """After how many entries a sequence repeats: the smallest lag at which nearly all entries are equal, 0 for none."""
    v = values[:LOOK_AT]
    for lag in range(1, min(LONGEST, v.size // 2) + 1):
        if (v[lag:] == v[:-lag]).mean() >= MATCH:
            return lag
    return 0


def cadence(starts: pl.Series, work: Work, window: Window) -> dict[str, Any] | None:
    """Period of recurring events.

    Args:
        starts: When each began, ns.
        work: For the NVTX ranges.
        window: Only ranges that start inside are looked at.

    Returns:
        None for fewer than four events; else ``events``, ``period_ns`` (median distance), ``spread_ratio`` (half the
        distance between the quartiles, over the median), ``regular`` and ``nvtx`` (path of the range with the same
        period and number, None when there is none).
    """
    at = np.sort(starts.drop_nulls().to_numpy())
    if at.size < 4:
        return None
    apart = np.diff(at)
    low, period, high = np.quantile(apart, (0.25, 0.5, 0.75))
    spread = float((high - low) / 2 / period) if period > 0 else None
    return {
        "events": int(at.size),
        "period_ns": int(period),
        "spread_ratio": spread,
        "regular": spread is not None and spread <= REGULAR,
        "nvtx": _same_period(work, window, float(period), int(at.size)),
    }


def _same_period(work: Work, window: Window, period: float, events: int) -> str | None:
    start = pl.col("start_ns")
    inside = (start >= window.start_ns) & (start < window.end_ns)
    ranges = work.ranges.frame.select("path", "start_ns", "depth", "push_pop", "domain").filter(
        pl.col("push_pop") & inside & (pl.col("domain") == 0)
    )
    counts = ranges.group_by("path").agg(apart=(pl.len().cast(pl.Int64) - events).abs())
    near = counts.filter(pl.col("apart") <= SAME * events)
    if not near.height:  # most often: periods are not worked out for all
        return None
    by_path = (
        ranges.filter(pl.col("path").is_in(near["path"].implode()))
        .sort("start_ns")
        .group_by("path")
        .agg(start.diff().median().alias("period"), pl.col("depth").first())
        .filter((pl.col("period") - period).abs() <= SAME * period)
    )
    same = by_path.join(near, on="path").join(work.ranges.paths.select("path", "text"), on="path")
    same = same.sort("apart", "depth", "text")
    return str(same["text"][0]) if same.height else None
