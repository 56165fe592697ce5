"""``nsysparse export``: the recording for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from nsysparse.cli.options import (
    cache_option,
    device_option,
    force_option,
    output_option,
    progress_line,
    stem_of,
    trace_argument,
    window_option,
)

FORMATS = ("parquet", "arrow", "csv", "sqlite", "perfetto")
SUFFIXES = {"sqlite": ".db", "perfetto": ".pftrace"}


@click.command()
@trace_argument
@click.option("--format", "form", type=click.Choice(FORMATS), required=True, help="What to write.")
@output_option("this folder (parquet, arrow, csv) or file (sqlite, perfetto). [default: TRACE's name, here]")
@window_option("Only what overlaps this window", "the whole recording")
@device_option
@force_option
@cache_option
def command(
    trace: Path,
    form: str,
    output: Path | None,
    window: str | None,
    devices: tuple[int, ...],
    force: bool,
    cache: Path | None,
) -> None:
    """Write TRACE as tables or as a Perfetto trace, with every join resolved.

    The tables name what an export only numbers: kernels, API functions, devices, threads and NVTX paths. Each column's
    unit and meaning is in the file's metadata (Parquet, Arrow), in columns.csv or in the table columns (SQLite).

    \b
    Examples:
      nsysparse export trace.sqlite --format parquet
      nsysparse export trace.sqlite --format sqlite -o trace.db     # for Datasette
      nsysparse export trace.sqlite --format perfetto --window 1.5s..2s
    """
    from nsysparse.accounting.cut import cut_work
    from nsysparse.joins.work import load_work
    from nsysparse.source import open_trace

    target = output or Path(stem_of(trace) + SUFFIXES.get(form, f"-{form}"))
    with progress_line(trace.name) as progress, open_trace(trace, cache) as opened:
        progress("joining GPU work to its calls")
        work, span = cut_work(load_work(opened), devices, window)
        progress(f"writing {form}")
        if form == "perfetto":
            from nsysparse.outputs.files import staged_file
            from nsysparse.outputs.perfetto import write_perfetto

            with staged_file(target, force, trace) as file:
                slices = write_perfetto(work, opened, file)
            told = f"{slices:,} slices"
        else:
            from nsysparse.outputs.frames import tables_of
            from nsysparse.outputs.tabular import write_tables

            tables = tables_of(work, opened, span)
            write_tables(tables, form, target, force, trace)
            told = ", ".join(f"{t.frame.height:,} {t.name}" for t in tables if t.frame.height)
    click.echo(f"Wrote {target}: {told}")
