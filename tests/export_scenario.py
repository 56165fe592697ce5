"""The exports that tests build, and the standard scenario that fills them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from export_builder import (
    DEVICE,
    DRIVER,
    DTOD,
    DTOH,
    GRAPH_NODE,
    HTOD,
    PAGEABLE,
    PINNED,
    PTOP,
    ExportBuilder,
    Row,
    Span,
    global_id,
)

A, B = 70001, 70002  # process ids; thread ids above 65,535 do occur
MAIN, AUTOGRAD, WORKER = global_id(A, A), global_id(A, A + 7), global_id(B, B)
NvtxPath = tuple[str, ...]
Kinds = tuple[int, int, int]  # copyKind, srcKind, dstKind
KINDS = ("kernel", "copy", "memset")
SECOND, MS, US = 1_000_000_000, 1_000_000, 1_000
# (process, CUDA ordinal) -> TARGET_INFO_GPU.id: process B sees only one device and calls it 0.
GPU_OF = {(A, 0): 1, (A, 1): 0, (B, 0): 0}
PAGEABLE_IN, PINNED_IN = (HTOD, PAGEABLE, DEVICE), (HTOD, PINNED, DEVICE)
PAGEABLE_OUT, PINNED_OUT = (DTOH, DEVICE, PAGEABLE), (DTOH, DEVICE, PINNED)


def us(origin: int, first: int, last: int) -> Span:
    return origin + first * US, origin + last * US


def union_ns(spans: Iterable[Span]) -> int:
    total, reached = 0, -(1 << 62)
    for start, end in sorted(spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


class Recorder:
    """Writes calls with their GPU work through the builder and notes what is true of each."""

    def __init__(self, builder: ExportBuilder) -> None:
        self.builder = builder
        self.operations: list[Row] = []

    def note(self, kind: str, tid: int, span: Span, correlation: int, path: NvtxPath, **more: Any) -> None:
        place = {"kind": kind, "pid": tid >> 24 & 0xFFFFFF, "tid": tid, "correlation": correlation}
        truth = {"path": path, "path_all_domains": path, "in_time_path": None, "bytes": 0}
        self.operations.append({**place, "start": span[0], "end": span[1], **truth, **more})

    def kernel(
        self, tid: int, call: Span, span: Span, path: NvtxPath, name: str = "gemm", device: int = 0,
        stream: int = 7, **truth: Any,
    ) -> int:  # fmt: skip
        where: Row = {"device": device, "stream": stream}
        correlation = self.builder.launch(tid, call, span, name, **where)
        self.note("kernel", tid, span, correlation, path, name=name, **where, **truth)
        return correlation

    def copy(
        self, tid: int, call: Span, span: Span, path: NvtxPath, nbytes: int, kinds: Kinds, device: int = 0,
        stream: int = 7, **more: Any,
    ) -> int:  # fmt: skip
        where: Row = {"device": device, "stream": stream}
        kind, src, dst = kinds
        correlation = self.builder.memcpy(tid, call, span, nbytes, kind, src, dst, **where, **more)
        self.note("copy", tid, span, correlation, path, bytes=nbytes, copy=kinds, **where)
        return correlation

    def memset(self, tid: int, call: Span, span: Span, path: NvtxPath, nbytes: int) -> None:
        correlation = self.builder.api("cudaMemsetAsync_v3020", *call, tid)
        self.builder.memset(*span, nbytes, 0, 7, correlation, tid >> 24 & 0xFFFFFF)
        self.note("memset", tid, span, correlation, path, bytes=nbytes, device=0, stream=7)

    def graph(self, tid: int, call: Span, spans: list[Span], path: NvtxPath) -> None:
        """One launch whose kernels share its correlation id."""
        pid, name = tid >> 24 & 0xFFFFFF, self.builder.string("cudaGraphAddKernelNode_v10000")
        correlation = self.builder.api("cudaGraphLaunch_v10000", *call, tid)
        for original, span in enumerate(spans, start=1 << 32):
            node = original + (1 << 32)
            for ids in ({"graphNodeId": original}, {"graphNodeId": node, "originalGraphNodeId": original}):
                created = {"globalTid": tid, "nameId": name, "eventClass": GRAPH_NODE, **ids}
                self.builder.row("CUDA_GRAPH_NODE_EVENTS", start=SECOND // 2, end=SECOND // 2, **created)
            self.builder.kernel(*span, 0, 7, correlation, pid, "graph_gemm", graph_node=node)
            where: Row = {"device": 0, "stream": 7, "graph_node": node}
            self.note("kernel", tid, span, correlation, path, name="graph_gemm", **where)


def _machine(b: ExportBuilder) -> None:
    b.process(A, "python3")
    b.process(B, "worker")
    b.thread(A, A, "python3")
    b.thread(A, A + 7, "pt_autograd_0")
    b.thread(B, B, "worker")
    b.gpu(0, "NVIDIA L4", cu_device=1, sm_count=58)  # ids and cuDevice do differ in real exports
    b.gpu(1, "NVIDIA H200", cu_device=0, sm_count=132)
    for (pid, ordinal), gpu in GPU_OF.items():
        b.cuda_device(pid, ordinal, gpu)
    b.stream(A, 0, 13)
    b.capture_option("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node")
    b.domain(1, "lib", tid=MAIN)
    b.category(3, "io", tid=MAIN)


def _request(rec: Recorder, number: int) -> None:
    b, t, request = rec.builder, SECOND + number * MS, f"request:{number}"
    loading, forward = (request, "to_device"), (request, "forward")
    b.push_pop(request, *us(t, 0, 900), MAIN)
    # one name both registered and not, as in real exports
    b.push_pop("to_device", *us(t, 10, 200), MAIN, registered=number % 2 == 0, category=3)
    b.push_pop("forward", *us(t, 210, 700), MAIN, registered=True)
    b.push_pop("gemm_call", *us(t, 226, 232), MAIN, domain=1)
    outer = rec.copy(MAIN, us(t, 20, 80), us(t, 30, 70), loading, 1_000_000 + number, PAGEABLE_IN)
    b.api("cuMemcpyHtoDAsync_v2", *us(t, 22, 78), MAIN, outer, DRIVER)  # the same call, seen twice
    rec.copy(MAIN, us(t, 90, 95), us(t, 100, 150), loading, 2_000_000, PINNED_IN, stream=13)
    rec.memset(MAIN, us(t, 215, 218), us(t, 220, 222), forward, 4096)
    rec.kernel(MAIN, us(t, 220, 225), us(t, 230, 330), forward)
    inner: Row = {"path_all_domains": (*forward, "gemm_call")}
    rec.kernel(MAIN, us(t, 227, 231), us(t, 300, 400), forward, "softmax", stream=13, **inner)
    if number == 1:
        rec.copy(MAIN, us(t, 265, 268), us(t, 380, 420), forward, 65_536, (DTOD, DEVICE, DEVICE))
    if number == 2:
        rec.graph(MAIN, us(t, 240, 260), [us(t, 410, 430), us(t, 430, 450), us(t, 452, 470)], forward)
    if number % 2:
        seen: Row = {"in_time_path": forward}  # no range of its own thread encloses it
        rec.kernel(AUTOGRAD, us(t, 300, 305), us(t, 500, 560), (), "gemm_backward", **seen)
    else:
        rec.copy(MAIN, us(t, 775, 778), us(t, 780, 800), (request,), 500_000, PINNED_OUT, stream=13)
    rec.copy(MAIN, us(t, 710, 760), us(t, 750, 752), (request,), 4, PAGEABLE_OUT)
    b.synchronize(MAIN, us(t, 761, 770))


def standard_scenario(builder: ExportBuilder) -> Row:
    """Fill one small, complete recording and return what is true of it; all times are whole microseconds.

    Process A loads 50 MB, serves four requests, then works with its second device. Process B steps on that
    same device, calls it 0, and uses the same correlation ids. `operations` holds, for each GPU operation:
    `path` (push/pop ranges of the call's thread in the default domain), `path_all_domains`, and
    `in_time_path` for kernels of autograd's thread, which has no ranges.
    """
    b, rec = builder, Recorder(builder)
    _machine(b)
    load = SECOND - 20 * MS
    rec.copy(MAIN, us(load, 0, 11_000), us(load, 50, 10_950), (), 50_000_000, PAGEABLE_IN)
    for number in range(4):
        _request(rec, number)
    b.start_end("batch:0", *us(SECOND, 5, 950), MAIN, AUTOGRAD)
    b.start_end("whole_run", *us(SECOND, 2, 3_950), MAIN)
    b.mark("checkpoint", SECOND + 500 * US, MAIN)
    after = SECOND + 4 * MS
    peers: Row = {"api": "cudaMemcpyPeerAsync_v4000", "src_device": 0, "dst_device": 1}
    rec.copy(MAIN, us(after, 0, 6), us(after, 10, 90), (), 8_000_000, (PTOP, DEVICE, DEVICE), **peers)
    rec.kernel(MAIN, us(after, 100, 104), us(after, 180, 280), (), "on_second_device", device=1, stream=15)
    b.synchronize(MAIN, us(after, 120, 285), "cudaDeviceSynchronize_v3020", device=1, stream=15)
    b.push_pop("shutdown", after + 300 * US, None, MAIN)
    b.api("cudaFree_v3020", *us(after, 310, 330), MAIN)
    for step in range(3):
        t, path = SECOND + (3 * step + 1) * MS + 50 * US, ("worker_step",)
        b.push_pop("worker_step", *us(t, 0, 400), WORKER)
        driver: Row = {"api": "cuMemcpyHtoDAsync_v2"}
        rec.copy(WORKER, us(t, 10, 14), us(t, 20, 60), path, 300_000, PINNED_IN, **driver)
        rec.kernel(WORKER, us(t, 15, 19), us(t, 60, 160), path, "step")
        rec.copy(WORKER, us(t, 30, 35), us(t, 160, 180), path, 100_000, PINNED_OUT)
        b.synchronize(WORKER, us(t, 40, 190))
        b.osrt("pthread_cond_wait", *us(t, 410, 900), WORKER)
    b.osrt("read", *us(SECOND, 3_905, 3_940), MAIN)
    b.overhead("CUPTI buffer flush", *us(SECOND, 902, 940), MAIN)
    truth = _truth(b, rec.operations)
    collected = truth["api_rows"] + len(rec.operations)
    b.diagnostic(f"Number of CUDA events collected: \t{collected}.", timestamp=SECOND + 12 * MS, source=3)
    return truth


def _truth(b: ExportBuilder, operations: list[Row]) -> Row:
    kinds: defaultdict[str, list[Row]] = defaultdict(list)
    devices: defaultdict[tuple[int, int], list[Row]] = defaultdict(list)
    requests: defaultdict[str, list[Row]] = defaultdict(list)
    for op in operations:
        kinds[op["kind"]].append(op)
        devices[op["pid"], op["device"]].append(op)
        if op["path"] and op["path"][0].startswith("request:"):
            requests[op["path"][0]].append(op)
    api = b.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]
    return {
        "operations": operations,
        "kernels": len(kinds["kernel"]),
        "memsets": len(kinds["memset"]),
        "memset_bytes": sum(op["bytes"] for op in kinds["memset"]),
        "copies": _copies(kinds["copy"]),  # (copyKind, srcKind, dstKind) -> (count, bytes)
        "api_rows": len(api),
        "calls": len({(row["globalTid"] >> 24, row["correlationId"]) for row in api}),
        "syncs": len(b.rows["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"]),
        "push_pop": 4 * 4 + 3 + 1,
        "start_end": 2,
        "unfinished": 1,
        "osrt": 4,
        "threads": {MAIN: "python3", AUTOGRAD: "pt_autograd_0", WORKER: "worker"},
        "gpu_of": GPU_OF,
        "gpu_names": {0: "NVIDIA L4", 1: "NVIDIA H200"},
        "devices": {key: _times(ops) for key, ops in devices.items()},  # (pid, CUDA ordinal) -> ns
        "gpus": {  # TARGET_INFO_GPU.id -> ns, where the export tells which device is which GPU
            gpu: _times([op for key, ops in devices.items() if GPU_OF[key] == gpu for op in ops]) for gpu in (0, 1)
        },
        "requests": {
            name: {"kernels": sum(op["kind"] == "kernel" for op in ops), "copies": _copies(ops)}
            for name, ops in requests.items()
        },
    }


def _copies(operations: list[Row]) -> dict[Kinds, tuple[int, int]]:
    count: Counter[Kinds] = Counter()
    total: Counter[Kinds] = Counter()
    for op in operations:
        if op["kind"] == "copy":
            count[op["copy"]] += 1
            total[op["copy"]] += op["bytes"]
    return {kinds: (count[kinds], total[kinds]) for kinds in count}


def _times(operations: list[Row]) -> Row:
    spans = {kind: [(o["start"], o["end"]) for o in operations if o["kind"] == kind] for kind in KINDS}
    kernels, copies = spans["kernel"], spans["copy"]
    exposed = union_ns(kernels + copies) - union_ns(kernels)
    return {
        "window": (min(o["start"] for o in operations), max(o["end"] for o in operations)),
        "busy_ns": union_ns(span for some in spans.values() for span in some),
        **{f"{kind}_ns": union_ns(some) for kind, some in spans.items()},
        "exposed_copy_ns": exposed,
        "overlapped_copy_ns": union_ns(copies) - exposed,
    }
