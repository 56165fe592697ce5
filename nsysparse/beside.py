"""Temporary files and folders beside what they will be, gone in the end whatever happens.

They are named before they are made: an interrupt that comes right after that finds them known, and they go, too.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def file_beside(target: Path) -> Iterator[Path]:
    """An empty file that only its owner can read; removed in the end, unless it was moved.

    Raises:
        OSError: It cannot be made.
    """
    path = _name(target)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def folder_beside(target: Path) -> Iterator[Path]:
    """An empty folder that only its owner can enter; removed in the end with all that it holds.

    Raises:
        OSError: It cannot be made.
    """
    path = _name(target)
    try:
        path.mkdir(mode=0o700)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _name(target: Path) -> Path:
    return target.parent / f".{target.name[:64]}.{secrets.token_hex(8)}.tmp"
