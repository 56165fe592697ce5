"""Analyses of test exports, and the figures that tests read off them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from export_builder import RELEASES, ExportBuilder, global_id

from nsysparse.accounting.device import DeviceAccount, Options
from nsysparse.analysis import Analysis, analyze
from nsysparse.integrity import Check
from nsysparse.source import open_trace

NEWEST = RELEASES[-1]
SECOND, MS, US = 1_000_000_000, 1_000_000, 1_000
PID = 4242
TID = global_id(PID, PID)


def machine(release: str = NEWEST, gpus: int = 1) -> ExportBuilder:
    """An export of process PID, thread TID, whose CUDA ordinals are the machine's GPU numbers."""
    b = ExportBuilder(release)
    b.process(PID, "python3")
    b.thread(PID, PID, "python3")
    for number in range(gpus):
        b.gpu(number, "NVIDIA H200", cu_device=number)
        b.cuda_device(PID, number, number)
    return b


def analyze_file(path: Path, **options: Any) -> Analysis:
    with open_trace(path) as trace:
        return analyze(trace, Options(**options))


def analyzed(builder: ExportBuilder, folder: Path, **options: Any) -> Analysis:
    """The analysis of an export; `options` are those of the analysis."""
    return analyze_file(builder.write(folder / "trace.sqlite"), **options)


def account(builder: ExportBuilder, folder: Path, **options: Any) -> DeviceAccount:
    """The account of the only device, by default over the whole recording."""
    (only,) = analyzed(builder, folder, **{"window": "whole", **options}).devices
    return only


def check(analysis: Analysis, name: str) -> Check:
    """One of the integrity checks."""
    return next(c for c in analysis.integrity.checks if c.id == name)


def paths_of(analysis: Analysis, kind: str) -> list[tuple[str, str]]:
    """NVTX path and how it was found, of each operation of a kind in the order of time."""
    frame: pl.DataFrame = getattr(analysis.work, kind)
    joined = frame.join(analysis.work.ranges.paths.select("path", "text"), on="path", how="left")
    ordered = joined.sort("start_ns").select("text", pl.col("path_by").cast(pl.String))
    return [(str(text), str(by)) for text, by in ordered.iter_rows()]
