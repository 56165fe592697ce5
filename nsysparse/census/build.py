"""Build the recorder with the machine's compiler, against the CUPTI it finds.

The recorder looks CUPTI up at run time, so the build needs no CUPTI. When headers are there, the compiler
checks the recorder's record layouts against them; the library found is remembered as the one to open when the
program has none of its own.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nsysparse.beside import file_beside
from nsysparse.errors import NsysparseError

SOURCE = Path(__file__).with_name("recorder.c")
FLAGS = ("-std=c11", "-O2", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
# Last, because older glibc keeps dlopen and sem_timedwait in libraries of their own.
LIBRARIES = ("-pthread", "-ldl")
_SONAME = re.compile(r"libcupti\.so\.1[0-9](\.[0-9])?")


@dataclass(frozen=True)
class Cupti:
    """A CUPTI on this machine.

    Attributes:
        library: Path of the shared library, by its soname where that exists.
        includes: Folders with ``cupti_activity.h`` and ``cuda.h``; empty when one of them is missing.
        version: The headers' CUPTI_API_VERSION, or None without headers.
    """

    library: Path
    includes: tuple[Path, ...]
    version: int | None


@dataclass(frozen=True)
class Built:
    """A recorder that is ready to be loaded.

    Attributes:
        library: The shared library.
        compiler: The compiler that made it.
        cupti: The CUPTI it was built against, or None when none was found.
        headers_checked: Whether the compiler compared the record layouts with CUPTI's headers.
        fresh: False when the cache already held it.
    """

    library: Path
    compiler: str
    cupti: Cupti | None
    headers_checked: bool
    fresh: bool


def cache_folder() -> Path:
    """Where built recorders are kept: ``$XDG_CACHE_HOME/nsysparse`` or ``~/.cache/nsysparse``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "nsysparse"


def find_compiler(wanted: str | None = None) -> str:
    """The C compiler: the one asked for, ``$CC``, cc, gcc or clang.

    Raises:
        NsysparseError: There is none.
    """
    names = [wanted] if wanted else [os.environ.get("CC", ""), "cc", "gcc", "clang"]
    for name in names:
        path = shutil.which(name) if name else None
        if path:
            return path
    raise NsysparseError(
        f"no C compiler was found (looked for {', '.join(n for n in names if n)})",
        "install gcc or clang, or name one with --cc; or build on a like machine and copy the library",
    )


def _toolkits() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    yield Path("/usr/local/cuda")

    def number(path: Path) -> list[int]:
        return [int(n) for n in re.findall(r"\d+", path.name)]

    yield from sorted(Path("/usr/local").glob("cuda-*"), key=number, reverse=True)


def _wheels() -> Iterator[Path]:
    for entry in sys.path:
        base = Path(entry or ".") / "nvidia"
        if base.is_dir():
            yield from sorted(base.glob("cu1[0-9]"), reverse=True)
            yield base / "cuda_cupti"


def _library(root: Path) -> Path | None:
    for folder in (
        "lib64",
        "lib",
        "extras/CUPTI/lib64",
        "targets/x86_64-linux/lib",
        "targets/sbsa-linux/lib",
    ):
        found = sorted(p for p in (root / folder).glob("libcupti.so.*") if _SONAME.fullmatch(p.name))
        if found:
            return found[-1]
        if (root / folder / "libcupti.so").exists():
            return root / folder / "libcupti.so"
    return None


def _includes(root: Path) -> tuple[Path, ...]:
    folders = [root / "include", root / "extras/CUPTI/include", root.parent / "cuda_runtime/include"]
    with_cupti = [f for f in folders if (f / "cupti_activity.h").is_file()]
    with_cuda = [f for f in folders if (f / "cuda.h").is_file()]
    return tuple(dict.fromkeys([with_cupti[0], with_cuda[0]])) if with_cupti and with_cuda else ()


def _header_version(includes: tuple[Path, ...]) -> int | None:
    for folder in includes:
        header = folder / "cupti_version.h"
        if header.is_file():
            match = re.search(r"#define\s+CUPTI_API_VERSION\s+(\d+)", header.read_text(errors="replace"))
            return int(match[1]) if match else None
    return None


def cupti_in(root: Path) -> Cupti | None:
    """The CUPTI of one CUDA toolkit or wheel folder, or None."""
    library = _library(root)
    if library is None:
        return None
    includes = _includes(root)
    return Cupti(library, includes, _header_version(includes))


def find_cupti(root: str | None = None) -> Cupti | None:
    """The CUPTI to build against: in ``root``, a CUDA toolkit, or the nvidia-cuda-cupti wheels; or None.

    Raises:
        NsysparseError: ``root`` was named and holds none.
    """
    if root is not None:
        named = cupti_in(Path(root))
        if named is None:
            raise NsysparseError(
                f"no libcupti.so below {root}",
                "name a CUDA toolkit's folder, or a wheel's folder nvidia/cuda_cupti",
            )
        return named
    found = [c for c in map(cupti_in, dict.fromkeys([*_toolkits(), *_wheels()])) if c is not None]
    with_headers = [c for c in found if c.includes]
    best = with_headers or found
    return best[0] if best else None


def _arguments(cupti: Cupti | None, *, headers: bool) -> list[str]:
    arguments = list(FLAGS)
    if cupti is not None:
        path = str(cupti.library.absolute())
        if '"' in path or "\\" in path:
            raise NsysparseError(f"the path {path} cannot be compiled in", "use a path without quotes or backslashes")
        arguments.append(f'-DCENSUS_CUPTI_PATH="{path}"')
        if headers:
            arguments.append("-DCENSUS_CHECK_HEADERS")
            arguments += [part for folder in cupti.includes for part in ("-isystem", str(folder))]
    return arguments


def _compile(compiler: str, arguments: list[str], target: Path) -> str:
    """Run the compiler; return its complaint, empty when it worked."""
    with file_beside(target) as temporary:
        done = subprocess.run(
            [compiler, *arguments, str(SOURCE), "-o", str(temporary), *LIBRARIES],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            return errors[0].strip() if errors else f"exit status {done.returncode}"
        temporary.chmod(0o755)
        os.replace(temporary, target)
    return ""


def build(
    *, compiler: str | None = None, cuda: str | None = None, folder: Path | None = None, force: bool = False
) -> Built:
    """Build the recorder, or return the one built before from the same source, compiler and CUPTI.

    Args:
        compiler: Name or path of the C compiler; by default ``$CC``, cc, gcc or clang.
        cuda: Folder of the CUDA toolkit or CUPTI wheel; by default the first one found.
        folder: Where the library goes; by default the cache folder.
        force: Build even when the cache holds it.

    Raises:
        NsysparseError: Not on Linux, no compiler, a failing build, or record layouts unlike CUPTI's headers.
    """
    if sys.platform != "linux":
        raise NsysparseError("the recorder runs on Linux alone", "build it on the machine whose programs it records")
    cc = find_compiler(compiler)
    cupti = find_cupti(cuda)
    headers = bool(cupti and cupti.includes)
    arguments = _arguments(cupti, headers=headers)
    key = hashlib.sha256("\0".join([SOURCE.read_text(), cc, *arguments]).encode()).hexdigest()[:16]
    target = (folder or cache_folder()) / f"nsysparse-census-{key}.so"
    unchecked = target.with_name(target.stem + "-unchecked.so")
    for known in (target, unchecked):
        if known.exists() and not force:
            return Built(known, cc, cupti, headers and known == target, fresh=False)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        complaint = _compile(cc, arguments, target)
    except OSError as error:
        raise NsysparseError(f"cannot write to {target.parent}: {error}", "name another folder with --to") from error
    if complaint and headers and "static assertion" not in complaint and "static_assert" not in complaint:
        # The headers themselves do not compile, as when cuda.h is of another release: do without them.
        headers, target = False, unchecked
        complaint = _compile(cc, _arguments(cupti, headers=False), target)
    if complaint:
        raise NsysparseError(
            f"the recorder did not compile: {complaint}",
            "report it with the CUPTI version, or point --cuda at CUDA 11.8 to 13.x",
        )
    return Built(target, cc, cupti, headers, fresh=True)
