"""Rows grouped by columns of few values: counted, which costs a fraction of hashing rows of many columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.intervals import Index, Times
from nsysparse.nulls import filled

EXACT = 1 << 53  # up to here floats hold every integer
LOW_BITS = 24  # what is larger is added up in two parts
PIECE = 1 << 16  # values added up together: what is made of them stays in the processor's cache
SPARE = 1_000  # numbers that may be left over, however few rows there are


def number_rows(rows: pl.DataFrame, by: Sequence[str]) -> tuple[Index, Index]:
    """Number the distinct combinations of some columns; NULL is a value.

    Args:
        rows: The rows.
        by: Columns of integers, texts or truth values.

    Returns:
        Number of each row's combination; a row of each combination.
    """
    code, room = np.zeros(rows.height, np.int64), 1
    for name in by:
        value, n = _coded(rows[name])
        if n > 1 and room * n > 2 * rows.height + SPARE:  # too many combinations to count: only those that are there
            code, room = _dense(code)
        if n > 1:
            code *= n
            code += value
            room *= n
    if room > 4 * rows.height + SPARE:
        code, room = _dense(code)
    row = np.full(room, -1, np.int64)
    row[code] = np.arange(rows.height)
    there = row >= 0
    return (code if there.all() else (np.cumsum(there) - 1)[code]), row[there]


def _dense(code: Index) -> tuple[Index, int]:
    distinct, number = np.unique(code, return_inverse=True)
    return number.ravel(), distinct.size


def _coded(values: pl.Series) -> tuple[Index, int]:
    """A small number for each value, the same for equal ones, and how many numbers there are; none of a constant."""
    if values.dtype == pl.String:
        values = values.cast(pl.Categorical)
    if not values.dtype.is_integer():
        values = values.to_physical().cast(pl.UInt32)
    low, high, unknown = values.min(), values.max(), values.null_count()
    if low is None or (low == high and not unknown):
        return np.empty(0, np.int64), 1
    assert isinstance(low, int)
    assert isinstance(high, int)
    if unknown:
        missing, values = values.is_null().to_numpy(), values.fill_null(low)
    n = high - low + 1
    if n > values.len() + SPARE:
        distinct = values.unique().sort().to_numpy()
        code, n = np.searchsorted(distinct, values.to_numpy()), distinct.size
    else:
        code = np.subtract(values.to_numpy(), low, dtype=np.int64)
    return (np.where(missing, n, code), n + 1) if unknown else (code, n)


def add_up(values: pl.Series | npt.NDArray[Any], number: npt.NDArray[Any], n: int) -> Times:
    """Sums of integers by number (see :func:`number_rows`), exact; NULLs count for nothing.

    Args:
        values: What is added; numbers of few bits or truth values, too.
        number: Number of each.
        n: How many numbers there are.
    """
    if isinstance(values, pl.Series):
        values = filled(values)
    total = np.zeros(n, np.int64)
    step = max(PIECE, 4 * n)  # numpy counts and adds up in 64 bits, of which it makes a copy
    for piece in (slice(low, low + step) for low in range(0, values.size, step)):
        total += _added_up(values[piece], number[piece], n)
    return total


def _added_up(values: npt.NDArray[Any], number: npt.NDArray[Any], n: int) -> Times:
    """The same of a piece."""
    if values.dtype == np.bool_:
        return np.bincount(number if values.all() else number[values], minlength=n)
    most = max(abs(int(values.min())), abs(int(values.max())))
    if not most:
        return np.zeros(n, np.int64)
    if most * values.size < EXACT:
        return np.bincount(number, values, n).astype(np.int64)
    high, low = values >> LOW_BITS, values & ((1 << LOW_BITS) - 1)
    return (np.bincount(number, high, n).astype(np.int64) << LOW_BITS) + np.bincount(number, low, n).astype(np.int64)


def counts_of(values: pl.Series) -> list[tuple[int, int]]:
    """How often each value of a column of integers occurs; NULL does not count."""
    known = values.len() - values.null_count()
    least = values.min()
    if least is None or least == values.max():  # mostly one thread sends all
        return [] if least is None else [(int(least), known)]  # type: ignore[arg-type]
    return [(int(value), n) for value, n in values.value_counts(name="n").iter_rows() if value is not None]


def over(values: Times, whole: int) -> npt.NDArray[np.float64]:
    """Each value over one number, to the bit as Polars divides a column: a single value exactly, more by reciprocal."""
    return np.asarray(values * (1 / whole) if values.size > 1 else values / whole, np.float64)
