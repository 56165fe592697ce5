"""What a recording holds, what it does not, and the flag that would record it."""

from __future__ import annotations

from dataclasses import dataclass

from nsysparse import schema
from nsysparse.source import Trace


@dataclass(frozen=True)
class Recorded:
    """One kind of data.

    Attributes:
        what: Its name, in the words of the user.
        table: The export's table.
        rows: Rows in the export.
        state: ``recorded``, ``none seen`` (its kind of tracing was on, and nothing of it happened) or ``not recorded``.
        flag: How to record it.
        use: What nsysparse does with it.
    """

    what: str
    table: str
    rows: int
    state: str
    flag: str
    use: str


CUDA = "-t cuda"
GRAPHS, GRAPH_NODES = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUDA_GRAPH_NODE_EVENTS"
_KINDS = (
    ("kernels", "CUPTI_ACTIVITY_KIND_KERNEL", CUDA, "busy time, kernels by name"),
    ("memory copies", "CUPTI_ACTIVITY_KIND_MEMCPY", CUDA, "copies and who sent them"),
    ("memory fills", "CUPTI_ACTIVITY_KIND_MEMSET", CUDA, "busy time"),
    (
        "whole CUDA graphs",
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        "--cuda-graph-trace=graph",
        "busy time of graphs",
    ),
    (
        "nodes of CUDA graphs",
        GRAPH_NODES,
        "--cuda-graph-trace=node",
        "kernels and copies inside graphs",
    ),
    ("CUDA API calls", "CUPTI_ACTIVITY_KIND_RUNTIME", CUDA, "who sent the work, host-blocked time"),
    (
        "synchronizations",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        CUDA,
        "nothing that the API calls do not say",
    ),
    ("NVTX ranges", "NVTX_EVENTS", "-t nvtx", "requests and the part of the program behind each copy"),
    ("stack frames of CUDA calls", "CUDA_CALLCHAINS", "--cudabacktrace=all", "the code behind each copy"),
    (
        "stack frames of CPU samples",
        "SAMPLING_CALLCHAINS",
        "-s process-tree",
        "what the host did while the GPU was idle",
    ),
    ("OS runtime calls", "OSRT_API", "-t osrt", "what the host did while the GPU was idle"),
    ("thread scheduling", "SCHED_EVENTS", "--cpuctxsw=process-tree", "whether the host thread ran at all"),
    ("profiler overhead", "PROFILER_OVERHEAD", CUDA, "idle time that the profiler caused"),
    (
        "device memory in use",
        "CUDA_GPU_MEMORY_USAGE_EVENTS",
        "--cuda-memory-usage=true",
        "allocations in the loop",
    ),
    (
        "unified-memory page faults",
        "CUDA_UM_GPU_PAGE_FAULT_EVENTS",
        "--cuda-um-gpu-page-faults=true",
        "migrations",
    ),
    ("GPU metrics", "GPU_METRICS", "--gpu-metrics-devices=all", "measured instead of estimated SM fill"),
    ("profiler diagnostics", "DIAGNOSTIC_EVENT", "nsys 2024.2 or later", "signs of loss"),
)


def list_recorded(trace: Trace) -> list[Recorded]:
    """Every kind of data that nsysparse knows, recorded or not."""
    rows = []
    for what, table, flag, use in _KINDS:
        count = trace.rows_of(table)
        if table == schema.NVTX.sources[0] and count:
            count = trace.nvtx_ranges
        rows.append((what, table, count, flag, use))
    counts = {table: count for _, table, count, _, _ in rows}
    cuda_on = any(count for _, _, count, flag, _ in rows if flag == CUDA)
    nodes_hidden = counts[GRAPHS] > 0
    traced = {table: cuda_on and flag == CUDA for _, table, _, flag, _ in rows}
    # One mode of graph tracing excludes the other; nodes are only missed where whole graphs stand in for them.
    traced |= {GRAPHS: cuda_on, GRAPH_NODES: cuda_on and not nodes_hidden}
    return [
        Recorded(what, table, count, _state(count, traced[table]), flag, use) for what, table, count, flag, use in rows
    ]


def _state(count: int, traced: bool) -> str:
    return "recorded" if count else "none seen" if traced else "not recorded"
