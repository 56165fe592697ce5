"""``nsysparse info``: what a recording is, holds and lacks, and whether it can be trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from nsysparse import units
from nsysparse.cli.options import cache_option, memory_option, note_cache_problem, progress_line, trace_argument
from nsysparse.cli.tables import cell


@click.command()
@trace_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cache_option
@memory_option
def command(trace: Path, as_json: bool, cache: Path | None, memory_limit: int | None) -> None:
    """Say what TRACE is: release, GPUs, what was recorded, what was not and how to record it, coverage, integrity."""
    from nsysparse.analysis import inspect
    from nsysparse.source import open_trace

    with progress_line(trace.name) as progress, open_trace(trace, cache, progress, memory_limit) as opened:
        facts = inspect(opened, progress)
        note_cache_problem(opened)
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False, indent=1))
        return
    _print_facts(facts)


def _print_facts(facts: dict[str, Any]) -> None:
    file = facts["trace"]
    release = file["release"] or "a release that does not say which (before 2021.5)"
    size = units.size(file["size_bytes"])
    click.echo(f"{cell(file['name'], '')}: {file['kind']}, {size}, exported by nsys {cell(release, '')}")
    _section("GPUs of the machine", [_gpu(gpu) for gpu in facts["gpus"]])
    devices = [f"{d['device']}: {cell(d['label'], '')} (process {d['processes']})" for d in facts["devices"]]
    _section("Devices that did any work", devices)
    rows = facts["recorded"]
    _section("Recorded", [f"{r['rows']:>12,}  {r['what']}" for r in rows if r["state"] == "recorded"])
    _section("Traced, and none seen", [r["what"] for r in rows if r["state"] == "none seen"], empty=None)
    missing = [f"{r['what']}: {r['flag']} ({r['use']})" for r in rows if r["state"] == "not recorded"]
    _section("Not recorded, and the option of nsys profile that records it", missing, empty=None)
    _section("Coverage of GPU operations", [_coverage(row) for row in facts["coverage"]])
    checks = facts["integrity"]["checks"]
    lines = [f"{c['status']:<15} {c['title']}: {cell(c['summary'], '')}" for c in checks]
    _section(f"Integrity: {facts['integrity']['status']}", lines)


def _section(title: str, lines: list[str], empty: str | None = "none") -> None:
    lines = lines or ([empty] if empty else [])
    if lines:
        click.echo(f"\n{title}")
        for line in lines:
            click.echo(f"  {line}")


def _gpu(gpu: dict[str, Any]) -> str:
    memory = units.size(gpu["memory_bytes"])
    return f"{cell(gpu['gpu'], '')}: {cell(gpu['name'], '')}, {cell(gpu['sm_count'], '')} SMs, {memory}"


def _coverage(row: dict[str, Any]) -> str:
    operations, time = units.percent(row["operations_ratio"]), units.percent(row["time_ratio"])
    return f"{operations:>6} of operations, {time:>6} of time  {row['meaning']}"
