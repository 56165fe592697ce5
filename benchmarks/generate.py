"""Generate an nsys-shaped SQLite export of any size: ``generate.py KERNELS OUT.sqlite [--shape SHAPE]``.

KERNELS kernels, three API rows each, one copy in ten, about 0.45 NVTX rows each, CPU samples; several processes whose
correlation ids are equal. The same arguments give the same rows. Shapes:

* ``default``: 2 processes of 4 threads, each thread with a device of its own;
* ``flat``, ``deep``, ``unfinished``, ``equal``: one thread whose ranges defeat a careless algorithm: ten ranges a
  kernel side by side; as many as kernels one inside the other, without an end, or with one start;
* ``names``: 100,000 NVTX names (ids inside the text) and 50,000 kernel names;
* ``many``: 500 processes of 4 threads and 20 streams on 64 devices.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from export import Export
from model import (
    CALLS_A_KERNEL,
    DOMAIN,
    MARK,
    OTHER,
    PUSH_POP,
    START_END,
    Segment,
    Thread,
    adversarial_ranges,
    nested_ranges,
    next_segment,
)

VM = 1 << 48
ADVERSARIAL = ("flat", "deep", "unfinished", "equal")
WORK_CALLS = ("LaunchKernel_v7000", "GraphLaunch_v10000", "MemcpyAsync_v3020", "MemsetAsync_v3020")
OTHER_CALLS = (
    *("EventRecord_v3020", "EventQuery_v3020", "StreamWaitEvent_v3020"),
    *("StreamIsCapturing_v10000", "GetDevice_v3020", "PeekAtLastError_v3020"),
)


@dataclass(frozen=True)
class Shape:
    """What a benchmark's program looks like.

    Attributes:
        processes: How many.
        threads: Of each process.
        streams: Of each thread, for kernels.
        devices: GPUs of the machine.
        own_device: Whether every thread of a process drives a device of its own.
        kernel_names: Distinct kernel names.
        nvtx_names: Distinct texts of the inner ranges, with ids inside; 0: 168 registered names.
        ranges: ``nested``, or one of ADVERSARIAL.
    """

    processes: int = 2
    threads: int = 4
    streams: int = 4
    devices: int = 8
    own_device: bool = True
    kernel_names: int = 300
    nvtx_names: int = 0
    ranges: str = "nested"


SHAPES = {
    "default": Shape(),
    **{name: Shape(processes=1, threads=1, devices=1, ranges=name) for name in ADVERSARIAL},
    "names": Shape(kernel_names=50_000, nvtx_names=100_000),
    "many": Shape(processes=500, streams=5, devices=64, own_device=False),
}


class Generator:
    """Makes up a program and writes its recording."""

    def __init__(self, export: Export, kernels: int, shape: Shape) -> None:
        self.export, self.kernels, self.shape = export, kernels, shape
        self.rng = np.random.default_rng(1)
        self.samples = 0
        self.names = self._names()
        self.threads = list(self._threads())

    def _names(self) -> dict[str, np.ndarray]:
        ids = self.export.strings
        numbers = range(self.shape.kernel_names)
        return {
            "work": ids([f"cuda{c}" for c in (*WORK_CALLS, "StreamSynchronize_v3020")]),
            "other": ids([f"cuda{c}" for c in OTHER_CALLS]),
            "demangled": ids(
                [f"void gemm::kernel<gemm::tile<{i}, 128>, {'gemm::bf16, ' * 8}{i}>(args)" for i in numbers]
            ),
            "short": ids([f"gemm_{i}" for i in numbers]),
            "layer": ids([f"layer_{i}" for i in range(48)]),
            "op": ids([f"aten::op{i}" for i in range(120)]),
            "symbol": ids([f"torch::autograd::function_{i}(state&)" for i in range(3_000)]),
            "module": ids(["libtorch_cuda.so"]),
        }

    def _threads(self) -> Iterator[Thread]:
        s = self.shape
        total = s.processes * s.threads
        for p in range(s.processes):
            pid = 4_242 + 16 * p
            for t in range(s.threads):
                n = self.kernels // total + (p * s.threads + t < self.kernels % total)
                streams = [7 + t * s.streams + i for i in range(s.streams)]
                rng = np.random.default_rng([2, p, t])
                gtid = VM | pid << 24 | pid + t
                copies = 7 + s.threads * s.streams + t
                yield Thread(p, t, s.threads, gtid, t if s.own_device else 0, streams, copies, n, rng)

    def write(self) -> None:
        """Write everything: chunk by chunk, the threads in turn, as their buffers reached the profiler."""
        self._machine()
        active = [t for t in self.threads if t.kernels]
        first = min(t.clock for t in active)
        while active:
            for thread in active:
                segment = next_segment(thread)
                self._calls(thread, segment)
                self._operations(thread, segment)
                self._samples(thread, segment)
                if self.shape.ranges == "nested":
                    self._nested(thread, segment)
            active = [t for t in active if t.launched < t.kernels]
        if self.shape.ranges != "nested":
            self._adversarial(self.threads[0], first)

    def _machine(self) -> None:
        s, add = self.shape, self.export.append
        gpus = np.arange(s.devices)
        limits = {"smCount": 132, "maxWarpsPerSm": 64, "maxBlocksPerSm": 32, "maxRegistersPerSm": 65_536}
        limits |= {"maxShmemPerSm": 233_472, "threadsPerWarp": 32, "computeMajor": 9, "totalMemory": 150_109_880_320}
        bus = [f"0000:{i:02x}:00.0" for i in range(s.devices)]
        names = ["NVIDIA H200"] * s.devices
        add("TARGET_INFO_GPU", {"id": gpus, "vmId": VM, "cuDevice": gpus, "name": names, "busLocation": bus, **limits})
        pairs = sorted({(t.process, t.ordinal, t.gpid >> 24 & 0xFFFFFF) for t in self.threads})
        number = [i % s.devices for i in range(len(pairs))]
        add(
            "TARGET_INFO_CUDA_DEVICE",
            {"gpuId": number, "cudaId": [o for _, o, _ in pairs], "pid": [p for *_, p in pairs]},
        )
        processes = list(dict.fromkeys(t.gpid for t in self.threads))
        pids = [p >> 24 & 0xFFFFFF for p in processes]
        add("PROCESSES", {"globalPid": processes, "pid": pids, "name": ["python3"] * len(pids)})
        name = self.export.string("python3")
        add("ThreadNames", {"nameId": name, "priority": 20, "globalTid": [t.gtid for t in self.threads]})
        domain = [p | p >> 24 & 0xFFFFFF for p in processes]
        text = ["NCCL"] * len(domain)
        registered = {"start": -2_000_000_000, "eventType": DOMAIN, "globalTid": domain, "domainId": 1, "text": text}
        add("NVTX_EVENTS", registered)

    def _calls(self, thread: Thread, segment: Segment) -> None:
        n, rng = segment.start.size, thread.rng
        other = self.names["other"][rng.integers(0, self.names["other"].size, n)]
        name = np.where(segment.does == OTHER, other, self.names["work"][np.minimum(segment.does, OTHER - 1)])
        columns = {"start": segment.start, "end": segment.end, "eventClass": 0, "globalTid": thread.gtid}
        failed = np.where((segment.does == OTHER) & (rng.random(n) < 1e-3), 600, 0)
        columns |= {"correlationId": segment.correlation, "nameId": name, "returnValue": failed}
        self.export.append("CUPTI_ACTIVITY_KIND_RUNTIME", columns)

    def _operations(self, thread: Thread, segment: Segment) -> None:
        place = {"deviceId": thread.ordinal, "contextId": 1, "globalPid": thread.gpid}

        def shared(found: dict[str, np.ndarray]) -> dict[str, object]:
            times = {"start": found["start"], "end": found["end"], "streamId": found["stream"]}
            return place | times | {"correlationId": segment.correlation[found["call"]]}

        kernels, n = segment.kernels, segment.kernels["call"].size
        name, grid = thread.rng.integers(0, self.shape.kernel_names, n), thread.rng.integers(1, 4_096, n)
        node = pa.array(np.arange(1 << 40, (1 << 40) + n), mask=~segment.graphed)
        sizes = {"gridX": grid, "gridY": grid % 7 + 1, "gridZ": 1, "blockX": 32 << grid % 6, "blockY": 1, "blockZ": 1}
        memory = {"staticSharedMemory": 0, "dynamicSharedMemory": grid * 16, "localMemoryPerThread": 0}
        names = {"demangledName": self.names["demangled"][name], "shortName": self.names["short"][name]}
        more = {"registersPerThread": grid % 200 + 32, "localMemoryTotal": 150_000_000, "gridId": grid}
        self.export.append(
            "CUPTI_ACTIVITY_KIND_KERNEL", shared(kernels) | names | sizes | memory | more | {"graphNodeId": node}
        )
        copies = segment.copies
        kinds = {"copyKind": copies["kind"], "srcKind": copies["src"], "dstKind": copies["dst"], "copyCount": 1}
        self.export.append("CUPTI_ACTIVITY_KIND_MEMCPY", shared(copies) | {"bytes": copies["bytes"]} | kinds)
        fills = {"bytes": segment.memsets["bytes"], "value": 0, "memKind": 2}
        self.export.append("CUPTI_ACTIVITY_KIND_MEMSET", shared(segment.memsets) | fills)

    def _samples(self, thread: Thread, segment: Segment) -> None:
        rng = thread.rng
        n = segment.start.size // CALLS_A_KERNEL // 20
        ids = np.arange(self.samples, self.samples + n) + 1
        start = np.sort(rng.integers(segment.start[0], segment.end[-1], n))
        cycles = {"cpu": rng.integers(0, 96, n), "cpuCycles": rng.integers(10**6, 3 * 10**6, n)}
        self.export.append("COMPOSITE_EVENTS", {"id": ids, "start": start, "globalTid": thread.gtid, **cycles})
        symbol = self.names["symbol"][rng.integers(0, self.names["symbol"].size, 4 * n)]
        frames = {"id": np.repeat(ids, 4), "symbol": symbol, "module": int(self.names["module"][0])}
        self.export.append("SAMPLING_CALLCHAINS", frames | {"stackDepth": np.tile(np.arange(4), n)})
        self.samples += n

    def _nested(self, thread: Thread, segment: Segment) -> None:
        rng, parts = thread.rng, []
        for level, (start, end) in enumerate(nested_ranges(segment, rng)):
            n = start.size
            if level == 0:
                number = np.arange(thread.iterations, thread.iterations + n)
                thread.iterations += n
                parts.append(_events(start, end, texts=[f"iteration {i}" for i in number.tolist()]))
            elif level > 1 and self.shape.nvtx_names:
                ids = rng.integers(0, self.shape.nvtx_names, n).tolist()
                parts.append(_events(start, end, texts=[f"request {i} decode" for i in ids]))
            else:
                names = self.names["layer" if level == 1 else "op"]
                parts.append(_events(start, end, ids=names[rng.integers(0, names.size, n)]))
        parts += self._beside(thread, segment)
        table = pa.concat_tables(parts)
        order = np.argsort(table.column("start").to_numpy(), kind="stable")
        table = table.take(pa.array(order))
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        self.export.append("NVTX_EVENTS", columns | {"globalTid": thread.gtid})

    def _beside(self, thread: Thread, segment: Segment) -> list[pa.Table]:
        """What is not nested: a library's own domain, marks, start/end ranges, ranges that never end."""
        start, end, n = segment.start, segment.end, segment.start.size
        library, marks, crossing = np.arange(5, n - 12, 200), np.arange(7, n, 700), np.arange(9, n - 2_500, 1_500)
        peer = thread.gtid - thread.number + (thread.number + 1) % thread.siblings
        other = np.arange(crossing.size) % 10 == 0  # named only where another thread ends the range
        ended_by = pa.array(np.full(crossing.size, peer), mask=~other)
        parts = [
            _events(
                start[library] - 5,
                end[library + 12] + 7,
                ids=np.full(library.size, self.export.string("ncclAllReduce")),
                domain=1,
            ),
            _events(start[marks], None, texts=["mark"] * marks.size, kind=MARK),
            _events(
                start[crossing],
                end[crossing + 2_500],
                texts=["async"] * crossing.size,
                kind=START_END,
                ended_by=ended_by,
            ),
        ]
        if thread.launched == thread.kernels:
            parts.append(_events(start[-2:] - 1, None, texts=["open 1", "open 2"]))
        return parts

    def _adversarial(self, thread: Thread, first: int) -> None:
        kind = self.shape.ranges
        count = self.kernels * (10 if kind == "flat" else 1)
        start, end = adversarial_ranges(kind, count, first, thread.clock)
        for low in range(0, count, 500_000):
            rows = slice(low, low + 500_000)
            ids = self.names["op"][np.arange(start[rows].size) % 8]
            table = _events(start[rows], None if end is None else end[rows], ids=ids)
            columns = {name: table.column(name).combine_chunks() for name in table.column_names}
            self.export.append("NVTX_EVENTS", columns | {"globalTid": thread.gtid})


def _events(
    start: np.ndarray,
    end: np.ndarray | None,
    *,
    texts: list[str] | None = None,
    ids: np.ndarray | None = None,
    kind: int = PUSH_POP,
    domain: int = 0,
    ended_by: pa.Array | None = None,
) -> pa.Table:
    """NVTX rows of one kind on one thread."""
    n = start.size
    columns = {
        "start": pa.array(start),
        "end": pa.nulls(n, pa.int64()) if end is None else pa.array(end),
        "eventType": pa.array(np.full(n, kind)),
        "text": pa.nulls(n, pa.string()) if texts is None else pa.array(texts, pa.string()),
        "textId": pa.nulls(n, pa.int64()) if ids is None else pa.array(ids),
        "domainId": pa.array(np.full(n, domain)),
        "endGlobalTid": pa.nulls(n, pa.int64()) if ended_by is None else ended_by,
    }
    return pa.table(columns)


def generate(kernels: int, path: Path, shape: Shape) -> dict[str, int]:
    """Write an export; rows of each table."""
    with Export(path) as export:
        Generator(export, kernels, shape).write()
    return export.rows


def main() -> None:
    """Read the arguments, write the file, print the rows of each table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", type=lambda text: int(float(text)))
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=list(SHAPES), default="default")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    changes = {k: v for k, v in vars(given).items() if k in {"processes", "threads"} and v}
    if given.kernels < 1:
        parser.error("at least one kernel")
    shape = Shape(**{**vars(SHAPES[given.shape]), **changes})
    for table, rows in generate(given.kernels, given.out, shape).items():
        print(f"{rows:>12,}  {table}")


if __name__ == "__main__":
    main()
