"""Options that mean the same thing in every command, and the progress line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

trace_argument = click.argument("trace", type=click.Path(path_type=Path))
device_option = click.option(
    "--device",
    "devices",
    type=int,
    multiple=True,
    metavar="N",
    help="Only this device, by its number in the report; repeatable.",
)
WINDOWS = "whole, ranges, steady, START..END (1.5s..2500ms), nvtx:REGEX or request:N (from the Nth on)"
force_option = click.option("--force", is_flag=True, help="Replace files that exist.")


def top_option(default: int, what: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """``--top N``."""
    return click.option(
        "--top",
        type=click.IntRange(min=1),
        default=default,
        show_default=True,
        metavar="N",
        help=f"Show the first N {what}.",
    )


def window_option(meaning: str, default: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """``--window WINDOW``."""
    return click.option("--window", metavar="WINDOW", help=f"{meaning}: {WINDOWS}. [default: {default}]")


def stem_of(trace: Path) -> str:
    """A trace's name without the suffix that says what it is."""
    stem = trace.resolve().name
    for suffix in (".sqlite", ".nsys-rep", ".qdrep", ".db"):
        stem = stem.removesuffix(suffix)
    return stem


@contextlib.contextmanager
def progress_line(title: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr with the stage and the time so far, from two seconds on; nothing when stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda stage: None
        return
    import threading

    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task(title, total=None)
    timer = threading.Timer(2.0, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda stage: progress.update(task, description=f"{title}: {stage}")
    finally:
        timer.cancel()
        progress.stop()
