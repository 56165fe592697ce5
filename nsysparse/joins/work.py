"""GPU work joined to the code that sent it: operation -> API call -> thread -> NVTX path.

A row is never multiplied: each operation has at most one call, each call one thread and at most one path.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from nsysparse import schema
from nsysparse.joins.calls import find_calls, load_calls
from nsysparse.joins.devices import find_devices, name_peers
from nsysparse.joins.ranges import NO_RANGE, Ranges, attribute, load_ranges
from nsysparse.source import Trace

# The columns that every kind of work has once it is joined.
JOINED = ("device", "start_ns", "end_ns", "stream", "process", "call", "thread", "path", "path_by")


@dataclass(frozen=True)
class Work:
    """Everything the GPU did, and every call and range of the host.

    Attributes:
        kernels, copies, memsets, graphs: The canonical tables' rows with usable times, plus ``device``, ``call``
            (NULL: none), ``thread``, ``call_start_ns``, ``call_end_ns``, ``api`` (name), ``callchain``, ``range``,
            ``path`` and ``path_by``.
        migrations: Unified-memory rows of the copy table: no call sent them, so only ``device`` is added.
        untimed: (``table``, ``rows``, ``bytes``) of rows whose times are missing, zero or reversed; they are in no
            other frame.
        calls: See :func:`nsysparse.joins.calls.load_calls`, with ``waits`` (the call blocks its thread).
        ranges: NVTX ranges.
        devices: See :func:`nsysparse.joins.devices.find_devices`.
        peers: Names of the devices of peer copies: ``process``, ``ordinal``, ``name``.
    """

    kernels: pl.DataFrame
    copies: pl.DataFrame
    memsets: pl.DataFrame
    graphs: pl.DataFrame
    migrations: pl.DataFrame
    untimed: pl.DataFrame
    calls: pl.DataFrame
    ranges: Ranges
    devices: pl.DataFrame
    peers: pl.DataFrame

    def all(self) -> pl.DataFrame:
        """All operations that a call can have sent: JOINED plus ``kind`` and ``bytes`` (NULL for kernels)."""
        parts = []
        for kind in ("kernels", "copies", "memsets", "graphs"):
            frame: pl.DataFrame = getattr(self, kind)
            size = pl.col("bytes") if "bytes" in frame.columns else pl.lit(None, pl.Int64).alias("bytes")
            parts.append(frame.select(*JOINED, size, pl.lit(kind).cast(pl.Categorical).alias("kind")))
        return pl.concat(parts)

    def on(self, device: int) -> Work:
        """The part of the work that ran on one device; calls and ranges stay whole."""
        mine = pl.col("device") == device
        return replace(
            self,
            kernels=self.kernels.filter(mine),
            copies=self.copies.filter(mine),
            memsets=self.memsets.filter(mine),
            graphs=self.graphs.filter(mine),
            migrations=self.migrations.filter(mine),
        )


def load_work(trace: Trace, whole_names: bool = False) -> Work:
    """Read and join a recording.

    Args:
        trace: The recording.
        whole_names: Keep NVTX names apart that differ only in their digits.
    """
    devices, keys = find_devices(trace)
    calls, ranges = load_calls(trace), load_ranges(trace, whole_names)
    parts, untimed = {}, []
    for name in ("kernels", "copies", "memsets", "graphs"):
        frame = trace.frame(name)
        key = frame.select("process", "ordinal")  # alone: a join copies every column that it is given
        frame = frame.hstack(
            key.join(keys, on=key.columns, how="left", maintain_order="left", nulls_equal=True)["device"].to_frame()
        )
        good = _has_times()
        bad = frame.filter(~good)
        size = bad["bytes"].sum() if "bytes" in bad.columns else None
        untimed.append((name, bad.height, size))
        parts[name] = frame.filter(good) if bad.height else frame
    unified = pl.col("kind").is_in(schema.UNIFIED_KINDS).fill_null(False)
    migrations = parts["copies"].filter(unified)
    parts["copies"] = parts["copies"].filter(~unified)
    for name, frame in parts.items():
        parts[name] = frame.with_columns(call=pl.Series(find_calls(frame, calls), dtype=pl.Int64).replace(-1, None))
    sent, place = _with_paths(calls, pl.concat([p["call"] for p in parts.values()]), ranges)
    for name, frame in parts.items():
        found = sent.select(pl.all().gather(place.gather(frame["call"])))
        parts[name] = frame.hstack(found).with_columns(
            pl.col("path").fill_null(0), pl.col("path_by").fill_null(NO_RANGE), pl.col("range").fill_null(-1)
        )
    calls = _with_waits(calls, parts["copies"])
    return Work(
        parts["kernels"],
        parts["copies"],
        parts["memsets"],
        parts["graphs"],
        migrations,
        pl.DataFrame(untimed, schema={"table": pl.String, "rows": pl.Int64, "bytes": pl.Int64}, orient="row").filter(
            pl.col("rows") > 0
        ),
        calls,
        ranges,
        devices,
        name_peers(trace, parts["copies"]),
    )


def _has_times() -> pl.Expr:
    """Rows with usable times: CUPTI writes zeros when it could not read the clock."""
    start, end = pl.col("start_ns"), pl.col("end_ns")
    return (start.is_not_null() & end.is_not_null() & (start > 0) & (end >= start)).fill_null(False)


def _with_paths(calls: pl.DataFrame, wanted: pl.Series, ranges: Ranges) -> tuple[pl.DataFrame, pl.Series]:
    """The calls that sent work, with their path; and for every call its row among these (NULL: it sent none)."""
    sends = np.zeros(calls.height, np.bool_)
    sends[wanted.drop_nulls().to_numpy()] = True
    rows = np.flatnonzero(sends)
    sent = calls.select(
        "thread",
        "process",
        "start_ns",
        pl.col("start_ns").alias("call_start_ns"),
        pl.col("end_ns").alias("call_end_ns"),
        pl.col("name").alias("api"),
        "does",
        "callchain",
    )[rows]
    place = np.full(calls.height, -1, np.int64)
    place[rows] = np.arange(rows.size)
    return sent.hstack(attribute(sent, ranges)).drop("process", "start_ns"), pl.Series(place).replace(-1, None)


def _with_waits(calls: pl.DataFrame, copies: pl.DataFrame) -> pl.DataFrame:
    """Mark the calls that block their thread: synchronizations, synchronous copies, copies from or to pageable memory.

    No column says whether a copy was asynchronous; an ``Async`` copy of pageable memory blocks all the same.
    """
    pageable = copies.filter((pl.col("src_kind") == schema.PAGEABLE) | (pl.col("dst_kind") == schema.PAGEABLE))[
        "call"
    ].drop_nulls()
    waits = np.zeros(calls.height, np.bool_)
    waits[pageable.to_numpy()] = True
    does = pl.col("does")
    # A graph launch that holds a pageable copy does not wait for it: only a copy call does.
    return calls.with_columns(
        waits=(does == "synchronize") | ((does == "copy") & (~pl.col("asynchronous") | pl.Series(waits)))
    )
