"""Python stacks inside NVTX payloads: decoded by the layouts that the export describes, all blobs at once.

A blob begins with the number of payloads in it (8 bytes) and, for each, its layout, size and place (8 bytes
each). The layouts are in the export: a Python stack is a layout with an array whose elements have the fields
Function, File and Line, and whose length is in another field. An export made with JSON has the fields as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from nsysparse import schema
from nsysparse.source import Trace
from nsysparse.stacks.chains import Index, Lists

BY_CALL, BY_SAMPLING = "backtrace", "sampling"
DOMAINS = {r"^Python Backtrace": BY_CALL, r"^Python Periodic Sampling": BY_SAMPLING}
ARRAY_FLAGS, LENGTH_IN_FIELD = (
    0x70,
    0x30,
)  # the bits that say how an array's length is told, and: by another field
HEAD_BYTES, PART_BYTES = 8, 24
# Payload entry types of NVTX by number; 80 is a registered string, in an export a reference to its string table.
TYPES = {
    **{1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<i8", 8: "<u8", 9: "<i8", 10: "<u8"},
    **{
        11: "i1",
        12: "u1",
        13: "<i2",
        14: "<u2",
        15: "<i4",
        16: "<u4",
        17: "<i8",
        18: "<u8",
        22: "<u8",
        23: "<u8",
    },
    80: "<u8",
}
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Layout:
    """Where a Python stack's fields lie; (place in bytes, numpy type) of each.

    Attributes:
        schema: Number of the layout.
        count: The number of frames, from the payload's begin.
        frames: Where the frames begin.
        frame_bytes: Size of a frame.
        function, file, line: From a frame's begin.
    """

    schema: int
    count: tuple[int, str]
    frames: int
    frame_bytes: int
    function: tuple[int, str]
    file: tuple[int, str]
    line: tuple[int, str]


@dataclass(frozen=True)
class PythonStacks:
    """Decoded events.

    Attributes:
        events: ``time_ns``, ``thread``, ``by`` (BY_CALL or BY_SAMPLING), in order of time.
        frames: The frames of each event, leaf first, as rows of ``table``.
        table: Distinct frames: ``function``, ``file`` (texts as nsys wrote them), ``line``.
        undecoded: Events in the Python domains whose payload could not be read.
    """

    events: pl.DataFrame
    frames: Lists
    table: pl.DataFrame
    undecoded: int


def read_python(trace: Trace) -> PythonStacks:
    """Every Python stack of a recording."""
    domains = _python_domains(trace)
    none = pl.DataFrame(schema={"time_ns": pl.Int64, "thread": pl.Int64, "by": pl.String})
    table = pl.DataFrame(schema={"function": pl.String, "file": pl.String, "line": pl.Int64})
    empty = PythonStacks(none, Lists(np.zeros(1, np.int64), np.empty(0, np.int64)), table, 0)
    if not domains.height:
        return empty
    rows = trace.frame("payloads").filter(
        (pl.col("type") == schema.NVTX_MARK) & pl.col("time_ns").is_not_null() & pl.col("thread").is_not_null()
    )
    trace.release("payloads")
    rows = (
        rows.with_columns(process=schema.process_of(pl.col("thread")))
        .join(domains, on=["process", "domain"], how="inner")
        .sort("time_ns", maintain_order=True)
    )
    if not rows.height:
        return empty
    length, flat = _decode(rows, trace)
    good = length > 0
    distinct = flat.unique(maintain_order=True).with_row_index("frame")
    code = flat.join(distinct, on=flat.columns, how="left", maintain_order="left", nulls_equal=True)["frame"]
    return PythonStacks(
        rows.filter(pl.Series(good)).select("time_ns", "thread", "by"),
        Lists.of_lengths(length[good], code.cast(pl.Int64).to_numpy()),
        distinct.drop("frame"),
        int((~good).sum()),
    )


def _python_domains(trace: Trace) -> pl.DataFrame:
    """(``process``, ``domain``) to ``by``."""
    rows = trace.frame("nvtx").filter((pl.col("type") == schema.NVTX_DOMAIN) & pl.col("thread").is_not_null())
    named = rows.join(trace.strings(rows["text_id"]), left_on="text_id", right_on="id", how="left").select(
        schema.process_of(pl.col("thread")).alias("process"), "domain", name=pl.coalesce("value", "text")
    )
    by = pl.lit(None, pl.String)
    for pattern, kind in DOMAINS.items():
        by = pl.when(pl.col("name").str.contains(pattern)).then(pl.lit(kind)).otherwise(by)
    return (
        named.with_columns(by=by)
        .drop_nulls("by")
        .unique(["process", "domain"], keep="first", maintain_order=True)
        .select("process", "domain", "by")
    )


def _decode(rows: pl.DataFrame, trace: Trace) -> tuple[Index, pl.DataFrame]:
    """Frames of each row: how many, and end to end ``function``, ``file``, ``line``."""
    length = np.zeros(rows.height, np.int64)
    parts: list[tuple[Index, pl.DataFrame]] = []
    blob = rows["payload"]
    for layout in read_layouts(trace):
        these, lists, fields = decode_blobs(blob, layout)
        length[these] = lists.length
        parts.append((these[lists.owner()], _with_texts(fields, trace)))
    these, lists, fields = _decode_json(rows, trace, length == 0)
    length[these] = lists.length
    parts.append((these[lists.owner()], fields))
    owner = np.concatenate([o for o, _ in parts])
    flat = pl.concat([f for _, f in parts])
    return length, flat[np.argsort(owner, kind="stable")]


def _with_texts(fields: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    strings = trace.strings(pl.concat([fields["function"], fields["file"]]))
    for column in ("function", "file"):
        fields = fields.join(strings, left_on=column, right_on="id", how="left", maintain_order="left")
        fields = fields.with_columns(pl.col("value").alias(column)).drop("value")
    return fields.select("function", "file", "line")


def read_layouts(trace: Trace) -> list[Layout]:
    """The layouts that hold stacks of Python frames, told by the fields of their elements."""
    entries = trace.frame("payload_entries").unique(["domain", "schema", "field"], maintain_order=True)
    sizes = {(r["domain"], r["schema"]): r["size_bytes"] for r in trace.frame("payload_schemas").iter_rows(named=True)}
    fields: dict[tuple[int, int], list[dict[str, object]]] = {}
    for row in entries.sort("field").iter_rows(named=True):  # a handful of fields
        fields.setdefault((row["domain"], row["schema"]), []).append(row)
    found: dict[int, Layout] = {}
    for (domain, number), rows in fields.items():
        for row in rows:
            element = fields.get((domain, row["type"]), [])  # type: ignore[arg-type]
            layout = _layout(number, rows, row, element, sizes.get((domain, row["type"])))
            if layout is not None:
                found.setdefault(number, layout)
    return list(found.values())


def _layout(
    number: int,
    rows: list[dict[str, object]],
    array: dict[str, object],
    element: list[dict[str, object]],
    size: int | None,
) -> Layout | None:
    """The layout, if this array is one of Python frames with a length that can be read."""
    names = {str(e["name"]).lower(): e for e in element}
    if (
        not {"function", "file", "line"} <= names.keys()
        or int(str(array["flags"] or 0)) & ARRAY_FLAGS != LENGTH_IN_FIELD
    ):
        return None
    counts = [r for r in rows if r["field"] == array["detail"]]
    wanted = [names["function"], names["file"], names["line"], *counts]
    if not counts or any(w["type"] not in TYPES for w in wanted):
        return None
    function, file, line, count = ((int(str(w["offset"])), TYPES[int(str(w["type"]))]) for w in wanted)
    end = max(offset + np.dtype(kind).itemsize for offset, kind in (function, file, line))
    return Layout(number, count, int(str(array["offset"])), size or -(-end // 8) * 8, function, file, line)


def decode_blobs(blobs: pl.Series, layout: Layout) -> tuple[Index, Lists, pl.DataFrame]:
    """Decode the payloads of one layout.

    Args:
        blobs: Payloads of any layout, with NULLs.
        layout: The layout.

    Returns:
        Rows that hold such a payload, whole; their frames, leaf first, as rows of the third:
        ``function``, ``file`` (string references), ``line``.
    """
    data, begin, end = _buffer(blobs)
    rows = np.flatnonzero(end - begin >= HEAD_BYTES + PART_BYTES)
    parts = _integers(data, begin[rows], "<u8")
    payload, size = np.full(rows.size, -1, np.int64), np.zeros(rows.size, np.int64)
    for part in range(int(min(parts.max(initial=0), 16))):  # payloads of an event
        head = begin[rows] + HEAD_BYTES + part * PART_BYTES
        there = (part < parts) & (head + PART_BYTES <= end[rows]) & (payload < 0)
        at = np.where(there, head, begin[rows])
        number, length, offset = (_integers(data, at + 8 * i, "<u8") for i in range(3))
        room = end[rows] - begin[rows]
        fits = there & (number == layout.schema) & (offset >= 0) & (offset <= room) & (length >= 0)
        fits &= length <= room - np.clip(offset, 0, room)
        payload, size = np.where(fits, begin[rows] + offset, payload), np.where(fits, length, size)
    whole = (payload >= 0) & (size >= max(layout.count[0] + np.dtype(layout.count[1]).itemsize, layout.frames))
    rows, payload, size = rows[whole], payload[whole], size[whole]
    count = _integers(data, payload + layout.count[0], layout.count[1])
    fits = (count > 0) & (count <= (size - layout.frames) // layout.frame_bytes)
    rows, payload, count = rows[fits], payload[fits], count[fits]
    lists = Lists.of_lengths(count, np.arange(int(count.sum())))
    frame = np.repeat(payload + layout.frames, count) + lists.place() * layout.frame_bytes
    fields = {
        name: _integers(data, frame + offset, kind)
        for name, (offset, kind) in (
            ("function", layout.function),
            ("file", layout.file),
            ("line", layout.line),
        )
    }
    return rows, lists, pl.DataFrame(fields, schema=dict.fromkeys(fields, pl.Int64))


def _buffer(blobs: pl.Series) -> tuple[Bytes, Index, Index]:
    """All bytes of a column end to end, and where each value begins and ends."""
    chunk = blobs.cast(pl.Binary).rechunk().to_arrow().cast(pa.large_binary())
    if isinstance(chunk, pa.ChunkedArray):
        chunk = chunk.combine_chunks()
    _, offsets, data = chunk.buffers()
    place = np.frombuffer(offsets, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1].copy()
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    return content, place[:-1], place[1:]


def _integers(data: Bytes, place: Index, kind: str) -> Index:
    """The integers at many places of a buffer."""
    dtype = np.dtype(kind)
    cells = data[place[:, None] + np.arange(dtype.itemsize)]
    return np.ascontiguousarray(cells).view(dtype).ravel().astype(np.int64)


def _decode_json(rows: pl.DataFrame, trace: Trace, wanted: npt.NDArray[np.bool_]) -> tuple[Index, Lists, pl.DataFrame]:
    """The same from the text of exports made with JSON; what is no such text is left out."""
    schema_of_frame = {"Function": pl.String, "File": pl.String, "Line": pl.Int64}
    texts = rows.select("json", "json_id").join(
        trace.strings(rows["json_id"]), left_on="json_id", right_on="id", how="left", maintain_order="left"
    )
    text = texts.select(pl.coalesce("json", "value").alias("text"))["text"]
    usable = pl.Series(wanted) & text.str.contains(r'^\s*\{.*"Frames"\s*:\s*\[').fill_null(False)
    these = np.flatnonzero(usable.to_numpy())
    none = pl.DataFrame(schema={"function": pl.String, "file": pl.String, "line": pl.Int64})
    if not these.size:
        return these, Lists(np.zeros(1, np.int64), np.empty(0, np.int64)), none
    frames = _frames_of(text.gather(these), schema_of_frame)
    count = frames.list.len().fill_null(0).cast(pl.Int64).to_numpy()
    flat = frames.filter(pl.Series(count > 0)).explode().struct.unnest()
    flat = flat.rename({"Function": "function", "File": "file", "Line": "line"})
    return these, Lists.of_lengths(count, np.arange(int(count.sum()))), flat


def _frames_of(texts: pl.Series, fields: Mapping[str, type[pl.DataType]]) -> pl.Series:
    """The list ``Frames`` of each text; NULL for a text that is not of this form."""
    shape = pl.Struct({"Frames": pl.List(pl.Struct(fields))})
    try:
        return texts.str.json_decode(shape).struct.field("Frames")
    except pl.exceptions.ComputeError:  # one bad text spoils the column: leave out those that are bad
        good = {t for t in texts.unique().to_list() if _is_stack(t)}
        kept = texts.to_frame("text").select(pl.when(pl.col("text").is_in(list(good))).then("text"))
        return kept.to_series().str.json_decode(shape).struct.field("Frames")


def _is_stack(text: str) -> bool:
    """Whether a text is an object with a list of frames of the right types."""
    try:
        frames = json.loads(text)["Frames"]
        rows = [(f.get("Function"), f.get("File"), f.get("Line")) for f in frames]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
    texts = all(t is None or isinstance(t, str) for row in rows for t in row[:2])
    return texts and all(n is None or (type(n) is int and abs(n) < 2**63) for *_, n in rows)
