"""What the threads of a benchmark's program did, made up in segments so that memory does not grow with the length.

A thread makes three calls a kernel; one kernel in ten comes from a graph launch of twenty. Kernels of a stream follow
one another, copies run on a stream of their own, and the correlation ids of every process begin at 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
SEGMENT_KERNELS = 20_000
GRAPH_KERNELS = 20
CALLS_A_KERNEL = 3
# What a call does.
LAUNCH, GRAPH, COPY, MEMSET, SYNC, OTHER = range(6)
# NVTX eventType.
MARK, PUSH_POP, START_END, DOMAIN = 34, 59, 60, 75
# A level's ranges: calls from one to the next, share of them that it covers, share of the ranges that are there.
LEVELS = ((3_000, 0.99, 1.0), (300, 0.98, 1.0), (30, 0.9, 0.95), (15, 0.8, 0.9), (5, 0.6, 0.3))


@dataclass
class Thread:
    """One thread of the program, and how far it has come.

    Attributes:
        process: Number of its process, from 0.
        number: Its number in the process.
        siblings: Threads of the process.
        gtid: Serialized thread id.
        ordinal: CUDA device that it drives.
        streams: Streams of its kernels; the first takes most.
        copy_stream: Stream of its copies.
        kernels: Kernels that it will have launched in the end.
    """

    process: int
    number: int
    siblings: int
    gtid: int
    ordinal: int
    streams: list[int]
    copy_stream: int
    kernels: int
    rng: np.random.Generator
    clock: int = 1_000_000
    calls: int = 0
    launched: int = 0
    iterations: int = 0
    free_at: dict[int, int] = field(default_factory=dict)

    @property
    def gpid(self) -> int:
        """Serialized process id."""
        return self.gtid & ~0xFFFFFF


@dataclass(frozen=True)
class Segment:
    """A stretch of a thread's life: its calls in order of time, and the GPU work they sent.

    Attributes:
        start, end, does, correlation: Of each call.
        kernels, copies, memsets: Operations, each with ``call`` (row of the call), ``start``, ``end`` and ``stream``.
        graphed: Whether each kernel came from a graph.
    """

    start: Ints
    end: Ints
    does: npt.NDArray[np.int8]
    correlation: Ints
    kernels: dict[str, Ints]
    copies: dict[str, Ints]
    memsets: dict[str, Ints]
    graphed: npt.NDArray[np.bool_]


def next_segment(thread: Thread) -> Segment:
    """Let a thread go on until it has launched its next SEGMENT_KERNELS kernels, or all of them."""
    n, rng = min(SEGMENT_KERNELS, thread.kernels - thread.launched), thread.rng
    n_calls = CALLS_A_KERNEL * n
    graphs = n // (10 * GRAPH_KERNELS)
    counts = [n - graphs * GRAPH_KERNELS, graphs, n // 10, n // 100, n // 50]
    does = rng.permutation(np.repeat(np.arange(6, dtype=np.int8), [*counts, n_calls - sum(counts)]))
    took = rng.lognormal(7.6, 0.6, n_calls).astype(np.int64) + 200
    end = thread.clock + np.cumsum(took + rng.exponential(1_500, n_calls).astype(np.int64) + 400)
    correlation = np.arange(thread.calls, thread.calls + n_calls) * thread.siblings + thread.number + 1
    launches = np.flatnonzero((does == LAUNCH) | (does == GRAPH))
    graphed = does[launches] == GRAPH
    repeats = np.where(graphed, GRAPH_KERNELS, 1)
    segment = Segment(
        end - took,
        end,
        does,
        correlation,
        _kernels(thread, end, np.repeat(launches, repeats)),
        _copies(thread, end, np.flatnonzero(does == COPY)),
        _memsets(thread, end, np.flatnonzero(does == MEMSET)),
        np.repeat(graphed, repeats),
    )
    thread.clock, thread.calls, thread.launched = int(end[-1]), thread.calls + n_calls, thread.launched + n
    return segment


def _kernels(thread: Thread, returned: Ints, call: Ints) -> dict[str, Ints]:
    rng, n = thread.rng, call.size
    others = len(thread.streams) - 1
    weights = [0.8, *[0.2 / others] * others] if others else [1.0]
    stream = np.array(thread.streams)[rng.choice(others + 1, n, p=weights)]
    took = rng.lognormal(7.6, 1.0, n).astype(np.int64) + 450
    start = _in_turn(thread, stream, returned[call] + rng.integers(3_000, 9_000, n), took)
    return {"call": call, "start": start, "end": start + took, "stream": stream}


def _copies(thread: Thread, returned: Ints, call: Ints) -> dict[str, Ints]:
    rng, n = thread.rng, call.size
    size = np.minimum(rng.lognormal(11, 2, n), 1e9).astype(np.int64) + 4
    took = size // 25 + 800
    stream = np.full(n, thread.copy_stream)
    start = _in_turn(thread, stream, returned[call] + 2_500, took)
    kind = rng.choice([1, 2, 8], n, p=[0.5, 0.3, 0.2])
    host = rng.integers(0, 2, n)  # pageable or pinned
    return {
        "call": call,
        "start": start,
        "end": start + took,
        "stream": stream,
        "bytes": size,
        "kind": kind,
        "src": np.where(kind == 1, host, 2),
        "dst": np.where(kind == 2, host, 2),
    }


def _memsets(thread: Thread, returned: Ints, call: Ints) -> dict[str, Ints]:
    size = thread.rng.integers(1, 1 << 20, call.size)
    took = size // 1_000 + 900
    stream = np.full(call.size, thread.streams[0])
    start = _in_turn(thread, stream, returned[call] + 3_000, took)
    return {"call": call, "start": start, "end": start + took, "stream": stream, "bytes": size}


def _in_turn(thread: Thread, stream: Ints, ready: Ints, took: Ints) -> Ints:
    """Start of each operation: when it is ready and the one before it on its stream has ended."""
    start = np.empty_like(ready)
    for one in np.unique(stream).tolist():
        rows = np.flatnonzero(stream == one)
        before = np.cumsum(took[rows]) - took[rows]
        earliest = np.maximum(ready[rows] - before, thread.free_at.get(one, 0))
        start[rows] = np.maximum.accumulate(earliest) + before
        thread.free_at[one] = int(start[rows[-1]] + took[rows[-1]])
    return start


def nested_ranges(segment: Segment, rng: np.random.Generator) -> list[tuple[Ints, Ints]]:
    """Start and end of the push/pop ranges of each level, well nested: blocks of calls inside blocks of calls."""
    n, found = segment.start.size, []
    for level, (block, cover, share) in enumerate(LEVELS):
        first = np.arange(0, n, block)
        first = first[rng.random(first.size) < share]
        last = first + int(block * cover) - 1
        for outer, outer_cover, _ in LEVELS[:level]:
            last = np.minimum(last, first // outer * outer + int(outer * outer_cover) - 1)
        last = np.minimum(last, n - 1)
        first, last = first[last >= first], last[last >= first]
        margin = 40 * (len(LEVELS) - level)  # an outer range opens earlier and closes later; calls are 400 ns apart
        found.append((segment.start[first] - margin, segment.end[last] + margin))
    return found


def adversarial_ranges(shape: str, count: int, start: int, end: int) -> tuple[Ints, Ints | None]:
    """Ranges on one thread that defeat a careless algorithm.

    Args:
        shape: ``flat`` (side by side), ``deep`` (a chain, one inside the other), ``unfinished`` (none ends) or
            ``equal`` (all start together).
        count: How many.
        start: When the first begins.
        end: When the last is over.

    Returns:
        Their starts and ends; None: none of them ends.
    """
    i = np.arange(count, dtype=np.int64)
    step = max((end - start) // (2 * count + 2), 1)
    if shape == "flat":
        return start + 2 * step * i, start + 2 * step * i + step
    if shape == "deep":
        return start + step * i, end - step * i
    if shape == "unfinished":
        return start + 2 * step * i, None
    return np.full(count, start), start + 2 * step * (i + 1)
