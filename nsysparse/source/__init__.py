"""What a recording is: opening, probing and reading exports behind one :class:`~nsysparse.source.trace.Trace`."""

from __future__ import annotations

import os
from pathlib import Path

from nsysparse.errors import SourceError
from nsysparse.source.trace import Backend, Trace

__all__ = ["Trace", "open_trace"]


def open_trace(path: str | os.PathLike[str]) -> Trace:
    """Open a recording, read-only.

    Args:
        path: A SQLite export, a ``parquetdir`` export, or a ``.nsys-rep`` (when ``nsys`` is on PATH).

    Returns:
        The recording; close it, or use it as a context manager.

    Raises:
        SourceError: It is missing, unreadable, damaged or no export; the hint says what to do.
    """
    where = Path(path)
    try:
        is_folder = where.is_dir()
        exists = is_folder or where.exists()
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot read {path}: {error}", "check the path and its permissions") from error
    if not exists:
        raise SourceError(f"{path} does not exist", "check the path")
    backend: Backend
    if is_folder:
        from nsysparse.source.parquetdir import ParquetBackend

        backend = ParquetBackend(where)
    elif where.suffix in {".nsys-rep", ".qdrep"}:
        from nsysparse.source.nsysrep import ReportBackend

        backend = ReportBackend(where)
    elif not where.is_file():
        raise SourceError(f"{path} is not a regular file", "name a trace file")
    else:
        from nsysparse.source.sqlite import SqliteBackend

        backend = SqliteBackend(where)
    try:
        return Trace(backend)
    except BaseException:
        backend.close()
        raise
