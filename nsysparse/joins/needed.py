"""The calls that are needed once it is known what threads did while the GPU idled.

Programs ask more than they send: queries of events, devices and errors are most of a recording's calls. All that comes
after looks at the calls that sent work, waited or allocated, at how long a thread was silent next to one that is no
launch, and at where it paused. So the others go, but for those that lie next to such a call or fill a pause: of these
a run without a pause is kept as one call. What is left grows with what the GPU did, not with the calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.joins.calls import Calls
from nsysparse.joins.order import inverse
from nsysparse.joins.work import GPU_TABLES, Work
from nsysparse.nulls import filled, given, masked
from nsysparse.shelf import PIECE_ROWS, Index, Shelf
from nsysparse.side_by_side import LARGE_AT_ONCE, in_order

PAUSE_NS = 1_000_000  # a host pause longer than this ends a burst of copies
LAUNCHES = ("launch", "graph launch")
Bools = npt.NDArray[np.bool_]
Place = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Runs:
    """Calls of one thread that follow each other without a pause, each kept as one.

    Attributes:
        first: Their first calls' rows, ascending.
        end: When the last of them ended, ns.
    """

    first: Index
    end: Index


@dataclass(frozen=True)
class Needed:
    """Which calls are kept.

    Attributes:
        rows: Their rows, ascending; those of ``runs`` are among them.
        runs: Those of them that stand for several.
    """

    rows: pl.Series
    runs: Runs


def find_needed(work: Work) -> Needed:
    """Find the calls that sent work, waited or allocated, or say how long a thread was silent; this only looks."""
    plain = work.calls.doing(*LAUNCHES).to_numpy()
    needed = needed_calls(work) | plain
    runs = runs_to_keep(work.calls, needed, plain)
    needed[runs.first] = True
    return Needed(pl.Series(_rows_where(needed)), runs)


def _rows_where(chosen: Bools) -> npt.NDArray[np.uint32]:
    """The rows of some calls: numpy finds them in 64 bits, and so a piece at a time."""
    parts = [np.arange(0, dtype=np.uint32)]
    for low in range(0, chosen.size, PIECE_ROWS):
        parts.append(np.flatnonzero(chosen[low : low + PIECE_ROWS]).astype(np.uint32))
        parts[-1] += np.uint32(low)
    return np.concatenate(parts)


def keep_needed(work: Work, needed: Needed, shelf: Shelf, *numbered: pl.DataFrame) -> tuple[Work, list[pl.DataFrame]]:
    """Forget the calls that nothing asks for any more, and number the others anew.

    Args:
        work: The joined recording; its calls are emptied on the way.
        needed: What :func:`find_needed` says of it.
        shelf: Where long columns are kept.
        numbered: Other tables with a column ``call``, of needed calls.

    Returns:
        The work, and the tables, with the new numbers.
    """
    rows, calls = needed.rows, work.calls
    if rows.len() == calls.height:
        return work, list(numbered)
    place = inverse(rows.to_numpy(), calls.height)
    frames: dict[str, Any] = {name: _renumbered(getattr(work, name), place, shelf) for name in GPU_TABLES}
    tables = [_renumbered(table, place, shelf) for table in numbered]
    del place
    return replace(work, **frames, calls=_only(calls, needed, shelf)), tables


def needed_calls(work: Work) -> Bools:
    """Whether each call sent work, waited or allocated, or was to; of launches only those that did send something."""
    needed: Bools = work.calls.doing("copy", "memset", "synchronize", "allocate").to_numpy().copy()
    for name in GPU_TABLES:
        call = getattr(work, name)["call"]
        needed[filled(call)[given(call)]] = True
    return needed


def runs_to_keep(calls: Calls, needed: Bools, plain: Bools) -> Runs:
    """The runs of other calls that say how long a thread was silent.

    Those next to what is no launch, those in long pauses, and those that go on when the next call has begun.
    """
    start, end = calls.start, calls.end
    rows = _rows_where(needed)
    first, last = [np.arange(0)], [np.arange(0)]
    cuts = np.searchsorted(rows, calls.bounds.astype(np.uint32))
    for (begin, stop), (low, high) in zip(pairwise(calls.bounds.tolist()), pairwise(cuts.tolist()), strict=True):
        for at in range(low, high, PIECE_ROWS):  # threads and pieces, not calls
            row = rows[at : min(at + PIECE_ROWS, high)].astype(np.int64)
            # What stands before a thread's first call is another's: it may keep a run too many, never one too few.
            before = np.insert(row[:-1], 0, rows[at - 1] if at > low else begin - 1)
            apart = np.flatnonzero(row - before > 1)
            row, since = row[apart], before[apart] + 1
            beside = ~(plain[row] & plain[since - 1]) | (start[row] - end[since - 1] > PAUSE_NS)
            beside |= _last_end(end, since, row) > start[row]
            first.append(since[beside])
            last.append(row[beside])
        if low < high and not plain[rows[high - 1]] and rows[high - 1] + 1 < stop:
            first.append(rows[high - 1 : high].astype(np.int64) + 1)
            last.append(np.array([stop]))
    return _without_pauses(start, end, np.concatenate(first), np.concatenate(last))


def _without_pauses(start: Index, end: Index, first: Index, last: Index) -> Runs:
    """Cut runs of rows (from ``first`` to before ``last``) where a thread paused."""
    if not first.size:
        return Runs(first, first)
    pauses = [np.arange(0)]
    for low in range(1, start.size, PIECE_ROWS):
        part = slice(low, min(low + PIECE_ROWS, start.size))
        pauses.append(np.flatnonzero(start[part] - end[low - 1 : part.stop - 1] > PAUSE_NS) + low)
    cut = np.concatenate(pauses)
    run = np.searchsorted(first, cut, side="right") - 1
    cut = cut[(run >= 0) & (cut > first[run]) & (cut < last[run])]
    heads = np.sort(np.concatenate((first, cut)))
    stops = np.minimum(np.append(heads[1:], start.size), last[np.searchsorted(first, heads, side="right") - 1])
    return Runs(heads, _last_end(end, heads, stops))


def _last_end(end: Index, first: Index, last: Index) -> Index:
    """The latest end of each of some ascending stretches of rows, from ``first`` to before ``last``."""
    if not first.size:
        return end[:0]
    base = int(first[0])
    bounds = np.stack((first, last), axis=1).ravel()[: 2 * first.size - 1] - base
    return np.maximum.reduceat(end[base : last[-1]], bounds)[::2]


def _renumbered(frame: pl.DataFrame, place: Place, shelf: Shelf) -> pl.DataFrame:
    """A table with the new numbers of its calls."""
    call = frame["call"]

    def piece(low: int) -> pl.DataFrame:
        part = call[low : low + PIECE_ROWS]
        return masked("call", place[filled(part)], given(part)).to_frame()

    if not call.len():
        return frame
    pieces = in_order(piece, range(0, call.len(), PIECE_ROWS), min(LARGE_AT_ONCE, shelf.at_once))
    return frame.with_columns(shelf.keep(pieces).to_series())


def _only(calls: Calls, needed: Needed, shelf: Shelf) -> Calls:
    """Some calls; ``calls`` is emptied column by column, so that there are never two copies of them."""
    rows, runs = needed.rows, needed.runs
    heads, bounds = (np.searchsorted(rows.to_numpy(), of.astype(np.uint32)) for of in (runs.first, calls.bounds))
    every = calls.recorded
    frame = calls.give_away()

    def column(name: str) -> pl.Series:
        return shelf.keep(_pieces(frame.drop_in_place(name), rows, heads, runs, shelf)).to_series()

    # Of two that are put together at once one is narrow.
    wide = [name for name in frame.columns if name.endswith("_ns")]
    narrow = [name for name in frame.columns if name not in wide]
    names = [name for pair in zip_longest(wide, narrow) for name in pair if name]
    columns = in_order(column, names, min(LARGE_AT_ONCE, shelf.at_once))
    return Calls(pl.DataFrame(list(columns)), calls.threads, bounds, of_all=every)


def _pieces(column: pl.Series, rows: pl.Series, heads: Index, runs: Runs, shelf: Shelf) -> Iterator[pl.DataFrame]:
    """Some rows of a column; a run ends with its last call."""
    for part in shelf.parts(rows.len()):
        piece = column.gather(rows[part])
        if column.name == "end_ns":
            mine = slice(*np.searchsorted(heads, (part.start, part.stop)).tolist())
            piece = piece.scatter(heads[mine] - part.start, runs.end[mine])
        yield piece.to_frame()
