"""What takes long to make and is always the same: kept in the user's cache folder, as Python keeps compiled modules.

A copy that is not whole, or that somebody else could have written, is not used; a folder that cannot be written is no
error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import BytecodeCache

from nsysparse._version import __version__
from nsysparse.beside import file_beside

if TYPE_CHECKING:
    from jinja2.bccache import Bucket


def read_kept(name: str) -> bytes | None:
    """What was kept under a name, None where nothing usable was."""
    try:
        with _file(name).open("rb") as file:
            mine = _is_mine(os.fstat(file.fileno()))
            digest, _, data = file.read().partition(b"\n")
    except (OSError, RuntimeError):
        return None
    return data if mine and digest == _digest(data) else None


def keep(name: str, data: bytes) -> None:
    """Keep something under a name for the next time."""
    with contextlib.suppress(OSError, RuntimeError):
        target = _file(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with file_beside(target) as temporary:
            temporary.write_bytes(_digest(data) + b"\n" + data)
            os.replace(temporary, target)


class KeptTemplates(BytecodeCache):
    """Templates as Jinja compiles them to Python; each is compiled again when its source changes."""

    def load_bytecode(self, bucket: Bucket) -> None:
        """Give Jinja what was kept; it holds it against the template's source."""
        code = read_kept(_template(bucket))
        if code is not None:
            bucket.bytecode_from_string(code)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep what Jinja compiled."""
        keep(_template(bucket), bucket.bytecode_to_string())


def _template(bucket: Bucket) -> str:
    return f"templates-{__version__}-{_jinja()}/{bucket.key}"


@cache
def _jinja() -> str:
    """The release of Jinja that compiles."""
    return version("jinja2")


def _file(name: str) -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    default = Path("~/Library/Caches" if sys.platform == "darwin" else "~/.cache")
    folder = Path(given) if given and Path(given).is_absolute() else default
    return (folder / "nsysparse" / name).expanduser()


def _is_mine(file: os.stat_result) -> bool:
    """Whether nobody else can have written a file: what it holds is run."""
    return not hasattr(os, "getuid") or (file.st_uid == os.getuid() and not file.st_mode & 0o022)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
