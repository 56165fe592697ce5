"""What goes where in the Perfetto trace.

Each process has its threads; a thread's track holds its CUDA calls, a track below it its NVTX push/pop ranges, nested.
NVTX start/end ranges are below their process. Each GPU has a track for each stream of each process, with kernels,
copies, fills and whole graphs on as many lanes as overlaps need, and counters for busy share and copy throughput. An
arrow goes from a call to the first operation that it sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from nsysparse import schema
from nsysparse.accounting.host import thread_names
from nsysparse.intervals import Intervals, Times, times
from nsysparse.joins.nesting import FOREVER
from nsysparse.joins.work import Work
from nsysparse.outputs.perfetto.lanes import depth_first, flat_lanes, nested_lanes
from nsysparse.outputs.perfetto.tracks import Tracks, load_messages
from nsysparse.outputs.perfetto.wire import BEGIN, CHUNK, COUNTER, END, SEQUENCE, Encoder, Events
from nsysparse.source import Trace

BUSY_BINS = 2_000
DIRECTIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}


def write_perfetto(work: Work, trace: Trace, path: Path) -> int:
    """Write the trace.

    Args:
        work: The joined recording.
        trace: The recording, for its names.
        path: File to write.

    Returns:
        Number of slices written.

    Raises:
        UsageError: The perfetto package is not installed.
    """
    messages = load_messages()
    tracks = Tracks(SEQUENCE)
    encoder = Encoder(messages, tracks.annotation("bytes"))
    slices = _Slices(work, trace, tracks)
    events = [*slices.events(), *_counters(work, tracks, slices)]
    with path.open("wb") as file:
        file.write(tracks.serialize())
        for part in events:
            for low in range(0, part.time.size, CHUNK):
                file.write(encoder.encode(part.part(low, low + CHUNK)))
    return int(sum((part.kind == BEGIN).sum() for part in events))


class _Slices:
    """Tracks and events of everything with a length."""

    def __init__(self, work: Work, trace: Trace, tracks: Tracks) -> None:
        self.work, self.trace, self.tracks = work, trace, tracks
        self.shift = max(0, -_least([work.calls["start_ns"], work.ranges.frame["start_ns"]]))
        threads = thread_names(trace, pl.concat([pl.Series(work.calls.threads), work.ranges.frame["thread"]]))
        self._threads = {t: (pid, tid, name) for t, pid, tid, name in threads.iter_rows()}
        processes = trace.frame("processes").select("pid", schema.program_name(pl.col("name")))
        self._processes = dict(processes.drop_nulls().iter_rows())

    def events(self) -> Iterator[Events]:
        """Calls, ranges, GPU work."""
        operations = self._operations()
        # One arrow a call, to what it sent first.
        first = operations.sort("start_ns").unique("call", keep="first").filter(pl.col("call").is_not_null())
        flows = first.select("call", "row", flow=pl.col("call") + 1)
        yield self._calls(flows.select("call", "flow"))
        yield self._push_pop()
        yield self._start_end()
        yield self._gpu(operations.join(flows.select("row", "flow"), on="row", how="left", maintain_order="left"))

    def _calls(self, flows: pl.DataFrame) -> Events:
        calls = self.work.calls.whole().join(flows, on="call", how="left", maintain_order="left")
        lane = nested_lanes(calls["thread"], calls["start_ns"], calls["end_ns"])
        track = self._thread_tracks(calls["thread"], lane, "")
        return self._nested(calls, track, calls["name"])

    def _push_pop(self) -> Events:
        ranges = self.work.ranges.frame.filter("push_pop")
        lane = nested_lanes(ranges["thread"], ranges["start_ns"], ranges["end_ns"])
        return self._nested(ranges, self._thread_tracks(ranges["thread"], lane, "NVTX"), ranges["name"])

    def _start_end(self) -> Events:
        ranges = self.work.ranges.frame.filter(~pl.col("push_pop"))
        lane = flat_lanes(ranges["process"], ranges["start_ns"], ranges["end_ns"])
        keys = pl.DataFrame({"process": ranges["process"], "lane": lane})
        track = _per_key(keys, lambda process, n: self._lane(self.process(process), "NVTX start/end", n))
        return self._nested(ranges, track, ranges["name"])

    def _gpu(self, operations: pl.DataFrame) -> Events:
        streams = operations.select("device", "process", "context", "stream")
        group = streams.fill_null(-1).select(pl.struct(pl.all()).rank("dense").cast(pl.Int64)).to_series()
        lane = flat_lanes(group, operations["start_ns"], operations["end_ns"])
        several = streams["process"].n_unique() > 1

        def track_of(device: int, process: int, context: int, stream: int, n: int) -> int:
            owner = f" of process {_pid(process)}" if several and process is not None else ""
            return self._lane(self.device(device), f"stream {stream}, context {context}{owner}", n)

        track = _per_key(streams.with_columns(lane=lane), track_of)
        return self._nested(operations, track, operations["name"])

    def _operations(self) -> pl.DataFrame:
        """Everything the GPU did: what is drawn of it, with ``row`` and ``bytes``."""
        work, parts = self.work, []
        names = self.trace.strings(work.kernels["short_name_id"]).rename({"id": "short_name_id", "value": "name"})
        kernels = work.kernels.join(names, on="short_name_id", how="left", maintain_order="left")
        kinds = pl.col("kind").replace_strict(schema.COPY_KINDS, default="copy", return_dtype=pl.String)
        copies = pl.concat([work.copies, work.migrations], how="diagonal")
        named = (
            kernels,
            copies.with_columns(name="Memcpy " + kinds),
            work.memsets.with_columns(name=pl.lit("Memset")),
            work.graphs.with_columns(name=pl.format("CUDA graph {}", "graph")),
        )
        for frame in named:
            size = pl.col("bytes") if "bytes" in frame.columns else pl.lit(None, pl.Int64).alias("bytes")
            columns = ("start_ns", "end_ns", "device", "process", "context", "stream", "call", "name")
            parts.append(frame.select(*columns, size))
        return pl.concat(parts, how="vertical_relaxed").with_row_index("row")

    def _nested(self, frame: pl.DataFrame, track: Times, names: pl.Series) -> Events:
        """Begins and ends of slices that nest on their tracks; one that never ended has no end."""
        start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
        begin, finish = depth_first(track, start, end)
        ended = end != FOREVER
        order = np.argsort(np.concatenate((begin, finish[ended])), kind="stable")
        n, m = begin.size, int(ended.sum())
        name = self.tracks.names(names).to_numpy()
        flow = frame["flow"].fill_null(0).to_numpy() if "flow" in frame.columns else np.zeros(n, np.int64)
        size = frame["bytes"].fill_null(-1).to_numpy() if "bytes" in frame.columns else np.full(n, -1)

        def both(first: Times, second: Times) -> Times:
            return times(np.concatenate((first, second))[order])

        return Events(
            both(start, end[ended]) + self.shift,
            both(np.full(n, BEGIN), np.full(m, END)),
            both(track, track[ended]),
            both(name, np.zeros(m, np.int64)),
            both(flow, np.zeros(m, np.int64)),
            both(size, np.full(m, -1)),
            np.zeros(n + m),
        )

    def process(self, process: int) -> int:
        """Track of a process."""
        pid = _pid(process)
        return self.tracks.process(pid, self._processes.get(pid) or f"process {pid}")

    def device(self, device: int) -> int:
        """Track of a GPU."""
        return self.tracks.named(0, self.work.devices["label"][device], device)

    def _lane(self, parent: int, name: str, number: int) -> int:
        return self.tracks.named(parent, f"{name} (lane {number + 1})" if number else name, number)

    def _thread_tracks(self, threads: pl.Series, lane: Times, below: str) -> Times:
        def track_of(thread: int, number: int) -> int:
            pid, tid, name = self._threads[thread]
            self.process(thread - (thread & schema.THREAD_MASK))
            track = self.tracks.thread(pid, tid, name)
            return track if not below and not number else self._lane(track, below or "CUDA API", number)

        return _per_key(pl.DataFrame({"thread": threads, "lane": lane}), track_of)


def _pid(process: int) -> int:
    return (process >> 24) & schema.THREAD_MASK


def _least(columns: list[pl.Series]) -> int:
    values = [v for c in columns if isinstance(v := c.min(), int)]
    return min(values, default=0)


def _per_key(keys: pl.DataFrame, make: object) -> Times:
    """A number for each row, made once for each distinct row of keys, in sorted order."""
    assert callable(make)
    distinct = keys.unique().sort(keys.columns)
    numbers = pl.Series("number", [make(*key) for key in distinct.iter_rows()], pl.Int64)
    joined = keys.join(
        distinct.with_columns(numbers), on=keys.columns, how="left", maintain_order="left", nulls_equal=True
    )
    return joined["number"].to_numpy()


def _counters(work: Work, tracks: Tracks, slices: _Slices) -> Iterator[Events]:
    """Busy share and copy throughput of each device."""
    operations = pl.concat([work.all().select("device", "start_ns", "end_ns")])
    for (device,), part in operations.sort("device").group_by("device", maintain_order=True):
        if device is None:
            continue
        assert isinstance(device, int)
        busy = Intervals.union_of(part["start_ns"], part["end_ns"])
        if not len(busy):
            continue
        start, end = int(busy.start[0]), int(busy.end[-1])
        step = max(1, (end - start) // BUSY_BINS)
        low = np.arange(start, end, step)
        share = busy.covered(low, np.minimum(low + step, end)) * 100 / (np.minimum(low + step, end) - low)
        below = slices.device(device)
        yield _counter(tracks.counter(below, "busy", "%"), np.append(low, end) + slices.shift, np.append(share, 0.0))
        copies = work.copies.filter((pl.col("device") == device) & (pl.col("end_ns") > pl.col("start_ns")))
        for kind, name in DIRECTIONS.items():
            moved = copies.filter(pl.col("kind") == kind)
            if moved.height:
                at, rate = _throughput(moved)
                yield _counter(tracks.counter(below, f"{name} throughput", "GB/s"), at + slices.shift, rate)


def _throughput(copies: pl.DataFrame) -> tuple[Times, np.ndarray]:
    """Bytes over duration of the copies that run, added up, whenever it changes: GB/s."""
    start, end = copies["start_ns"].to_numpy(), copies["end_ns"].to_numpy()
    rate = copies["bytes"].to_numpy() / (end - start)
    at = np.concatenate((start, end))
    order = np.argsort(at, kind="stable")
    level = np.cumsum(np.concatenate((rate, -rate))[order])
    running = np.cumsum(np.concatenate((np.ones(start.size), -np.ones(end.size)))[order])
    at = at[order]
    last = np.append(at[1:] != at[:-1], True)  # of several changes at one time only the outcome counts
    return at[last], np.where(running == 0, 0.0, level)[last]


def _counter(track: int, at: Times, values: np.ndarray) -> Events:
    n = at.size
    zeros = np.zeros(n, np.int64)
    return Events(times(at), zeros + COUNTER, zeros + track, zeros, zeros, zeros - 1, values.astype(np.float64))
