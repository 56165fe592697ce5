"""The chart library as one script, made by vl-convert from what it ships; nothing is fetched."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path

from nsysparse.errors import NsysparseError

_SNIPPET = "window.vegaEmbed = vegaEmbed;"


@cache
def chart_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script without a dependency.

    Bundling takes more than a second, so the result is kept in the user's cache folder; a copy that is not whole is not
    used, and a folder that cannot be written is no error.
    """
    kept = _cache_file()
    script = _read(kept)
    if script is None:
        import vl_convert

        script = vl_convert.javascript_bundle(snippet=_SNIPPET).replace("\r\n", "\n").strip()
        _keep(kept, script)
    if "</script" in script.lower() or "<!--" in script:
        raise NsysparseError("the chart library cannot be put into a page", "install another release of vl-convert")
    return script


def _cache_file() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    default = Path("~/Library/Caches" if sys.platform == "darwin" else "~/.cache")
    folder = Path(given) if given and Path(given).is_absolute() else default
    return folder / "nsysparse" / f"charts-{version('vl-convert-python')}-{_digest(_SNIPPET)[:8]}.js"


def _digest(script: str) -> str:
    return hashlib.sha256(script.encode()).hexdigest()


def _read(file: Path) -> str | None:
    try:
        digest, _, script = file.expanduser().read_text(encoding="utf-8").partition("\n")
    except (OSError, RuntimeError, UnicodeDecodeError):
        return None
    return script if digest == _digest(script) else None


def _keep(file: Path, script: str) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        target = file.expanduser()
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".charts-", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as out:
                out.write(f"{_digest(script)}\n{script}")
            os.replace(name, target)
        except OSError:
            os.unlink(name)
