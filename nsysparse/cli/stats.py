"""``nsysparse stats``: nsys's statistics reports and analysis rules."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysparse.cli.options import (
    cache_option,
    completed,
    device_option,
    force_option,
    note_cache_problem,
    progress_line,
    report_names,
    rule_names,
    top_option,
    window_option,
)
from nsysparse.cli.stats_table import as_text, print_table
from nsysparse.cli.tables import format_option, result_option
from nsysparse.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsysparse.source import Trace
    from nsysparse.stats import Report, Table

# What nsys stats prints when no report is named.
USUAL = ("nvtx_sum", "osrt_sum", "cuda_api_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "cuda_gpu_mem_size_sum")
MOST_OF_AN_OPTION = 100_000  # of a rule: milliseconds, rows or parts of a window
SCREEN_ROWS = 50  # of a table on the terminal, unless --top says otherwise


@click.command()
@click.argument("names", nargs=-1, metavar="TRACE... [REPORT]...", shell_complete=completed(report_names, files=True))
@click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="NAME[:OPTION=N]",
    shell_complete=completed(rule_names),
    help="Run this rule of nsys analyze instead; repeatable. Options as nsys has them: gpu_gaps:gap=1.",
)
@click.option("--by-trace", is_flag=True, help="Of several traces, list each apart instead of all together.")
@click.option("--list", "list_them", is_flag=True, help="List the reports and rules.")
@window_option("Only what overlaps this window", "the whole recording")
@device_option
@top_option("rows", otherwise=f"all; {SCREEN_ROWS} on the terminal; what nsys keeps for rules")
@format_option
@result_option
@force_option
@cache_option
def command(
    names: tuple[str, ...],
    rules: tuple[str, ...],
    by_trace: bool,
    list_them: bool,
    window: str | None,
    devices: tuple[int, ...],
    top: int | None,
    form: str | None,
    output: Path | None,
    force: bool,
    cache: Path | None,
) -> None:
    """Print the reports of nsys stats for TRACE: same names, columns and figures.

    Arguments that name a report are reports, all others are traces. Of several traces, a summary is made of all events
    together, and a list of events gets a column for the trace. Where nsys's figure misleads, a note below the table
    says so; the CSV is as nsys writes it. With --window, events that overlap it are listed whole, and with them the
    calls that sent such work; --device chooses GPU work, and what the host did stays. See docs/stats.md for every
    deliberate difference.

    \b
    Examples:
      nsysparse stats trace.sqlite
      nsysparse stats trace.sqlite cuda_gpu_kern_sum cuda_api_sum
      nsysparse stats rank0.sqlite rank1.sqlite nvtx_sum --by-trace --format csv
      nsysparse stats trace.sqlite --rule gpu_gaps:gap=1
    """
    from nsysparse.source import open_trace
    from nsysparse.stats import find_reports, find_rules, make_table, pick
    from nsysparse.stats.cut import cut_trace

    known = find_reports()
    if list_them:
        _list(known, find_rules())
        return
    traces = [n for n in names if n not in known or Path(n).exists()]
    reports = [known[n] for n in names if n in known and not Path(n).exists()]
    reports += [_configured(rule, find_rules()) for rule in rules]
    if not traces:
        raise UsageError("no trace was named", "nsysparse stats TRACE [REPORT]...; --list shows the reports")
    for name in traces:
        if not Path(name).exists() and "." not in name and "/" not in name:
            pick(name, known)  # a misspelt report: say so, instead of a missing file
    reports = reports or [known[n] for n in USUAL]
    with ExitStack() as stack, progress_line("stats") as progress:
        opened = [stack.enter_context(open_trace(t, cache)) for t in traces]
        if window is not None or devices:
            progress("looking for the window")
        parts = [cut_trace(t, devices, window) for t in opened]
        tables = []
        for report in reports:
            progress(report.name)
            tables.append(make_table(report, parts, by_trace, top))
        for one in opened:
            note_cache_problem(one)
        lacking = [t.report.name for t in tables if not _recorded(t.report, opened)]
    _write(tables, [Path(t) for t in traces], form, output, force, top, lacking)


def _configured(text: str, known: dict[str, Report]) -> Report:
    """A rule with its options: ``gpu_gaps:gap=1``."""
    from nsysparse.stats import pick

    name, *settings = text.split(":")
    report = pick(name, known, "rule")
    options = dict(report.options)
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in options or not (value.isdecimal() and value.isascii() and 0 < int(value) <= MOST_OF_AN_OPTION):
            raise UsageError(
                f"cannot read '{setting}' of the rule {name}",
                f"its options: {', '.join(f'{k}={v}' for k, v in options.items()) or 'none'}",
            )
        options[key] = int(value)
    return report.build(options) if report.build is not None else report


def _list(reports: dict[str, Report], rules: dict[str, Report]) -> None:
    for heading, known in (("Reports", reports), ("Rules (--rule)", rules)):
        click.echo(f"{heading}:")
        for report in known.values():
            options = "".join(f" [{k}={v}]" for k, v in report.options.items())
            click.echo(f"  {report.name:<22} {report.title}{options}")


def _recorded(report: Report, traces: Sequence[Trace]) -> bool:
    return not report.needs or any(t.has(n) for t in traces for n in report.needs)


def _write(
    tables: list[Table],
    traces: list[Path],
    form: str | None,
    output: Path | None,
    force: bool,
    top: int | None,
    lacking: list[str],
) -> None:
    suffix = output.suffix.lstrip(".").lower() if output else ""
    form = form or (suffix if suffix in {"csv", "json", "parquet"} else "table")
    if output is None and form == "table":
        for table in tables:
            print_table(table, top or SCREEN_ROWS, table.report.name in lacking)
        return
    if output is None:
        _to_stdout(tables, form)
        return
    from nsysparse.outputs.files import check_target, write_bytes

    contents = _files(tables, form, output)
    for path in contents:
        for trace in traces:
            check_target(path, force, trace, make_folder=len(contents) > 1)
    for path, data in contents.items():
        if len(contents) > 1:
            path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, data, force)
        click.echo(f"Wrote {path}")


def _files(tables: list[Table], form: str, output: Path) -> dict[Path, bytes]:
    """What goes where: one file for one table or for JSON, else one a table in a folder."""
    if form == "json" and not output.is_dir():
        from nsysparse.outputs.tables import to_json

        return {output: to_json(tables).encode()}
    if len(tables) == 1 and not output.is_dir():
        return {output: _rendered(tables[0], form)}
    if output.suffix:
        raise UsageError(
            f"{len(tables)} tables do not fit into one file", "name a folder with -o, or use --format json"
        )
    suffix = "txt" if form == "table" else form
    return {output / f"{t.report.name}.{suffix}": _rendered(t, form) for t in tables}


def _rendered(table: Table, form: str) -> bytes:
    from nsysparse.outputs.tables import to_csv, to_json, to_parquet

    if form == "csv":
        return to_csv(table).encode()
    if form == "json":
        return to_json([table]).encode()
    if form == "parquet":
        return to_parquet(table)
    return "\n".join([as_text(table), *(f"Note: {n}" for n in table.notes), ""]).encode()


def _to_stdout(tables: list[Table], form: str) -> None:
    if form == "parquet":
        if len(tables) > 1 or sys.stdout.isatty():
            raise UsageError("Parquet does not go there", "name a file or a folder with -o")
        data = _rendered(tables[0], form)
    elif form == "json":
        from nsysparse.outputs.tables import to_json

        data = to_json(tables).encode()
    else:
        data = b"\n".join(_rendered(t, form) for t in tables)
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
