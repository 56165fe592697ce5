"""nsysparse: where did the GPU's time go, and who sent it there?

The public API::

    import nsysparse

    with nsysparse.open_trace("trace.sqlite") as trace:
        kernels = trace.frame("kernels")        # canonical frame (Polars)
        analysis = nsysparse.analyze(trace)
    print(analysis.verdict)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsysparse._version import __version__

if TYPE_CHECKING:
    from nsysparse.accounting.device import DeviceAccount, Options
    from nsysparse.analysis import Analysis, analyze
    from nsysparse.errors import NsysparseError
    from nsysparse.findings import Finding, Severity
    from nsysparse.outputs.json import to_dict, to_json
    from nsysparse.report import render_report
    from nsysparse.source import Trace, open_trace

# Name -> module: imported when first used, so that `nsysparse --help` does not wait for Polars.
_PUBLIC = {
    "Analysis": "nsysparse.analysis",
    "DeviceAccount": "nsysparse.accounting.device",
    "Finding": "nsysparse.findings",
    "NsysparseError": "nsysparse.errors",
    "Options": "nsysparse.accounting.device",
    "Severity": "nsysparse.findings",
    "Trace": "nsysparse.source",
    "analyze": "nsysparse.analysis",
    "open_trace": "nsysparse.source",
    "render_report": "nsysparse.report",
    "to_dict": "nsysparse.outputs.json",
    "to_json": "nsysparse.outputs.json",
}

__all__ = [
    "Analysis",
    "DeviceAccount",
    "Finding",
    "NsysparseError",
    "Options",
    "Severity",
    "Trace",
    "__version__",
    "analyze",
    "open_trace",
    "render_report",
    "to_dict",
    "to_json",
]


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        import importlib

        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'nsysparse' has no attribute '{name}'")
