"""Writing results: nothing is overwritten unasked, and nothing is ever left half-written."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
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
    """Write one text file; see :func:`write_bytes`."""
    write_bytes(path, text.encode("utf-8", "replace"), force)


def write_bytes(path: Path, data: bytes, force: bool) -> None:
    """Write a whole file under a temporary name beside its target, then rename it into place.

    Raises:
        OutputError: It could not be written; nothing is left behind.
    """
    check_target(path, force)
    _rename(_stage(path, data), path)


def write_together(texts: Mapping[Path, str], force: bool) -> None:
    """Write several text files: all of them, or none.

    Raises:
        OutputError: One could not be written; nothing is left behind.
    """
    for path in texts:
        check_target(path, force)
    staged: dict[Path, Path] = {}
    try:
        for path, text in texts.items():
            staged[path] = _stage(path, text.encode("utf-8", "replace"))
    except BaseException:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)
        raise
    for path, temporary in staged.items():
        _rename(temporary, path)


@contextlib.contextmanager
def staged_file(path: Path, force: bool) -> Iterator[Path]:
    """A temporary file beside the target, which takes the target's place when the block ends well.

    Raises:
        OutputError: It could not be written; nothing is left behind.
    """
    check_target(path, force)
    temporary = _stage(path, b"")
    try:
        with _reported(path):
            yield temporary
    except BaseException:
        for left in (temporary, *(Path(f"{temporary}-{s}") for s in ("journal", "wal", "shm"))):
            left.unlink(missing_ok=True)
        raise
    _rename(temporary, path)


@contextlib.contextmanager
def staged_folder(path: Path, force: bool) -> Iterator[Path]:
    """A temporary folder beside the target, whose files move into the target when the block ends well.

    With ``force``, files of the same names are replaced; nothing else in an existing folder is touched.

    Raises:
        OutputError: It could not be written; nothing is left behind.
    """
    if path.exists() and not path.is_dir():
        raise OutputError(f"{path} is a file", "name a folder with -o")
    if path.is_dir() and not force and any(path.iterdir()):
        raise OutputError(f"the folder {path} is not empty", "add --force to write into it, or name another with -o")
    if not path.parent.is_dir():
        raise OutputError(f"the folder {path.parent} does not exist", "make it first")
    with _reported(path):
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name[:64]}.", suffix=".tmp"))
        try:
            yield temporary
            path.mkdir(exist_ok=True)
            for file in sorted(temporary.iterdir()):
                os.replace(file, path / file.name)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _stage(path: Path, data: bytes) -> Path:
    """Write to a temporary file beside the target."""
    with _reported(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:64]}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(name, 0o666 & ~_umask())
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        return Path(name)


def _rename(temporary: Path, path: Path) -> None:
    with _reported(path):
        try:
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
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
