"""Slow and simple computations to hold the product against: plain SQL, loops, and nothing of nsysparse."""

from __future__ import annotations

import csv
import io
import sqlite3
import tarfile
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from traces import FOLDERS

Span = tuple[int, int]


def sql(path: Path, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Rows of a statement on a recording, opened read-only."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        return connection.execute(statement, values).fetchall()


def merged(spans: Iterable[Span], low: int, high: int) -> list[Span]:
    """Union of spans inside a window, by the textbook."""
    result: list[list[int]] = []
    for start, end in sorted((max(s, low), min(e, high)) for s, e in spans):
        if end <= start:
            continue
        if result and start <= result[-1][1]:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([start, end])
    return [(s, e) for s, e in result]


def length(spans: Iterable[Span]) -> int:
    """Time in disjoint spans."""
    return sum(e - s for s, e in spans)


def overlap(first: list[Span], second: list[Span]) -> int:
    """Time in both of two lists of disjoint, sorted spans."""
    total, j = 0, 0
    for start, end in first:
        while j < len(second) and second[j][1] <= start:
            j += 1
        k = j
        while k < len(second) and second[k][0] < end:
            total += min(end, second[k][1]) - max(start, second[k][0])
            k += 1
    return total


@cache
def oracle_files() -> dict[str, bytes]:
    """NVIDIA's reports of the recordings, ``RECORDING/REPORT.csv`` to content; empty where they are not there."""
    packed = next((f for d in FOLDERS if (f := d / "oracle.tar.xz").exists()), None)
    if packed is None:
        return {}
    with tarfile.open(packed) as tar:
        return {m.name.lstrip("./"): tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]


def oracle(trace: str, report: str) -> list[dict[str, str]]:
    """Rows of a report that NVIDIA's tool made of a recording; skips where the archive is not there."""
    files = oracle_files()
    if not files:
        pytest.skip("NVIDIA's reports are not in this checkout")
    return list(csv.DictReader(io.StringIO(files[f"{trace}/{report}.csv"].decode())))
