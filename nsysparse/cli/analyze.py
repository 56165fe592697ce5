"""``nsysparse analyze``: the main command."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from nsysparse.cli.census_options import census_option, census_window_options
from nsysparse.cli.options import (
    cache_option,
    device_option,
    force_option,
    memory_option,
    note_cache_problem,
    output_option,
    progress_line,
    stem_of,
    top_option,
    window_option,
)
from nsysparse.cli.tables import cell
from nsysparse.errors import UsageError

if TYPE_CHECKING:
    from nsysparse.analysis import Analysis
    from nsysparse.crosscheck import Crosscheck

SEVERITIES = ("info", "low", "medium", "high")
# Options that mean nothing without a trace, and without a census: left unsaid they would be believed.
OF_TRACE = (
    *("window", "devices", "request_range", "whole_names", "link_peak"),
    *("thresholds", "fail_on", "no_call_paths", "cache", "memory_limit"),
)
OF_CENSUS = ("after", "marks")


@click.command()
@click.argument("trace", type=click.Path(readable=False, path_type=Path), required=False)
@output_option("this HTML report, or into this folder/. [default: TRACE's name + .html, here]", text=True)
@click.option(
    "--json",
    "json_file",
    type=click.Path(readable=False, path_type=Path),
    help="The JSON file. [default: beside the report]",
)
@window_option("What shares are shares of", "steady where top-level NVTX ranges repeat, else whole")
@device_option
@click.option(
    "--request-range",
    metavar="REGEX",
    help="NVTX ranges that are requests. [default: repeated top-level ranges]",
)
@click.option("--requests", type=int, metavar="N", help="Number of requests in the window; goes before what NVTX says.")
@click.option("--whole-names", is_flag=True, help="Keep NVTX names apart that differ only in digits.")
@click.option(
    "--link-peak",
    type=float,
    metavar="GB/S",
    help="Peak of the host link in one direction, where the GPU's model does not tell.",
)
@census_option(required=False)
@census_window_options
@click.option(
    "--set",
    "thresholds",
    multiple=True,
    metavar="RULE.THRESHOLD=VALUE",
    help="Change a threshold of a rule, as in launch_bound.low=0.3; repeatable. Also read from [tool.nsysparse] of the"
    " nearest nsysparse.toml or pyproject.toml. 'nsysparse rules NAME' lists them.",
)
@top_option("rows of each table of the report", 20)
@click.option(
    "--fail-on",
    type=click.Choice([*SEVERITIES, "incomplete", "never"]),
    default="never",
    show_default=True,
    help="Exit with 1 on a finding of at least this severity, or on an incomplete recording.",
)
@click.option(
    "--no-call-paths", is_flag=True, help="Leave out call stacks: faster where millions of CPU samples were recorded."
)
@cache_option
@memory_option
@force_option
@click.option("--profile", is_flag=True, hidden=True, help="Print the time of each stage to stderr, as JSON.")
@click.option("--open", "open_report", is_flag=True, help="Open the report in the browser.")
def command(
    trace: Path | None,
    output: str | None,
    json_file: Path | None,
    window: str | None,
    devices: tuple[int, ...],
    request_range: str | None,
    requests: int | None,
    whole_names: bool,
    link_peak: float | None,
    census: Path | None,
    after: float | None,
    marks: tuple[str, str] | None,
    thresholds: tuple[str, ...],
    top: int,
    fail_on: str,
    no_call_paths: bool,
    cache: Path | None,
    memory_limit: int | None,
    force: bool,
    profile: bool,
    open_report: bool,
) -> None:
    """Analyze TRACE and write an HTML report and a JSON file.

    TRACE is a SQLite export (nsys export --type sqlite), a parquetdir export, or a .nsys-rep when nsys is on PATH. It
    is opened read-only and never changed. With --census, a section compares it with a census of the same load; without
    TRACE, the report is of the census alone: bytes a request and busy shares, and no code behind them.

    \b
    Examples:
      nsysparse analyze trace.sqlite
      nsysparse analyze trace.sqlite -o reports/ --requests 16
      nsysparse analyze trace.sqlite --window 'nvtx:decode' --fail-on medium
      nsysparse analyze trace.sqlite --census census/
      nsysparse analyze --census census/ --marks warm done
    """
    from nsysparse.accounting.device import Options
    from nsysparse.analysis import analyze
    from nsysparse.cli.census_options import compare
    from nsysparse.outputs.files import check_target, write_together
    from nsysparse.rules import thresholds as all_thresholds
    from nsysparse.rules.settings import gather_settings, resolve
    from nsysparse.source import open_trace

    _refuse_strays(trace, census)
    if trace is None:
        _analyze_census(census, (after, marks), output, json_file, requests, top, force)
        return
    if requests is not None and request_range is not None:
        raise UsageError("both --requests and --request-range were given", "give one of them")
    peak = None if link_peak is None else link_peak * 1e9
    settings = gather_settings(thresholds, Path.cwd())
    if settings:
        resolve(all_thresholds(), settings)  # an unknown name is refused before anything is read
    options = Options(
        window, devices, request_range, requests, whole_names, peak, call_paths=not no_call_paths, settings=settings
    )
    html_file, json_file = _targets(trace, output, json_file)
    make_folder = output is not None and output.endswith("/")
    for target in (html_file, json_file):
        check_target(target, force, trace, make_folder)
    with progress_line(trace.name) as progress:
        with open_trace(trace, cache, progress, memory_limit) as opened:
            # Rules, templates and charts are loaded while other threads read; who uses them says what went wrong.
            Thread(target=_load_ahead, daemon=True).start()
            analysis = analyze(opened, options, progress)
            crosscheck = None if census is None else compare(opened, analysis, census, after, marks)
            note_cache_problem(opened)
        progress("rendering the report")
        texts = dict(zip((html_file, json_file), _render(analysis, top, crosscheck), strict=True))
        progress("writing the files")
        write_together(texts, force, trace, make_folder)
    if profile:
        click.echo(json.dumps(progress.profile()), err=True)
    _summarize(analysis, crosscheck)
    for target in texts:
        click.echo(f"Wrote {target}")
    if open_report:
        click.launch(html_file.resolve().as_uri())
    sys.exit(_status(analysis, fail_on))


def _render(analysis: Analysis, top: int, crosscheck: Crosscheck | None) -> tuple[str, str]:
    from nsysparse.outputs.json import to_json
    from nsysparse.report import render_report

    return render_report(analysis, top, crosscheck), to_json(analysis, crosscheck=crosscheck)


def _load_ahead() -> None:
    with contextlib.suppress(Exception):
        importlib.import_module("nsysparse.rules").load_rules()
        importlib.import_module("nsysparse.report")


def _refuse_strays(trace: Path | None, census: Path | None) -> None:
    """Refuse options on the command line that are about a trace or a census where none was named."""
    context = click.get_current_context()
    given = [
        option
        for option in context.command.params
        if context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
    ]
    for named, names, what, instead in (
        (trace, OF_TRACE, "a trace", "name the TRACE"),
        (census, OF_CENSUS, "a census", "add --census DIR"),
    ):
        name = next((option.opts[0] for option in given if option.name in names), None)
        if named is None and name is not None:
            raise UsageError(f"{name} is about {what}, and none was named", f"{instead}, or leave {name} out")


def _analyze_census(
    folder: Path | None, span: tuple[float | None, tuple[str, str] | None], output: str | None,
    json_file: Path | None, requests: int | None, top: int, force: bool,
) -> None:  # fmt: skip
    """The report of a census alone."""
    from nsysparse.census import dump, windows
    from nsysparse.cli.census_options import census_window
    from nsysparse.outputs.census import census_to_json
    from nsysparse.outputs.files import check_target, write_together
    from nsysparse.report.census import render_census

    if folder is None:
        raise UsageError("nothing to analyze was named", "name a TRACE, or a census with --census DIR, or both")
    html_file, json_file = _targets(folder, output, json_file)
    make_folder = output is not None and output.endswith("/")
    for target in (html_file, json_file):
        check_target(target, force, folder, make_folder)
    census = dump.read(folder)
    window = census_window(census, *span) or windows.Window()
    counts, requests = windows.count(census, window), requests or window.requests
    texts = {
        html_file: render_census(census, window, counts, requests, top),
        json_file: census_to_json(census, window, counts, requests),
    }
    write_together(texts, force, folder, make_folder)
    for target in texts:
        click.echo(f"Wrote {target}")


def _targets(trace: Path, output: str | None, json_file: Path | None) -> tuple[Path, Path]:
    """Where the report and the JSON go; a name that ends in a slash is a folder."""
    stem = stem_of(trace)
    if output == "":
        raise UsageError("-o was given an empty name", "name a file or a folder")
    if output is None:
        html_file = Path(f"{stem}.html")
    elif output.endswith("/") or os.path.isdir(output):
        html_file = Path(output) / f"{stem}.html"
    else:
        html_file = Path(output)
    json_file = json_file or html_file.with_suffix(".json")
    if os.path.realpath(json_file) == os.path.realpath(html_file):
        raise UsageError("the report and the JSON would be one file", "name the report .html, or give --json")
    return html_file, json_file


def _summarize(analysis: Analysis, crosscheck: Crosscheck | None) -> None:
    from nsysparse.findings import Severity

    for sentence in analysis.verdict:
        click.echo(cell(sentence, ""))
    shown = [f for f in analysis.findings if f.severity > Severity.INFO]
    for finding in shown:
        click.echo(f"\n[{finding.severity.name.lower()}] {cell(finding.title, '')}\n    {cell(finding.detail, '')}")
        click.echo(f"    What to do: {cell(finding.remedy, '')}")
    if rest := len(analysis.findings) - len(shown):
        are = "finding for information is" if rest == 1 else "findings for information are"
        click.echo(f"\n{rest} {'more ' if shown else ''}{are} in the report.")
    click.echo("")
    if crosscheck is not None:
        click.echo(f"Census: {cell(crosscheck.summary, '')}\n")


def _status(analysis: Analysis, fail_on: str) -> int:
    from nsysparse.findings import Severity
    from nsysparse.integrity import Status

    if fail_on == "never":
        return 0
    if fail_on == "incomplete":
        failed = [analysis.integrity.summary] if analysis.integrity.status is Status.INCOMPLETE else []
    else:
        least = Severity[fail_on.upper()]
        failed = [f"[{f.severity.name.lower()}] {f.title}" for f in analysis.findings if f.severity >= least]
    for what in failed:
        click.echo(f"Failed, as --fail-on {fail_on} asks: {cell(what, '')}", err=True)
    return int(bool(failed))
