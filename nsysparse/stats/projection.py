"""Which API calls lie inside which NVTX ranges: nsys's projection of ranges onto the GPU.

A piece of work belongs to every range of its call's thread that holds the whole call. Ranges may overlap in any way;
the calls of a thread may lie inside each other (a driver call in a runtime call), but those of one depth follow each
other, so the calls inside a range are a run of the sorted calls: two binary searches a range, whole arrays at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.intervals import Times
from nsysparse.joins.nesting import Nesting
from nsysparse.source import Trace
from nsysparse.stats.events import load_api
from nsysparse.stats.ranges import load_stats_ranges
from nsysparse.stats.tree import with_tree

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Runs:
    """Runs of calls inside ranges: ``calls[low[i]:high[i]]`` are the rows of the calls inside range ``ranges[i]``."""

    ranges: Index
    calls: Index
    low: Index
    high: Index


def ranges_of_calls(trace: Trace) -> pl.DataFrame:
    """The ranges that nsys looks for calls in: those of a thread that did not end on another.

    Where no range has an end there are none.
    """
    return load_stats_ranges(trace).filter(
        ~pl.col("moved") & pl.col("thread").is_not_null() & pl.col("end_ns").is_not_null()
    )


def find_runs(ranges: pl.DataFrame, calls: pl.DataFrame) -> Iterator[Runs]:
    """For each thread and depth of calls, the calls inside each range.

    Args:
        ranges: Columns ``thread``, ``start_ns``, ``end_ns``.
        calls: Columns ``thread``, ``start_ns``, ``end_ns``.
    """
    start, end, thread = (ranges[c].to_numpy() for c in ("start_ns", "end_ns", "thread"))
    depth = _depths(calls)
    numbered = (
        calls.select("thread", "start_ns", "end_ns").with_row_index("row").with_columns(pl.Series("depth", depth))
    )
    for (owner, _), part in numbered.group_by("thread", "depth", maintain_order=True):
        mine = np.flatnonzero(thread == owner)
        if not mine.size:
            continue
        part = part.sort("start_ns", maintain_order=True)
        low = np.searchsorted(part["start_ns"].to_numpy(), start[mine], side="left")
        high = np.searchsorted(part["end_ns"].to_numpy(), end[mine], side="right")
        some = high > low
        yield Runs(mine[some], part["row"].to_numpy().astype(np.int64), low[some], high[some])


def _depths(calls: pl.DataFrame) -> Index:
    depth = np.zeros(calls.height, np.int64)
    nesting = Nesting(calls["thread"], calls["start_ns"], calls["end_ns"])
    inside = nesting.row >= 0
    depth[nesting.row[inside]] = nesting.depth[inside]
    return depth


def project(trace: Trace) -> pl.DataFrame:
    """Ranges with the GPU work that was sent from inside them.

    Returns:
        As :func:`nsysparse.stats.tree.with_tree`, only ranges with work (and the tree is made of those), plus
        ``gpu_start_ns``, ``gpu_end_ns``, ``operations`` (calls that sent work: a graph's launch is one). Ranges that
        ended on another thread are left out. All of this is as nsys has it.
    """
    ranges = ranges_of_calls(trace)
    calls = _innermost(_calls_with_work(trace))
    n = ranges.height
    first, last = np.full(n, np.iinfo(np.int64).max), np.full(n, np.iinfo(np.int64).min)
    count = np.zeros(n, np.int64)
    for runs in find_runs(ranges, calls):
        part = calls[runs.calls]
        count[runs.ranges] += runs.high - runs.low
        first[runs.ranges] = np.minimum(first[runs.ranges], _over(np.minimum, part["gpu_start_ns"], runs))
        last[runs.ranges] = np.maximum(last[runs.ranges], _over(np.maximum, part["gpu_end_ns"], runs))
    columns = {"gpu_start_ns": first, "gpu_end_ns": last, "operations": count}
    ranges = ranges.with_columns(**{k: pl.Series(v) for k, v in columns.items()})
    return with_tree(ranges.filter(pl.col("operations") > 0))


def _over(function: np.ufunc, values: pl.Series, runs: Runs) -> Times:
    """The extreme of each run."""
    padded = np.append(values.to_numpy(), values[0])  # a run may end where the calls end
    bounds = np.column_stack((runs.low, runs.high)).ravel()
    return function.reduceat(padded, bounds)[::2]


def _calls_with_work(trace: Trace) -> pl.DataFrame:
    """API rows that sent work: ``thread``, times, and first start and last end of what they sent."""
    keys = ["process", "correlation"]
    work = pl.concat(
        [trace.frame(t).select(*keys, "start_ns", "end_ns") for t in ("kernels", "copies", "memsets")]
    ).filter(pl.col("correlation").fill_null(0) != 0)
    sent = work.group_by(keys).agg(
        pl.col("start_ns").min().alias("gpu_start_ns"), pl.col("end_ns").max().alias("gpu_end_ns")
    )
    calls = load_api(trace).select("thread", "start_ns", "end_ns", "duration", *keys)
    return calls.join(sent, on=keys, how="inner", maintain_order="left")


def _innermost(calls: pl.DataFrame) -> pl.DataFrame:
    """One row a call: the shortest, which lies inside its twins. Counted once, in every range that holds it."""
    return calls.sort("duration", maintain_order=True).unique(
        ["process", "correlation"], keep="first", maintain_order=True
    )
