"""What each side counted, under the same names: a recording's rows, and a census's running totals.

Memory kinds and copy kinds are names here, because CUPTI numbers memory kinds one higher than exports do. A record is
one operation on both sides, so a batched copy counts once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import polars as pl

from nsysparse import schema
from nsysparse.accounting.windows import Window
from nsysparse.census.windows import CopyClass, DeviceCount
from nsysparse.intervals import Intervals
from nsysparse.joins.work import Work
from nsysparse.recorded import list_recorded
from nsysparse.source import Trace

PARTS = ("kernels", "copies", "memsets", "graph launches", "migrations", "busy")
ANY = "any"


@dataclass(frozen=True)
class Item:
    """What is compared: one of PARTS; for copies also the kind, the memory kinds and, of peer copies, the way."""

    part: str
    kind: str = ""
    src: str = ""
    dst: str = ""
    way: str = ""

    @property
    def label(self) -> str:
        """As it is printed."""
        memory = f"{self.src} to {self.dst}" if self.src and self.src != ANY else ""
        return " ".join(word for word in (self.part, self.kind, memory, self.way and f"({self.way})") if word)


@dataclass(frozen=True)
class Tally:
    """Operations, their bytes, and the sum of their times; None where the item has no such figure."""

    count: int | None = None
    bytes: int | None = None
    time_ns: int | None = None

    def __add__(self, other: Tally) -> Tally:
        both = ((self.count, other.count), (self.bytes, other.bytes), (self.time_ns, other.time_ns))
        return Tally(*(None if a is None and b is None else (a or 0) + (b or 0) for a, b in both))


Tallies = dict[Item, Tally]


@dataclass(frozen=True)
class Side:
    """One side's figures.

    Attributes:
        processes: Process -> item -> figures; only processes with GPU work.
        unknown: Part -> why this side does not know it.
    """

    processes: dict[str, Tallies]
    unknown: Mapping[str, str] = field(default_factory=dict)

    def sums(self, without: Iterable[str] = ()) -> Tallies:
        """Figures of all processes, or of all but some."""
        left_out, total = set(without), defaultdict[Item, Tally](Tally)
        for process, tallies in self.processes.items():
            if process not in left_out:
                for item, tally in tallies.items():
                    total[item] += tally
        return dict(total)

    def has_memory_kinds(self) -> bool:
        """Whether every copy says from which memory to which it went."""
        return not any(i.src == "n/a" or i.dst == "n/a" for t in self.processes.values() for i in t)

    def without_memory_kinds(self) -> Side:
        """The same with copies told apart by kind alone, for exports that hold no memory kinds."""
        merged = {}
        for process, tallies in self.processes.items():
            total = defaultdict[Item, Tally](Tally)
            for item, tally in tallies.items():
                total[replace(item, src=ANY, dst=ANY) if item.part == "copies" else item] += tally
            merged[process] = dict(total)
        return Side(merged, self.unknown)


def side_of_trace(trace: Trace, work: Work, window: Window | None) -> Side:
    """Count a recording; in a window, the operations that start in it."""
    found: dict[str, Tallies] = defaultdict(dict)
    untimed = set(work.untimed["table"])
    parts = {"kernels": work.kernels, "copies": work.copies, "memsets": work.memsets}
    for name, frame in parts.items():
        rows = _with_untimed(trace, name, frame) if window is None and name in untimed else frame
        _count_rows(found, name, _inside(rows, window))
    _count_rows(found, "migrations", _inside(work.migrations, window))
    _count_launches(found, work, window)
    _measure_busy(found, work, window)
    return Side(dict(found), _not_traced(trace))


def _with_untimed(trace: Trace, name: str, timed: pl.DataFrame) -> pl.DataFrame:
    """All rows of a table: those whose times are not usable belong to the counts of the whole recording."""
    frame = trace.frame(name)
    if name == "copies":
        frame = frame.filter(~pl.col("kind").is_in(schema.UNIFIED_KINDS).fill_null(False))
    return frame if frame.height != timed.height else timed


def _inside(frame: pl.DataFrame, window: Window | None) -> pl.DataFrame:
    if window is None:
        return frame
    return frame.filter((pl.col("start_ns") >= window.start_ns) & (pl.col("start_ns") < window.end_ns))


def _count_rows(found: dict[str, Tallies], part: str, frame: pl.DataFrame) -> None:
    start, end = pl.col("start_ns"), pl.col("end_ns")
    usable = ((start > 0) & (end >= start)).fill_null(False)
    keys, no_bytes = ["process"], "bytes" not in frame.columns
    if part in ("copies", "migrations"):
        peer = pl.when(pl.col("kind") == 10).then(pl.format("{} to {}", "src_ordinal", "dst_ordinal"))
        frame = frame.with_columns(way=peer.fill_null(""))
        keys += ["kind", "src_kind", "dst_kind", "way"]
    size = pl.lit(None, pl.Int64) if no_bytes else pl.col("bytes").sum()
    time = pl.when(usable).then(end - start).otherwise(0).sum()
    table = frame.group_by(keys).agg(pl.len().cast(pl.Int64).alias("n"), size.alias("size"), time.alias("time"))
    for row in table.to_dicts():
        item = Item(part)
        if len(keys) > 1:
            kind = schema.name_of(schema.COPY_KINDS, row["kind"])
            item = Item(part, kind, _memory(row["src_kind"]), _memory(row["dst_kind"]), row["way"])
            item = item if part == "copies" else Item(part, kind)
        tallies = found[_process(row["process"])]
        tallies[item] = tallies.get(item, Tally()) + Tally(row["n"], row["size"], row["time"])


def _memory(number: int | None) -> str:
    """A memory kind's name as the census spells it."""
    return schema.name_of(schema.MEMORY_KINDS, number).lower().replace(" ", "_")


def _process(serialized: int | None) -> str:
    return "unknown" if serialized is None else str(serialized >> 24 & schema.THREAD_MASK)


def _count_launches(found: dict[str, Tallies], work: Work, window: Window | None) -> None:
    """Launches of graphs, by the calls: a graph in node mode leaves no row of its own."""
    launches = _inside(work.calls.where(work.calls.doing("graph launch") & ~work.calls["failed"]), window)
    for process, n in launches.group_by(schema.process_of(pl.col("thread"))).len().iter_rows():
        found[_process(process)][Item("graph launches")] = Tally(n)


def _measure_busy(found: dict[str, Tallies], work: Work, window: Window | None) -> None:
    """Lengths of unions for each device of each process, as a census has them; clipped to the window."""
    everything = work.all()
    kinds = {"kernels": ["kernels"], "copies": ["copies"], "everything": ["kernels", "copies", "memsets", "graphs"]}
    for what, members in kinds.items():
        rows = everything.filter(pl.col("kind").cast(pl.String).is_in(members))
        for (process, _), part in rows.group_by("process", "device"):
            union = Intervals.union_of(part["start_ns"], part["end_ns"])
            union = union if window is None else union.clip(window.start_ns, window.end_ns)
            tallies, item = found[_process(process)], Item("busy", what)
            tallies[item] = tallies.get(item, Tally()) + Tally(time_ns=union.length)


def _not_traced(trace: Trace) -> dict[str, str]:
    """Parts about which the recording says nothing, as when CUDA was not traced at all."""
    tables = {
        "kernels": "CUPTI_ACTIVITY_KIND_KERNEL",
        "copies": "CUPTI_ACTIVITY_KIND_MEMCPY",
        "memsets": "CUPTI_ACTIVITY_KIND_MEMSET",
        "graph launches": "CUPTI_ACTIVITY_KIND_RUNTIME",
    }
    states = {r.table: r.state for r in list_recorded(trace)}
    unknown = {part: "the trace did not record it" for part, t in tables.items() if states[t] == "not recorded"}
    if states[tables["graph launches"]] != "recorded":
        unknown["graph launches"] = "the trace holds no API calls"
    return unknown


def side_of_census(counts: Iterable[DeviceCount]) -> Side:
    """Figures of a census, as counted in a window."""
    found: dict[str, Tallies] = defaultdict(dict)
    unknown: dict[str, str] = {}
    for c in counts:
        tallies, mine = found[c.process], _tallies_of(c)
        known = {item.part for item in mine}
        for part in ("kernels", "copies", "memsets", "graph launches"):
            if part not in known and not (part == "copies" and c.copies is not None):
                unknown[part] = f"the census did not record {part}"
        if Item("busy", "everything") not in mine:
            unknown["busy"] = "the census did not record every kind that makes a device busy"
        for item, tally in mine.items():
            tallies[item] = tallies.get(item, Tally()) + tally
    return Side(dict(found), unknown)


def _tallies_of(c: DeviceCount) -> Tallies:
    mine: Tallies = {}
    if c.kernels is not None:
        mine[Item("kernels")] = Tally(c.kernels, None, c.kernel_time_ns)
    for key, sums in (c.copies or {}).items():
        item = Item("copies", key.kind, key.src, key.dst, _way(c.device, key))
        mine[item] = mine.get(item, Tally()) + Tally(sums.count, sums.bytes, sums.time_ns)
    if c.memsets is not None:
        mine[Item("memsets")] = Tally(c.memsets, c.memset_bytes, c.memset_time_ns)
    if c.graph_launches is not None:
        mine[Item("graph launches")] = Tally(c.graph_launches)
    busy = {"kernels": c.kernel_busy_ns, "copies": c.copy_busy_ns, "everything": c.busy_ns}
    return mine | {Item("busy", what): Tally(time_ns=ns) for what, ns in busy.items() if ns is not None}


def _way(device: int, key: CopyClass) -> str:
    if key.peer is None:
        return ""
    return f"{device} to {key.peer}" if key.outbound else f"{key.peer} to {device}"
