"""Tables as CSV, JSON and Parquet.

CSV is made to be compared with nsys's: the same columns, times and shares with one decimal, sizes with three, empty
cells for what there is none of, and nothing at all for a table without rows. JSON and Parquet hold unrounded figures.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.stats.report import Table

DECIMALS, SIZE_DECIMALS = 1, 3
ADDRESS = "Virtual Address"


def decimals_of(column: str) -> int:
    """Digits after the point that nsys prints in a column of this name."""
    return SIZE_DECIMALS if "(MB" in column else DECIMALS


def printed(frame: pl.DataFrame) -> pl.DataFrame:
    """Every cell as nsys's CSV prints it."""
    return frame.select(_cells(c, t) for c, t in frame.schema.items())


def _cells(column: str, kind: pl.DataType) -> pl.Expr:
    if kind.is_float():
        return _fixed(column, decimals_of(column))
    if column.endswith(ADDRESS):
        return pl.col(column).map_elements(hex, return_dtype=pl.String)
    return pl.col(column)


def _fixed(column: str, decimals: int) -> pl.Expr:
    return pl.col(column).map_batches(lambda values: _as_text(values, decimals), return_dtype=pl.String)


def _as_text(values: pl.Series, decimals: int) -> pl.Series:
    """Text with fixed decimals, rounded by the exact value of the double.

    nsys rounds times and shares with SQLite's ROUND, ties away from 0, and sizes with Python's format, ties to even.
    """
    scale: int = 10**decimals
    x = values.cast(pl.Float64).fill_null(np.nan).to_numpy()
    known = np.isfinite(x)
    size = np.abs(np.where(known, x, 0.0))
    scaled = size * scale
    down = np.floor(scaled)
    part = scaled - down
    up = part > 0.5
    half = np.flatnonzero(part == 0.5)  # by what the product was rounded to: the value itself may be off the middle
    lost = _lost_by_product(size[half], float(scale))
    away = down[half] % 2 == 1 if decimals == SIZE_DECIMALS else np.bool_(True)
    up[half] = (lost > 0) | ((lost == 0) & away)
    whole = (down + up).astype(np.int64)
    parts = pl.DataFrame({"whole": whole // scale, "digits": whole % scale, "below": x < 0})
    sign = pl.when("below").then(pl.lit("-")).otherwise(pl.lit(""))
    text = sign + pl.col("whole").cast(pl.String) + "." + pl.col("digits").cast(pl.String).str.zfill(decimals)
    return parts.select(pl.when(pl.Series(known)).then(text)).to_series().rename(values.name)


def _lost_by_product(a: npt.NDArray[np.float64], b: float) -> npt.NDArray[np.float64]:
    """What ``a * b`` lost to rounding, exactly (Dekker's product)."""
    a_high, b_high = (v * 134_217_729.0 - (v * 134_217_729.0 - v) for v in (a, np.float64(b)))
    a_low, b_low = a - a_high, b - b_high
    lost: npt.NDArray[np.float64] = a_low * b_low - (((a * b - a_high * b_high) - a_low * b_high) - a_high * b_low)
    return lost


def to_csv(table: Table) -> str:
    """The table as nsys writes it."""
    if not table.frame.height:
        return ""
    cells = printed(table.frame)
    texts = [c for c, t in cells.schema.items() if t in {pl.String, pl.Categorical}]
    # An empty text and none look the same there.
    cells = cells.with_columns(pl.when(pl.col(c).cast(pl.String) != "").then(c).alias(c) for c in texts)
    return cells.write_csv(None)


def to_json(tables: Sequence[Table]) -> str:
    """Tables as a JSON text: a list of objects with ``report``, ``title``, ``columns``, ``rows``, ``notes``."""
    return json.dumps([_plain(t) for t in tables], ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _plain(table: Table) -> dict[str, Any]:
    floats = [c for c, t in table.frame.schema.items() if t.is_float()]
    known = table.frame.with_columns(pl.when(pl.col(c).is_finite()).then(pl.col(c)).alias(c) for c in floats)
    return {
        "report": table.report.name,
        "title": table.report.title,
        "columns": table.frame.columns,
        "rows_total": table.rows_total,
        "rows": [list(row) for row in known.iter_rows()],
        "notes": list(table.notes),
    }


def to_parquet(table: Table) -> bytes:
    """The table with unrounded figures; the report's name, title and notes are in the file's metadata."""
    import pyarrow.parquet as pq

    arrow = table.frame.to_arrow()
    facts = {"report": table.report.name, "title": table.report.title, "notes": "\n".join(table.notes)}
    buffer = io.BytesIO()
    pq.write_table(arrow.replace_schema_metadata(facts), buffer)
    return buffer.getvalue()
