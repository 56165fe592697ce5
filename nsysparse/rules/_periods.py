"""Cadence: how regularly something happens, and which NVTX range has the same period."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.accounting.windows import Window
from nsysparse.intervals import Index, times
from nsysparse.joins.work import Work
from nsysparse.lazy import cached_property

REGULAR = 0.25  # half the distance between the quartiles, over the median, up to which a period is called regular
SAME = 0.1  # relative difference of two periods that are called the same
MATCH = 0.95  # share of a sequence that must repeat
LONGEST = 2_048  # longest period looked for in a sequence
LOOK_AT = 20_000  # entries of a sequence looked at


def find_period(values: npt.NDArray[np.int64]) -> int:
    """After how many entries a sequence repeats: the smallest lag at which nearly all entries are equal, 0 for none."""
    v = values[:LOOK_AT]
    few = v.size // 10
    for lag in range(1, min(LONGEST, v.size // 2) + 1):
        n = v.size - lag
        if np.count_nonzero(v[lag : lag + few] != v[:few]) > (1 - MATCH) * n + 1:  # too many already
            continue
        if np.count_nonzero(v[lag:] == v[:-lag]) / n >= MATCH:
            return lag
    return 0


class OwnRanges:
    """The NVTX ranges of the program itself (push/pop, of the default domain), for all devices.

    Attributes:
        frame: All ranges, these among them.
        paths: Their paths.
    """

    def __init__(self, work: Work) -> None:
        self.frame, self.paths = work.ranges.frame, work.ranges.paths

    @cached_property
    def own(self) -> npt.NDArray[np.bool_]:
        """Which of all ranges these are."""
        return (self.frame["push_pop"] & (self.frame["domain"] == 0)).to_numpy()

    @cached_property
    def _everywhere(self) -> Index:
        return np.bincount(self.frame["path"].to_numpy()[self.own], minlength=self.paths.height)

    def starting_in(self, window: Window) -> npt.NDArray[np.bool_]:
        """Which of all ranges start in a window."""
        start = times(self.frame["start_ns"])
        inside: npt.NDArray[np.bool_] = (start >= window.start_ns) & (start < window.end_ns)
        return inside

    def counts(self, window: Window) -> Index:
        """Number of these of each path that start in a window: few are outside, as a rule, and taken off all."""
        outside = np.flatnonzero(self.own & ~self.starting_in(window))
        return self._everywhere - np.bincount(self.frame["path"].to_numpy()[outside], minlength=self.paths.height)


class Beats:
    """The NVTX ranges of the program itself that start in a window, and how often those of each path do."""

    def __init__(self, ranges: OwnRanges, window: Window) -> None:
        self._ranges, self._window = ranges, window

    @cached_property
    def _counts(self) -> Index:
        return self._ranges.counts(self._window)

    def like(self, period: float, events: int) -> str | None:
        """Path of the ranges with a period and a number, None when there are none."""
        apart = np.abs(self._counts - events)
        near = np.flatnonzero(apart <= SAME * events)
        if not near.size:  # most often: periods are not worked out for all
            return None
        ranges = self._ranges
        same = (
            ranges.frame.select("path", "start_ns", "depth")
            .filter(pl.Series(ranges.own & ranges.starting_in(self._window)))
            .filter(pl.col("path").is_in(near.tolist()))
            .sort("start_ns")
            .group_by("path")
            .agg(pl.col("start_ns").diff().median().alias("period"), pl.col("depth").first())
            .filter((pl.col("period") - period).abs() <= SAME * period)
            .join(ranges.paths.select("path", "text"), on="path")
            .with_columns(apart=pl.lit(pl.Series(apart)).gather("path"))
            .sort("apart", "depth", "text")
        )
        return str(same["text"][0]) if same.height else None


def cadence(starts: pl.Series, beats: Beats) -> dict[str, Any] | None:
    """Period of recurring events.

    Args:
        starts: When each began, ns.
        beats: The NVTX ranges that they may be in step with.

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
        "nvtx": beats.like(float(period), int(at.size)),
    }
