"""Start a program with the recorder in it: the variables that the CUDA driver and the recorder read."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from nsysparse.census import CONTROL_FILE
from nsysparse.errors import NsysparseError

INJECTION = "CUDA_INJECTION64_PATH"
KINDS = ("kernels", "copies", "memsets", "graphs")
DEFAULT_KINDS = ("kernels", "copies", "memsets")


@dataclass(frozen=True)
class Settings:
    """How to record.

    Attributes:
        folder: Where the files go, one a process.
        interval_s: Seconds between two lines of totals.
        kinds: What is recorded; ``graphs`` records whole graph launches and hides what is inside them.
        on_s: With ``every_s``, the seconds of each cycle during which it records; 0 records always.
        every_s: The length of a cycle in seconds.
    """

    folder: Path
    interval_s: float = 1.0
    kinds: tuple[str, ...] = DEFAULT_KINDS
    on_s: float = 0.0
    every_s: float = 0.0


def check(settings: Settings) -> None:
    """Refuse settings that the recorder would quietly replace.

    Raises:
        NsysparseError: A value is out of range, or a kind is unknown.
    """
    unknown = [kind for kind in settings.kinds if kind not in KINDS]
    if unknown or not settings.kinds:
        raise NsysparseError(f"unknown record kind {', '.join(unknown) or '(none)'}", f"choose from {', '.join(KINDS)}")
    if not 0.01 <= settings.interval_s <= 3600:
        raise NsysparseError(f"an interval of {settings.interval_s:g} s is out of range", "use 0.01 to 3600 seconds")
    if (settings.on_s > 0) != (settings.every_s > 0) or settings.on_s > settings.every_s:
        raise NsysparseError(
            "--on and --every go together, and --on is the shorter one", "for example --on 10 --every 60"
        )


def variables(settings: Settings, library: Path) -> dict[str, str]:
    """The environment variables that make a CUDA program record itself."""
    check(settings)
    result = {
        INJECTION: str(library.absolute()),
        "NSYSPARSE_CENSUS_DIR": str(settings.folder.absolute()),
        "NSYSPARSE_CENSUS_INTERVAL": f"{settings.interval_s:g}",
        "NSYSPARSE_CENSUS_KINDS": ",".join(settings.kinds),
    }
    if settings.every_s > 0:
        result["NSYSPARSE_CENSUS_ON"] = f"{settings.on_s:g}"
        result["NSYSPARSE_CENSUS_EVERY"] = f"{settings.every_s:g}"
    return result


def make_folder(folder: Path) -> None:
    """Create the output folder.

    Raises:
        NsysparseError: It cannot be created or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NsysparseError(f"cannot create {folder}: {error.strerror}", "name another folder with --out") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise NsysparseError(f"cannot write to {folder}", "name another folder with --out")


def run(command: Sequence[str], settings: Settings, library: Path) -> NoReturn:
    """Replace this process by the program, recorded: its exit status and its signals are its own.

    Raises:
        NsysparseError: The program is not there, or another tool is already injected.
    """
    other = os.environ.get(INJECTION)
    if other and Path(other).absolute() != library.absolute():
        raise NsysparseError(
            f"{INJECTION} is already set: another tool records this program",
            f"unset {INJECTION}, or record separately",
        )
    program = shutil.which(command[0])
    if program is None:
        raise NsysparseError(f"no program {command[0]}", "check its name, and give its path if it is not on PATH")
    environment = {**os.environ, **variables(settings, library)}
    make_folder(settings.folder)
    sys.stdout.flush()
    try:
        os.execvpe(program, list(command), environment)
    except OSError as error:
        raise NsysparseError(f"cannot start {command[0]}: {error.strerror}", "check that it is executable") from error


def switch(folder: Path, *, on: bool) -> None:
    """Switch every recorder of a folder on or off; each follows as soon as it sees the file.

    Raises:
        NsysparseError: The folder is not there or cannot be written to.
    """
    temporary = folder / f".{CONTROL_FILE}.{os.getpid()}"
    try:
        temporary.write_text("on\n" if on else "off\n")
        os.replace(temporary, folder / CONTROL_FILE)
    except OSError as error:
        raise NsysparseError(
            f"cannot write to {folder}: {error.strerror}", "name the folder that the recorder writes to"
        ) from error
