"""CUDA graphs whose kernels and copies the recording hides."""

from __future__ import annotations

from nsysparse import units
from nsysparse.integrity.check import Check, Status
from nsysparse.joins.work import Work
from nsysparse.source import Trace


def graph_mode(trace: Trace) -> str | None:
    """How graphs were recorded, ``graph`` or ``node``; None when the export does not say."""
    options = trace.metadata("META_DATA_CAPTURE")
    found = [v.strip().lower() for k, v in options.items() if k.endswith("CUDA_GRAPH_TRACE_OPTIONS:MODE")]
    return found[0] if found else None


def check_graphs(trace: Trace, work: Work) -> Check:
    """Graph mode, nsys's default, records a graph as one row."""
    mode = graph_mode(trace)
    launches = work.calls.number_doing("graph launch")
    evidence: dict[str, object] = {"mode": mode, "graph_rows": work.graphs.height, "graph_launches": launches}
    if work.graphs.height:
        text = (
            f"{units.count(work.graphs.height)} CUDA graphs were recorded whole: their kernels and copies are not"
            " in this recording. Record with --cuda-graph-trace=node to see them."
        )
        return Check("graphs", "CUDA graphs", Status.NOTE, text, evidence)
    if launches:
        return Check("graphs", "CUDA graphs", Status.OK, "Graph launches show their kernels and copies.", evidence)
    return Check("graphs", "CUDA graphs", Status.NOT_APPLICABLE, "No CUDA graph was launched.", evidence)
