"""Between columns, which may hold NULLs, and arrays, which cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa


def filled(values: pl.Series, value: int = 0) -> npt.NDArray[Any]:
    """A column as an array, NULLs as some value; what holds none, as most columns, costs no query."""
    return (values.fill_null(value) if values.null_count() else values).to_numpy()


def given(values: pl.Series) -> npt.NDArray[np.bool_]:
    """Which rows of a column are not NULL."""
    return values.is_not_null().to_numpy() if values.null_count() else np.ones(values.len(), np.bool_)


def masked(name: str, values: npt.NDArray[Any], known: npt.NDArray[np.bool_]) -> pl.Series:
    """A column with NULL where a value is not known; values are given for all rows, or for those that are known."""
    if known.all():
        return pl.Series(name, values)
    if values.size < known.size:
        whole = np.zeros(known.size, values.dtype)
        whole[known] = values
        values = whole
    return column_of(name, pa.array(values, mask=~known))


def column_of(name: str, values: pa.Array) -> pl.Series:
    """An Arrow array as a column."""
    frame = pl.from_arrow(pa.table({name: values}))  # of the array alone Polars imports all of Arrow's functions
    assert isinstance(frame, pl.DataFrame)
    return frame.to_series()
