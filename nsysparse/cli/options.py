"""Options that mean the same thing in every command, and the progress line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from nsysparse.cli.progress import progress_line
from nsysparse.memory import parse_size

if TYPE_CHECKING:
    from nsysparse.source import Trace

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

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
    help="Memory to aim at, as in 2GiB: the tables of a recording that needs more are kept in mapped files (in TMPDIR)."
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


def top_option(
    what: str, default: int | None = None, otherwise: str = ""
) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """``--top N``: the first rows of what is shown; where the default is no number, ``otherwise`` names it."""
    text = f"Show the first N {what}." + (f" [default: {otherwise}]" if otherwise else "")
    rows = click.IntRange(1, 2**31)
    if default is None:
        return click.option("--top", type=rows, metavar="N", help=text)
    return click.option("--top", type=rows, default=default, show_default=True, metavar="N", help=text)


def window_option(meaning: str, default: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """``--window WINDOW``."""
    return click.option("--window", metavar="WINDOW", help=f"{meaning}: {WINDOWS}. [default: {default}]")


def output_option(
    what: str, required: bool = False, text: bool = False
) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """``-o PATH``: where the result goes; as ``text`` where a slash at its end says that it is a folder."""
    path = click.Path(readable=False, path_type=None if text else Path)
    return click.option("-o", "--output", type=path, metavar="PATH", required=required, help=f"Write to {what}")


def completed(*names: Callable[[], Iterable[str]], files: bool = False) -> Complete:
    """Complete an argument on the command line by names, and by files if it can be one."""

    def complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        found = [CompletionItem(n) for of in names for n in of() if n.startswith(begun)]
        return [*found, CompletionItem(begun, type="file")] if files else found

    return complete


def report_names() -> Iterable[str]:
    """Names of the statistics reports, without reading their modules."""
    from nsysparse.stats import list_names

    return list_names("reports")


def rule_names() -> Iterable[str]:
    """Names of nsys's analysis rules."""
    from nsysparse.stats import list_names

    return list_names("rules")


def stem_of(trace: Path) -> str:
    """A trace's name without the suffix that says what it is."""
    stem = os.path.basename(os.path.abspath(trace))
    for suffix in (".sqlite", ".nsys-rep", ".qdrep", ".db"):
        stem = stem.removesuffix(suffix)
    return stem


def note_cache_problem(trace: Trace) -> None:
    """Say on stderr if the cache could not keep something: the result is right all the same."""
    store = getattr(trace.backend, "store", None)  # by its name: to import its class takes longer than --help may
    if store is not None and store.problem:
        click.echo(f"Note: not everything was kept in the cache: {store.problem}", err=True)


__all__ = [
    "cache_option",
    "completed",
    "device_option",
    "force_option",
    "memory_option",
    "note_cache_problem",
    "output_option",
    "progress_line",
    "report_names",
    "rule_names",
    "stem_of",
    "top_option",
    "trace_argument",
    "window_option",
]
