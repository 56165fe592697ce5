"""The canonical tables: what every export, of whatever release, is turned into before anything is computed.

A canonical column names the export's column it comes from. An export that lacks an optional column yields NULL there
(or the column's default); one that lacks a required column is refused with an error that names it. Times are ns since
the start of the recording session; sizes are bytes; ids are the export's own integers. Columns marked ``text`` hold a
reference to the export's string table; SQL views (see :mod:`nsysparse.queries`) show the text as well.
"""

from __future__ import annotations

from nsysparse.schema.codes import (
    BACKTRACE_CLASS,
    COPY_KINDS,
    MEMORY_KINDS,
    NVTX_CATEGORY,
    NVTX_DOMAIN,
    NVTX_MARK,
    NVTX_PUSH_POP,
    NVTX_START_END,
    PAGEABLE,
    PEER_KIND,
    THREAD_MASK,
    UNIFIED_KINDS,
    name_of,
    normalized_api_name,
    pid_of,
    process_of,
    program_name,
    tid_of,
)
from nsysparse.schema.model import Column, Table
from nsysparse.schema.stacks import STACK_TABLES
from nsysparse.schema.tables import (
    API,
    CONTEXTS,
    COPIES,
    CUDA_DEVICES,
    CUDA_GPUS,
    DIAGNOSTICS,
    GPUS,
    GRAPHS,
    KERNELS,
    MEMSETS,
    NVTX,
    OSRT,
    OVERHEADS,
    PROCESSES,
    STRINGS,
    SYNCS,
    THREADS,
)
from nsysparse.schema.tables import TABLES as _TABLES

TABLES: dict[str, Table] = _TABLES | STACK_TABLES

__all__ = [
    "API",
    "BACKTRACE_CLASS",
    "CONTEXTS",
    "COPIES",
    "COPY_KINDS",
    "CUDA_DEVICES",
    "CUDA_GPUS",
    "DIAGNOSTICS",
    "GPUS",
    "GRAPHS",
    "KERNELS",
    "MEMORY_KINDS",
    "MEMSETS",
    "NVTX",
    "NVTX_CATEGORY",
    "NVTX_DOMAIN",
    "NVTX_MARK",
    "NVTX_PUSH_POP",
    "NVTX_START_END",
    "OSRT",
    "OVERHEADS",
    "PAGEABLE",
    "PEER_KIND",
    "PROCESSES",
    "STACK_TABLES",
    "STRINGS",
    "SYNCS",
    "TABLES",
    "THREADS",
    "THREAD_MASK",
    "UNIFIED_KINDS",
    "Column",
    "Table",
    "name_of",
    "normalized_api_name",
    "pid_of",
    "process_of",
    "program_name",
    "tid_of",
]
