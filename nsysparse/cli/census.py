"""``nsysparse census``: build the recorder, run programs with it, and show what it counted."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from nsysparse.census import build as building
from nsysparse.census import run as running
from nsysparse.cli.census_options import after_option
from nsysparse.cli.options import force_option
from nsysparse.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group(name="census")
def command() -> None:
    """Count a live program's GPU work with a recorder that can stay in production.

    Start with:  nsysparse census run --out DIR -- python serve.py
    Then:        nsysparse census show DIR
    """


def recording_options(function: F) -> F:
    """The options that ``run`` and ``env`` share."""
    options = [
        click.option("--out", "folder", default="census", show_default=True, type=click.Path(path_type=Path),
                     help="Folder for the files, one a process."),
        click.option("--interval", default=1.0, show_default=True, help="Seconds between lines of totals."),
        click.option("--kinds", default=",".join(running.DEFAULT_KINDS), show_default=True,
                     help="What to record: 'copies' for bytes alone; 'graphs' counts graphs as a whole."),
        click.option("--on", "on_s", default=0.0, help="Record for S seconds of every cycle (with --every)."),
        click.option("--every", "every_s", default=0.0, help="Length of a cycle in seconds (with --on)."),
        click.option("--library", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                     help="A recorder built before; by default it is built, or taken from the cache."),
    ]  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def _settings(options: dict[str, Any]) -> tuple[running.Settings, Path]:
    library = options.pop("library") or building.build().library
    kinds = tuple(kind.strip() for kind in options.pop("kinds").split(",") if kind.strip())
    settings = running.Settings(interval_s=options.pop("interval"), kinds=kinds, **options)
    running.check(settings)
    return settings, library


@command.command(name="build")
@click.option("--cc", help="C compiler; by default $CC, cc, gcc or clang.")
@click.option("--cuda", help="Folder of the CUDA toolkit or CUPTI wheel; by default the first one found.")
@click.option("--to", "folder", type=click.Path(path_type=Path), help="Folder for the library; default: the cache.")
@force_option
def build_command(cc: str | None, cuda: str | None, folder: Path | None, force: bool) -> None:
    """Build the recorder with this machine's compiler, against the CUPTI found here."""
    built = building.build(compiler=cc, cuda=cuda, folder=folder, force=force)
    click.echo(f"{'Built' if built.fresh else 'Already built'}: {built.library}")
    if built.cupti is None:
        click.echo("CUPTI: none found here; the recorder will look for libcupti.so when the program starts.")
        return
    version = f"API version {built.cupti.version}" if built.cupti.version else "no headers"
    click.echo(f"CUPTI: {built.cupti.library} ({version})")
    checked = "agree with its headers" if built.headers_checked else "not checked: no usable headers beside it"
    click.echo(f"Record layouts: {checked}")


@command.command(name="run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@recording_options
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def run_command(program: tuple[str, ...], **options: Any) -> None:
    """Run PROGRAM with the recorder in it and in every process it starts.

    The program replaces this command: its exit status and its signals are its own.
    """
    settings, library = _settings(options)
    click.echo(f"Recording into {settings.folder}", err=True)
    running.run(program, settings, library)


@command.command(name="env")
@recording_options
@click.option("--format", "style", type=click.Choice(["shell", "plain"]), default="shell",
              help="shell (default): export lines; plain: NAME=VALUE for service managers.")  # fmt: skip
def env_command(style: str, **options: Any) -> None:
    """Print the variables that make a server record itself, and create the folder."""
    settings, library = _settings(options)
    running.make_folder(settings.folder)
    for name, value in running.variables(settings, library).items():
        click.echo(f"export {name}={shlex.quote(value)}" if style == "shell" else f"{name}={value}")


@command.command(name="mark")
@click.argument("folder", type=FOLDER)
@click.argument("label")
@click.option("--requests", type=click.IntRange(min=0), help="Requests served so far, for per-request figures.")
@click.option("--wait", default=5.0, show_default=True, help="Seconds to wait for the recorders to take note.")
def mark_command(folder: Path, label: str, requests: int | None, wait: float) -> None:
    """Name this moment; a window can begin or end at it."""
    from nsysparse.census import dump

    mark = dump.write_mark(folder, label, requests)
    answered, expected = dump.await_mark(folder, mark, wait)
    click.echo(f"Marked {label!r} at {mark.unix_ns / 1e9:.3f}; {answered} of {expected} recorders took note")


@command.command(name="on")
@click.argument("folder", type=FOLDER)
def on_command(folder: Path) -> None:
    """Switch all recorders of FOLDER on (back to their duty cycle, where they have one)."""
    running.switch(folder, on=True)
    click.echo(f"On: {folder}")


@command.command(name="off")
@click.argument("folder", type=FOLDER)
def off_command(folder: Path) -> None:
    """Switch all recorders of FOLDER off; the programs run on."""
    running.switch(folder, on=False)
    click.echo(f"Off: {folder}")


@command.command(name="show")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path), required=False)
@click.option("--between", nargs=2, metavar="MARK MARK", help="The window between two marks.")
@click.option("--since", help="The window's start: seconds since 1970, or ISO 8601.")
@click.option("--until", help="The window's end, likewise.")
@after_option
@click.option("--requests", type=click.IntRange(min=1), help="Requests served in the window.")
@click.option("--requests-other", type=click.IntRange(min=1), help="The same of the second census.")
@click.option("--per", type=click.Choice(["total", "process", "device"]), default="total", show_default=True,
              help="One table for all, or one a process or device.")  # fmt: skip
@click.option("--kernels", "kernel_rows", type=click.IntRange(min=0), default=10, show_default=True,
              help="How many kernel names to list.")  # fmt: skip
@click.option("--follow", is_flag=True, help="Print rates while the program runs.")
@click.option("--json", "as_json", is_flag=True, help="The counts as JSON, exact.")
def show_command(
    *, folder: Path, other: Path | None, follow: bool, as_json: bool, requests: int | None,
    requests_other: int | None, per: str, kernel_rows: int, **window: Any,
) -> None:  # fmt: skip
    """Show what a census counted: totals, rates, per request; or two of them side by side."""
    from nsysparse.cli import census_show

    if other is not None and (follow or per != "total"):
        raise UsageError("two censuses are compared as totals", "leave out --follow and --per")
    if follow:
        census_show.follow(folder)
        return
    shown = census_show.load(folder, window, requests)
    if as_json:
        both = [shown] if other is None else [shown, census_show.load(other, window, requests_other)]
        json.dump([census_show.as_data(one) for one in both], sys.stdout, indent=1)
        click.echo()
    elif other is not None:
        census_show.print_two(shown, census_show.load(other, window, requests_other))
    else:
        census_show.print_one(shown, per, kernel_rows)
