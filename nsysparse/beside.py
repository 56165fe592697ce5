"""Temporary files and folders beside what they will be, gone in the end whatever happens.

They are named before they are made: an interrupt that comes right after that finds them known, and they go, too.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path


def file_beside(target: Path) -> AbstractContextManager[Path]:
    """An empty file that only its owner can read; removed in the end, unless it was moved.

    Raises:
        OSError: It cannot be made.
    """
    return _beside(target, _make_file, _remove_file)


def folder_beside(target: Path) -> AbstractContextManager[Path]:
    """An empty folder that only its owner can enter; removed in the end with all that it holds.

    Raises:
        OSError: It cannot be made.
    """
    return _beside(target, partial(Path.mkdir, mode=0o700), partial(shutil.rmtree, ignore_errors=True))


@contextlib.contextmanager
def _beside(target: Path, make: Callable[[Path], object], remove: Callable[[Path], object]) -> Iterator[Path]:
    path = target.parent / f".{target.name[:64]}.{secrets.token_hex(8)}.tmp"
    try:
        make(path)
        yield path
    finally:
        remove(path)


def _make_file(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _remove_file(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
