"""The rows of each table that overlap a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nsysparse.source.columns import quoted

Columns = Mapping[str, Sequence[tuple[str, str, bool, int]]]
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
WORK = tuple(f"CUPTI_ACTIVITY_KIND_{k}" for k in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"))
NO_EVENTS = ("TARGET_INFO_", "ANALYSIS_", "META_", "EXPORT_", "ENUM_", "CUDA_GRAPH_", "DIAGNOSTIC_")


def condition(columns: Columns, table: str, window: tuple[int, int] | None) -> str:
    """What a row must fulfil; "" for tables that hold no events.

    Events that never ended, and rows that register NVTX names, stay. So do the calls behind work that stays.
    """
    if window is None or table.startswith(NO_EVENTS):
        return ""
    low, high = window
    names = {c[0] for c in columns[table]}
    if {"start", "end"} <= names:
        inside = _overlap(low, high)
        if table == "NVTX_EVENTS":
            return f'({inside} OR "end" IS NULL AND ("start" < 0 OR eventType <> 34 OR {_inside("start", low, high)}))'
        return f"({inside} OR {_sent(columns, low, high)})" if table == CALLS else inside
    if table == "SAMPLING_CALLCHAINS" and "COMPOSITE_EVENTS" in columns:
        return f"id IN (SELECT id FROM source.COMPOSITE_EVENTS WHERE {_inside('start', low, high)})"
    instant = next((c for c in ("start", "timestamp") if c in names), None)
    return _inside(instant, low, high) if instant else ""


def _overlap(low: int, high: int) -> str:
    return f'("start" < {high} AND "end" > {low})'


def _inside(column: str, low: int, high: int) -> str:
    return f"({quoted(column)} >= {low} AND {quoted(column)} < {high})"


def _sent(columns: Columns, low: int, high: int) -> str:
    """Calls whose work overlaps the window: by process and correlation id."""
    parts = [
        f"SELECT (globalPid >> 24), correlationId FROM source.{t} WHERE {_overlap(low, high)}"
        for t in WORK
        if {"globalPid", "correlationId"} <= {c[0] for c in columns.get(t, ())}
    ]
    return f"((globalTid >> 24), correlationId) IN ({' UNION '.join(parts)})" if parts else "0"
