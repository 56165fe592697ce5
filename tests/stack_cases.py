"""Small exports with stacks, and flame graphs of the real recordings, for the tests of both."""

from __future__ import annotations

import struct
from functools import cache

from conftest import analyzed
from export_builder import DEVICE, DTOH, MARK, PAGEABLE, ExportBuilder, global_id
from traces import trace_path

from nsysparse.accounting.samples import share_samples
from nsysparse.analysis import Analysis
from nsysparse.flamegraph.flame import Flame, make_flame
from nsysparse.source import Trace, open_trace
from nsysparse.stacks.load import Stacks, load_stacks

PID, TID = 100, 100
THREAD = global_id(PID, TID)
US = 1_000
# As a program's copy is recorded: the profiler above the call, the framework's dispatch and the interpreter below it.
NATIVE = [
    ("0x7f01", "/opt/nvidia/nsight-systems/target-linux-x64/libcupti.so.13.0"),
    ("0x7f02", "/usr/lib/libcuda.so.580.1"),
    ("cudaMemcpyAsync", "/usr/lib/libcudart.so.13"),
    ("at::native::copy_kernel_cuda(at::TensorIterator&, bool)", "/v/lib/libtorch_cuda.so"),
    ("at::_ops::copy_::call(at::Tensor&, at::Tensor const&, bool)", "/v/lib/libtorch_cpu.so"),
    ("torch::autograd::THPVariable_cpu(_object*, _object*, _object*)", "/v/lib/libtorch_python.so"),
    ("0x551418", "/usr/bin/python3.12"),
    ("_PyEval_EvalFrameDefault", "/usr/bin/python3.12"),
    ("0x7f22", "/usr/lib/libc.so.6"),
    ("_start", "/usr/bin/python3.12"),
]
PYTHON = [("save", "/home/someone/serve.py", 31), ("&lt;module&gt;", "/home/someone/serve.py", 178)]
SCHEMA_ID, FRAME_SCHEMA_ID = (1 << 32) + 5, (1 << 32) + 3


def copy_with_stack(release: str, offset: int, chains: int = 3) -> ExportBuilder:
    """Copies whose API rows refer to chains that lie ``offset`` further; chain ids begin at ``offset``."""
    b = ExportBuilder(release)
    b.process(PID, "python3")
    b.thread(PID, TID, "main")
    b.gpu(0, "NVIDIA H200", 0)
    b.cuda_device(PID, 0, 0)
    for i in range(chains):
        frames = NATIVE if i != 1 else [*NATIVE[:2], ("cudaStreamSynchronize", NATIVE[2][1]), *NATIVE[3:]]
        b.callchain(i + offset, frames)
        at = 1_000 * US * (i + 1)
        name = "cudaMemcpyAsync" if i != 1 else "cudaStreamSynchronize"
        correlation = b.api(f"{name}_v3020", at, at + 100 * US, THREAD)
        b.api(name, at, at + 100 * US, THREAD, correlation, event_class=67, callchain=i)
        if i != 1:
            b.copy(at + 20 * US, at + 80 * US, 4_000_000, DTOH, DEVICE, PAGEABLE, 0, 7, correlation, PID)
    return b


def payload(frames: list[tuple[int, int, int]], schema: int = SCHEMA_ID) -> bytes:
    """A blob as nsys writes it: one payload; (function, file, line) leaf first."""
    body = struct.pack("<QII", 32, 1, len(frames)) + b"".join(struct.pack("<QQi4x", *f) for f in frames)
    return struct.pack("<QQQQ", 1, schema, len(body), 32) + body


def describe_payloads(b: ExportBuilder, domain: int = 1, name: str = "Python Backtrace on CUDA") -> None:
    """The domain and the layouts of Python stacks."""
    b.domain(domain, name, tid=THREAD)
    b.row("NVTX_PAYLOAD_SCHEMAS", domainId=domain, schemaId=SCHEMA_ID, name=name, type=2, numEntries=4)
    b.row("NVTX_PAYLOAD_SCHEMAS", domainId=domain, schemaId=FRAME_SCHEMA_ID, type=1, numEntries=3, payloadSize=24)
    entries = [
        (SCHEMA_ID, 0, None, 18, "Thread state ID", None, None),
        (SCHEMA_ID, 1, None, (1 << 32) + 4, "Thread state", None, 8),
        (SCHEMA_ID, 2, None, 16, "Frames count", None, 12),
        (SCHEMA_ID, 3, 48, FRAME_SCHEMA_ID, "Frames", 2, 16),
        (FRAME_SCHEMA_ID, 0, None, 80, "Function", None, None),
        (FRAME_SCHEMA_ID, 1, None, 80, "File", None, 8),
        (FRAME_SCHEMA_ID, 2, None, 15, "Line", None, 16),
    ]
    for schema, index, flags, kind, label, detail, offset in entries:
        b.row(
            "NVTX_PAYLOAD_SCHEMA_ENTRIES",
            **{"domainId": domain, "schemaId": schema, "idx": index, "flags": flags, "type": kind},
            **{"name": label, "arrayOrUnionDetail": detail, "offset": offset},
        )


def python_stack(b: ExportBuilder, at: int, frames=PYTHON, tid: int = THREAD, domain: int = 1, **more: object) -> None:
    """One event with a Python stack."""
    blob = payload([(b.string(function), b.string(file), line) for function, file, line in frames])
    b.nvtx(MARK, None, at, None, tid, domain, **{"binaryData": blob, **more})


@cache
def stacks_of(name: str) -> Stacks:
    """Stacks of a real recording."""
    with open_trace(trace_path(name)) as trace:
        return load_stacks(trace)


def made(analysis: Analysis, trace: Trace, **options: bool) -> Flame:
    """The flame graph of an analysis."""
    return make_flame(analysis.work, analysis.devices, analysis.stacks, trace, **options)


@cache
def flame_of(name: str, window: str | None = "whole", lines: bool = True) -> Flame:
    """Flame graph of a real recording."""
    with open_trace(trace_path(name)) as trace:
        return made(analyzed(name, window), trace, lines=lines)


@cache
def shares_of(name: str):
    """Shares of samples of a real recording."""
    with open_trace(trace_path(name)) as trace:
        return share_samples(analyzed(name, "whole").work, stacks_of(name), trace)


def labels_of(flame: Flame) -> list[list[str]]:
    """Each path as texts."""
    texts = flame.labels["text"].to_list()
    return [[texts[code] for code in path] for path in flame.paths.to_lists()]


def sum_where(flame: Flame, key: str, *words: str) -> int:
    """Sum of a weight over the paths that hold all of some labels."""
    column = flame.values[:, flame.column(key)].tolist()
    return sum(v for path, v in zip(labels_of(flame), column, strict=True) if set(words) <= set(path))
