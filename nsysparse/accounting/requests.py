"""Requests (or steps): what each one moved, how long it took, and how that is distributed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysparse.accounting.busy import Busy, in_window
from nsysparse.accounting.windows import Repeats, match_ranges, ranges_in
from nsysparse.errors import UsageError
from nsysparse.intervals import Intervals, times
from nsysparse.joins.calls import rows_by
from nsysparse.joins.nesting import FOREVER, Nesting
from nsysparse.joins.ranges import IN_TIME
from nsysparse.joins.work import Work

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
    kernels: pl.DataFrame,
    copies: pl.DataFrame,
    busy: Busy,
    repeats: Repeats | None,
    pattern: str | None,
    number: int | None,
) -> Requests | None:
    """The requests of a window: by NVTX pattern, by number, or the repeated top-level ranges.

    Args:
        work: One device's work.
        kernels: Those that touch the window, as :func:`nsysparse.accounting.busy.in_window` returns them.
        copies: As :func:`nsysparse.accounting.copies.detail_copies` returns them.
        busy: The window's unions.
        repeats: The repeated top-level ranges; taken where the user gives nothing.
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
        ranges, basis = match_ranges(work, pattern), f"NVTX ranges that match '{pattern}'"
        if not ranges.height:
            raise UsageError(
                f"no NVTX range matches '{pattern}'", "see the ranges with: nsysparse query TRACE nvtx/ranges"
            )
    elif repeats is not None:
        ranges, basis = repeats.frame, f"repeated top-level NVTX ranges '{repeats.label}'"
    else:
        return None
    ranges = ranges.filter(ranges_in(busy.window, work)).sort("start_ns", "range")
    frame, unclaimed = _measure(work, kernels, copies, busy, ranges)
    return Requests(ranges.height, basis, frame, unclaimed)


def _measure(
    work: Work, kernels: pl.DataFrame, copies: pl.DataFrame, busy: Busy, ranges: pl.DataFrame
) -> tuple[pl.DataFrame, int]:
    owner = _Owner(ranges, work)
    kernels = kernels.with_columns(request=owner.of(kernels))
    copies = copies.with_columns(request=owner.of(copies))
    graphs = in_window(work.graphs, busy.window)
    graphs = graphs.with_columns(request=owner.of(graphs))
    memsets = in_window(work.memsets, busy.window)
    memsets = memsets.with_columns(request=owner.of(memsets))
    counted, clipped, size = (
        pl.col("counted"),
        pl.col("to_ns") - pl.col("from_ns"),
        pl.col("bytes").filter("counted"),
    )
    kind = pl.col("kind_name").filter("counted")
    sums = [
        kernels.group_by("request").agg(
            counted.sum().cast(pl.Int64).alias("kernels"), clipped.sum().alias("kernel_ns")
        ),
        graphs.group_by("request").agg(counted.sum().cast(pl.Int64).alias("graphs"), clipped.sum().alias("graph_ns")),
        copies.group_by("request").agg(
            pl.col("copy_count").filter(counted).sum().alias("copies"),
            size.filter(kind == "HtoD").sum().alias("htod_bytes"),
            size.filter(kind == "DtoH").sum().alias("dtoh_bytes"),
            size.filter(~kind.is_in(["HtoD", "DtoH"])).sum().alias("other_bytes"),
            clipped.sum().alias("copy_ns"),
            pl.col("exposed_ns").sum(),
        ),
    ]
    frame = ranges.select(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("request"),
        "name",
        "start_ns",
        "thread",
        latency_ns=pl.when("finished").then(pl.col("end_ns") - pl.col("start_ns")),
        blocked_ns=pl.Series(_blocked(ranges, work)),
    )
    for part in sums:
        mine = part.filter(pl.col("request") >= 0)
        for column in mine.drop("request"):
            figure = np.zeros(frame.height, column.to_numpy().dtype)
            figure[mine["request"].to_numpy()] = column.to_numpy()
            frame = frame.with_columns(pl.Series(column.name, figure))
    unclaimed = sum(f.filter(counted & (pl.col("request") < 0)).height for f in (kernels, copies, graphs, memsets))
    return frame.select("request", "name", "start_ns", "thread", *FIGURES), unclaimed


class _Owner:
    """Which request a call belongs to: the latest-started one around it on a thread where the request runs."""

    def __init__(self, ranges: pl.DataFrame, work: Work) -> None:
        crossing = ranges.with_row_index("row").filter(pl.col("thread") != pl.col("end_thread"))
        self._rows = np.concatenate((np.arange(ranges.height), crossing["row"].to_numpy()))
        self._nesting = Nesting(
            pl.concat([ranges["thread"], crossing["end_thread"]]),
            pl.concat([ranges["start_ns"], crossing["start_ns"]]),
            pl.concat([ranges["end_ns"], crossing["end_ns"]]),
        )
        self._begun = work.calls["start_ns"]
        self._thread_of_range = work.ranges.frame["thread"]

    def of(self, ops: pl.DataFrame) -> pl.Series:
        """Request of each operation, -1 for none."""
        if not ops.height:
            return pl.Series([], dtype=pl.Int64)
        # A call placed "in time" belongs to the request of the thread whose range it was placed in.
        placed = (ops["path_by"] == IN_TIME).to_numpy()
        thread = ops["thread"].fill_null(0).to_numpy()
        if placed.any():
            thread = thread.copy()
            thread[placed] = self._thread_of_range.gather(ops["range"].filter(placed)).to_numpy()
        begun = self._begun.gather(ops["call"]).fill_null(0)
        row = self._nesting.rows_of(self._nesting.enclosing(thread, begun))
        found = (row >= 0) & ops["call"].is_not_null().to_numpy()
        request = np.where(found, self._rows[np.maximum(row, 0)] if self._rows.size else -1, -1)
        return pl.Series(request, dtype=pl.Int64)


def _blocked(ranges: pl.DataFrame, work: Work) -> np.ndarray:
    """Time that each request's own thread was inside a call that waits, ns."""
    blocked = np.zeros(ranges.height, np.int64)
    end = ranges["end_ns"].clip(upper_bound=FOREVER).to_numpy()
    start, calls = times(ranges["start_ns"]), work.calls
    for thread, here in rows_by(ranges["thread"]):
        rows = calls.waiting(thread)
        blocked[here] = Intervals.union_of(calls.start[rows], calls.end[rows]).covered(start[here], end[here])
    return blocked
