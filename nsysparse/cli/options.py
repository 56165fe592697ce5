"""Options that mean the same thing in every command, and the progress line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysparse.cli.progress import progress_line

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


def note_cache_problem(trace: Trace) -> None:
    """Say on stderr if the cache could not keep something: the result is right all the same."""
    from nsysparse.source.cached import CachedBackend

    if isinstance(trace.backend, CachedBackend) and trace.backend.store.problem:
        click.echo(f"Note: not everything was kept in the cache: {trace.backend.store.problem}", err=True)


__all__ = ["cache_option", "force_option", "note_cache_problem", "progress_line", "top_option", "trace_argument"]
