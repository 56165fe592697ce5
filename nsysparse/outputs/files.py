"""Writing results: nothing is overwritten unasked, and nothing is ever left half-written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from nsysparse.beside import file_beside, folder_beside
from nsysparse.errors import OutputError


def check_target(path: Path, force: bool, recording: Path | None = None, make_folder: bool = False) -> None:
    """Refuse a target that exists (unless ``force``), that is the recording itself, or whose folder does not exist.

    Args:
        path: The file to be written.
        force: Whether an existing file may be replaced.
        recording: What was read; it is never written to, not even with ``force``.
        make_folder: Whether the folder will be made when it is missing.

    Raises:
        OutputError: With what to do about it.
    """
    with _reported(path):
        if path.parts[:1] == ("-",):
            raise OutputError("'-' is no name of a file: nothing is written to a pipe", "name a file")
        if path.is_dir():
            raise OutputError(f"{path} is a folder", "name a file")
        if path.exists() and not path.is_file():  # renaming a file over a device would replace the device
            raise OutputError(f"{path} is not a regular file", "name a file")
        if recording is not None and _belongs_to(path, recording):
            raise OutputError(f"{path} is the recording, or lies in it: it is never changed", "name another file")
        if path.exists() and not force:
            raise OutputError(f"{path} exists", "add --force to replace it, or name another file with -o")
        if not path.parent.is_dir() and not make_folder:
            raise OutputError(f"the folder {path.parent} does not exist", "make it first, or end its name with a slash")


def _belongs_to(path: Path, recording: Path) -> bool:
    if os.path.isdir(recording):  # a parquetdir export
        return os.path.dirname(os.path.realpath(path)) == os.path.realpath(recording)
    return os.path.exists(path) and os.path.exists(recording) and os.path.samefile(path, recording)


def write_bytes(path: Path, data: bytes, force: bool, recording: Path | None = None) -> None:
    """Write a whole file under a temporary name beside its target, then rename it into place.

    Raises:
        OutputError: It could not be written; nothing is left behind.
    """
    check_target(path, force, recording)
    _write_all({path: data})


def write_together(
    texts: Mapping[Path, str], force: bool, recording: Path | None = None, make_folder: bool = False
) -> None:
    """Write several text files: all of them, or none; see :func:`check_target` for the arguments.

    Raises:
        OutputError: One could not be written; nothing is left behind.
    """
    for path in texts:
        check_target(path, force, recording, make_folder)
    made: list[Path] = []
    try:
        if make_folder:
            for path in texts:
                _make_folder(path.parent, made)
        _write_all({path: text.encode("utf-8", "replace") for path, text in texts.items()})
    except BaseException:
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _make_folder(folder: Path, made: list[Path]) -> None:
    """Make a folder and those above it, and note each that was made."""
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    with _reported(folder):
        for one in reversed(missing):
            one.mkdir()
            made.append(one)


def _write_all(contents: Mapping[Path, bytes]) -> None:
    with contextlib.ExitStack() as staged:
        written = {path: _stage(path, data, staged) for path, data in contents.items()}
        for path, temporary in written.items():
            with _reported(path):
                os.replace(temporary, path)


@contextlib.contextmanager
def staged_file(path: Path, force: bool, recording: Path | None = None) -> Iterator[Path]:
    """A temporary file beside the target, which takes the target's place when the block ends well.

    Raises:
        OutputError: It could not be written; nothing is left behind.
    """
    check_target(path, force, recording)
    with contextlib.ExitStack() as staged:
        temporary = _stage(path, b"", staged)
        try:
            yield temporary
            os.replace(temporary, path)
        except OSError as error:
            raise _failed(path, error) from error
        finally:
            for left in ("journal", "wal", "shm"):
                Path(f"{temporary}-{left}").unlink(missing_ok=True)


@contextlib.contextmanager
def staged_folder(path: Path, force: bool, recording: Path | None = None) -> Iterator[Path]:
    """A temporary folder beside the target, whose files move into the target when the block ends well.

    With ``force``, files of the same names are replaced; nothing else in an existing folder is touched.

    Raises:
        OutputError: It could not be written; nothing is left behind.
    """
    if path.exists() and not path.is_dir():
        raise OutputError(f"{path} is a file", "name a folder with -o")
    if recording is not None and path.exists() and path.samefile(recording):
        raise OutputError(f"{path} is the recording: it is never changed", "name another folder with -o")
    if path.is_dir() and not force and any(path.iterdir()):
        raise OutputError(f"the folder {path} is not empty", "add --force to write into it, or name another with -o")
    if not path.parent.is_dir():
        raise OutputError(f"the folder {path.parent} does not exist", "make it first")
    try:
        with folder_beside(path) as temporary:
            yield temporary
            path.mkdir(exist_ok=True)
            for file in sorted(temporary.iterdir()):
                os.replace(file, path / file.name)
    except OSError as error:
        raise _failed(path, error) from error


def _failed(path: Path, error: OSError | ValueError) -> OutputError:
    why = error.strerror if isinstance(error, OSError) else str(error)
    return OutputError(f"cannot write {path}: {why}", "choose another place with -o")


def _stage(path: Path, data: bytes, staged: contextlib.ExitStack) -> Path:
    """Write to a temporary file beside the target, which goes with the others."""
    with _reported(path):
        temporary = staged.enter_context(file_beside(path))
        temporary.write_bytes(data)
        temporary.chmod(0o666 & ~_umask())
        return temporary


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise _failed(path, error) from error
