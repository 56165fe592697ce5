"""Options of the commands that read a trace and a census together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysparse.errors import UsageError

if TYPE_CHECKING:
    from nsysparse.analysis import Analysis
    from nsysparse.census.dump import Census
    from nsysparse.census.windows import Window
    from nsysparse.crosscheck import Crosscheck
    from nsysparse.source import Trace


def census_option(*, required: bool) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """``--census DIR``."""
    return click.option(
        "--census",
        type=click.Path(path_type=Path),
        metavar="DIR",
        required=required,
        help="A census of the same load: a folder that nsysparse census run wrote.",
    )


after_option = click.option(
    "--after", type=click.FloatRange(min=0), metavar="S", help="Of the census, leave out the first S seconds."
)


def census_window_options(function: click.decorators.FC) -> click.decorators.FC:
    """``--after S`` and ``--marks A B``."""
    marks = click.option("--marks", nargs=2, metavar="A B", help="Of the census, only what lies between two marks.")
    return after_option(marks(function))


def census_window(census: Census, after: float | None, marks: tuple[str, str] | None) -> Window | None:
    """The window of the census that was asked for; None for all of it.

    Raises:
        UsageError: Two ways at once, or no such window.
    """
    from nsysparse.census import windows

    if after is not None and marks:
        raise UsageError("a window is named in one way", "use --after or --marks")
    if marks:
        return windows.between_marks(census, *marks)
    return None if after is None else windows.after_seconds(census, after)


def compare(
    trace: Trace, analysis: Analysis, folder: Path, after: float | None, marks: tuple[str, str] | None
) -> Crosscheck:
    """The whole of an analyzed recording against a census."""
    from nsysparse.census import dump
    from nsysparse.crosscheck import check_census

    census = dump.read(folder)
    window = census_window(census, after, marks)
    return check_census(trace, analysis.work, analysis.integrity, census, window_census=window)
