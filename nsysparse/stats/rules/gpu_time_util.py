"""nsys's rule on GPU use: stretches of time in which a GPU was in use for less than half."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.report import Report
from nsysparse.stats.rules_engine import DEVICE, TOP, Busy, busy_by_device, device_table, numbered

CHUNKS, THRESHOLD = 30, 50


def _stretches(busy: Busy, chunks: int, threshold: int) -> dict[str, np.ndarray]:
    """Neighbouring chunks below the threshold, put together."""
    start, end = int(busy.union.start[0]), int(busy.union.end[-1])
    step = max(1, -(-(end - start) // chunks))
    low = np.minimum(start + np.arange(chunks) * step, end)
    high = np.minimum(low + step, end)
    used = busy.sums(low, high)
    under = (used * 100 < threshold * (high - low)) & (high > low)
    first = np.flatnonzero(under & ~np.concatenate(([False], under[:-1])))
    last = np.flatnonzero(under & ~np.concatenate((under[1:], [False])))
    total = np.concatenate(([0], np.cumsum(used)))
    length = high[last] - low[first]
    in_use = (total[last + 1] - total[first]) * 100.0 / length
    return {"In-Use (%)": in_use, "Duration (ns)": length, "Start (ns)": low[first]}


def build(options: Mapping[str, int]) -> Report:
    """The rule with other chunks or another threshold."""

    def rows(trace: Trace) -> pl.DataFrame:
        parts = [device_table(_stretches(b, options["chunks"], options["threshold"]), b) for b in busy_by_device(trace)]
        schema = {"In-Use (%)": pl.Float64, "Duration (ns)": pl.Int64, "Start (ns)": pl.Int64, **DEVICE}
        return pl.concat([pl.DataFrame(schema=schema), *parts])

    return Report(
        "gpu_time_util",
        f"stretches of time in which a GPU was in use for less than {options['threshold']}%",
        rows,
        lambda rows: numbered(rows.sort("In-Use (%)", "Start (ns)", maintain_order=True)),
        notes.of(notes.hidden_graphs, notes.overlaps_twice),
        needs=("kernels", "copies", "memsets"),
        lists_events=True,
        limit=TOP,
        options={"chunks": CHUNKS, "threshold": THRESHOLD},
        build=build,
    )


REPORT = build({"chunks": CHUNKS, "threshold": THRESHOLD})
