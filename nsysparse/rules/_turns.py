"""The host's turns: the calls of the threads that feed a device, and the silences between them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.accounting.host import rows_near
from nsysparse.accounting.windows import Window
from nsysparse.intervals import Index, Times, times
from nsysparse.joins.calls import DOES, WORK, Calls
from nsysparse.joins.needed import PAUSE_NS
from nsysparse.joins.order import rows_of
from nsysparse.joins.work import Work

_DOES = DOES.categories.to_list()
COLUMNS = ("call", "start_ns", "end_ns", "thread", "name", "does", "failed", "waits")


def take_turns(work: Work, threads: Iterable[int], window: Window) -> pl.DataFrame:
    """The calls of some threads around a window.

    Those that send nothing, nor wait or allocate, may be gone next to launches (:mod:`nsysparse.joins.needed`): no rule
    asks how long a thread was silent there.

    Returns:
        COLUMNS of :class:`Calls` in ``thread``, ``start_ns`` order.
    """
    parts = [_around(work.calls, t, window) for t in sorted(set(threads))]
    calls = parts[0] if len(parts) == 1 else pl.concat([work.calls.of(), *parts], rechunk=True)
    return calls.select(COLUMNS)


def _around(calls: Calls, thread: int, window: Window) -> pl.DataFrame:
    """The calls of a thread that overlap or touch a window."""
    mine = calls.rows_of(thread)
    near = rows_near(calls.start[mine], calls.end[mine], window.start_ns - 1, window.end_ns + 1)
    return calls.at(
        slice(near.start + mine.start, near.stop + mine.start) if isinstance(near, slice) else near + mine.start
    )


class Marks:
    """What many rules ask of turns, as arrays.

    Attributes:
        call, start_ns, end_ns, thread: As in the turns; calls are ascending.
        does: Number of each call's function in DOES.
        waits: Whether a call blocks its thread.
        last_work: The thread's last call that sent work, itself included; -1 for none.
        stretch: Number of the stretch without a pause that a call lies in.
        feeds: Whether its thread launches the device's kernels.
        syncs, allocations: Rows of the calls that synchronize, and that allocate or free.
    """

    def __init__(self, turns: pl.DataFrame, feeders: Iterable[int]) -> None:
        self.call, self.thread = turns["call"].to_numpy(), times(turns["thread"])
        self.start_ns, self.end_ns = times(turns["start_ns"]), times(turns["end_ns"])
        self.waits, self.does = turns["waits"].to_numpy(), turns["does"].to_physical().to_numpy()
        self.feeds = np.zeros(self.call.size, np.bool_)
        self.last_work, breaks = np.empty_like(self.call), np.zeros(self.call.size, np.bool_)
        self._threads = [rows for _, rows in rows_of(self.thread)]
        sends, feeding = self._that(*WORK), list(feeders)
        for rows in self._threads:
            self.feeds[rows] = np.isin(self.thread[rows][:1], feeding)
            self.last_work[rows] = np.maximum.accumulate((self.call[rows] + 1) * sends[rows]) - 1
            breaks[rows] = self._pauses(rows) > PAUSE_NS
            breaks[rows][:1] = True
        self.stretch = np.cumsum(breaks, dtype=np.int32)
        self.syncs, self.allocations = self.rows_that("synchronize"), self.rows_that("allocate")

    def rows_that(self, *functions: str) -> Index:
        """Rows of the calls that do one of some things (of DOES)."""
        return np.flatnonzero(self._that(*functions))

    def _that(self, *functions: str) -> npt.NDArray[np.bool_]:
        does: npt.NDArray[np.bool_] = np.logical_or.reduce([self.does == _DOES.index(f) for f in functions])
        return does

    def pauses(self) -> Times:
        """The silence of its thread before each call, ns; 0 before a thread's first."""
        return np.concatenate([np.arange(0), *(self._pauses(rows) for rows in self._threads)])

    def _pauses(self, rows: slice | Index) -> Times:
        start, end = self.start_ns[rows], self.end_ns[rows]
        pause, apart = np.zeros_like(start), (end[1:] >= end[:-1]).all()  # no call inside another, as it mostly is
        np.subtract(start[1:], end[:-1] if apart else np.maximum.accumulate(end)[:-1], out=pause[1:])
        return pause
