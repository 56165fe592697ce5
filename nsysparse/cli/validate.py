"""``nsysparse validate``: a recording against a census of the same load."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsysparse import units
from nsysparse.cli.census_options import census_option, census_window, census_window_options
from nsysparse.cli.options import cache_option, memory_option, note_cache_problem, progress_line, trace_argument
from nsysparse.cli.tables import cell

if TYPE_CHECKING:
    from nsysparse.crosscheck import Crosscheck

REQUESTS = click.IntRange(min=1)


@click.command()
@trace_argument
@census_option(required=True)
@click.option("--requests-trace", type=REQUESTS, metavar="N", help="Requests served in the trace's window.")
@click.option("--requests-census", type=REQUESTS, metavar="N", help="Requests served in the census's window.")
@click.option("--window-trace", metavar="WINDOW", help="Of the trace, only what starts in a window, as analyze has it.")
@census_window_options
@click.option("--tolerance", type=click.FloatRange(0, 1), default=0.0, show_default=True, metavar="RATIO",
              help="Difference of counts and bytes to accept, for loads that never repeat exactly.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cache_option
@memory_option
def command(
    *, trace: Path, census: Path, requests_trace: int | None, requests_census: int | None, window_trace: str | None,
    after: float | None, marks: tuple[str, str] | None, tolerance: float, as_json: bool, cache: Path | None,
    memory_limit: int | None,
) -> None:  # fmt: skip
    """Compare TRACE with a census of the same load; exit with 1 when a difference has no cause.

    Counts and bytes must be equal, or differ for a cause whose sign is in the trace or in the census; with requests on
    both sides, figures are compared per request. Times of two runs are never equal and count as equal within a factor
    of 2.

    \b
    Examples:
      nsysparse validate trace.sqlite --census census/
      nsysparse validate trace.sqlite --census census/ --window-trace steady --marks warm done --requests-trace 16
    """
    from nsysparse.accounting.windows import check_form
    from nsysparse.census import dump
    from nsysparse.crosscheck import Requests, check_census
    from nsysparse.integrity import check_recording
    from nsysparse.joins.work import load_work
    from nsysparse.source import open_trace

    if window_trace is not None:
        check_form(window_trace)
    counted = dump.read(census)
    window = census_window(counted, after, marks)
    with progress_line(trace.name) as progress, open_trace(trace, cache, progress, memory_limit) as opened:
        progress("joining GPU work to its calls")
        work = load_work(opened)
        result = check_census(
            opened, work, check_recording(opened, work), counted, requests=Requests(requests_trace, requests_census),
            window_trace=window_trace, window_census=window, tolerance=tolerance,
        )  # fmt: skip
        note_cache_problem(opened)
    if as_json:
        click.echo(json.dumps(result.to_dict(), ensure_ascii=False, indent=1))
    else:
        _print(result)
    sys.exit(int(result.status.value == "unexplained"))


def _print(result: Crosscheck) -> None:
    click.echo(f"Trace: {cell(result.window_trace, '')}. Census: {cell(result.window_census, '')}.")
    head = ["", "figure", "trace", "census"] + (["per request", "per request"] if result.requests.known else [])
    rows = [[*head, "verdict", ""]]
    for view in result.views:
        values = [_value(view, "trace"), _value(view, "census")]
        if result.requests.known:
            values += [_value(view, "trace_per_request"), _value(view, "census_per_request")]
        rows.append([cell(view["item"], ""), view["quantity_name"], *values, view["verdict"], cell(view["cause"], "")])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        left = (0, 1, len(row) - 2, len(row) - 1)
        cells = [c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        click.echo("  ".join(cells).rstrip())
    for cause in result.causes:
        click.echo(f"{cell(cause.name, '')}: {cell(cause.text, '')}")
    click.echo(result.summary)


def _value(view: dict[str, Any], name: str) -> str:
    """Counts and bytes to the last digit, because they must be equal."""
    return units.duration(view[name]) if view["unit"] == "time" else units.count(view[name])
