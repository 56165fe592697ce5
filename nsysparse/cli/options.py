"""Options that mean the same thing in every command, and the progress line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysparse.cli.progress import progress_line
from nsysparse.memory import parse_size

if TYPE_CHECKING:
    from nsysparse.source import Trace

trace_argument = click.argument("trace", type=click.Path(readable=False, path_type=Path))
cache_option = click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    envvar="NSYSPARSE_CACHE",
    show_envvar=True,
    help="Keep what was read in this folder, so that the next command on TRACE skips reading. [default: off]",
)


memory_option = click.option(
    "--memory-limit",
    callback=lambda context, option, value: None if value is None else parse_size(value),
    metavar="SIZE",
    envvar="NSYSPARSE_MEMORY_LIMIT",
    show_envvar=True,
    help="Memory to take, as in 2GiB: a larger recording is kept in mapped files of a temporary folder (TMPDIR)."
    " [default: 3/4 of what is free]",
)
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
        type=click.IntRange(1, 2**31),
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
    stem = os.path.basename(os.path.abspath(trace))
    for suffix in (".sqlite", ".nsys-rep", ".qdrep", ".db"):
        stem = stem.removesuffix(suffix)
    return stem


def note_cache_problem(trace: Trace) -> None:
    """Say on stderr if the cache could not keep something: the result is right all the same."""
    from nsysparse.source.cached import CachedBackend

    if isinstance(trace.backend, CachedBackend) and trace.backend.store.problem:
        click.echo(f"Note: not everything was kept in the cache: {trace.backend.store.problem}", err=True)


__all__ = [
    "cache_option",
    "device_option",
    "force_option",
    "memory_option",
    "note_cache_problem",
    "progress_line",
    "stem_of",
    "top_option",
    "trace_argument",
    "window_option",
]
