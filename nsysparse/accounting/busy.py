"""Busy, idle, exposed and held up: where the time of one device went within a window."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from nsysparse.accounting.windows import Window
from nsysparse.intervals import Intervals, Times, owned, times
from nsysparse.joins.order import rows_of
from nsysparse.joins.work import Work
from nsysparse.lazy import cached_property
from nsysparse.shelf import Shelf

KINDS = ("kernels", "copies", "memsets", "graphs", "migrations")


@dataclass(frozen=True)
class Busy:
    """Times of one device in one window, as sets of instants.

    Attributes:
        window: The window.
        by_kind: Union of each kind of work, clipped to the window.
        compute: Kernels and graph spans: what hides a copy. (A graph span stands for kernels that are not there.)
        exposed: Copies outside compute.
        held_up: The part of ``exposed`` in which a kernel had been submitted and had not started.
    """

    window: Window
    by_kind: dict[str, Intervals]
    compute: Intervals
    exposed: Intervals
    held_up: Intervals

    @cached_property
    def everything(self) -> Intervals:
        """Union of all kinds: nearly as long as ``compute``, and so not kept past :meth:`forget`."""
        return _everything(self.compute, self.by_kind)

    def forget(self) -> None:
        """Give back what is worked out again for whoever asks."""
        self.__dict__.pop("everything", None)

    @property
    def idle(self) -> Intervals:
        """Window minus everything."""
        return self.everything.gaps(self.window.start_ns, self.window.end_ns)

    def put_on(self, shelf: Shelf) -> Busy:
        """The same with its times on a shelf."""

        def put(s: Intervals) -> Intervals:
            return Intervals(shelf.put_array(s.start), shelf.put_array(s.end))

        by_kind = {kind: put(union) for kind, union in self.by_kind.items()}
        return Busy(self.window, by_kind, put(self.compute), put(self.exposed), put(self.held_up))

    def summary(self) -> dict[str, Any]:
        """Lengths in ns, and shares of the window; the names that every output uses."""
        length, busy, exposed = self.window.length_ns, self.everything.length, self.exposed.length
        figures: dict[str, Any] = {
            "window": self.window.name,
            "window_basis": self.window.basis,
            "window_start_ns": self.window.start_ns,
            "window_end_ns": self.window.end_ns,
            "window_ns": length,
            "busy_ns": busy,
            "idle_ns": length - busy,
        }
        figures |= {f"{kind}_ns": union.length for kind, union in self.by_kind.items()}
        figures |= {
            "copies_exposed_ns": exposed,
            "copies_overlapped_ns": figures["copies_ns"] - exposed,
            "held_up_ns": self.held_up.length,
        }
        parts = [k for k in figures if k.endswith("_ns") and not k.startswith("window")]
        return figures | {f"{k.removesuffix('_ns')}_ratio": figures[k] / length for k in parts}


def measure_busy(work: Work, windows: Iterable[Window]) -> list[Busy]:
    """Unions of one device's work within some windows: made once, and clipped. Never a sum over streams."""
    by_kind = {kind: union_of_rows(getattr(work, kind)) for kind in KINDS}
    compute = by_kind["kernels"] | by_kind["graphs"]
    everything = _everything(compute, by_kind)
    exposed = by_kind["copies"] - compute
    held_up = exposed & _pending(work)
    measured = []
    for window in windows:
        low, high = window.start_ns, window.end_ns
        within = {kind: union.clip(low, high) for kind, union in by_kind.items()}
        busy = Busy(window, within, *(union.clip(low, high) for union in (compute, exposed, held_up)))
        busy.__dict__["everything"] = everything.clip(low, high)  # known already
        measured.append(busy)
    return measured


def _everything(compute: Intervals, by_kind: dict[str, Intervals]) -> Intervals:
    return Intervals.any_of((compute, by_kind["copies"], by_kind["memsets"], by_kind["migrations"]))


def union_of_rows(frame: pl.DataFrame) -> Intervals:
    """When any of some rows was going on."""
    return Intervals.union_of(frame["start_ns"], frame["end_ns"])


def union_by_thread(frame: pl.DataFrame) -> dict[int, Intervals]:
    """When any of the rows of each thread was going on, threads in the order in which they appear; without NULL."""
    if frame["thread"].null_count():
        frame = frame.drop_nulls("thread")
    return unions_by(*(times(frame[c]) for c in ("thread", "start_ns", "end_ns")))


def unions_by(thread: Times, start: Times, end: Times) -> dict[int, Intervals]:
    """The union of each thread's intervals, threads in the order in which they appear."""
    parts = sorted(rows_of(thread), key=lambda part: part[1].start if isinstance(part[1], slice) else part[1][0])
    return {one: Intervals.union_of(start[rows], end[rows]) for one, rows in parts}


def _pending(work: Work) -> Intervals:
    """When some kernel had been submitted (its launch had returned) and had not started."""
    known = work.kernels[["call", "start_ns"]]
    known = known.drop_nulls() if known["call"].null_count() else known
    return Intervals.union_of(work.calls.end[known["call"].to_numpy()], known["start_ns"])


def touching(frame: pl.DataFrame, window: Window) -> tuple[pl.DataFrame, int]:
    """The operations that touch a window, and how many of them, the first ones, start before it."""
    low, high = window.start_ns, window.end_ns
    start, end = times(frame["start_ns"]), times(frame["end_ns"])
    first, after = (int(i) for i in np.searchsorted(start, (low, high)))  # rows are by start
    before = np.flatnonzero(end[:first] > low)
    if not before.size or before[0] == first - before.size:  # one piece, as it mostly is: nothing is copied
        return frame[first - before.size : after], before.size
    return pl.concat([frame[before], frame[first:after]], rechunk=True), before.size


def in_window(frame: pl.DataFrame, window: Window) -> pl.DataFrame:
    """The operations that touch a window.

    Adds ``from_ns`` and ``to_ns`` (clipped times) and ``counted`` (it starts inside: its number and bytes belong here).
    """
    part, before = touching(frame, window)
    return part.hstack([*clipped_times(part, window), starts_inside(part, before)])


def clipped_times(part: pl.DataFrame, window: Window) -> list[pl.Series]:
    """``from_ns`` and ``to_ns`` of operations that touch a window: the columns themselves where nothing is clipped."""
    low, high, start, end = window.start_ns, window.end_ns, part["start_ns"], part["end_ns"]
    if part.height and start[0] < low:  # rows are by start
        start = pl.Series(np.maximum(times(start), low))
    if part.height and int(times(end).max()) > high:
        end = pl.Series(np.minimum(times(end), high))
    return [start.alias("from_ns"), end.alias("to_ns")]


def starts_inside(part: pl.DataFrame, before: int) -> pl.Series:
    """``counted`` of :func:`in_window` for what :func:`touching` returns."""
    return pl.Series("counted", np.arange(part.height) >= before)


def clipped(part: pl.DataFrame, window: Window) -> Times:
    """How long each of the operations that touch a window lasted inside it, ns."""
    start, end = times(part["start_ns"]), times(part["end_ns"])
    took = end - start
    before = int(np.searchsorted(start, window.start_ns))  # rows are by start
    took[:before] -= window.start_ns - start[:before]
    if end.size and end.max() > window.end_ns:
        took -= np.maximum(end - window.end_ns, 0)
    return took


@dataclass(frozen=True)
class Inside:
    """The operations of one device that touch a window, as :func:`in_window` returns them.

    Attributes:
        kernels: Without clipped times, which would be columns of millions of rows that little is asked of.
        copies: See :func:`nsysparse.accounting.copies.detail_copies`.
        memsets: They.
        graphs: They.
    """

    kernels: pl.DataFrame
    copies: pl.DataFrame
    memsets: pl.DataFrame
    graphs: pl.DataFrame

    @property
    def sent(self) -> dict[str, pl.DataFrame]:
        """What calls sent, by kind."""
        return {"kernels": self.kernels, "copies": self.copies, "memsets": self.memsets, "graphs": self.graphs}


def exposed_parts(copies: pl.DataFrame, busy: Busy) -> Times:
    """For each copy, the exposed time that is its own, ns.

    Every exposed instant goes to the copy that started first, so any grouping adds up to ``busy.exposed``.

    Args:
        copies: As :func:`in_window` returns them, all copies of the window.
        busy: The same window.
    """
    start, end = owned(copies["from_ns"], copies["to_ns"])
    return times(np.maximum(end - start, 0) - busy.compute.covered(start, end))
