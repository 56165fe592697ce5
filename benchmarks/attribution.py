"""Hold the NVTX path of kernels against brute force: ``attribution.py TRACE [--kernels N]``.

Takes kernels at random, finds the call of each by SQL, and goes through all push/pop ranges of the call's thread for
the innermost range around it and for that range's parents, with the definition alone. Everything is read by Python's
sqlite3. Of more levels than a path has, only the innermost range is compared.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl

from nsysparse import open_trace
from nsysparse.joins.ranges import BY_THREAD, IN_TIME, MAX_DEPTH
from nsysparse.joins.work import load_work

FOREVER = np.iinfo(np.int64).max
CALLS = """
    SELECT k.start, k.correlationId, k.globalPid, r.globalTid, r.start
    FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN wanted k
        ON k.correlationId = r.correlationId AND k.globalPid = r.globalTid & ~0xFFFFFF
"""
RANGES = "SELECT globalTid, start, end FROM NVTX_EVENTS WHERE eventType = 59 ORDER BY rowid"


class Thread:
    """The push/pop ranges of one thread, in the order of the table."""

    def __init__(self, rows: list[tuple[int, int]]) -> None:
        self.start, self.end = np.array(rows, np.int64).T

    def around(self, start: int, end: int, before: int | None = None) -> int:
        """The innermost range that holds an interval, -1 for none; ``before``: a range it must come before.

        Innermost is the last by start ascending, end descending, row ascending.
        """
        holds = (self.start <= start) & (self.end >= end)
        if before is not None:
            s, e = self.start, self.end
            later = (s < start) | ((s == start) & ((e > end) | ((e == end) & (np.arange(s.size) < before))))
            holds &= later
        rows = np.flatnonzero(holds)
        if not rows.size:
            return -1
        rows = rows[self.start[rows] == self.start[rows].max()]
        rows = rows[self.end[rows] == self.end[rows].min()]
        return int(rows[-1])

    def path(self, instant: int) -> list[tuple[int, int]]:
        """Start and end of the ranges around an instant, the outermost first; of very many the inner ones."""
        found: list[tuple[int, int]] = []
        row = self.around(instant, instant)
        while row >= 0 and len(found) <= MAX_DEPTH:
            found.append((int(self.start[row]), int(self.end[row])))
            row = self.around(*found[-1], before=row)
        return found[::-1]


def brute(trace: Path, number: int) -> Iterator[tuple[int, int, int, list[tuple[int, int]]]]:
    """Kernel's start, correlation id, process, and the ranges around its call."""
    with closing(sqlite3.connect(f"file:{trace}?mode=ro&immutable=1", uri=True)) as connection:
        last = connection.execute("SELECT max(rowid) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0]
        chance = random.Random(1)
        rows = [chance.randint(1, last) for _ in range(number)]
        connection.execute("CREATE TEMP TABLE wanted (correlationId INTEGER PRIMARY KEY, start, globalPid)")
        connection.executemany(
            "INSERT OR IGNORE INTO wanted SELECT correlationId, start, globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL"
            " WHERE rowid = ? AND correlationId > 0",
            [(row,) for row in rows],
        )
        calls = connection.execute(CALLS).fetchall()
        by_thread: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for thread, start, end in connection.execute(RANGES):
            by_thread[thread].append((start, FOREVER if end is None else end))
    threads = {thread: Thread(rows) for thread, rows in by_thread.items()}
    for start, correlation, process, thread, called in calls:
        yield start, correlation, process, threads[thread].path(called) if thread in threads else []


def main() -> None:
    """Compare, print, and fail on a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--kernels", type=int, default=2_000)
    asked = parser.parse_args()
    with open_trace(asked.trace) as trace:
        work = load_work(trace)
    keys = work.kernels.select("start_ns", "correlation", "process")
    wrong = right = other = 0
    parents = work.ranges.paths["parent"].to_list()
    for start, correlation, process, expected in brute(asked.trace, asked.kernels):
        kernel = work.kernels.row(_row(keys, start, correlation, process), named=True)
        if kernel["path_by"] == IN_TIME:  # the thread of the call has no range there: another one's is taken
            other += 1
            wrong += bool(expected)
            continue
        depth, path = 0, kernel["path"]
        while path:
            depth, path = depth + 1, parents[path]
        found = None
        if kernel["path_by"] == BY_THREAD:
            found = work.ranges.frame.select("start_ns", "end_ns").row(kernel["range"])
        good = depth == min(len(expected), MAX_DEPTH) and found == (expected[-1] if expected else None)
        right, wrong = right + good, wrong + (not good)
    print(f"{right:,} kernels with the same range and depth, {other:,} by another thread's range, {wrong:,} differ")
    sys.exit(1 if wrong or not right else 0)


def _row(keys: pl.DataFrame, *values: int) -> int:
    found = keys.select(pl.all_horizontal(pl.col(c) == v for c, v in zip(keys.columns, values, strict=True)))
    return int(np.flatnonzero(found.to_series().to_numpy())[0])


if __name__ == "__main__":
    main()
