"""The call behind each piece of GPU work: the one of its process that has its correlation id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.joins.calls import NO_ID, Calls, Ids, dense, wide
from nsysparse.joins.order import rows_by
from nsysparse.nulls import filled, given
from nsysparse.shelf import PIECE_ROWS, Index
from nsysparse.side_by_side import LARGE_AT_ONCE, side_by_side, worth_at_once

NONE = -1  # where there is no call
Rows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class _Known:
    """The calls of one process by their ids: by direct address where the ids are dense, else by search.

    Attributes:
        ids: In ascending order; the first is that of the table's first row where they are dense.
        rows: Row of each id's call; where they are dense of each number from the least id on, NONE for none.
        by_address: Whether they are dense.
        repeated: Whether several calls have one id: one of them is found.
    """

    ids: Ids
    rows: Rows
    by_address: bool
    repeated: bool

    @classmethod
    def of(cls, ids: Ids, first: int) -> _Known | None:
        """Of the ids of neighbouring calls, the first of which has a given row; None where no call has an id."""
        rows = np.arange(first, first + ids.size, dtype=np.int32)
        if not ids.all():
            rows, ids = rows[ids != NO_ID], ids[ids != NO_ID]
        if not ids.size:
            return None
        if dense(ids):
            low = ids.min(keepdims=True)
            table = np.full(int(ids.max()) - int(low[0]) + 1, NONE, np.int32)
            table[ids - low[0]] = rows
            return cls(low, table, True, bool(np.count_nonzero(table >= 0) != rows.size))
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        return cls(ids, rows[order], False, bool((ids[1:] == ids[:-1]).any()))

    def calls_of(self, wanted: Ids) -> Rows:
        """The row of the call with each id; NONE for none, and for NO_ID."""
        wanted = wanted.astype(np.promote_types(wanted.dtype, self.ids.dtype), copy=False)
        if not self.by_address:
            at = np.minimum(np.searchsorted(self.ids, wanted), self.ids.size - 1)
            return self._or_none((self.ids[at] == wanted) & (wanted != NO_ID), self.rows[at])
        low = self.ids[0]
        inside = (wanted >= low) & (wanted <= int(low) + self.rows.size - 1) & (wanted != NO_ID)
        if not inside.all():
            wanted = np.where(inside, wanted, low)
        return self._or_none(inside, self.rows[wanted - low])

    def _or_none(self, there: npt.NDArray[np.bool_], rows: Rows) -> Rows:
        rows[~there] = NONE
        return rows


def find_calls(frames: Iterable[pl.DataFrame], calls: Calls, at_once: int) -> list[Rows]:
    """The call that sent each piece of GPU work.

    Args:
        frames: Tables with ``process``, ``correlation`` and ``start_ns``.
        calls: All calls, with their ``correlation``.
        at_once: Threads at most.

    Returns:
        For each table the row of each operation's call, -1 where there is none (correlation 0 or NULL, or a call that
        was not recorded).
    """
    frames, mine = list(frames), calls.by_process()
    processes = [frame["process"] for frame in frames]
    if len(mine) == 1:  # very old rows have no process: safe only when one process made calls
        processes = [column.fill_null(next(iter(mine))) for column in processes]
    wanted = [wide(frame["correlation"]) for frame in frames]
    owned = [dict(rows_by(column)) for column in processes]
    found = [np.full(frame.height, NONE, np.int32) for frame in frames]
    ids, in_all = wide(calls["correlation"]), sum(frame.height for frame in frames)

    def look_up(process: int) -> None:
        span = mine[process]
        sent = [(number, rows[process]) for number, rows in enumerate(owned) if process in rows]
        known = _Known.of(ids[span], span.start) if sent else None
        if known is None:
            return

        def piece(number: int, rows: slice | Index) -> None:
            found[number][rows] = known.calls_of(wanted[number][rows])

        pieces = [partial(piece, number, some) for number, rows in sent for some in _pieces(rows)]
        # Of many processes each has little: the pieces of all are about as many as these for each.
        side_by_side(lambda work: work(), pieces, worth_at_once(len(pieces) * len(mine), in_all, at_once))
        for number, rows in sent if known.repeated else ():
            found[number][rows] = _latest_before(frames[number][rows], calls.at(span), found[number][rows])

    side_by_side(look_up, mine, worth_at_once(len(mine), in_all, min(LARGE_AT_ONCE, at_once)))
    return found


def _pieces(rows: slice | Index) -> Iterator[slice | Index]:
    """Rows in pieces."""
    size = rows.stop - rows.start if isinstance(rows, slice) else rows.size
    for low, high in pairwise([*range(0, size, PIECE_ROWS), size]):
        yield slice(rows.start + low, rows.start + high) if isinstance(rows, slice) else rows[low:high]


def _latest_before(work: pl.DataFrame, calls: pl.DataFrame, found: Rows) -> Rows:
    """Where ids come again later in a process: the latest call with the id that began before the operation did.

    ``found`` stays where no call with the id began before the operation (a broken clock).
    """
    wide = pl.col("correlation").cast(pl.Int64)
    order = calls.select(wide, "start_ns", "call").sort("correlation", "start_ns")
    asked = work.select(wide, "start_ns").with_row_index("row").sort("correlation", "start_ns")
    best = asked.join_asof(order, on="start_ns", by="correlation", check_sortedness=False).sort("row")["call"]
    chosen: Rows = np.where(given(best) & (found != NONE), filled(best, NONE), found)
    return chosen
