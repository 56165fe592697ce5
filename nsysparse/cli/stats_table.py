"""Tables of ``nsysparse stats`` on the terminal and in text files."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsysparse.cli.tables import cell

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from rich.table import Table as Drawing

    from nsysparse.stats import Table

IDS = ("id", "ctx", "strm", "address")  # ends of columns whose numbers are no amounts
TEXT_WIDTH, FILE_WIDTH, GAP = 24, 200, 3  # of a column of texts, at least; of a table in a file; between columns
# Parts of the names of columns that a narrow terminal loses, in this order.
FIRST_TO_GO = ("StdDev", "Stack", "Tree", "Min (", "Max (", "Med (", "Blk", "Grd", "Mem", "Ctx", "Child", "Avg", "Id")


@dataclass(frozen=True)
class Column:
    """A column as texts.

    Attributes:
        name: Its head.
        numeric: Whether it holds numbers.
        cells: The texts.
        least: Characters that it needs: numbers are never cut, texts down to TEXT_WIDTH.
        widest: Characters of its longest text.
    """

    name: str
    numeric: bool
    cells: list[str]
    least: int
    widest: int


def columns_of(table: Table, rows: int) -> list[Column]:
    """The first rows of a table as texts, numbers with thousands separators."""
    from nsysparse.outputs.tables import decimals_of

    found = []
    for column in table.frame.head(rows).iter_columns():
        cells = [_number(v, column.name, decimals_of(column.name)) for v in column.to_list()]
        widest = max([len(column.name), *map(len, cells)])
        numeric = column.dtype.is_numeric()
        found.append(Column(column.name, numeric, cells, widest if numeric else min(widest, TEXT_WIDTH), widest))
    return found


def width_of(columns: list[Column]) -> int:
    """Characters that some columns need side by side."""
    return sum(c.least + GAP for c in columns)


def that_fit(columns: list[Column], room: int) -> list[Column]:
    """The columns that there is room for; those that tell least go first."""
    left = list(columns)
    for part in FIRST_TO_GO:
        for column in reversed([c for c in left if part in c.name]):
            if width_of(left) <= room:
                return left
            left.remove(column)
    return left


def print_table(table: Table, rows: int, lacking: bool) -> None:
    """Print a report; what a terminal has no room for is named.

    Args:
        table: The report.
        rows: Rows to print.
        lacking: Whether what it needs was not recorded.
    """
    from rich.console import Console

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else FILE_WIDTH, highlight=False, markup=False)
    console.print(f"{table.report.name}: {table.report.title}", style="bold")
    if not table.frame.height:
        console.print("  not recorded\n" if lacking else "  no rows\n")
        return
    columns = columns_of(table, rows)
    shown = that_fit(columns, console.width) if terminal else columns
    console.width = max(console.width, width_of(shown))
    console.print(draw(shown, console.width))
    if missing := [c.name for c in columns if c not in shown]:
        console.print(f"  No room here for {', '.join(missing)}: a wider terminal, or --format csv")
    left = table.rows_total - min(rows, table.frame.height)
    if left:
        console.print(f"  {left:,} more rows: --top N, or --format csv")
    for note in table.notes:
        console.print(f"  Note: {cell(note, '')}")
    console.print()


def as_text(table: Table) -> str:
    """A whole report as text, without its notes."""
    from rich.console import Console

    columns = columns_of(table, table.frame.height)
    text, width = io.StringIO(), max(FILE_WIDTH, width_of(columns))
    Console(file=text, width=width).print(draw(columns, width))
    return text.getvalue()


def widths(columns: list[Column], room: int) -> list[int]:
    """Characters of each column: what it needs, and for texts a fair part of what is left."""
    found = [c.least for c in columns]
    left = room - width_of(columns)
    cut = sorted((c.widest - c.least, i) for i, c in enumerate(columns) if c.widest > c.least)
    for n, (more, i) in enumerate(cut):  # the one that lacks least first
        part = max(0, min(more, left // (len(cut) - n)))
        found[i] += part
        left -= part
    return found


def draw(columns: list[Column], room: int) -> Drawing:
    """Columns side by side."""
    from rich import box
    from rich.table import Table as Drawing
    from rich.text import Text

    drawing = Drawing(box=box.SIMPLE_HEAD, pad_edge=False)
    for c, width in zip(columns, widths(columns, room), strict=True):
        justify: JustifyMethod = "right" if c.numeric else "left"
        drawing.add_column(Text(c.name), justify=justify, overflow="ellipsis", no_wrap=True, width=width)
    for row in zip(*(c.cells for c in columns), strict=True):
        drawing.add_row(*map(Text, row))
    return drawing


def _number(value: object, column: str, decimals: int) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.{decimals}f}"
    is_amount = isinstance(value, int) and not column.lower().endswith(IDS)
    return f"{value:,}" if is_amount else cell(value, "")
