"""NVTX payloads: only Python stacks are kept, and of those only the fields that their layout names.

A payload's padding holds whatever lay in the program's memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

STRING_TYPE = 80  # a registered string: in an export, a reference to the string table
HEAD, PART = 8, 24
WIDTHS = {
    **dict.fromkeys((1, 2, 11, 12), 1),
    **dict.fromkeys((3, 4, 13, 14), 2),
    **dict.fromkeys((5, 6, 15, 16), 4),
    **dict.fromkeys((7, 8, 9, 10, 17, 18, 22, 23, STRING_TYPE), 8),
}


@dataclass(frozen=True)
class Layout:
    """A payload with an array of frames at its end.

    Attributes:
        fields: (offset, width) before the frames.
        count: (offset, width) of the number of frames.
        frames: Where the frames begin.
        frame_bytes: Size of a frame.
        frame_fields: (offset, width, is a string) in a frame.
    """

    fields: tuple[tuple[int, int], ...]
    count: tuple[int, int]
    frames: int
    frame_bytes: int
    frame_fields: tuple[tuple[int, int, bool], ...]


def read_layouts(connection: sqlite3.Connection) -> dict[int, Layout]:
    """Layouts of Python stacks by their number."""
    fields: dict[int, list[tuple[str, int, int, int | None]]] = {}
    query = (
        "SELECT schemaId, name, type, coalesce(offset, 0), arrayOrUnionDetail"
        " FROM source.NVTX_PAYLOAD_SCHEMA_ENTRIES ORDER BY idx"
    )
    sizes = "SELECT schemaId, payloadSize FROM source.NVTX_PAYLOAD_SCHEMAS WHERE payloadSize IS NOT NULL"
    try:
        for number, name, kind, offset, detail in connection.execute(query):
            fields.setdefault(number, []).append((str(name).lower(), kind, offset, detail))
        size_of = dict(connection.execute(sizes))
    except sqlite3.OperationalError:
        return {}
    found = {}
    for number, entries in fields.items():
        for _, kind, offset, detail in entries:
            frame = fields.get(kind, [])
            is_stack = {"function", "file", "line"} <= {n for n, *_ in frame} and all(k in WIDTHS for _, k, *_ in frame)
            if is_stack and detail is not None and 0 <= detail < len(entries):
                parts = tuple((o, WIDTHS[k], k == STRING_TYPE) for _, k, o, _ in frame)
                size = size_of.get(kind) or -(-max(o + w for o, w, _ in parts) // 8) * 8
                # A field whose type is no plain number is an enumeration, of four bytes.
                before = tuple((o, WIDTHS.get(k, 4)) for _, k, o, _ in entries if o < offset)
                count = (entries[detail][2], WIDTHS.get(entries[detail][1], 4))
                found[number] = Layout(before, count, offset, size, parts)
    return found


def clean_payload(blob: bytes, layouts: Mapping[int, Layout]) -> tuple[bytes | None, set[int]]:
    """A payload with nothing in it but the fields of Python stacks, and the strings it refers to.

    Returns:
        None when it is anything else.
    """
    if len(blob) < HEAD + PART:
        return None, set()
    count = int.from_bytes(blob[:HEAD], "little")
    if count * PART > len(blob) - HEAD:
        return None, set()
    kept = np.zeros(len(blob), np.bool_)
    kept[: HEAD + count * PART] = True
    strings: set[int] = set()
    for part in range(count):
        words = np.frombuffer(blob, "<i8", 3, HEAD + part * PART)
        number, size, offset = (int(w) for w in words)
        layout = layouts.get(number)
        if layout is None or offset < 0 or size < layout.frames or offset + size > len(blob):
            return None, set()
        for at, width in layout.fields:
            kept[offset + at : offset + min(at + width, layout.frames)] = True
        at, width = layout.count
        told = int.from_bytes(blob[offset + at : offset + at + width], "little")
        frames = min(told, (size - layout.frames) // layout.frame_bytes)
        starts = offset + layout.frames + layout.frame_bytes * np.arange(frames)
        for at, width, is_string in layout.frame_fields:
            places = (starts[:, None] + at + np.arange(width)).ravel()
            kept[places] = True
            if is_string:
                cells = np.frombuffer(blob, np.uint8)[places]
                strings.update(int(i) for i in np.ascontiguousarray(cells).view("<u8"))
    return np.where(kept, np.frombuffer(blob, np.uint8), 0).astype(np.uint8).tobytes(), strings
