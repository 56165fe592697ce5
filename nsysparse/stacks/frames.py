"""Distinct frames of native stacks in one numbering, at the price of a look into a table for most rows.

A frame is a symbol, a module and three marks. Nearly every symbol is in one module, so a row's number is guessed from
its symbol and then confirmed; only rows whose guess is wrong, and frames not seen before, are joined by their key.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysparse.stacks.chains import Codes, Index

MARKS = ("unresolved", "kernel_mode", "special")
KEY = ("symbol_id", "module_id", *MARKS)
LARGEST_GUESSED = 1 << 26  # string references are counted from 0: a larger one is odd, and goes the long way


class FrameNumbers:
    """Numbers of frames, in the order of their first row.

    Attributes:
        keys: ``symbol_id``, ``module_id`` (string references) and the marks (bool) of each frame.
    """

    def __init__(self) -> None:
        self.keys = pl.DataFrame(schema=dict.fromkeys(KEY[:2], pl.Int64) | dict.fromkeys(MARKS, pl.Boolean))
        self._guess: Codes = np.full(0, -1, np.int32)  # by symbol
        self._rest: tuple[Index, Index] = (np.empty(0, np.int64), np.empty(0, np.int64))  # module and marks by frame

    def of(self, piece: pl.DataFrame) -> Codes:
        """The frame of each row; frames not seen before are added.

        Args:
            piece: Columns KEY, the marks as numbers; NULL references are a frame's too, a NULL mark is none.
        """
        rows = piece.select(*KEY[:2], *((pl.col(m) != 0).fill_null(False) for m in MARKS))
        code = self._guessed(rows)
        missed = np.flatnonzero(code < 0)
        if missed.size:
            code[missed] = self._looked_up(rows[missed])
        return code

    def _guessed(self, rows: pl.DataFrame) -> Codes:
        """Frames by their symbols alone, -1 where module or marks are others."""
        symbol = rows["symbol_id"].fill_null(-1).to_numpy()
        known = (symbol >= 0) & (symbol < self._guess.size)
        if not self._guess.size:
            return np.full(symbol.size, -1, np.int32)
        code = np.where(known, self._guess[np.where(known, symbol, 0)], np.int32(-1))
        module, marks = _rest(rows)
        right = (self._rest[0][code] == module) & (self._rest[1][code] == marks)
        result: Codes = np.where((code >= 0) & right, code, np.int32(-1))
        return result

    def _looked_up(self, rows: pl.DataFrame) -> Codes:
        """Frames by their whole keys."""
        code = self._joined(rows)
        if code.null_count():
            fresh = rows.filter(code.is_null()).unique(maintain_order=True)
            self.keys = pl.concat([self.keys, fresh])
            self._rest = _rest(self.keys)
            self._learn()
            code = self._joined(rows)
        result: Codes = code.cast(pl.Int32).to_numpy()
        return result

    def _joined(self, rows: pl.DataFrame) -> pl.Series:
        numbered = self.keys.with_row_index("frame")
        return rows.join(numbered, on=KEY, how="left", nulls_equal=True, maintain_order="left")["frame"]

    def _learn(self) -> None:
        """Guess the first frame of each symbol."""
        first = self.keys.with_row_index("frame").filter(pl.col("symbol_id").is_between(0, LARGEST_GUESSED))
        first = first.unique("symbol_id", keep="first", maintain_order=True)
        symbol = first["symbol_id"].to_numpy()
        self._guess = np.full(int(symbol.max(initial=-1)) + 1, -1, np.int32)
        self._guess[symbol] = first["frame"].to_numpy()


def _rest(rows: pl.DataFrame) -> tuple[Index, Index]:
    """Module (the least number for NULL) and marks of each row, as numbers to compare."""
    least = np.iinfo(np.int64).min
    marks = rows.select(sum((pl.col(m).cast(pl.Int64) * 2**i for i, m in enumerate(MARKS)), pl.lit(0, pl.Int64)))
    return rows["module_id"].fill_null(least).to_numpy(), marks.to_series().to_numpy()
