"""``nsysparse scrub``: a copy of a recording that is fit to share."""

from __future__ import annotations

from pathlib import Path

import click

from nsysparse.cli.options import force_option, output_option, progress_line, trace_argument, window_option


@click.command()
@trace_argument
@output_option("this file: the copy.", required=True)
@click.option("--keep", multiple=True, metavar="NAME", help="Keep this class, or copy this table as it is; repeatable.")
@click.option("--drop", multiple=True, metavar="TABLE", help="Leave out this table; repeatable.")
@click.option(
    "--hash",
    "hashed",
    multiple=True,
    type=click.Choice(["nvtx", "kernels", "functions"]),
    help="Turn these names into hashes; repeatable.",
)
@click.option("--hash-key", default="", metavar="TEXT", help="Key of the hashes. [default: a new one, not kept]")
@window_option("Only what overlaps this window", "the whole recording")
@force_option
def command(
    trace: Path,
    output: Path,
    keep: tuple[str, ...],
    drop: tuple[str, ...],
    hashed: tuple[str, ...],
    hash_key: str,
    window: str | None,
    force: bool,
) -> None:
    """Write a copy of TRACE without what it says about the machine and its people.

    Removed are the environment, hosts, users, command lines, program output, network devices, UUIDs, path prefixes, and
    the names of processes and threads that are not the program's. Events stay, and so do the results of an analysis. A
    table that no rule knows stops the command. See docs/scrub.md for every rule.

    \b
    Examples:
      nsysparse scrub trace.sqlite -o shared.sqlite
      nsysparse scrub trace.sqlite -o shared.sqlite --hash nvtx --hash kernels
      nsysparse scrub trace.sqlite -o shared.sqlite --window 1.5s..2s --drop OSRT_API
    """
    from nsysparse.accounting.cut import cut_work
    from nsysparse.joins.work import load_work
    from nsysparse.outputs.files import staged_file
    from nsysparse.scrub import CLASSES, Options, scrub
    from nsysparse.source import open_trace

    with progress_line(trace.name) as progress, open_trace(trace) as opened:
        span = None
        if window is not None:
            progress("looking for the window")
            _, span = cut_work(load_work(opened), (), window)
        progress("copying")
        options = Options(keep, drop, hashed, hash_key, span)
        with staged_file(output, force, trace) as file:
            removed = scrub(opened, file, options)
    for name, number in removed.items():
        click.echo(f"{number:>9,}  {name:<12} {CLASSES[name]}{' (kept)' if name in keep else ''}")
    click.echo(f"Wrote {output}")
