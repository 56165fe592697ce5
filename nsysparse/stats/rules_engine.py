"""What nsys's analysis rules share: the time each GPU was in use, and the calls behind memory operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse import schema
from nsysparse.intervals import Intervals, Times, times
from nsysparse.source import Trace
from nsysparse.stats.engine import megabytes
from nsysparse.stats.events import load_api, load_memory

TOP = 50  # rows that nsys analyze prints
DEVICE = {"PID": pl.Int64, "Device ID": pl.Int64, "Context ID": pl.Int64}


@dataclass(frozen=True)
class Busy:
    """When one context of one process kept its device in use."""

    pid: int | None
    ordinal: int
    context: int | None
    union: Intervals
    start: Times
    end: Times

    def sums(self, low: Times, high: Times) -> Times:
        """For each of many disjoint intervals, the time of all operations in it, overlaps counted each time."""
        return _before(self.start, high) - _before(self.start, low) - _before(self.end, high) + _before(self.end, low)


def _before(instants: Times, at: Times) -> Times:
    """For each ``at``, the time from each of the sorted instants before it up to it, added up.

    Intermediate sums may wrap around; differences of two results do not.
    """
    n = np.searchsorted(instants, at)
    return times(n * at - np.concatenate(([0], np.cumsum(instants)))[n])


def busy_by_device(trace: Trace) -> Iterator[Busy]:
    """Kernels, copies and fills (not whole graphs, as nsys has it) of each process, device and context."""
    keys = (schema.pid_of(pl.col("process")).alias("pid"), pl.col("ordinal"), pl.col("context"))
    work = pl.concat([trace.frame(t).select(*keys, "start_ns", "end_ns") for t in ("kernels", "copies", "memsets")])
    for (pid, ordinal, context), part in work.sort(*("pid", "ordinal", "context")).group_by(
        "pid", "ordinal", "context", maintain_order=True
    ):
        union = Intervals.union_of(part["start_ns"], part["end_ns"])
        if len(union):
            yield Busy(pid, ordinal, context, union, *(np.sort(part[c].to_numpy()) for c in ("start_ns", "end_ns")))


def device_table(columns: dict[str, npt.NDArray[np.generic]], busy: Busy) -> pl.DataFrame:
    """Columns beside the process, device and context they belong to."""
    key = {"PID": busy.pid, "Device ID": busy.ordinal, "Context ID": busy.context}
    return pl.DataFrame(columns).with_columns(pl.lit(v, pl.Int64).alias(k) for k, v in key.items())


def numbered(table: pl.DataFrame) -> pl.DataFrame:
    """Put ``Row#`` in front."""
    return table.with_row_index("Row#", offset=1).with_columns(pl.col("Row#").cast(pl.Int64))


def memory_calls(trace: Trace) -> pl.DataFrame:
    """Copies and fills beside every API row of theirs: a plain join, as nsys has it.

    Returns:
        The columns of :func:`nsysparse.stats.events.load_memory`, ``pid``, ``api`` (the name in the export),
        ``event_class``; longest first.
    """
    calls = load_api(trace).select("process", "correlation", "api", "event_class")
    pairs = load_memory(trace).join(calls, on=["process", "correlation"], how="inner", maintain_order="left_right")
    pairs = pairs.with_columns(pl.col("api").cast(pl.String))
    return pairs.with_columns(pid=schema.pid_of(pl.col("process"))).sort(
        "duration", "start_ns", "api", descending=[True, False, False], maintain_order=True
    )


def memory_table(rows: pl.DataFrame, kinds: dict[str, str]) -> pl.DataFrame:
    """The rules' table of memory operations; ``kinds`` names the columns of memory kinds to print."""
    return rows.select(
        pl.col("duration").alias("Duration (ns)"),
        pl.col("start_ns").alias("Start (ns)"),
        *(pl.col(c).alias(name) for c, name in kinds.items()),
        megabytes(pl.col("bytes")).alias("Bytes (MB)"),
        pl.col("pid").alias("PID"),
        pl.col("ordinal").alias("Device ID"),
        pl.col("context").alias("Context ID"),
        pl.col("green_context").alias("Green Context ID"),
        pl.col("stream").alias("Stream ID"),
        pl.col("api").alias("API Name"),
    )
