"""``nsysparse flamegraph``: who sent the work, as a picture, and what changed between two recordings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysparse.cli.options import (
    cache_option,
    device_option,
    force_option,
    memory_option,
    note_cache_problem,
    output_option,
    progress_line,
    stem_of,
    trace_argument,
    window_option,
)
from nsysparse.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

    from nsysparse.accounting.device import Options
    from nsysparse.flamegraph.difference import Difference
    from nsysparse.flamegraph.flame import Flame

ENDINGS = {
    "html": ".flamegraph.html",
    "folded": ".folded",
    "speedscope": ".speedscope.json",
    "json": ".flamegraph.json",
}
LEVELS = ("process", "thread", "nvtx", "python", "native", "api", "device", "operation")
WEIGHTS = {
    **{"busy": "busy_ns", "exposed": "exposed_ns", "bytes": "bytes", "gpu-added": "operation_ns"},
    **{"blocked": "blocked_ns", "idle": "idle_ns", "os": "os_ns", "cpu-samples": "cpu_samples"},
    **{"python-samples": "python_samples", "operations": "operations", "calls": "calls"},
}


@click.command()
@trace_argument
@click.argument("new", type=click.Path(path_type=Path), required=False)
@output_option("this file. [default: TRACE's name + .flamegraph.html, here]")
@click.option(
    "--format",
    "form",
    type=click.Choice(list(ENDINGS)),
    default="html",
    show_default=True,
    help="A page; folded stacks (one --weight); speedscope's format; or JSON.",
)
@click.option(
    "--weight",
    type=click.Choice(list(WEIGHTS)),
    help="What --format folded counts. [default: busy: GPU time, each instant once]",
)
@click.option(
    "--without",
    type=click.Choice(LEVELS),
    multiple=True,
    metavar="LEVEL",
    help=f"Leave out a level: {', '.join(LEVELS)}.",
)
@click.option("--keep-noise", is_flag=True, help="Keep the profiler's, the dispatcher's and the driver's inner frames.")
@window_option("What shares are shares of", "steady where top-level NVTX ranges repeat, else whole")
@device_option
@click.option(
    "--request-range", metavar="REGEX", help="NVTX ranges that are requests. [default: repeated top-level ranges]"
)
@click.option(
    "--requests", type=int, multiple=True, metavar="N", help="Number of requests; for two recordings once or twice."
)
@click.option(
    "--per",
    type=click.Choice(["request", "second"]),
    help="What a difference is per. [default: request where both recordings know theirs, else second of the window]",
)
@cache_option
@memory_option
@force_option
def command(
    trace: Path,
    new: Path | None,
    output: Path | None,
    form: str,
    weight: str | None,
    without: tuple[str, ...],
    keep_noise: bool,
    window: str | None,
    devices: tuple[int, ...],
    request_range: str | None,
    requests: tuple[int, ...],
    per: str | None,
    cache: Path | None,
    memory_limit: int | None,
    force: bool,
) -> None:
    """Draw who sent the work in TRACE: process, thread, NVTX, Python, native code, API, operation.

    With a second recording NEW, draw what changed from TRACE to it, per request or per second.

    \b
    Examples:
      nsysparse flamegraph trace.sqlite
      nsysparse flamegraph trace.sqlite --format folded --weight bytes
      nsysparse flamegraph before.sqlite after.sqlite --requests 16
    """
    from nsysparse.accounting.device import Options
    from nsysparse.cli.tables import cell
    from nsysparse.flamegraph.difference import compare
    from nsysparse.outputs.files import check_target, write_together

    if weight is not None and form != "folded":
        raise UsageError(f"--weight was given, and --format {form} holds every weight", "leave it out")
    if len(requests) > (1 if new is None else 2):
        raise UsageError("--requests was given too often", "give it once, or once for each of two recordings")
    if per is not None and new is None:
        raise UsageError("--per was given with one recording", "it is for the difference of two")
    target = output or Path(stem_of(trace) + (f"-{stem_of(new)}" if new else "") + ENDINGS[form])
    traces = [trace] if new is None else [trace, new]
    for recording in traces:
        check_target(target, force, recording)
    numbers = [requests[min(i, len(requests) - 1)] if requests else None for i in range(len(traces))]
    flames, leads = [], []
    for path, number in zip(traces, numbers, strict=True):
        options = Options(window, devices, request_range, number)
        drawn = _draw(path, cache, memory_limit, options, lines=new is None, keep_noise=keep_noise)
        flames.append((drawn[0].without(frozenset(without)) if without else drawn[0], drawn[1]))
        leads.append(drawn[2])
    one = new is None
    difference = None if one else compare(flames[0][0], flames[1][0], per)
    text = _one(flames[0], form, weight) if difference is None else _two(difference, form, weight)
    write_together({target: text}, force)
    for (flame, _), leading in zip(flames, leads, strict=True):
        _tell(flame)
        for sentence in leading:
            click.echo(f"  {cell(sentence, '')}")
    if difference is not None:
        _tell_change(difference)
    click.echo(f"Wrote {target}")


def _draw(
    path: Path, cache: Path | None, memory_limit: int | None, options: Options, *, lines: bool, keep_noise: bool
) -> tuple[Flame, pl.DataFrame, list[str]]:
    """Call paths of one recording, what its threads were doing when sampled, and what the window begins with."""
    from nsysparse.analysis import analyze
    from nsysparse.flamegraph import weigh_call_paths
    from nsysparse.source import open_trace
    from nsysparse.verdict import what_leads

    with progress_line(path.name) as progress, open_trace(path, cache, progress, memory_limit) as opened:
        analysis = analyze(opened, options, progress)
        found = analysis.call_paths
        if found is None or not lines or keep_noise:
            progress("weighing call paths")
            work, devices, stacks = analysis.work, analysis.devices, analysis.stacks
            found = weigh_call_paths(work, devices, opened, stacks, lines=lines, keep_noise=keep_noise)
        note_cache_problem(opened)
    leads = [sentence for account in analysis.devices for sentence in what_leads(account)]
    return found.flame, found.tables["sampled_threads"], leads


def _one(drawn: tuple[Flame, pl.DataFrame], form: str, weight: str | None) -> str:
    from nsysparse.flamegraph.document import to_json
    from nsysparse.flamegraph.folded import to_folded
    from nsysparse.flamegraph.speedscope import to_speedscope
    from nsysparse.report.flamegraph import render_page

    flame, shares = drawn
    if form == "folded":
        return to_folded(flame, _key(weight, [w.key for w in flame.weights]))
    whole: dict[str, Callable[[Flame], str]] = {"speedscope": to_speedscope, "json": to_json}
    return whole[form](flame) if form in whole else render_page(flame, shares)


def _two(difference: Difference, form: str, weight: str | None) -> str:
    from nsysparse.flamegraph.document import difference_to_json
    from nsysparse.flamegraph.folded import difference_to_folded
    from nsysparse.flamegraph.speedscope import difference_to_speedscope
    from nsysparse.report.flamegraph import render_difference

    if form == "folded":
        return difference_to_folded(difference, _key(weight, [w.key for w in difference.weights]))
    whole: dict[str, Callable[[Difference], str]] = {
        "speedscope": difference_to_speedscope,
        "json": difference_to_json,
        "html": render_difference,
    }
    return whole[form](difference)


def _key(weight: str | None, present: list[str]) -> str:
    key = WEIGHTS[weight or "busy"]
    if key not in present:
        names = {v: k for k, v in WEIGHTS.items()}
        raise UsageError(
            f"nothing in the window has a weight of '{names[key]}'",
            f"use --weight with one of: {', '.join(names[k] for k in present)}" if present else "use another --window",
        )
    return key


def _tell(flame: Flame) -> None:
    """Coverage, in a line or two: a picture without it could be believed too much."""
    from nsysparse.cli.tables import cell
    from nsysparse.units import count, percent

    said = f"{flame.name}: {count(len(flame.paths))} call paths; window: {flame.basis}"
    click.echo(cell(said, ""))  # a name in a trace must not steer the terminal
    for kind in ("copies", "kernels", "synchronizations"):
        rows = [r for r in flame.coverage.to_dicts() if r["kind"] == kind and r["stack"] == "any"]
        for row in rows:
            share = f"{percent(row['operations_ratio'])}, {percent(row['time_ratio'])} of their time"
            click.echo(f"  {kind} with a stack: {share}")
    if flame.unreadable:
        click.echo(f"  {count(flame.unreadable)} Python stacks are in a form that cannot be read and are left out")
    if not flame.says_who_asked:
        click.echo("  no stacks were recorded: nsys profile --cudabacktrace=all --sample=process-tree records them")


def _tell_change(difference: Difference) -> None:
    """What changed in all: wall time first, as that is what was to become less."""
    from nsysparse.units import count, duration, percent, size

    for row in difference.totals().to_dicts():
        if row["key"] not in {"wall_ns", "busy_ns", "exposed_ns", "bytes"}:
            continue
        form = {"ns": duration, "bytes": size}.get(row["unit"], count)
        line = f"  {row['title'].lower().replace('gpu', 'GPU')}: {form(row['base'])} → {form(row['new'])}"
        if row["per"] is not None:
            change = f", {percent(row['change_ratio'])}" if row["change_ratio"] is not None else ""
            line += f"; per {row['per']} {form(row['base_per'])} → {form(row['new_per'])}{change}"
        click.echo(line)
    if difference.base.requests is None or difference.new.requests is None:
        click.echo("  wall time per request is n/a: --requests N says how many each recording holds")
