"""Tables of ``nsysparse census show``."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from nsysparse import units
from nsysparse.census import dump, windows
from nsysparse.census.windows import CopyClass, DeviceCount, Window
from nsysparse.errors import UsageError
from nsysparse.outputs.census import count_to_dict


@dataclass(frozen=True)
class Shown:
    """One census, its window, and what was counted in it."""

    census: dump.Census
    window: Window
    counts: list[DeviceCount]
    requests: int | None


@dataclass(frozen=True)
class Line:
    """One row of totals; ``unit`` formats its value, None is unknown."""

    name: str
    value: int | None
    unit: Any


def choose_window(census: dump.Census, options: dict[str, Any]) -> Window:
    """The window that the options name.

    Raises:
        UsageError: Two ways at once, an unknown mark, or a time that makes no sense.
    """
    between, after, since, until = (options.get(k) for k in ("between", "after", "since", "until"))
    if sum(bool(way) for way in (between, after is not None, since or until)) > 1:
        raise UsageError("a window is named in one way", "use --between, or --after, or --since and --until")
    if between:
        return windows.between_marks(census, *between)
    if after is not None:
        return windows.after_seconds(census, after)
    if since or until:
        start = windows.time_ns(since) if since else None
        end = windows.time_ns(until) if until else None
        return Window(start, end, f"from {since or 'the start'} to {until or 'the end'}")
    return Window()


def load(folder: Path, options: dict[str, Any], requests: int | None) -> Shown:
    """Read a census and count its window."""
    census = dump.read(folder)
    window = choose_window(census, options)
    return Shown(census, window, windows.count(census, window), requests or window.requests)


def _sum(values: Iterable[int | None]) -> int | None:
    """A sum that is unknown as soon as one part is."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _name(key: CopyClass) -> str:
    peer = "" if key.peer is None else f" {'to' if key.outbound else 'from'} device {key.peer}"
    return f"copies {key.kind} {key.src} to {key.dst}{peer}"


def lines_of(counts: list[DeviceCount]) -> list[Line]:
    """The rows of a table for some (process, device) counts together."""
    lines = [
        Line("kernels", _sum(c.kernels for c in counts), units.count),
        Line("  time", _sum(c.kernel_time_ns for c in counts), units.duration),
    ]
    if any(c.copies is None for c in counts):
        lines.append(Line("copies", None, units.count))
    keys = dict.fromkeys(key for c in counts for key in c.copies or {})
    for key in keys:
        found = [c.copies[key] for c in counts if c.copies is not None and key in c.copies]
        lines += [
            Line(_name(key), sum(f.count for f in found), units.count),
            Line("  bytes", sum(f.bytes for f in found), units.size),
            Line("  time", sum(f.time_ns for f in found), units.duration),
        ]
    return [
        *lines,
        Line("memsets", _sum(c.memsets for c in counts), units.count),
        Line("  bytes", _sum(c.memset_bytes for c in counts), units.size),
        Line("graph launches", _sum(c.graph_launches for c in counts), units.count),
    ]


def _table(rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())


def _clean(text: str) -> str:
    """Program and kernel names come from the recorded program: no control characters reach the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _rate(line: Line, by: float | None) -> str:
    if line.value is None or not by:
        return units.UNKNOWN
    return str(line.unit(line.value / by))


def _span(counts: list[DeviceCount]) -> int:
    """Length of the window over all processes, in ns."""
    return max((c.end_ns for c in counts), default=0) - min((c.start_ns for c in counts), default=0)


def _print_counts(counts: list[DeviceCount], requests: int | None) -> None:
    seconds = _span(counts) / 1e9
    head = ["", "total", "per second"] + (["per request"] if requests else [])
    rows = [head]
    for line in lines_of(counts):
        row = [line.name, line.unit(line.value), _rate(line, seconds)]
        rows.append(row + ([_rate(line, requests)] if requests else []))
    _table(rows)


def _print_busy(counts: list[DeviceCount]) -> None:
    rows = [["device of process", "kernels busy", "copies busy", "busy", "recorded", "dropped", "untimed"]]
    for c in counts:
        wall = c.covered_ns if c.covered_ns > 0 else None
        shares = [
            units.percent(value / wall if value is not None and wall else None)
            for value in (c.kernel_busy_ns, c.copy_busy_ns, c.busy_ns)
        ]
        name = f"{c.device} {_clean(c.device_name or '')} of {c.pid} {_clean(c.program)}"
        rows.append([name, *shares, units.percent(c.coverage_ratio), units.count(c.dropped), units.count(c.untimed)])
    _table(rows)
    late = max((c.busy_late_ns or 0 for c in counts), default=0)
    if late:
        click.echo(f"Busy can be short by {units.duration(late)}: so much arrived too late for the exact union.")
    click.echo("Busy is a share of the recorded time; processes that share a GPU are not added up.")


def _clock(ns: int) -> str:
    return datetime.datetime.fromtimestamp(ns / 1e9).astimezone().isoformat(sep=" ", timespec="milliseconds")


def _print_head(shown: Shown) -> None:
    census, counts = shown.census, shown.counts
    running = sum(not p.finished for p in census.processes)
    state = f", {running} without a final line (running, or ended without notice)" if running else ""
    click.echo(f"Census {census.folder}: {len(census.processes)} processes{state}")
    if counts:
        start, end = min(c.start_ns for c in counts), max(c.end_ns for c in counts)
        click.echo(f"Window: {shown.window.label}: {_clock(start)} to {_clock(end)}, {units.duration(end - start)}")
    if shown.requests:
        click.echo(f"Requests: {shown.requests}")
    for problem in census.problems:
        click.echo(f"Note: {_clean(problem)}")


def _groups(counts: list[DeviceCount], per: str) -> list[tuple[str, list[DeviceCount]]]:
    groups: dict[str, list[DeviceCount]] = {}
    for c in counts:
        process = f"process {c.pid} {_clean(c.program)}"
        name = {"total": "", "process": process, "device": f"device {c.device} of {process}"}[per]
        groups.setdefault(name, []).append(c)
    return list(groups.items())


def print_one(shown: Shown, per: str, kernel_rows: int) -> None:
    """Print one census: counts, busy shares, kernels."""
    _print_head(shown)
    if not shown.counts:
        click.echo("No GPU work was recorded in this window.")
        return
    for name, counts in _groups(shown.counts, per):
        click.echo(f"\n{name}" if name else "")
        _print_counts(counts, shown.requests)
    click.echo()
    _print_busy(shown.counts)
    top = windows.kernel_frame(shown.census).head(kernel_rows)
    if kernel_rows and not top.is_empty():
        click.echo("\nKernels since the start, by time:")
        _table([["name", "count", "time"]] + [
            [_clean(row["name"])[:70], units.count(row["count"]), units.duration(row["time_ns"])]
            for row in top.iter_rows(named=True)
        ])  # fmt: skip


def print_two(a: Shown, b: Shown) -> None:
    """Print two censuses side by side, per request where the requests are known."""
    for shown in (a, b):
        _print_head(shown)
    per_request = bool(a.requests and b.requests)
    base = (a.requests, b.requests) if per_request else (1, 1)
    if not per_request:
        click.echo("Totals: requests are unknown (give --requests and --requests-other, or marks with counts).")
    left, right = (dict(_flat(lines_of(s.counts))) for s in (a, b))
    what = "per request" if per_request else "total"
    rows = [["", f"{a.census.folder.name} {what}", f"{b.census.folder.name} {what}", "change"]]
    for name in dict.fromkeys([*left, *right]):
        one, two = left.get(name), right.get(name)
        unit = (one or two).unit  # type: ignore[union-attr]
        x, y = (
            (line.value / n if line and line.value is not None and n else None)
            for line, n in zip((one, two), base, strict=True)
        )
        change = f"{100 * (y - x) / x:+.1f}%" if x and y is not None else units.UNKNOWN
        rows.append([name, unit(x), unit(y), change])
    click.echo()
    _table(rows)


def _flat(lines: list[Line]) -> Iterable[tuple[str, Line]]:
    """Rows with names that stand alone: '  bytes' becomes 'copies HtoD pageable to device, bytes'."""
    head = ""
    for line in lines:
        if not line.name.startswith(" "):
            head = line.name
        yield (line.name if line.name == head else f"{head}, {line.name.strip()}"), line


def as_data(shown: Shown) -> dict[str, Any]:
    """The counts as plain data for JSON."""
    counts = [count_to_dict(c) for c in shown.counts]
    return {
        "folder": str(shown.census.folder), "window": asdict(shown.window), "requests": shown.requests,
        "problems": shown.census.problems, "counts": counts,
    }  # fmt: skip


def follow(folder: Path, pause_s: float = 1.0) -> None:
    """Print one line of rates a second until interrupted or until all programs have ended."""
    before: dict[tuple[str, int], DeviceCount] = {}
    click.echo("time      kernels/s   copies/s  copy bytes/s  kernels busy  copies busy     busy")
    census = dump.read(folder)
    while True:
        counts = windows.count(census)
        now = {(c.process, c.device): c for c in counts}
        if before:
            _follow_line(before, now)
        before = now
        if all(p.finished for p in census.processes):
            return
        time.sleep(pause_s)
        dump.refresh(census)


def _follow_line(before: dict[tuple[str, int], DeviceCount], now: dict[tuple[str, int], DeviceCount]) -> None:
    pairs = [(before.get(key), c) for key, c in now.items()]
    spans = [(c.end_ns - (b.end_ns if b else c.start_ns)) / 1e9 for b, c in pairs]
    seconds = max(spans, default=0.0)
    if seconds <= 0:
        return

    def grown(value: Any) -> float | None:
        parts = [(value(b) if b else 0, value(c)) for b, c in pairs]
        if any(x is None or y is None for x, y in parts):
            return None
        return float(sum(y - x for x, y in parts)) / seconds

    def total(c: DeviceCount, name: str) -> int | None:
        return None if c.copies is None else sum(getattr(v, name) for v in c.copies.values())

    cells = [
        time.strftime("%H:%M:%S"),
        units.count(_rounded(grown(lambda c: c.kernels))).rjust(11),
        units.count(_rounded(grown(lambda c: total(c, "count")))).rjust(10),
        units.bandwidth(grown(lambda c: total(c, "bytes"))).rjust(13),
        *(units.percent(_share(grown(v), len(pairs))).rjust(w) for v, w in (
            (lambda c: c.kernel_busy_ns, 13), (lambda c: c.copy_busy_ns, 12), (lambda c: c.busy_ns, 8))),
    ]  # fmt: skip
    click.echo(" ".join(cells))


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(round(value))


def _share(ns_per_second: float | None, devices: int) -> float | None:
    """Mean busy share over the (process, device) pairs."""
    return None if ns_per_second is None else ns_per_second / 1e9 / devices
