"""Rows by group and start. Recordings are nearly in order already, so only what is out of order is sorted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.nulls import given
from nsysparse.shelf import PIECE_ROWS, Index
from nsysparse.side_by_side import LARGE_AT_ONCE, in_order, side_by_side, worth_at_once

Codes = npt.NDArray[np.unsignedinteger[Any]]
Rows = npt.NDArray[np.integer[Any]]
RUN = 8  # rows of one group in a row, on average, from which on the group is looked up once a run


def codes_of(groups: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Codes]:
    """Number the groups.

    Returns:
        The distinct groups in ascending order; of each row its place among them, in the smallest type.
    """
    heads = _heads(groups)
    distinct = pl.Series(groups[heads]).unique().sort().to_numpy()
    return distinct, _places(groups, heads, distinct)


def places_of(groups: npt.NDArray[np.int64], distinct: npt.NDArray[np.int64]) -> Codes:
    """Place of each row's group among ascending groups; the number of groups where it is none of them."""
    return _places(groups, _heads(groups), distinct)


def _places(groups: npt.NDArray[np.int64], heads: Index, distinct: npt.NDArray[np.int64]) -> Codes:
    """The same, in the smallest type that holds it, where it is known where each run of equal groups begins."""
    kind = np.min_scalar_type(distinct.size)

    def place(some: npt.NDArray[np.int64]) -> Codes:
        at = rows_among(distinct, some)
        return np.where(at < 0, distinct.size, at).astype(kind)

    if heads.size * RUN <= groups.size:
        return np.repeat(place(groups[heads]), np.diff(heads, append=groups.size))
    found = np.empty(groups.size, kind)
    for low in range(0, groups.size, PIECE_ROWS):
        found[low : low + PIECE_ROWS] = place(groups[low : low + PIECE_ROWS])
    return found


def _heads(groups: npt.NDArray[Any]) -> Index:
    """Where each run of equal values begins."""
    return np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1]))) if groups.size else np.arange(0)


def rows_of(keys: npt.NDArray[np.int64]) -> Iterator[tuple[int, slice | Index]]:
    """Each distinct key with its rows: slices, by first row, where each key's lie together; else ascending keys."""
    heads = _heads(keys)
    runs = keys[heads]
    if heads.size < 2 or pl.Series(runs).n_unique() == heads.size:  # mostly one thread
        ends = heads + np.diff(heads, append=keys.size)
        for key, low, high in zip(runs.tolist(), heads.tolist(), ends.tolist(), strict=True):
            yield key, slice(low, high)
        return
    distinct, codes = codes_of(keys)
    cuts = np.cumsum(count_codes(codes, distinct.size))[:-1]
    yield from zip(distinct.tolist(), np.split(np.argsort(codes, kind="stable"), cuts), strict=True)


def rows_among(known: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> Index:
    """The row of each wanted value among known ascending ones, -1 where it is not there."""
    at = np.minimum(np.searchsorted(known, wanted), max(known.size - 1, 0))
    return np.where(known[at] == wanted, at, -1) if known.size else np.full(wanted.size, -1)


def inverse(rows: npt.NDArray[np.integer[Any]], height: int) -> npt.NDArray[np.int32]:
    """Place of each of some rows of a table among them; of the others nothing is said: 0."""
    place = np.zeros(height, np.int32)

    def fill(low: int) -> None:
        some = rows[low : low + PIECE_ROWS]
        place[some] = np.arange(low, low + some.size, dtype=np.int32)

    side_by_side(fill, range(0, rows.size, PIECE_ROWS), LARGE_AT_ONCE)
    return place


def rows_by(keys: pl.Series) -> Iterator[tuple[int, slice | Index]]:
    """As :func:`rows_of`, of a column; NULLs are left out."""
    if not keys.null_count():
        yield from rows_of(keys.to_numpy())
        return
    known = np.flatnonzero(given(keys))
    for key, rows in rows_of(keys.drop_nulls().to_numpy()):
        yield key, known[rows]


def count_codes(codes: npt.NDArray[np.integer[Any]], count: int) -> Index:
    """How often each of ``count`` numbers is there; numpy counts in 64 bits, and so a piece at a time."""
    pieces = (codes[low : low + PIECE_ROWS] for low in range(0, codes.size, PIECE_ROWS))
    return sum((np.bincount(piece, minlength=count) for piece in pieces), np.zeros(count, np.int64))


def by_start(
    codes: Codes, count: int, start: npt.NDArray[np.int64], *then: npt.NDArray[np.int64]
) -> tuple[Rows | None, Index]:
    """The order by group and start.

    Args:
        codes: Group of each row, 0 to ``count`` - 1.
        count: Number of groups.
        start: Start of each row.
        then: What decides between equal starts, the most important first; at last it is the order they had.

    Returns:
        Rows in order, None where they are in it; and where each group begins, with the end of the last.
    """
    heads = _heads(codes)
    grouped = bool((codes[heads[1:]] >= codes[heads[:-1]]).all())
    order: Rows | None = None
    if heads.size * RUN <= codes.size:
        bounds = _bounds_of_runs(codes[heads], heads, codes.size, count)
        order = None if grouped else _runs_in_order(codes[heads], heads, codes.size)
    else:
        bounds = np.concatenate(([0], np.cumsum(count_codes(codes, count))))
        order = None if grouped else np.argsort(codes, kind="stable")  # few bits: numpy counts them
    several = np.flatnonzero(np.diff(bounds) > 1)  # of many groups few may have rows
    spans = list(zip(bounds[several].tolist(), bounds[several + 1].tolist(), strict=True))

    def settle(span: tuple[int, int]) -> Rows | None:
        return _settled(slice(*span) if order is None else order[slice(*span)], start, then)

    settled = in_order(settle, spans, worth_at_once(len(spans), codes.size, LARGE_AT_ONCE))
    result = order
    for (low, high), rows in zip(spans, settled, strict=True):
        if rows is not None:
            result = np.arange(codes.size) if result is None else result
            result[low:high] = rows
    return result, bounds


def _settled(group: slice | Rows, start: npt.NDArray[np.int64], then: tuple[npt.NDArray[np.int64], ...]) -> Rows | None:
    """The rows of one group by start; None where they are so."""
    begun, order = start[group], None
    if (begun[1:] < begun[:-1]).any():
        order = np.argsort(begun, kind="stable")  # quick where much is in order
        begun = begun[order]
    equal = begun[1:] == begun[:-1]
    if then and equal.any():
        tied = np.flatnonzero(np.append(equal, False) | np.insert(equal, 0, False))
        order = np.arange(begun.size) if order is None else order
        rows = order[tied] + group.start if isinstance(group, slice) else group[order[tied]]
        order[tied] = order[tied][np.lexsort((*(key[rows] for key in reversed(then)), begun[tied]))]
        # Mostly equal rows are in order already.
        order = None if (order[1:] > order[:-1]).all() else order
    if order is None:
        return None
    return order + group.start if isinstance(group, slice) else group[order]


def _bounds_of_runs(codes: Codes, heads: Index, rows: int, count: int) -> Index:
    """Where each of ``count`` groups begins, with the end of the last; of runs as :func:`_runs_in_order` takes them."""
    bounds = np.zeros(count + 1, np.int64)
    np.add.at(bounds, codes.astype(np.int64) + 1, np.diff(heads, append=rows))
    return np.cumsum(bounds)


def _runs_in_order(codes: Codes, heads: Index, rows: int) -> Rows:
    """Rows by group, of runs of rows of one group.

    Args:
        codes: Group of each run.
        heads: Its first row.
        rows: How many rows there are.
    """
    runs = np.argsort(codes, kind="stable")
    heads, lengths = heads[runs], np.diff(heads, append=rows)[runs]
    narrow = np.uint32 if rows < 1 << 32 else np.uint64  # sums may wrap around on the way
    order = np.ones(rows, narrow)  # from one row to the next; where a run begins it is a leap
    leaps = np.diff(heads, prepend=0) - np.concatenate(([0], lengths[:-1] - 1))
    order[np.cumsum(lengths) - lengths] = leaps.astype(narrow)
    np.add.accumulate(order, out=order)
    return order
