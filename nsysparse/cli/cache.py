"""``nsysparse cache``: what ``--cache`` has kept."""

from __future__ import annotations

from pathlib import Path

import click

from nsysparse import units

folder_argument = click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")


@click.group()
def command() -> None:
    """List or clear what --cache DIR has kept.

    An entry belongs to one state of one recording and one version of nsysparse: it is never used for another. Entries
    of recordings that changed are of no more use; clear them when the folder grows too large.
    """


@command.command("list")
@folder_argument
def list_command(folder: Path) -> None:
    """List the recordings in DIR, the one used last first."""
    from nsysparse.cache import list_entries

    entries = list_entries(folder)
    for entry in entries:
        name = "".join(c if c.isprintable() else "?" for c in entry.name)
        click.echo(f"{units.size(entry.size_bytes):>10}  {name}  (by nsysparse {entry.version})")
    click.echo(f"{units.size(sum(e.size_bytes for e in entries)):>10}  in all")


@command.command("clear")
@folder_argument
def clear_command(folder: Path) -> None:
    """Remove the entries in DIR, and nothing else that lies there."""
    from nsysparse.cache import clear_entries

    entries = clear_entries(folder)
    size = units.size(sum(e.size_bytes for e in entries))
    click.echo(f"Removed {units.count(len(entries))} recording{'' if len(entries) == 1 else 's'}, {size}")
