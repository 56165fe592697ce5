"""How much memory there is, and whether a recording needs more than it may have."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nsysparse.errors import UsageError

if TYPE_CHECKING:
    from nsysparse.shelf import Shelf

# Memory that an analysis takes per byte of an export, by kind; measured on generated recordings (docs/performance.md).
PER_BYTE = {"sqlite": 2.0, "parquetdir": 12.0}
BASE_BYTES = 300_000_000
SHARE = 0.75  # of what is free, taken by default
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)
_M_ARENA_MAX, ARENAS = -8, 2  # mallopt(3); with two of them threads do not wait for each other here
_CGROUP = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def parse_size(text: str) -> int:
    """A size such as ``2GiB``, ``2G`` (the same), ``500MB`` (decimal) in bytes.

    Raises:
        UsageError: It is none.
    """
    match = _FORM.fullmatch(text)
    if not match or float(match[1]) <= 0:
        raise UsageError(f"'{text}' is no size of memory", "give one such as 2GiB or 500MB")
    unit, decimal = match[2].upper(), not match[3] and text.strip().upper().endswith("B")
    step = 10 ** (3 * "KMGT".index(unit) + 3) if unit and decimal else UNITS[unit]
    return int(float(match[1]) * step)


def free_bytes() -> int | None:
    """Memory that this process can still get: the system's, or its container's where that is less; None: unknown."""
    found = []
    try:
        text = Path("/proc/meminfo").read_text("ascii")
        found.append(int(re.search(r"MemAvailable:\s+(\d+) kB", text)[1]) * 1024)  # type: ignore[index]
    except (OSError, TypeError):
        pass
    for file in _CGROUP:
        try:
            found.append(int(file.read_text("ascii")))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return min(found, default=None)


def shelf_for(kind: str, size_bytes: int, limit: int | None) -> Shelf:
    """Where to keep the tables of a recording: in memory if they fit, else in mapped files.

    Args:
        kind: Kind of the export.
        size_bytes: Its size.
        limit: Memory that may be taken; by default three quarters of what is free.
    """
    from nsysparse.shelf import MappedShelf, Shelf  # Polars: the command line asks for a size before it is needed

    if limit is None:
        free = free_bytes()
        limit = None if free is None else int(SHARE * free)
    need = BASE_BYTES + PER_BYTE.get(kind, PER_BYTE["sqlite"]) * size_bytes
    return MappedShelf() if limit is not None and need > limit else Shelf()


def share_freed() -> None:
    """Let threads use the memory that others freed, which the C library keeps by thread for as many as there are."""
    _ask_malloc("mallopt", _M_ARENA_MAX, ARENAS)


def give_back() -> None:
    """Return freed memory to the system: the C library keeps it after large tables were read."""
    _ask_malloc("malloc_trim", 0)


def _ask_malloc(function: str, *arguments: int) -> None:
    if sys.platform == "linux":
        try:
            getattr(ctypes.CDLL(None), function)(*arguments)
        except (AttributeError, OSError):  # another C library
            return
