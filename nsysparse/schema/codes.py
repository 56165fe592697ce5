"""Numbers and bit fields of the export, and how names are normalized."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

# Numbers of the export's enumerations; enum tables exist only from 2022.4.1, so they must be known.
COPY_KINDS = {
    0: "Unknown",
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "Unified HtoD",
    12: "Unified DtoH",
    13: "Unified DtoD",
}
UNIFIED_KINDS = (11, 12, 13)
PEER_KIND = 10
MEMORY_KINDS = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device static",
    6: "Managed static",
    7: "Unknown",
}
PAGEABLE = 0
NVTX_PUSH_POP, NVTX_START_END, NVTX_MARK = 59, 60, 34
NVTX_CATEGORY, NVTX_DOMAIN = 33, 75
BACKTRACE_CLASS = 67

# globalTid: bits 0-23 hold the thread id, 24-47 the process id.
THREAD_MASK = (1 << 24) - 1


def name_of(kinds: Mapping[int, str], number: int | None) -> str:
    """Name of an enumeration's number; a number that no release so far has is shown as it is."""
    return "n/a" if number is None else kinds.get(number, f"kind {number}")


def process_of(thread: pl.Expr) -> pl.Expr:
    """Serialized process id of a serialized thread id (the low 24 bits cleared)."""
    return thread - (thread & THREAD_MASK)


def pid_of(serialized: pl.Expr) -> pl.Expr:
    """Process id, as the operating system counts, of a serialized process or thread id."""
    return (serialized // (1 << 24)) & THREAD_MASK


def tid_of(thread: pl.Expr) -> pl.Expr:
    """Thread id, as the operating system counts, of a serialized thread id."""
    return thread & THREAD_MASK


def normalized_api_name(name: pl.Expr) -> pl.Expr:
    """An API's name without its version and stream suffixes: ``cudaMemcpyAsync_v3020`` is ``cudaMemcpyAsync``."""
    return name.str.replace(r"(_v\d+)?(_ptsz|_ptds)?(_v\d+)?$", "")


# Some exports hold whole command lines where others hold a program's name.
PROGRAM = r"^\s*(?:\S*[/\\])?([^\s/\\]+)"


def program_name(process: pl.Expr) -> pl.Expr:
    """A process's name without folder and arguments, which may hold secrets."""
    return process.str.extract(PROGRAM)
