"""The window in bins: busy by kind, and copy throughput. Binned here, so that a chart holds thousands of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.accounting.busy import KINDS, Busy
from nsysparse.accounting.windows import Window
from nsysparse.intervals import Times, times
from nsysparse.nulls import filled

BINS = 600
Rates = npt.NDArray[np.float64]


def bin_window(copies: pl.DataFrame, busy: Busy, bins: int = BINS) -> pl.DataFrame:
    """Busy share and copy throughput over the window.

    Args:
        copies: As :func:`nsysparse.accounting.copies.detail_copies` returns them.
        busy: The window's unions.
        bins: Number of bins at most; a window of few ns has fewer.

    Returns:
        ``from_ns``, ``to_ns``, the share of the bin in which each kind ran (``kernels_ratio`` ...), ``idle_ratio``, and
        ``htod``, ``dtoh``, ``other`` (bytes/s; a copy's bytes are spread evenly over its time).
    """
    edges = bin_edges(busy.window, bins)
    start, end = edges[:-1], edges[1:]
    width = end - start
    columns: dict[str, npt.NDArray[Any]] = {"from_ns": start, "to_ns": end}
    for work_kind in KINDS:
        columns[f"{work_kind}_ratio"] = busy.by_kind[work_kind].covered(start, end) / width
    columns["idle_ratio"] = 1 - busy.everything.covered(start, end) / width
    return pl.DataFrame(columns | measure_throughput(copies, edges))


def bin_edges(window: Window, bins: int) -> Times:
    """Where the bins of a window begin, and where the last one ends, ns."""
    length = window.length_ns
    # From the window's start: late session times have no exact float.
    return window.start_ns + np.unique(np.linspace(0, length, min(bins, length) + 1).round().astype(np.int64))


def measure_throughput(copies: pl.DataFrame, edges: Times) -> dict[str, Rates]:
    """Bytes a second in each bin of ``htod``, ``dtoh`` and ``other`` copies; see :func:`bin_window`."""
    start, end, kind = times(copies["start_ns"]), times(copies["end_ns"]), copies["kind_name"]
    took = np.maximum(end - start, 1)
    rate = filled(copies["bytes"]) / took
    into, out = (kind == "HtoD").to_numpy(), (kind == "DtoH").to_numpy()
    chosen = {"htod": into, "dtoh": out, "other": ~(into | out)}
    return {name: _throughput(start[mine], took[mine], rate[mine], edges) for name, mine in chosen.items()}


def _throughput(start: Times, took: Times, rate: Rates, edges: Times) -> Rates:
    """Bytes a second in each bin."""
    if not start.size:
        return np.zeros(edges.size - 1)
    moved = _ramp(start, rate, edges) - _ramp(start + took, rate, edges)
    return np.maximum(np.diff(moved), 0) / np.diff(edges) * 1e9


def _ramp(start: Times, rate: Rates, edges: Times) -> Rates:
    """Sum over all i of rate[i] * max(0, edge - start[i]), at each edge."""
    order = np.argsort(start, kind="stable")
    origin = edges[0]
    begun = np.searchsorted(start[order], edges, side="right")
    rates = np.concatenate(([0.0], np.cumsum(rate[order])))
    offsets = np.concatenate(([0.0], np.cumsum(rate[order] * (start[order] - origin))))
    ramp: Rates = rates[begun] * (edges - origin) - offsets[begun]
    return ramp
