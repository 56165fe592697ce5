"""The chart library as one script, made by vl-convert from what it ships; nothing is fetched."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version

from nsysparse.errors import NsysparseError
from nsysparse.report.kept import keep, read_kept

_SNIPPET = "window.vegaEmbed = vegaEmbed;"


@cache
def chart_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script without a dependency.

    Bundling takes more than a second, so the result is kept; see :mod:`nsysparse.report.kept`.
    """
    name = f"charts-{version('vl-convert-python')}-{hashlib.sha256(_SNIPPET.encode()).hexdigest()[:8]}.js"
    kept = read_kept(name)
    if kept is None:
        import vl_convert

        script = vl_convert.javascript_bundle(snippet=_SNIPPET).replace("\r\n", "\n").strip()
        keep(name, script.encode())
    else:
        script = kept.decode()
    if "</script" in script.lower() or "<!--" in script:
        raise NsysparseError("the chart library cannot be put into a page", "install another release of vl-convert")
    return script
