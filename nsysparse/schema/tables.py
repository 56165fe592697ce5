"""The canonical tables, one by one."""

from __future__ import annotations

from nsysparse.schema.model import Column, Table


def _col(name: str, source: str, meaning: str, **options: object) -> Column:
    return Column(name, source, meaning, **options)  # type: ignore[arg-type]


def _gpu_columns() -> tuple[Column, ...]:
    """Columns that every table of GPU work shares."""
    return (
        _col("start_ns", "start", "start on the GPU", required=True),
        _col("end_ns", "end", "end on the GPU", required=True),
        _col("ordinal", "deviceId", "CUDA ordinal of the device in its process", required=True),
        _col("context", "contextId", "CUDA context"),
        _col("stream", "streamId", "CUDA stream"),
        _col("correlation", "correlationId", "joins to the API call that sent it, within its process"),
        _col("process", "globalPid", "serialized process id"),
        _col("graph_node", "graphNodeId", "node of the CUDA graph it ran in, NULL outside graphs"),
    )


KERNELS = Table(
    "kernels",
    ("CUPTI_ACTIVITY_KIND_KERNEL",),
    "kernel executions",
    (
        *_gpu_columns(),
        _col("name_id", "demangledName", "demangled name", required=True, text="name"),
        _col("short_name_id", "shortName", "name without arguments", required=True, text="short_name"),
        _col("grid_x", "gridX", "blocks in x"),
        _col("grid_y", "gridY", "blocks in y"),
        _col("grid_z", "gridZ", "blocks in z"),
        _col("block_x", "blockX", "threads of a block in x"),
        _col("block_y", "blockY", "threads of a block in y"),
        _col("block_z", "blockZ", "threads of a block in z"),
        _col("registers", "registersPerThread", "registers a thread"),
        _col("static_shared_bytes", "staticSharedMemory", "static shared memory of a block"),
        _col("dynamic_shared_bytes", "dynamicSharedMemory", "dynamic shared memory of a block"),
    ),
    flag="nsys profile -t cuda",
)
COPIES = Table(
    "copies",
    ("CUPTI_ACTIVITY_KIND_MEMCPY",),
    "memory copies, peer copies and unified-memory migrations",
    (
        *_gpu_columns(),
        _col("bytes", "bytes", "bytes moved", required=True),
        _col("kind", "copyKind", "copy kind, see COPY_KINDS", required=True),
        _col("src_kind", "srcKind", "kind of the source memory, see MEMORY_KINDS"),
        _col("dst_kind", "dstKind", "kind of the destination memory, see MEMORY_KINDS"),
        _col("src_ordinal", "srcDeviceId", "source device of a peer copy"),
        _col("dst_ordinal", "dstDeviceId", "destination device of a peer copy"),
        _col("cause", "migrationCause", "cause of a unified-memory migration"),
        _col("address", "virtualAddress", "address of a unified-memory migration"),
        _col("copy_count", "copyCount", "copies that this record stands for", default=1),
    ),
    flag="nsys profile -t cuda",
)
MEMSETS = Table(
    "memsets",
    ("CUPTI_ACTIVITY_KIND_MEMSET",),
    "memory fills",
    (
        *_gpu_columns(),
        _col("bytes", "bytes", "bytes filled", required=True),
        _col("memory_kind", "memKind", "kind of the memory, see MEMORY_KINDS"),
    ),
    flag="nsys profile -t cuda",
)
GRAPHS = Table(
    "graphs",
    ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE",),
    "whole CUDA graphs: their kernels and copies are hidden",
    (*_gpu_columns()[:-1], _col("graph", "graphId", "CUDA graph")),
    flag="nsys profile --cuda-graph-trace=node shows their kernels and copies",
)
API = Table(
    "api",
    ("CUPTI_ACTIVITY_KIND_RUNTIME",),
    "CUDA runtime and driver calls",
    (
        _col("start_ns", "start", "the call's start", required=True),
        _col("end_ns", "end", "the call's return", required=True),
        _col("event_class", "eventClass", "0 runtime, 1 driver, 67 backtrace row", default=0),
        _col("thread", "globalTid", "serialized thread id", required=True),
        _col("correlation", "correlationId", "joins to the GPU work it sent"),
        _col("name_id", "nameId", "name of the function", required=True, text="name"),
        _col("return_value", "returnValue", "0 is success", default=0),
        _col("callchain", "callchainId", "its stack, see the calibrated offset"),
    ),
    flag="nsys profile -t cuda",
)
SYNCS = Table(
    "syncs",
    ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",),
    "synchronizations as CUPTI saw them (deviceId in them is not to be trusted)",
    (
        _col("start_ns", "start", "start", required=True),
        _col("end_ns", "end", "end", required=True),
        _col("context", "contextId", "CUDA context"),
        _col("stream", "streamId", "CUDA stream"),
        _col("correlation", "correlationId", "joins to the API call"),
        _col("process", "globalPid", "serialized process id"),
    ),
    flag="nsys profile -t cuda",
)
NVTX = Table(
    "nvtx",
    ("NVTX_EVENTS",),
    "NVTX ranges, marks, domains and categories",
    (
        _col("start_ns", "start", "start", required=True),
        _col("end_ns", "end", "end, NULL when unfinished or a mark"),
        _col("type", "eventType", "59 push/pop, 60 start/end, 34 mark, 33 category, 75 domain", required=True),
        _col("category", "category", "category number in its domain"),
        _col("text", "text", "text given in place", kind="text"),
        _col("thread", "globalTid", "serialized thread id"),
        _col("end_thread", "endGlobalTid", "thread that ended it, where another"),
        _col("text_id", "textId", "registered string", text="registered_text"),
        _col("domain", "domainId", "domain number, 0 the default one", default=0),
    ),
    flag="nsys profile -t nvtx",
)
OSRT = Table(
    "osrt",
    ("OSRT_API",),
    "calls of the OS runtime that took long",
    (
        _col("start_ns", "start", "start", required=True),
        _col("end_ns", "end", "end", required=True),
        _col("thread", "globalTid", "serialized thread id"),
        _col("name_id", "nameId", "name of the function", text="name"),
        _col("callchain", "callchainId", "its stack, 0 where none was taken"),
    ),
    flag="nsys profile -t osrt",
)
OVERHEADS = Table(
    "overheads",
    ("PROFILER_OVERHEAD",),
    "time that the profiler itself took in the program",
    (
        _col("start_ns", "start", "start", required=True),
        _col("end_ns", "end", "end", required=True),
        _col("thread", "globalTid", "serialized thread id"),
        _col("name_id", "nameId", "what the profiler did", text="name"),
    ),
)
STRINGS = Table(
    "strings",
    ("StringIds",),
    "texts that other tables refer to",
    (
        _col("id", "id", "reference", required=True),
        _col("value", "value", "text", required=True, kind="text"),
    ),
)
GPUS = Table(
    "gpus",
    ("TARGET_INFO_GPU",),
    "GPUs of the machine, with the limits that SM fill needs",
    (
        _col("gpu", "id", "number of the GPU on its machine", alternatives=("deviceId",)),
        _col("name", "name", "model", kind="text"),
        _col("bus", "busLocation", "PCI bus location", kind="text"),
        _col("cu_device", "cuDevice", "CUDA ordinal as the profiler saw it"),
        _col("memory_bytes", "totalMemory", "memory"),
        _col("sm_count", "smCount", "multiprocessors"),
        _col("warp_threads", "threadsPerWarp", "threads of a warp"),
        _col("sm_warps", "maxWarpsPerSm", "warps an SM"),
        _col("sm_blocks", "maxBlocksPerSm", "blocks an SM"),
        _col("sm_registers", "maxRegistersPerSm", "registers an SM"),
        _col("sm_shared_bytes", "maxShmemPerSm", "shared memory an SM"),
        _col("compute_major", "computeMajor", "compute capability"),
    ),
)
CUDA_GPUS = Table(
    "cuda_gpus",
    ("TARGET_INFO_CUDA_GPU",),
    "which GPU a process's CUDA ordinal is, and its limits (before 2021.5 only)",
    (
        _col("pid", "pid", "process id"),
        _col("ordinal", "deviceId", "CUDA ordinal in the process", required=True),
        _col("name", "name", "model", kind="text"),
        _col("bus", "pciBusId", "PCI bus location", kind="text"),
        _col("memory_bytes", "globalMemorySize", "memory"),
        _col("sm_count", "numMultiprocessors", "multiprocessors"),
        _col("warp_threads", "numThreadsPerWarp", "threads of a warp"),
        _col("sm_warps", "maxWarpsPerMultiprocessor", "warps an SM"),
        _col("sm_blocks", "maxBlocksPerMultiprocessor", "blocks an SM"),
        _col("sm_registers", "maxRegistersPerMultiprocessor", "registers an SM"),
        _col("sm_shared_bytes", "maxSharedMemoryPerMultiprocessor", "shared memory an SM"),
        _col("compute_major", "computeCapabilityMajor", "compute capability"),
    ),
)
CUDA_DEVICES = Table(
    "cuda_devices",
    ("TARGET_INFO_CUDA_DEVICE",),
    "which GPU a process's CUDA ordinal is (from 2025.1)",
    (
        _col("gpu", "gpuId", "number of the GPU on its machine"),
        _col("ordinal", "cudaId", "CUDA ordinal in the process", required=True),
        _col("pid", "pid", "process id", required=True),
        _col("sm_count", "numMultiprocessors", "multiprocessors that the process can use"),
        _col("uuid", "uuid", "device UUID, tells MIG slices apart", kind="text"),
    ),
)
CONTEXTS = Table(
    "contexts",
    ("TARGET_INFO_CUDA_CONTEXT_INFO",),
    "which device a context is on",
    (
        _col("pid", "processId", "process id", required=True),
        _col("context", "contextId", "CUDA context", required=True),
        _col("ordinal", "deviceId", "CUDA ordinal in the process", required=True),
        _col("sm_count", "numMultiprocessors", "multiprocessors that the context can use"),
    ),
)
PROCESSES = Table(
    "processes",
    ("PROCESSES",),
    "names of processes (of the whole machine: only those of the program are shown)",
    (
        _col("process", "globalPid", "serialized process id"),
        _col("pid", "pid", "process id"),
        _col("name", "name", "name", kind="text"),
    ),
)
THREADS = Table(
    "threads",
    ("ThreadNames",),
    "names of threads (of the whole machine: only those of the program are shown)",
    (
        _col("thread", "globalTid", "serialized thread id"),
        _col("name_id", "nameId", "name", text="name"),
    ),
)
DIAGNOSTICS = Table(
    "diagnostics",
    ("DIAGNOSTIC_EVENT",),
    "what the profiler says of its own recording (from 2024.2)",
    (
        _col("time_ns", "timestamp", "time of the message"),
        _col("severity", "severity", "1 information, 2 warning, 3 error"),
        _col("text", "text", "message", required=True, kind="text"),
        _col("process", "globalPid", "serialized process id"),
    ),
)

TABLES: dict[str, Table] = {
    t.name: t
    for t in (
        KERNELS,
        COPIES,
        MEMSETS,
        GRAPHS,
        API,
        SYNCS,
        NVTX,
        OSRT,
        OVERHEADS,
        STRINGS,
        GPUS,
        CUDA_GPUS,
        CUDA_DEVICES,
        CONTEXTS,
        PROCESSES,
        THREADS,
        DIAGNOSTICS,
    )
}
