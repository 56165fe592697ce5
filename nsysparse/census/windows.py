"""Count what a census saw in a window: totals at its end minus totals at its start.

A boundary falls on the first totals line at or after its time, or on the line before when nothing changed
until then. Null in a dump is unknown, and stays None here: it is never 0.
"""

from __future__ import annotations

import bisect
import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import polars as pl

from nsysparse.census.dump import Census, Mark, Process, Record
from nsysparse.errors import SourceError, UsageError


@dataclass(frozen=True)
class Window:
    """A span of time; None leaves that side open.

    Attributes:
        start_ns: Nanoseconds since 1970.
        end_ns: Nanoseconds since 1970.
        label: How the user named it, for the outputs.
        requests: Requests served in it, when two marks say so.
    """

    start_ns: int | None = None
    end_ns: int | None = None
    label: str = "the whole recording"
    requests: int | None = None


@dataclass(frozen=True)
class CopyClass:
    """What tells one kind of copy from another; ``peer`` is the other device of a peer copy."""

    kind: str
    src: str
    dst: str
    peer: int | None = None
    outbound: bool | None = None


@dataclass(frozen=True)
class Copies:
    """Copies of one class: count, bytes, GPU time, and a histogram of sizes (floor(log2(bytes)) -> count)."""

    count: int
    bytes: int
    time_ns: int
    untimed: int
    sizes: dict[int, int]


@dataclass(frozen=True)
class DeviceCount:
    """What one process asked of one device in a window; None is unknown.

    Attributes:
        process: The process's key.
        pid: Process id.
        program: Program name.
        device: CUDA ordinal in that process.
        device_name: The model, or None.
        uuid: The GPU's UUID, or None.
        start_ns: The window's start as it fell, in nanoseconds since 1970.
        end_ns: Likewise its end.
        covered_ns: How much of it was recorded.
        kernels: Kernels run.
        kernel_time_ns: Sum of their times.
        kernel_busy_ns: Length of the union of their intervals.
        copies: By class; None when copies were not recorded.
        copy_busy_ns: Length of the union of the copies' intervals.
        busy_ns: The same of kernels, copies and memsets together.
        busy_late_ns: By how much busy can be short, because records came too late.
        memsets: Memsets run.
        memset_bytes: Bytes they set.
        memset_time_ns: Sum of their times.
        graph_launches: CUDA graph launches seen.
        untimed: Operations that CUPTI counted without times.
        dropped: Records that CUPTI dropped in this process, on all its devices.
    """

    process: str
    pid: int
    program: str
    device: int
    device_name: str | None
    uuid: str | None
    start_ns: int
    end_ns: int
    covered_ns: int
    kernels: int | None
    kernel_time_ns: int | None
    kernel_busy_ns: int | None
    copies: dict[CopyClass, Copies] | None
    copy_busy_ns: int | None
    busy_ns: int | None
    busy_late_ns: int | None
    memsets: int | None
    memset_bytes: int | None
    memset_time_ns: int | None
    graph_launches: int | None
    untimed: int
    dropped: int | None

    @property
    def wall_ns(self) -> int:
        """Length of the window as it fell."""
        return self.end_ns - self.start_ns

    @property
    def coverage_ratio(self) -> float | None:
        """Share of the window that was recorded; None for an empty window."""
        return min(1.0, self.covered_ns / self.wall_ns) if self.wall_ns > 0 else None


@dataclass(frozen=True)
class _Point:
    """A process's totals at one moment."""

    unix_ns: int
    covered_ns: int
    totals: Record


def _find(marks: list[Mark], label: str) -> Mark:
    found = [mark for mark in marks if mark.label == label]
    if not found:
        known = ", ".join(dict.fromkeys(m.label for m in marks)) or "none"
        raise UsageError(f"no mark {label!r}", f"set it with `nsysparse census mark DIR {label}`; marks here: {known}")
    return found[-1]


def between_marks(census: Census, first: str, last: str) -> Window:
    """The window between two marks; of marks with the same label the last one counts.

    Raises:
        UsageError: A mark is missing, or they are in the wrong order.
    """
    a, b = _find(census.marks, first), _find(census.marks, last)
    if b.unix_ns <= a.unix_ns:
        raise UsageError(f"mark {last!r} is not after mark {first!r}", "name them in the order they were set")
    both = a.requests is not None and b.requests is not None
    requests = b.requests - a.requests if both else None  # type: ignore[operator]
    return Window(a.unix_ns, b.unix_ns, f"from mark {first} to mark {last}", requests)


def after_seconds(census: Census, seconds: float) -> Window:
    """The window after the first N seconds of the census, until its end.

    Raises:
        UsageError: The census is not that long.
    """
    start = census.start_ns + int(seconds * 1e9)
    if start >= census.end_ns:
        length = (census.end_ns - census.start_ns) / 1e9
        raise UsageError(f"the census is only {length:.1f} s long", f"use --after with less than {length:.1f}")
    return Window(start, None, f"after the first {seconds:g} s")


def time_ns(text: str) -> int:
    """A time as the user writes it: seconds since 1970, or ISO 8601 (local time unless it says otherwise).

    Raises:
        UsageError: It is neither.
    """
    try:
        return int(float(text) * 1e9)
    except (ValueError, OverflowError):
        pass
    try:
        return int(datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1e9)
    except ValueError:
        raise UsageError(f"{text!r} is not a time", "use seconds since 1970, or 2025-01-31T12:00:00") from None


def _number(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and abs(value) < 2**63 else None


def _point(process: Process, at_ns: int | None) -> _Point:
    """Totals at a moment: of the line before it while nothing changed, else of the first line after it."""
    zero = _Point(process.start_ns, 0, {"devices": []})
    if not process.totals or (at_ns is not None and at_ns <= process.start_ns):
        return zero
    times = [ref.unix_ns for ref in process.totals]
    i = len(times) - 1 if at_ns is None else min(bisect.bisect_left(times, at_ns), len(times) - 1)
    ref, line = process.totals[i], process.read(process.totals[i])
    covered = _number(line.get("covered_ns")) or 0
    if at_ns is None or ref.same_until_ns is None or at_ns > ref.same_until_ns:
        return _Point(ref.unix_ns, covered, line)
    before = process.read(process.totals[i - 1]) if i > 0 else zero.totals
    began = process.totals[i - 1].unix_ns if i > 0 else zero.unix_ns
    had = _number(before.get("covered_ns")) or 0
    share = (at_ns - began) / max(1, ref.unix_ns - began)
    return _Point(at_ns, had + int((covered - had) * share), before)


def _part(device: Record, name: str) -> Record | None:
    part = device.get(name)
    return part if isinstance(part, dict) else None


def _difference(before: Record | None, after: Record | None, name: str) -> int | None:
    """A running total's growth; None when its end is unknown. Without a start line it began at 0."""
    end = _number(after.get(name)) if after is not None else None
    start = _number(before.get(name)) if before is not None else 0
    return None if end is None or start is None else end - start


def _copy_classes(device: Record) -> dict[CopyClass, Record]:
    copies = _part(device, "copies")
    result: dict[CopyClass, Record] = {}
    for entry in (copies or {}).get("by", []):
        kind, src, dst = (str(entry.get(name)) for name in ("kind", "src", "dst"))
        outbound = entry.get("outbound")
        peer = _number(entry.get("peer"))
        key = CopyClass(kind, src, dst, peer, outbound if isinstance(outbound, bool) else None)
        result[key] = entry
    other = _part(copies or {}, "other")
    if other and other.get("count"):
        result[CopyClass("other", "unknown", "unknown")] = other
    return result


def _copies(before: Record, after: Record) -> dict[CopyClass, Copies] | None:
    if _part(after, "copies") is None:
        return None
    old, result = _copy_classes(before), {}
    for key, entry in _copy_classes(after).items():
        start = old.get(key, {})
        sizes = {int(k): v - start.get("sizes", {}).get(k, 0) for k, v in entry.get("sizes", {}).items()}
        n, n_bytes, time, untimed = (
            int(entry.get(f, 0)) - int(start.get(f, 0)) for f in ("count", "bytes", "time_ns", "untimed")
        )
        if n > 0:
            result[key] = Copies(n, n_bytes, time, untimed, {k: v for k, v in sizes.items() if v > 0})
    return dict(sorted(result.items(), key=lambda item: -item[1].bytes))


def _devices(point: _Point) -> dict[int, Record]:
    return {
        d["device"]: d for d in point.totals["devices"] if isinstance(d, dict) and _number(d.get("device")) is not None
    }


def _count_device(process: Process, ordinal: int, start: _Point, end: _Point) -> DeviceCount:
    before, after = _devices(start).get(ordinal, {}), _devices(end).get(ordinal, {})
    known = process.device(ordinal)

    def grown(part: str, name: str) -> int | None:
        return _difference(_part(before, part), _part(after, part), name)

    untimed = [grown(part, "untimed") for part in ("kernels", "copies", "memsets", "graphs")]
    return DeviceCount(
        process=process.key, pid=process.pid, program=process.program, device=ordinal,
        device_name=known.get("name"), uuid=known.get("uuid"),
        start_ns=start.unix_ns, end_ns=end.unix_ns, covered_ns=end.covered_ns - start.covered_ns,
        kernels=grown("kernels", "count"), kernel_time_ns=grown("kernels", "time_ns"),
        kernel_busy_ns=grown("kernels", "busy_ns"),
        copies=_copies(before, after), copy_busy_ns=grown("copies", "busy_ns"),
        busy_ns=_difference(before or None, after, "busy_ns"),
        busy_late_ns=_difference(before or None, after, "busy_late_ns"),
        memsets=grown("memsets", "count"), memset_bytes=grown("memsets", "bytes"),
        memset_time_ns=grown("memsets", "time_ns"), graph_launches=grown("graphs", "launches"),
        untimed=sum(n for n in untimed if n is not None),
        dropped=_difference(start.totals if "dropped" in start.totals else None, end.totals, "dropped"),
    )  # fmt: skip


def count(census: Census, window: Window | None = None) -> list[DeviceCount]:
    """Count a window, one entry a (process, device) that had work by its end.

    Raises:
        SourceError: A totals line does not hold what the format says.
        UsageError: The window ends before it starts.
    """
    chosen = window or Window()
    if chosen.start_ns is not None and chosen.end_ns is not None and chosen.end_ns <= chosen.start_ns:
        raise UsageError("the window ends before it starts", "give the earlier time first")
    result = []
    for process in census.processes:
        try:
            start = _point(process, chosen.start_ns if chosen.start_ns is not None else process.start_ns)
            end = _point(process, chosen.end_ns)
            result += [_count_device(process, ordinal, start, end) for ordinal in sorted(_devices(end))]
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise SourceError(
                f"{process.path.name} holds a totals line that is not in format 1 ({type(error).__name__})",
                "the file was edited; record again",
            ) from error
    return result


def device_frame(counts: Iterable[DeviceCount]) -> pl.DataFrame:
    """One row a (process, device): the fields of DeviceCount but the copies; ``coverage_ratio`` is 0 to 1."""
    fields = {name: pl.Int64 for name in DeviceCount.__dataclass_fields__ if name != "copies"}
    schema: dict[str, Any] = {**fields, "process": pl.String, "program": pl.String, "device_name": pl.String}
    schema |= {"uuid": pl.String, "coverage_ratio": pl.Float64}
    rows = [{**{n: getattr(c, n) for n in fields}, "coverage_ratio": c.coverage_ratio} for c in counts]
    return pl.DataFrame(rows, schema=schema)


COPY_SCHEMA: dict[str, Any] = {
    "process": pl.String, "device": pl.Int64, "kind": pl.String, "src": pl.String, "dst": pl.String,
    "peer": pl.Int64, "outbound": pl.Boolean, "count": pl.Int64, "bytes": pl.Int64, "time_ns": pl.Int64,
    "untimed": pl.Int64,
}  # fmt: skip


def copy_frame(counts: Iterable[DeviceCount]) -> pl.DataFrame:
    """One row a (process, device, copy class): count, bytes, GPU time in ns."""
    rows = [
        {
            "process": c.process,
            "device": c.device,
            **vars(key),
            **{n: v for n, v in vars(sums).items() if n != "sizes"},
        }
        for c in counts
        for key, sums in (c.copies or {}).items()
    ]
    return pl.DataFrame(rows, schema=COPY_SCHEMA)


def size_frame(counts: Iterable[DeviceCount]) -> pl.DataFrame:
    """One row a (process, device, copy class, size bin): copies of 2^bin up to 2^(bin+1) - 1 bytes."""
    schema = {k: v for k, v in COPY_SCHEMA.items() if k not in ("bytes", "time_ns", "untimed")} | {"bin": pl.Int64}
    rows = [
        {"process": c.process, "device": c.device, **vars(key), "bin": size_bin, "count": n}
        for c in counts
        for key, sums in (c.copies or {}).items()
        for size_bin, n in sorted(sums.sizes.items())
    ]
    return pl.DataFrame(rows, schema=schema)


def timeline(census: Census) -> pl.DataFrame:
    """One row a totals line and device: running totals over time, for rates and progress; times in ns."""
    rows = []
    for process in census.processes:
        for line in process.lines():
            for ordinal, device in _devices(_Point(line["unix_ns"], 0, line)).items():
                kernels, copies = _part(device, "kernels") or {}, _part(device, "copies") or {}
                rows.append((
                    process.key, ordinal, line["unix_ns"], line.get("on") is True, kernels.get("count"),
                    kernels.get("busy_ns"), copies.get("count"), copies.get("bytes"), copies.get("busy_ns"),
                    device.get("busy_ns"),
                ))  # fmt: skip
    names = ("kernels", "kernel_busy_ns", "copies", "copy_bytes", "copy_busy_ns", "busy_ns")
    schema = {"process": pl.String, "device": pl.Int64, "unix_ns": pl.Int64, "on": pl.Boolean}
    return pl.DataFrame(rows, schema=schema | dict.fromkeys(names, pl.Int64), orient="row")


KERNEL_SCHEMA: dict[str, Any] = {
    "process": pl.String, "device": pl.Int64, "name": pl.String, "count": pl.Int64, "time_ns": pl.Int64,
    "longest_ns": pl.Int64, "grid": pl.List(pl.Int64), "block": pl.List(pl.Int64), "registers": pl.Int64,
    "static_shared_bytes": pl.Int64, "dynamic_shared_bytes": pl.Int64, "shape_varies": pl.Boolean,
}  # fmt: skip


def kernel_frame(census: Census) -> pl.DataFrame:
    """The kernels that took the most time since their process's start; the shape is of the longest run."""
    rows = [
        {"process": process.key, **{name: entry.get(name) for name in list(KERNEL_SCHEMA)[1:]}}
        for process in census.processes
        for entry in (process.kernels or {}).get("top", [])
    ]
    return pl.DataFrame(rows, schema=KERNEL_SCHEMA).sort(
        "time_ns", descending=True, nulls_last=True, maintain_order=True
    )
