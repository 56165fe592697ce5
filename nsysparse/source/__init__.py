"""What a recording is: opening, probing and reading exports behind one :class:`~nsysparse.source.trace.Trace`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from nsysparse.errors import SourceError
from nsysparse.memory import shelf_for
from nsysparse.source.trace import Backend, Trace
from nsysparse.watch import Watch

__all__ = ["Trace", "open_trace"]


def open_trace(
    path: str | os.PathLike[str],
    cache: str | os.PathLike[str] | None = None,
    watch: Watch | None = None,
    memory_limit: int | None = None,
) -> Trace:
    """Open a recording, read-only.

    Args:
        path: A SQLite export, a ``parquetdir`` export, or a ``.nsys-rep`` (when ``nsys`` is on PATH).
        cache: Folder in which columns are kept for the next time; by default none.
        watch: Told how reading goes on.
        memory_limit: Bytes that may be taken; a recording that needs more is kept in mapped files of a temporary
            folder. By default three quarters of what is free.

    Returns:
        The recording; close it, or use it as a context manager.

    Raises:
        SourceError: It is missing, unreadable, damaged or no export; the hint says what to do.
        CacheError: The folder of the cache cannot be used.
    """
    opener = _opener(Path(path))
    if cache is None:
        backend = opener()
    else:
        from nsysparse.cache import Cache
        from nsysparse.source.cached import open_cached

        backend = open_cached(Path(path), opener, Cache(Path(cache)))
    if watch is not None:
        backend.notes.watch = watch
    try:
        return Trace(backend, shelf_for(backend.kind, backend.size_bytes, memory_limit))
    except BaseException:
        backend.close()
        raise


def _opener(where: Path) -> Callable[[], Backend]:
    """How to open what a path names."""
    try:
        is_folder = where.is_dir()
        exists = is_folder or where.exists()
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot read {where}: {error}", "check the path and its permissions") from error
    if not exists:
        raise SourceError(f"{where} does not exist", "check the path")
    if is_folder:
        from nsysparse.source.parquetdir import ParquetBackend

        return lambda: ParquetBackend(where)
    if where.suffix in {".nsys-rep", ".qdrep"}:
        from nsysparse.source.nsysrep import ReportBackend

        return lambda: ReportBackend(where)
    if not where.is_file():
        raise SourceError(f"{where} is not a regular file", "name a trace file")
    from nsysparse.source.sqlite import SqliteBackend

    return lambda: SqliteBackend(where)
