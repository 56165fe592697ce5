"""GPU work joined to the code that sent it: operation -> API call -> thread -> NVTX path.

A row is never multiplied: each operation has at most one call, each call one thread and at most one path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse import schema
from nsysparse.joins.api import make_calls, read_api
from nsysparse.joins.calls import DOES, Calls
from nsysparse.joins.devices import find_devices, name_peers
from nsysparse.joins.order import by_start, inverse
from nsysparse.joins.ranges import NO_RANGE, Ranges, attribute, make_ranges
from nsysparse.joins.senders import find_calls
from nsysparse.lazy import cached_property
from nsysparse.nulls import filled, given, masked
from nsysparse.shelf import PIECE_ROWS, Index, Shelf
from nsysparse.side_by_side import WORTH_A_THREAD, aside, in_order
from nsysparse.source import Trace

# The columns that every kind of work has once it is joined.
GPU_TABLES = ("kernels", "copies", "memsets", "graphs")
FRAMES = (*GPU_TABLES, "migrations")
# Columns that keep 64 bits: what is added up, and what other tables are joined by.
KEPT_WIDE = (
    *("start_ns", "end_ns", "bytes", "process", "kind", "src_kind", "dst_kind", "src_ordinal", "dst_ordinal"),
    *("cause", "address", "copy_count", "memory_kind", "graph"),
)
# What nothing asks for once operations are joined to their calls and accounted for.
SPENT = ("correlation", "block_x", "block_y", "block_z", "registers", "static_shared_bytes", "dynamic_shared_bytes")
Place = npt.NDArray[np.int32]
JOINED = ("device", "start_ns", "end_ns", "stream", "process", "call", "thread", "path", "path_by")


@dataclass(frozen=True)
class Work:
    """Everything the GPU did, and every call and range of the host.

    Attributes:
        kernels, copies, memsets, graphs: The canonical tables' rows with usable times, by device, plus ``device``,
            ``call`` (NULL: none), ``thread``, ``api`` (name), ``callchain``, ``range``, ``path`` and ``path_by``.
        migrations: Unified-memory rows of the copy table: no call sent them, so only ``device`` is added.
        untimed: (``table``, ``rows``, ``bytes``) of rows whose times are missing, zero or reversed; they are in no
            other frame.
        calls: Every call of the host, see :class:`nsysparse.joins.calls.Calls`.
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
    calls: Calls
    ranges: Ranges
    devices: pl.DataFrame
    peers: pl.DataFrame

    @cached_property
    def _by_device(self) -> dict[str, dict[int, tuple[int, int]]]:
        """First row and number of rows of each device in each frame; its rows lie together."""
        return {name: _runs(getattr(self, name)["device"]) for name in FRAMES}

    @property
    def processes(self) -> pl.Series:
        """The processes that made CUDA calls."""
        return pl.Series("process", list(self.calls.by_process()), pl.Int64)

    def all(self) -> pl.DataFrame:
        """All operations that a call can have sent: JOINED plus ``kind`` and ``bytes`` (NULL for kernels)."""
        parts = []
        for kind in ("kernels", "copies", "memsets", "graphs"):
            frame: pl.DataFrame = getattr(self, kind)
            size = pl.col("bytes") if "bytes" in frame.columns else pl.lit(None, pl.Int64).alias("bytes")
            parts.append(frame.select(*JOINED, size, pl.lit(kind).cast(pl.Categorical).alias("kind")))
        return pl.concat(parts, how="vertical_relaxed")

    def accounted(self) -> Work:
        """The same with operations as :func:`accounted_rows` leaves them, and calls without their correlation."""
        parts: dict[str, Any] = {n: accounted_rows(getattr(self, n)) for n in GPU_TABLES}
        return replace(self, **parts, calls=self.calls.without_ids())

    def on(self, device: int) -> Work:
        """The part of the work that ran on one device, not a copy; calls and ranges stay whole."""
        parts = {n: getattr(self, n).slice(*self._by_device[n].get(device, (0, 0))) for n in FRAMES}
        return replace(self, **parts)


def accounted_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """Operations without the columns SPENT; of ``graph_node`` it is left whether it is given (1 or NULL)."""
    frame = frame.drop(SPENT, strict=False)
    if "graph_node" not in frame.columns:
        return frame
    return frame.with_columns(graph_node=pl.when(pl.col("graph_node").is_not_null()).then(pl.lit(1, pl.Int8)))


def _runs(column: pl.Series) -> dict[int, tuple[int, int]]:
    """First row and number of rows of each value of a column in which equal values lie together."""
    runs = column.rle().struct.unnest()
    first = runs["len"].cum_sum() - runs["len"]
    return {v: (f, n) for v, f, n in zip(runs["value"], first, runs["len"], strict=True)}


def load_work(trace: Trace, whole_names: bool = False) -> Work:
    """Read and join a recording.

    Args:
        trace: The recording.
        whole_names: Keep NVTX names apart that differ only in their digits.
    """
    shelf = trace.shelf
    trace.frame("strings")  # all is read on this thread; others ask for these too
    with aside(shelf.at_once) as begin:  # what is read is put in order while more is read: what takes longest first
        rows = {name: trace.narrow(name, KEPT_WIDE) for name in GPU_TABLES}
        runs = {name: _device_runs(frame) for name, frame in rows.items()}
        devices, keys = find_devices(trace, {name: rows[name][heads] for name, heads in runs.items()})
        gpu_later = begin(partial(_on_devices, rows, runs, keys, shelf))
        ranges_later = begin(partial(make_ranges, trace.nvtx(), trace, whole_names))
        calls = make_calls(read_api(trace), trace)
        (parts, migrations, untimed), ranges = gpu_later(), ranges_later()
    for name, call in zip(parts, find_calls(parts.values(), calls, shelf.at_once), strict=True):
        parts[name] = parts[name].hstack(shelf.put(masked("call", call, call >= 0).to_frame()))
    sent, place = _with_paths(calls, pl.concat([p["call"] for p in parts.values()]), ranges, shelf)
    for name, frame in parts.items():
        parts[name] = frame.hstack(_gathered(sent, place, frame["call"], shelf))
    calls = calls.waiting_for(parts["copies"])
    return Work(
        parts["kernels"],
        parts["copies"],
        parts["memsets"],
        parts["graphs"],
        migrations,
        untimed,
        calls,
        ranges,
        devices,
        name_peers(trace, parts["copies"]),
    )


def _device_runs(frame: pl.DataFrame) -> Index:
    """First rows of runs of one (process, ordinal): rows of one device come one after the other."""
    key = frame.select(pl.any_horizontal(pl.col("process", "ordinal").ne_missing(pl.col("process", "ordinal").shift())))
    changes = key.to_series().to_numpy().copy()
    changes[:1] = True
    return np.flatnonzero(changes)


def _on_devices(
    rows: dict[str, pl.DataFrame], runs: dict[str, Index], keys: pl.DataFrame, shelf: Shelf
) -> tuple[dict[str, pl.DataFrame], pl.DataFrame, pl.DataFrame]:
    """Put the rows of each device together; ``rows`` is emptied on the way.

    Returns:
        GPU_TABLES without what has no usable times and what no call sent; then as :class:`Work` says ``migrations``
        and ``untimed``.
    """
    parts, untimed = {}, []
    for name in GPU_TABLES:
        frame = _by_device(rows.pop(name), runs[name], keys, shelf)
        good = _has_times()
        bad = frame.filter(~good)
        size = bad["bytes"].sum() if "bytes" in bad.columns else None
        untimed.append((name, bad.height, size))
        parts[name] = frame.filter(good) if bad.height else frame
    unified = pl.col("kind").is_in(schema.UNIFIED_KINDS).fill_null(False)
    migrations = parts["copies"].filter(unified)
    parts["copies"] = parts["copies"].filter(~unified)
    columns = {"table": pl.String, "rows": pl.Int64, "bytes": pl.Int64}
    return parts, migrations, pl.DataFrame(untimed, columns, orient="row").filter(pl.col("rows") > 0)


def _by_device(frame: pl.DataFrame, heads: Index, keys: pl.DataFrame, shelf: Shelf) -> pl.DataFrame:
    """Add ``device`` (NULL: none) and sort by device and start: what is equal stays in the order it had."""
    key = frame.select("process", "ordinal")[heads].with_columns(pl.col("ordinal").cast(pl.Int64))
    found = key.join(keys, on=key.columns, how="left", maintain_order="left", nulls_equal=True)["device"]
    rows, number = np.diff(heads, append=frame.height), filled(found, -1)
    device = masked("device", np.repeat(number, rows), np.repeat(given(found), rows))
    count = int(number.max(initial=-1)) + 2
    code = np.repeat((number + 1).astype(np.min_scalar_type(count)), rows)
    order, _ = by_start(code, count, filled(frame["start_ns"]))
    frame = frame.with_columns(device)
    return frame if order is None else shelf.reorder(frame, order)


def _has_times() -> pl.Expr:
    """Rows with usable times: CUPTI writes zeros when it could not read the clock."""
    start, end = pl.col("start_ns"), pl.col("end_ns")
    return (start.is_not_null() & end.is_not_null() & (start > 0) & (end >= start)).fill_null(False)


def _with_paths(calls: Calls, wanted: pl.Series, ranges: Ranges, shelf: Shelf) -> tuple[pl.DataFrame, Place]:
    """The calls that sent work, with their path; and for every call that did its row among these."""
    sends = np.zeros(calls.height, np.bool_)
    sends[wanted.drop_nulls().to_numpy()] = True
    rows = np.flatnonzero(sends)
    place = inverse(rows, calls.height)
    parts = 1 if rows.size <= WORTH_A_THREAD else 2 * -(-rows.size // (2 * PIECE_ROWS))  # as much for either core
    step = -(-rows.size // parts)

    def piece(low: int) -> pl.DataFrame:
        mine = rows[low : low + step]
        thread = pl.Series("thread", np.repeat(calls.threads, np.diff(np.searchsorted(mine, calls.bounds))))
        sent = calls.frame.select("start_ns", "callchain", api="name")[mine].insert_column(0, thread)
        does = pl.Series("does", calls.does(mine)).cat.to(DOES)
        return sent.select("thread", does, "callchain", "api").hstack(attribute(sent, ranges))

    pieces = in_order(piece, range(0, max(rows.size, 1), max(step, 1)), shelf.at_once)
    return shelf.keep(pieces), place


def _gathered(sent: pl.DataFrame, place: Place, call: pl.Series, shelf: Shelf) -> pl.DataFrame:
    """The sending call's columns for each operation, NULL where it has none."""

    def pieces() -> Iterator[pl.DataFrame]:
        for part in shelf.parts(call.len()):
            mine = call[part]
            row = masked("row", place[filled(mine)], given(mine)) if place.size else mine  # where all are NULL
            yield sent.select(pl.all().gather(row)).with_columns(
                pl.col("path").fill_null(0), pl.col("path_by").fill_null(NO_RANGE), pl.col("range").fill_null(-1)
            )

    return shelf.keep(pieces())
