"""Writing results: nothing is overwritten unasked, and nothing is ever left half-written."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nsysparse.errors import OutputError


def check_target(path: Path, force: bool) -> None:
    """Refuse a target that exists (unless ``force``) or whose folder does not.

    Raises:
        OutputError: With what to do about it.
    """
    if path.is_dir():
        raise OutputError(f"{path} is a folder", "name a file")
    if path.exists() and not force:
        raise OutputError(f"{path} exists", "add --force to replace it, or name another file with -o")
    if not path.parent.is_dir():
        raise OutputError(f"the folder {path.parent} does not exist", "make it first")


def write_text(path: Path, text: str, force: bool) -> None:
    """Write a whole file under a temporary name beside its target, then rename it into place.

    Raises:
        OutputError: It could not be written; nothing is left behind.
    """
    check_target(path, force)
    with _reported(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
                file.write(text)
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}", "choose another place with -o") from error
