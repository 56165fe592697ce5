"""The host's turns: the calls of the threads that feed a device, with the silences between them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl

from nsysparse.accounting.host import rows_near
from nsysparse.accounting.windows import Window
from nsysparse.intervals import times
from nsysparse.joins.calls import WORK, Calls
from nsysparse.joins.work import Work
from nsysparse.nulls import filled

PAUSE_NS = 1_000_000  # a host pause longer than this ends a burst of copies
COLUMNS = ("call", "start_ns", "end_ns", "thread", "name", "does", "failed", "waits")


def take_turns(work: Work, threads: Iterable[int], window: Window) -> pl.DataFrame:
    """The calls of some threads around a window.

    Returns:
        ``call``, ``start_ns``, ``end_ns``, ``thread``, ``name``, ``does``, ``failed`` and ``waits`` of :class:`Calls`
        in ``thread``, ``start_ns`` order, plus ``turn`` (row number), ``pause_ns`` (silence of the thread before it,
        NULL before its first), ``stretch`` (number of the stretch without a pause) and ``last_work`` (the thread's last
        call that sent work, itself included).
    """
    parts = [_around(work.calls, t, window) for t in sorted(set(threads))]
    calls = parts[0] if len(parts) == 1 else pl.concat([work.calls.of(), *parts], rechunk=True)
    calls = calls.select(COLUMNS)
    start, end, row = times(calls["start_ns"]), times(calls["end_ns"]), np.arange(calls.height, dtype=np.int32)
    sends = calls.select(pl.any_horizontal([pl.col("does") == d for d in WORK])).to_series().to_numpy()
    worked = np.maximum.accumulate(np.where(sends, row, np.int32(-1)))
    pause, first, at = np.zeros_like(start), np.zeros(calls.height, np.bool_), 0
    for part in parts:  # threads, not calls
        mine = slice(at, at + part.height)
        first[at : at + 1] = True
        pause[mine][1:] = start[mine][1:] - np.maximum.accumulate(end[mine])[:-1]
        worked[mine][worked[mine] < at] = -1  # that was another thread's
        at += part.height
    known = pl.Series(worked >= 0)
    return calls.with_columns(
        last_work=pl.when(known).then(pl.Series(calls["call"].to_numpy()[worked])),
        pause_ns=pl.when(pl.Series(~first)).then(pl.Series(pause)),
        stretch=pl.Series(np.cumsum(first | (pause > PAUSE_NS), dtype=np.int32)),
        turn=pl.Series(row),
    )


def _around(calls: Calls, thread: int, window: Window) -> pl.DataFrame:
    """The calls of a thread that overlap or touch a window."""
    mine = calls.rows_of(thread)
    near = rows_near(calls.start[mine], calls.end[mine], window.start_ns - 1, window.end_ns + 1)
    return calls.at(
        slice(near.start + mine.start, near.stop + mine.start) if isinstance(near, slice) else near + mine.start
    )


class Marks:
    """Columns of turns that many rules look at, as arrays.

    Attributes:
        call, start_ns, end_ns, thread: As in the turns; calls are ascending.
        waits: Whether a call blocks its thread.
        last_work: As in the turns; -1 for none.
        feeds: Whether its thread launches the device's kernels.
        syncs, allocations: Rows of the calls that synchronize, and that allocate or free.
    """

    def __init__(self, turns: pl.DataFrame, feeders: Iterable[int]) -> None:
        self.call, self.thread = turns["call"].to_numpy(), times(turns["thread"])
        self.start_ns, self.end_ns = times(turns["start_ns"]), times(turns["end_ns"])
        self.waits = turns["waits"].to_numpy()
        self.last_work = filled(turns["last_work"], -1)
        self.feeds = np.isin(self.thread, list(feeders))
        does = turns["does"]
        self.syncs, self.allocations = (np.flatnonzero((does == d).to_numpy()) for d in ("synchronize", "allocate"))
