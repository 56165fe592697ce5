"""Census files written by hand: the format's second, independent writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def header(pid: int = 10, start: int = START, **extra: Any) -> dict[str, Any]:
    return {
        "record": "header", "format": "nsysparse-census", "version": 1, "pid": pid, "program": "server",
        "start_unix_ns": start, "cuda_driver": 13000, "cupti": 130001,
        "interval_ns": SECOND,
        "kinds": {"kernels": True, "copies": True, "peer_copies": True, "memsets": True, "graphs": False},
        "graph_mode": "node", "duty": None,
        "devices": [{"ordinal": 0, "name": "H200", "uuid": "GPU-1", "multiprocessors": 132}],
    } | extra  # fmt: skip


def copies(count: int, n_bytes: int, **key: Any) -> dict[str, Any]:
    entry = {
        "kind": "DtoH", "src": "device", "dst": "pageable", "peer": None, "outbound": None, "count": count,
        "bytes": n_bytes, "time_ns": 10 * count, "untimed": 0, "sizes": {"20": count},
    }  # fmt: skip
    return entry | key


def device(kernels: int = 0, by: list[dict[str, Any]] | None = None, **extra: Any) -> dict[str, Any]:
    by = by or []
    return {
        "device": 0,
        "kernels": {"count": kernels, "time_ns": 100 * kernels, "untimed": 0, "busy_ns": 90 * kernels,
                    "busy_late_ns": 0},
        "copies": {"count": sum(c["count"] for c in by), "bytes": sum(c["bytes"] for c in by), "time_ns": 0,
                   "untimed": 0, "busy_ns": 5 * len(by), "busy_late_ns": 0, "batched": 0, "by": by,
                   "other": {"count": 0, "bytes": 0, "time_ns": 0, "untimed": 0}},
        "memsets": {"count": 1, "bytes": 4, "time_ns": 1, "untimed": 0},
        "graphs": {"launches": kernels // 10, "time_ns": None, "untimed": None},
        "busy_ns": 95 * kernels, "busy_late_ns": 0,
    } | extra  # fmt: skip


def totals(seconds: float, devices: list[dict[str, Any]], start: int = START, **extra: Any) -> dict[str, Any]:
    return {
        "record": "totals", "unix_ns": start + int(seconds * SECOND), "cupti_ns": 1, "final": False,
        "why": "interval", "on": True, "covered_ns": int(seconds * SECOND), "same_until_unix_ns": None,
        "dropped": 0, "records": 1, "invalid_records": 0, "unplaced_records": 0, "refused_buffers": 0,
        "lost_lines": 0, "cost_ns": 1, "devices": devices,
    } | extra  # fmt: skip


def write(folder: Path, *lines: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"census-{lines[0].get('pid')}-{lines[0].get('start_unix_ns')}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def server(folder: Path, pid: int = 10) -> Path:
    """Ten seconds: 1,000 kernels and 10 copies a second, the first three of them loading a model."""
    lines = [header(pid)]
    for second in range(1, 11):
        by = [copies(10 * second, 1000 * second)]
        if second >= 3:
            by.append(copies(1, 5_000_000, kind="HtoD", src="pinned", dst="device"))
        lines.append(totals(second, [device(1000 * second, by)], final=second == 10))
    return write(folder, *lines)
