"""The recording as plain tables with every join resolved: what ``nsysparse export`` writes in any format.

Each column is defined once, with its unit and its meaning; formats that can carry them, carry them. Rows are in the
order of their start, so that the same recording gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from nsysparse import schema
from nsysparse.accounting.host import thread_names
from nsysparse.joins.nesting import FOREVER
from nsysparse.joins.work import Work
from nsysparse.source import Trace

NS, BYTES, NUMBER, TEXT, YES_NO = "ns", "bytes", "", "text", "yes/no"


@dataclass(frozen=True)
class Field:
    """A column: name, unit, meaning, and the expression that makes it (by default the column of that name)."""

    name: str
    unit: str
    meaning: str
    source: pl.Expr | None = None

    @property
    def expression(self) -> pl.Expr:
        """The column, under its name; categories as plain text."""
        made = pl.col(self.name) if self.source is None else self.source
        return (made.cast(pl.String) if self.unit == TEXT else made).alias(self.name)


@dataclass(frozen=True)
class Exported:
    """A table of the export.

    Attributes:
        name: Its name.
        meaning: What a row is.
        frame: The rows.
        fields: Its columns, in order.
        key: Column that identifies a row, "" for none.
        refers: Column to the table whose key it holds.
    """

    name: str
    meaning: str
    frame: pl.DataFrame
    fields: tuple[Field, ...]
    key: str = ""
    refers: Mapping[str, str] = field(default_factory=dict)


_SPAN = (
    Field("start_ns", NS, "start, ns since the start of the recording"),
    Field("end_ns", NS, "end"),
    Field("duration_ns", NS, "length", pl.col("end_ns") - pl.col("start_ns")),
)
_PID = Field("pid", NUMBER, "process id", schema.pid_of(pl.col("process")))
_TID = Field("tid", NUMBER, "thread id", schema.tid_of(pl.col("thread")))
_PLACE = (
    Field("device", NUMBER, "device it ran on, see devices"),
    _PID,
    Field("context", NUMBER, "CUDA context"),
    Field("stream", NUMBER, "CUDA stream"),
)
_SENT = (
    Field("call", NUMBER, "the API call that sent it, see calls; none when it was not recorded"),
    Field("api", TEXT, "function that sent it"),
    Field("tid", NUMBER, "thread that sent it", schema.tid_of(pl.col("thread"))),
    Field("path", NUMBER, "NVTX path it was sent from, see paths; 0 for none"),
    Field("nvtx_path", TEXT, "that path as text"),
    Field("path_by", TEXT, "thread: a range of the sending thread; in time: the only range open then; none"),
)
_NODE = Field("graph_node", NUMBER, "node of the CUDA graph it ran in")


def _kind(column: str, names: dict[int, str]) -> pl.Expr:
    return pl.col(column).replace_strict(names, default=pl.format("kind {}", pl.col(column)), return_dtype=pl.String)


KERNELS = (
    *_SPAN,
    Field("name", TEXT, "demangled name"),
    Field("short_name", TEXT, "name without arguments"),
    *_PLACE,
    *_SENT,
    _NODE,
    *(
        Field(f"{a}_{d}", NUMBER, f"{what} in {d}")
        for a, what in (("grid", "blocks"), ("block", "threads of a block"))
        for d in "xyz"
    ),
    Field("registers", NUMBER, "registers a thread"),
    Field("static_shared_bytes", BYTES, "static shared memory of a block"),
    Field("dynamic_shared_bytes", BYTES, "dynamic shared memory of a block"),
)
COPIES = (
    *_SPAN,
    Field("kind", TEXT, "direction", _kind("kind", schema.COPY_KINDS)),
    Field("bytes", BYTES, "bytes moved"),
    Field("src_kind", TEXT, "kind of the source memory", _kind("src_kind", schema.MEMORY_KINDS)),
    Field("dst_kind", TEXT, "kind of the destination memory", _kind("dst_kind", schema.MEMORY_KINDS)),
    *_PLACE,
    *_SENT,
    _NODE,
    Field("src_ordinal", NUMBER, "source device of a peer copy, CUDA ordinal in its process"),
    Field("dst_ordinal", NUMBER, "destination device of a peer copy, CUDA ordinal in its process"),
    Field("copy_count", NUMBER, "copies that this record stands for"),
)
MEMSETS = (
    *_SPAN,
    Field("bytes", BYTES, "bytes filled"),
    Field("memory_kind", TEXT, "kind of the memory", _kind("memory_kind", schema.MEMORY_KINDS)),
    *_PLACE,
    *_SENT,
    _NODE,
)
GRAPHS = (*_SPAN, Field("graph", NUMBER, "CUDA graph, of which the recording has the outline only"), *_PLACE, *_SENT)
MIGRATIONS = (
    *_SPAN,
    Field("kind", TEXT, "direction of a unified-memory migration", _kind("kind", schema.COPY_KINDS)),
    Field("bytes", BYTES, "bytes moved"),
    Field("device", NUMBER, "device, see devices"),
    _PID,
)
CALLS = (
    Field("call", NUMBER, "number of the call"),
    *_SPAN,
    Field("name", TEXT, "function, without version suffix"),
    Field("does", TEXT, "what it does: launch, copy, memset, synchronize, ..."),
    Field("waits", YES_NO, "it blocks its thread until the GPU is done"),
    Field("failed", YES_NO, "it returned an error"),
    _PID,
    _TID,
    Field("thread_name", TEXT, "name of the thread"),
    Field("correlation", NUMBER, "correlation id in its process"),
)
RANGES = (
    Field("range", NUMBER, "number of the range"),
    Field("start_ns", NS, "start"),
    Field("end_ns", NS, "end; none when it never ended", pl.col("end_ns").replace(FOREVER, None)),
    Field("duration_ns", NS, "length", pl.col("end_ns").replace(FOREVER, None) - pl.col("start_ns")),
    Field("name", TEXT, "name, with its domain in front unless that is the default one"),
    Field(
        "style",
        TEXT,
        "push/pop or start/end",
        pl.when("push_pop").then(pl.lit("push/pop")).otherwise(pl.lit("start/end")),
    ),
    _PID,
    _TID,
    Field("end_tid", NUMBER, "thread that ended it", schema.tid_of(pl.col("end_thread"))),
    Field("thread_name", TEXT, "name of the thread"),
    Field("depth", NUMBER, "1 for an outermost push/pop range; 0 for start/end ranges"),
    Field("path", NUMBER, "its NVTX path, see paths"),
)
PATHS = (
    Field("path", NUMBER, "number of the path"),
    Field("name", TEXT, "the ranges from the outermost on, joined by /", pl.col("text")),
    Field("label", TEXT, "innermost name; # stands for digits where that brings names together"),
    Field("depth", NUMBER, "ranges in it"),
    Field("parent", NUMBER, "path around it"),
)
DEVICES = (
    Field("device", NUMBER, "number of the device in this recording"),
    Field("name", TEXT, "how it is printed", pl.col("label")),
    Field("model", TEXT, "model; none where the export does not tell", pl.col("name")),
    Field("gpu", NUMBER, "number of the GPU on its machine"),
    Field("processes", TEXT, "processes that used it"),
    Field("memory_bytes", BYTES, "memory"),
    Field("sm_count", NUMBER, "multiprocessors"),
)
OSRT = (*_SPAN, Field("name", TEXT, "function of the OS runtime"), _PID, _TID)
OVERHEADS = (*_SPAN, Field("name", TEXT, "what the profiler did meanwhile"), _PID, _TID)


def tables_of(work: Work, trace: Trace, span: tuple[int, int] | None = None) -> list[Exported]:
    """All tables of a recording, or of the part of it that the work is.

    Args:
        work: The joined recording.
        trace: The recording itself, for names and what the work has not.
        span: Window that the work was cut to; None for all.
    """
    refers = {"device": "devices", "call": "calls", "path": "paths"}
    kernels = _named(_named(work.kernels, trace, "name_id", "name"), trace, "short_name_id", "short_name")
    threads = thread_names(trace, pl.concat([pl.Series(work.calls.threads), work.ranges.frame["thread"]]))
    of_process = work.calls.whole().with_columns(process=schema.process_of(pl.col("thread")))
    calls, ranges = (_with_thread(f, threads) for f in (of_process, work.ranges.frame))
    made = [
        Exported("devices", "a device that did any work", work.devices, DEVICES, "device"),
        Exported("paths", "an NVTX path", work.ranges.paths, PATHS, "path"),
        Exported("calls", "a CUDA API call", calls, CALLS, "call"),
        Exported("ranges", "an NVTX range", ranges, RANGES, "range", {"path": "paths"}),
        Exported("kernels", "a kernel's execution", kernels, KERNELS, refers=refers),
        Exported("copies", "a memory copy", work.copies, COPIES, refers=refers),
        Exported("memsets", "a memory fill", work.memsets, MEMSETS, refers=refers),
        Exported("graphs", "a whole CUDA graph", work.graphs, GRAPHS, refers=refers),
        Exported("migrations", "a unified-memory migration", work.migrations, MIGRATIONS, refers={"device": "devices"}),
        Exported("osrt", "a call of the OS runtime that took long", _host(trace, "osrt", span), OSRT),
        Exported("overheads", "time that the profiler took in the program", _host(trace, "overheads", span), OVERHEADS),
    ]
    paths = work.ranges.paths.select("path", nvtx_path="text")
    return [_resolved(t, paths) for t in made]


def _resolved(table: Exported, paths: pl.DataFrame) -> Exported:
    frame = table.frame
    if any(f.name == "nvtx_path" for f in table.fields):
        texts = paths.with_columns(pl.when(pl.col("path") > 0).then("nvtx_path").cast(pl.Categorical))
        frame = frame.join(texts, on="path", how="left", maintain_order="left")
    if not table.key:
        frame = frame.sort("start_ns", "end_ns", maintain_order=True)
    selected = frame.select(f.expression for f in table.fields)
    return Exported(table.name, table.meaning, selected, table.fields, table.key, table.refers)


def _named(frame: pl.DataFrame, trace: Trace, reference: str, name: str) -> pl.DataFrame:
    texts = trace.strings(frame[reference]).select(
        pl.col("id").alias(reference), pl.col("value").cast(pl.Categorical).alias(name)
    )
    return frame.join(texts, on=reference, how="left", maintain_order="left")


def _with_thread(frame: pl.DataFrame, threads: pl.DataFrame) -> pl.DataFrame:
    names = threads.select("thread", thread_name="name")
    return frame.join(names, on="thread", how="left", maintain_order="left")


def _host(trace: Trace, table: str, span: tuple[int, int] | None) -> pl.DataFrame:
    frame = _named(trace.frame(table), trace, "name_id", "name")
    if span is not None:
        frame = frame.filter((pl.col("start_ns") < span[1]) & (pl.col("end_ns") > span[0]))
    return frame.with_columns(process=schema.process_of(pl.col("thread")))
