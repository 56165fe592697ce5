"""The rows of the API table put together: one row a call, in a few bytes.

Two API rows can stand for one call: a runtime call and the driver call inside it, or (with ``--cudabacktrace``) a row
of class 67 around the real one. They share (process, correlation id), and a plain join would double the bytes. One row
a call is made first: name and times from the outermost row of class 0 or 1, the stack from whichever row has it.

This is the largest table of a recording. Its columns are put in order one after the other, and each goes as soon as it
has been: there are never two copies of the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse import schema
from nsysparse.joins.calls import NO_ID, Calls, Ids, dense, wide
from nsysparse.joins.order import by_start, codes_of
from nsysparse.nulls import filled
from nsysparse.shelf import Index, Shelf
from nsysparse.side_by_side import LARGE_AT_ONCE, in_order
from nsysparse.source import Trace

NOWHERE = -(1 << 62)  # no string has this number
DENSE_NAMES = 1 << 24  # below this a name is found by its number, beyond by search
UNNAMED = "(name not in the export)"
Rows = pl.Series  # of row numbers: Polars would make one of an array for every column that it gathers


def load_calls(trace: Trace) -> Calls:
    """Every CUDA call of the recording, once; see :func:`make_calls`."""
    return make_calls(read_api(trace), trace)


def read_api(trace: Trace) -> pl.DataFrame:
    """The canonical table ``api``, narrow, without rows that can be placed nowhere."""
    api = trace.api().clone()  # its columns will be taken out; those that the recording keeps stay
    if api["start_ns"].null_count() or api["thread"].null_count():
        trace.left_out["api"] = api.select((pl.col("start_ns").is_null() | pl.col("thread").is_null()).sum()).item()
        api = api.filter(pl.col("start_ns").is_not_null() & pl.col("thread").is_not_null())
    return api


def make_calls(api: pl.DataFrame, trace: Trace) -> Calls:
    """Calls of API rows.

    Args:
        api: What :func:`read_api` returns; it is emptied on the way.
        trace: The recording, for its names.

    Returns:
        The calls, without ``waits``: that needs their copies.
    """
    threads, codes = codes_of(api["thread"].to_numpy())
    then = (filled(api[c]) for c in ("end_ns", "correlation"))
    order, bounds = by_start(codes, threads.size, api["start_ns"].to_numpy(), *then)
    rows = None if order is None else pl.Series(order.astype(np.uint32))
    del codes, order
    api.drop_in_place("thread")
    shelf = trace.shelf
    at_once = min(LARGE_AT_ONCE, shelf.at_once)
    ids, chains = in_order(lambda c: _put(api.drop_in_place(c), rows, shelf), ("correlation", "callchain"), at_once)
    twice = _repeated(wide(ids), bounds)
    if twice.any():
        keep, chains = _one_row_a_call(api, rows, bounds, ids, chains, twice, next(shelf.parts(api.height)).stop)
        kept = pl.Series(np.flatnonzero(keep).astype(np.uint32))
        rows = kept if rows is None else rows.gather(kept)
        bounds = np.searchsorted(kept.to_numpy(), bounds)
        ids, chains = (_put(c, kept, shelf) for c in (ids, chains))

    def column(name: str) -> pl.Series:
        source = api.drop_in_place(name)
        if name == "name_id":
            source = _named(source, trace)
        elif name == "return_value":
            source = (source != 0).rename("failed")
        return _put(source, rows, shelf)

    trace.frame("strings")  # read once, on this thread
    # Of two that are put in order at once one is narrow.
    start, name, end, failed = in_order(column, ("start_ns", "name_id", "end_ns", "return_value"), at_once)
    ended = end < start
    if end.null_count() or ended.any():
        end = pl.select(end_ns=pl.max_horizontal(start, end)).to_series()
    frame = pl.DataFrame([start, end, name, failed, ended.rename("reversed"), chains, ids])
    return Calls(frame, threads, bounds)


def _put(column: pl.Series, rows: Rows | None, shelf: Shelf) -> pl.Series:
    """Some rows of a column, in a given order."""
    if rows is None:
        return column
    return shelf.keep(column.gather(rows[part]).to_frame() for part in shelf.parts(rows.len())).to_series()


def _named(ids: pl.Series, trace: Trace) -> pl.Series:
    """``name`` of each row, without version suffix."""
    plain = schema.normalized_api_name(pl.col("value").str.strip_chars())
    known = trace.strings(ids).select(pl.col("id").cast(pl.Int64), name=plain).sort("id")
    words = pl.Enum(pl.concat([known["name"], pl.Series([UNNAMED])]).unique().sort())
    numbers = pl.concat([known["name"], pl.Series([UNNAMED])]).cast(words).to_physical().to_numpy()
    named = known["id"].to_numpy()
    low, high = ids.min(), ids.max()
    if not ids.null_count() and isinstance(low, int) and isinstance(high, int) and low >= 0 and high < DENSE_NAMES:
        number_of = np.full(high + 1, numbers[-1], numbers.dtype)
        number_of[named] = numbers[:-1]
        number = number_of[ids.to_numpy()]
    else:
        wanted = ids.cast(pl.Int64).fill_null(NOWHERE).to_numpy()
        at = np.searchsorted(named, wanted)
        there = named[np.minimum(at, named.size - 1)] == wanted if named.size else np.zeros(wanted.size, np.bool_)
        number = numbers[np.where(there, at, named.size)]
    return pl.Series("name", number).cat.to(words)


def _repeated(ids: Ids, bounds: Index) -> npt.NDArray[np.bool_]:
    """Whether the correlation id of each row comes again on its thread."""
    twice = np.zeros(ids.size, np.bool_)
    for low, high in pairwise(bounds.tolist()):  # threads, not rows
        mine = ids[low:high]
        if (mine[1:] > mine[:-1]).all():  # as they mostly are: numbers are given in the order of the calls
            continue
        used = np.flatnonzero(mine != NO_ID) + low
        mine = ids[used]
        if mine.size and _distinct(mine) != mine.size:
            _, code, number = np.unique(mine, return_inverse=True, return_counts=True)
            twice[used] = (number > 1)[code.ravel()]
    return twice


def _distinct(ids: Ids) -> int:
    """How many different ids there are: by marking where they are dense, as they mostly are."""
    if not dense(ids):
        return np.unique(ids).size
    seen = np.zeros(int(ids.max()) - int(ids.min()) + 1, np.bool_)
    seen[ids - ids.min()] = True
    return int(np.count_nonzero(seen))


def _one_row_a_call(
    api: pl.DataFrame, rows: Rows | None, bounds: Index, ids: pl.Series, chains: pl.Series, twice: Ids, room: int
) -> tuple[npt.NDArray[np.bool_], pl.Series]:
    """Drop the inner and the backtrace rows of a call; keep its stack.

    Args:
        api: ``start_ns``, ``end_ns`` and ``event_class``, not in order yet.
        rows: The order by thread and start; None where they are in it.
        bounds: First row of each thread in that order.
        ids: Correlation ids, in that order.
        chains: Stacks, in that order.
        twice: Which rows share their id.
        room: How many rows to look at together, about.

    Returns:
        Which rows are kept, and the stack of each.
    """
    keep = ~twice
    found = [pl.DataFrame(schema={"row": pl.Int64, "callchain": chains.dtype})]
    for at, thread in _by_threads(np.flatnonzero(twice), bounds, room):
        several = api.select("start_ns", "end_ns", "event_class")[at if rows is None else rows.gather(at)].with_columns(
            ids.gather(at), chains.gather(at), row=pl.Series(at), thread=pl.Series(thread)
        )
        kept = _outermost(several)
        keep[kept["row"].to_numpy()] = True
        found.append(kept.select("row", "callchain").drop_nulls())
    stacks = pl.concat(found)
    return keep, chains.scatter(stacks["row"], stacks["callchain"])


def _by_threads(at: Index, bounds: Index, room: int) -> Iterator[tuple[Index, Index]]:
    """Rows with their threads' numbers, some threads at a time."""
    thread = np.searchsorted(bounds, at, side="right")
    ends = np.searchsorted(at, bounds[1:]).tolist()
    low = 0
    for high in ends:
        if high - low >= room or high == at.size:
            if high > low:
                yield at[low:high], thread[low:high]
            low = high


def _outermost(rows: pl.DataFrame) -> pl.DataFrame:
    """The row of each call that counts, with the first stack that any of its rows has."""
    group = ["thread", "correlation"]
    # Rows of one call overlap in time; a row after them is another call that uses the number again.
    rows = rows.sort(*group, "start_ns", "row")
    again = pl.col("start_ns") > pl.col("end_ns").cum_max().shift(1).over(group)
    rows = rows.with_columns(again=again.fill_null(True).cast(pl.Int64).cum_sum().over(group))
    return (
        rows.with_columns(
            callchain=pl.coalesce("callchain", pl.col("callchain").drop_nulls().first().over(*group, "again"))
        )
        .sort(
            *group,
            "again",
            pl.col("event_class") == schema.BACKTRACE_CLASS,
            "start_ns",
            "end_ns",
            "row",
            descending=[False, False, False, False, False, True, False],
        )
        .unique([*group, "again"], keep="first", maintain_order=True)
    )
