"""nsys's rule on gaps: stretches of time in which a GPU did nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from nsysparse.source import Trace
from nsysparse.stats import notes
from nsysparse.stats.report import Report
from nsysparse.stats.rules_engine import DEVICE, TOP, Busy, busy_by_device, device_table, numbered

GAP_MS, NS_PER_MS = 500, 1_000_000


def _gaps(busy: Busy, least_ns: int) -> dict[str, np.ndarray]:
    start, end = busy.union.end[:-1], busy.union.start[1:]
    long = end - start > least_ns
    return {"Duration (ns)": (end - start)[long], "Start (ns)": start[long]}


def build(options: Mapping[str, int]) -> Report:
    """The rule with another least gap, in ms."""

    def rows(trace: Trace) -> pl.DataFrame:
        parts = [device_table(_gaps(b, options["gap"] * NS_PER_MS), b) for b in busy_by_device(trace)]
        return pl.concat([pl.DataFrame(schema={"Duration (ns)": pl.Int64, "Start (ns)": pl.Int64, **DEVICE}), *parts])

    return Report(
        "gpu_gaps",
        f"gaps of more than {options['gap']} ms in which a GPU did nothing",
        rows,
        lambda rows: numbered(rows.sort("Duration (ns)", "Start (ns)", descending=[True, False], maintain_order=True)),
        notes.of(notes.hidden_graphs, notes.one_context),
        needs=("kernels", "copies", "memsets"),
        lists_events=True,
        limit=TOP,
        options={"gap": GAP_MS},
        build=build,
    )


REPORT = build({"gap": GAP_MS})
