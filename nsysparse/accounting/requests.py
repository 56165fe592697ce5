"""Requests (or steps): what each one moved, how long it took, and how that is distributed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.accounting.busy import Busy, Inside, clipped
from nsysparse.accounting.grouping import add_up
from nsysparse.accounting.host import Activity
from nsysparse.accounting.windows import Repeats, Window, match_ranges, ranges_in
from nsysparse.errors import UsageError
from nsysparse.intervals import Index, Times, times
from nsysparse.joins.nesting import Nesting
from nsysparse.joins.order import rows_of
from nsysparse.joins.ranges import IN_TIME
from nsysparse.joins.work import Work
from nsysparse.lazy import cached_property
from nsysparse.nulls import filled, masked

# Figure of a request -> whether it is a time (ns), bytes or a number; the order of every table.
FIGURES = {
    "latency_ns": "time",
    "kernels": "number",
    "kernel_ns": "time",
    "graphs": "number",
    "graph_ns": "time",
    "copies": "number",
    "htod_bytes": "bytes",
    "dtoh_bytes": "bytes",
    "other_bytes": "bytes",
    "copy_ns": "time",
    "exposed_ns": "time",
    "blocked_ns": "time",
}


@dataclass(frozen=True)
class Requests:
    """The requests of one device's window.

    Attributes:
        count: How many there are.
        basis: One phrase that says where the number comes from.
        frame: One row a request: ``request``, ``name``, ``start_ns``, ``thread`` and FIGURES; None when only the number
            is known. A call belongs to the latest-started request around it, so nothing is counted twice.
        unclaimed: Operations of the window that no request sent; NULL when only the number is known.
    """

    count: int
    basis: str
    frame: pl.DataFrame | None
    unclaimed: int | None

    def distribution(self) -> pl.DataFrame:
        """One row a figure: ``figure``, ``unit``, ``sum``, ``mean``, ``median``, ``p95``, ``p99``, ``max``."""
        if self.frame is None or not self.frame.height:
            return pl.DataFrame(
                schema={"figure": pl.String, "unit": pl.String}
                | dict.fromkeys(("sum", "mean", "median", "p95", "p99", "max"), pl.Float64)
            )
        rows = []
        for figure, unit in FIGURES.items():
            values = self.frame[figure].cast(pl.Float64)
            least = values.min()
            same = least is not None and least == values.max()  # mostly of figures that nothing has any of
            quantiles = [least if same else values.quantile(q, "linear") for q in (0.5, 0.95, 0.99)]
            rows.append((figure, unit, values.sum(), values.mean(), *quantiles, values.max()))
        names = ["figure", "unit", "sum", "mean", "median", "p95", "p99", "max"]
        return pl.DataFrame(rows, schema=names, orient="row")


def find_requests(
    work: Work,
    inside: Inside,
    busy: Busy,
    repeats: Repeats | None,
    activity: Activity,
    pattern: str | None = None,
    number: int | None = None,
) -> Requests | None:
    """The requests of a window: by NVTX pattern, by number, or the repeated top-level ranges.

    Args:
        work: One device's work.
        inside: What touches the window.
        busy: The window's unions.
        repeats: The repeated top-level ranges; taken where the user gives nothing.
        activity: What each thread was doing.
        pattern: Regular expression on range names.
        number: Number of requests in the window.

    Returns:
        None when nothing says what a request is.

    Raises:
        UsageError: No range matches the pattern.
    """
    if number is not None:
        return Requests(number, "number given by the user", None, None)
    if pattern is not None:
        ranges = match_ranges(work, pattern).sort("start_ns", "range")
        basis = f"NVTX ranges that match '{pattern}'"
        if not ranges.height:
            raise UsageError(
                f"no NVTX range matches '{pattern}'", "see the ranges with: nsysparse query TRACE nvtx/ranges"
            )
    elif repeats is not None:
        ranges, basis = repeats.frame, f"repeated top-level NVTX ranges '{repeats.label}'"
    else:
        return None
    ranges = ranges.filter(ranges_in(busy.window, work))
    frame, unclaimed = _measure(work, inside, busy.window, activity, ranges)
    return Requests(ranges.height, basis, frame, unclaimed)


def _measure(
    work: Work, inside: Inside, window: Window, activity: Activity, ranges: pl.DataFrame
) -> tuple[pl.DataFrame, int]:
    owner, n = _Owner(ranges, work), ranges.height
    figures: dict[str, Times] = {}
    unclaimed = 0
    for kind, frame in inside.sent.items():
        request = owner.of(frame)
        counted = frame["counted"].to_numpy()
        unclaimed += int(np.count_nonzero(counted & (request < 0)))
        number = request + (request < 0) * (n + 1)  # what no request sent is added up, too, and left out
        if kind == "copies":
            figures |= _copy_figures(frame, number, n)
        elif kind != "memsets":
            took = clipped(frame, window)
            sums = {kind: add_up(counted, number, n + 1), f"{kind.removesuffix('s')}_ns": add_up(took, number, n + 1)}
            figures |= {name: values[:n] for name, values in sums.items()}
    latency = times(ranges["end_ns"]) - times(ranges["start_ns"])
    frame = pl.DataFrame(
        {
            "request": np.arange(n),
            "name": ranges["name"],
            "start_ns": ranges["start_ns"],
            "thread": ranges["thread"],
            "latency_ns": masked("latency_ns", latency, ranges["finished"].to_numpy()),
            "blocked_ns": _blocked(ranges, activity),
            **figures,
        }
    )
    return frame.select("request", "name", "start_ns", "thread", *FIGURES), unclaimed


def _copy_figures(copies: pl.DataFrame, number: Index, n: int) -> dict[str, Times]:
    """What the copies of each request moved, and how long they took."""
    kind, counted = copies["kind_name"], copies["counted"].to_numpy()
    into, out = (kind == "HtoD").to_numpy(), (kind == "DtoH").to_numpy()
    size = filled(copies["bytes"])

    def total(values: npt.NDArray[Any], chosen: npt.NDArray[np.bool_] | None = None) -> Times:
        rows = slice(None) if chosen is None or chosen.all() else np.flatnonzero(chosen)
        return add_up(values[rows], number[rows], n + 1)[:n]

    return {
        "copies": total(copies["copy_count"].to_numpy(), counted),
        "htod_bytes": total(size, counted & into),
        "dtoh_bytes": total(size, counted & out),
        "other_bytes": total(size, counted & ~(into | out)),
        "copy_ns": total(times(copies["to_ns"]) - times(copies["from_ns"])),
        "exposed_ns": total(times(copies["exposed_ns"])),
    }


class _Owner:
    """Which request a call belongs to: the latest-started one around it on a thread where the request runs."""

    def __init__(self, ranges: pl.DataFrame, work: Work) -> None:
        crossing = ranges.with_row_index("row").filter(pl.col("thread") != pl.col("end_thread"))
        self._rows = np.concatenate((np.arange(ranges.height), crossing["row"].to_numpy()))
        self._thread, self._start, self._end = (
            np.concatenate((times(ranges[c]), times(crossing[again])))
            for c, again in (("thread", "end_thread"), ("start_ns", "start_ns"), ("end_ns", "end_ns"))
        )
        self._calls = work.calls
        self._thread_of_range = work.ranges.frame["thread"]
        self._stretches = self._by_call()

    @cached_property
    def _nesting(self) -> Nesting:
        return Nesting(self._thread, self._start, self._end)

    def _by_call(self) -> tuple[Index, Index, Index] | None:
        """The calls of each request, which lie together where requests of one thread do not overlap.

        Returns:
            Ascending first rows of the calls; then, after one that stands for no request, the rows after the last call,
            and the rows of the requests. None where some overlap.
        """
        order = np.lexsort((self._start, self._thread))
        thread, start, end = self._thread[order], self._start[order], self._end[order]
        overlap = (start[1:] < end[:-1]) | (start[1:] == start[:-1])
        if (end < start).any() or (overlap & (thread[1:] == thread[:-1])).any():
            return None
        first, after = np.empty(order.size, np.int64), np.empty(order.size, np.int64)
        for one, rows in rows_of(thread):
            mine = self._calls.rows_of(one)
            begun = self._calls.start[mine]
            first[rows] = np.searchsorted(begun, start[rows], side="left") + mine.start
            after[rows] = np.searchsorted(begun, end[rows], side="right") + mine.start
        after = np.minimum(after, np.append(first[1:], after[-1:]))
        return first, np.append(0, after), np.append(-1, self._rows[order])

    def of(self, ops: pl.DataFrame) -> Index:
        """Request of each operation, -1 for none."""
        # A call placed "in time" belongs to the request of the thread whose range it was placed in.
        placed = np.flatnonzero((ops["path_by"] == IN_TIME).to_numpy())
        call = filled(ops["call"], -1)
        if self._stretches is None:
            request = self._around(filled(ops["thread"]), call)
        else:
            first, after, rows = self._stretches
            at = np.searchsorted(first, call, side="right")
            request = rows[at * (call < after[at])]
        if placed.size:
            thread = self._thread_of_range.gather(ops["range"][placed]).to_numpy()
            request[placed] = self._around(thread, call[placed])
        return request

    def _around(self, thread: Times, call: Index) -> Index:
        """The request around the start of each call (-1: no call) on some thread; -1 where there is none."""
        called = call >= 0
        begun = np.zeros(call.size, np.int64)
        begun[called] = self._calls.start[call[called]]
        row = self._nesting.rows_of(self._nesting.enclosing(thread, begun))
        found = (row >= 0) & called
        return times(np.where(found, self._rows[np.maximum(row, 0)] if self._rows.size else -1, -1))


def _blocked(ranges: pl.DataFrame, activity: Activity) -> Times:
    """Time that each request's own thread was inside a call that waits, ns."""
    blocked = np.zeros(ranges.height, np.int64)
    start, end = times(ranges["start_ns"]), times(ranges["end_ns"])
    for thread, here in rows_of(times(ranges["thread"])):
        blocked[here] = activity.blocked(thread).covered(start[here], end[here])
    return blocked
