"""Frames on the terminal and in files: table, CSV, JSON or Parquet."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysparse import units
from nsysparse.cli.options import output_option
from nsysparse.errors import UsageError
from nsysparse.outputs.files import write_bytes

if TYPE_CHECKING:
    import polars as pl

FORMATS = ("table", "csv", "json", "parquet")
_FORMATTERS = {"_ns": units.duration, "_bytes": units.size, "_ratio": units.percent, "bytes": units.size}

format_option = click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default=None,
    help="Form of the result; by default a table, or what the name after -o says.",
)
result_option = output_option("this file instead of the terminal.")
INSTANTS = ("start_ns", "end_ns", "from_ns", "to_ns")


def show_frame(
    frame: pl.DataFrame,
    form: str | None,
    output: Path | None,
    force: bool,
    raw: bool = False,
    recording: Path | None = None,
) -> None:
    """Print a frame, or write it to a file.

    Args:
        frame: The rows.
        form: One of FORMATS; None: by the output's suffix, else a table.
        output: The file; None for stdout.
        force: Replace the file if it exists.
        raw: Print numbers as they are instead of with units.
        recording: What was read; it is never written to.
    """
    by_suffix = output.suffix.lstrip(".").lower() if output else ""
    form = form or (by_suffix if by_suffix in FORMATS else "table")
    if form == "table" and output is None:
        _print_table(frame, raw)
        return
    data = render_frame(frame, form, raw)
    if output is not None:
        write_bytes(output, data, force, recording)
        click.echo(f"Wrote {output}")
    elif form == "parquet" and sys.stdout.isatty():
        raise UsageError("Parquet is no text", "name a file with -o")
    elif sys.stdout.isatty():
        click.echo(units.visible(data.decode()), nl=False)
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def render_frame(frame: pl.DataFrame, form: str, raw: bool) -> bytes:
    """A frame as bytes of one of FORMATS."""
    import io

    import polars as pl

    if form == "csv":
        return frame.write_csv(None).encode()
    if form == "json":
        frame = frame.with_columns(
            pl.when(pl.col(pl.Float64).is_finite()).then(pl.col(pl.Float64))
        )  # JSON has no others
        return (json.dumps(frame.to_dicts(), ensure_ascii=False, indent=1, default=str) + "\n").encode()
    if form == "parquet":
        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        return buffer.getvalue()
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=200).print(_table(frame, raw))
    return text.getvalue().encode()


def _print_table(frame: pl.DataFrame, raw: bool) -> None:
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 200).print(_table(frame, raw))


def _table(frame: pl.DataFrame, raw: bool):  # type: ignore[no-untyped-def]
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, dtype in frame.schema.items():
        # A value with its own unit under a header that names another would mislead.
        shown = name if raw or name in INSTANTS else name.removesuffix("_ns")
        table.add_column(Text(units.visible(shown)), justify="right" if dtype.is_numeric() else "left", overflow="fold")
    for row in frame.iter_rows():
        table.add_row(*(Text(cell(v, n, raw)) for n, v in zip(frame.columns, row, strict=True)))
    return table


def cell(value: object, column: str, raw: bool = False) -> str:
    """One value as text: with the unit that the column's name promises; control characters made visible."""
    if value is None:
        return units.UNKNOWN
    if isinstance(value, str):
        return units.visible(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not raw:
        is_instant = column in INSTANTS
        for suffix, formatter in _FORMATTERS.items():
            if column.endswith(suffix) and not is_instant:
                return formatter(value)
        if column.endswith("bandwidth"):
            return units.bandwidth(value)
    return str(value)
