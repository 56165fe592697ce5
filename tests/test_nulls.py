"""From columns to arrays and back: what is NULL stays so, what is not is not touched."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from nsysparse import nulls

VALUES = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=20)


@given(VALUES)
def test_there_and_back(values: list[int | None]) -> None:
    column = pl.Series("some", values, pl.Int64)
    known, filled = nulls.given(column), nulls.filled(column, 7)
    assert known.tolist() == [v is not None for v in values]
    assert filled.tolist() == [7 if v is None else v for v in values]
    assert nulls.masked("some", filled, known).equals(column, check_names=True, check_dtypes=True)
    assert nulls.masked("some", filled[known], known).equals(column)  # values of the known rows alone


def test_what_has_no_nulls_is_not_copied() -> None:
    column = pl.Series([1, 2, 3])
    assert np.shares_memory(nulls.filled(column), column.to_numpy())
