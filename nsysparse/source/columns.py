"""What columns are read as, and what is noted on the way, however they are read."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from nsysparse.errors import SourceError
from nsysparse.watch import Watch


@dataclass
class ReadNotes:
    """What goes with reading.

    Attributes:
        repaired_texts: Table and column to the number of texts that were not UTF-8.
        watch: Told how reading goes on.
    """

    repaired_texts: dict[str, int]
    watch: Watch = field(default_factory=Watch)


def quoted(name: str) -> str:
    """An SQL identifier in quotes (``end`` is a keyword; users add columns of any name)."""
    return '"' + name.replace('"', '""') + '"'


def uri_of(file: Path) -> str:
    """SQLite URI of a database that is read as it is: no lock, no journal, nothing made beside it."""
    return f"file:{quote(os.fsencode(file.resolve()))}?mode=ro&immutable=1"


def connect(file: Path) -> sqlite3.Connection:
    """A read-only connection to a database.

    Raises:
        SourceError: It cannot be opened, or no longer.
    """
    try:
        return sqlite3.connect(uri_of(file), uri=True)
    except sqlite3.OperationalError as error:
        raise SourceError(f"{file.name} cannot be opened: {error}", "check that it is still there") from error


def checked(part: pa.Table, table: str, columns: Mapping[str, tuple[str, str]], notes: ReadNotes) -> pa.Table:
    """Hold each column against its kind; repair texts that are not UTF-8 and count them.

    Args:
        part: What was read of a table.
        table: The export's table.
        columns: Result column name to (export column, ``int``, ``text`` or ``blob``), in result order.
        notes: Takes the number of repaired texts.

    Raises:
        TypeError: An integer column holds something else.
    """
    result = []
    for name, (source, kind) in columns.items():
        column = part.column(name)
        if kind == "int" and not pa.types.is_integer(column.type):
            raise TypeError(f"column {source} holds {column.type}")
        if kind == "blob" and column.type != pa.binary():
            column = column.cast(pa.binary())
        if kind == "text":
            column, repaired = _valid_text(column)
            if repaired:
                key = f"{table}.{source}"
                notes.repaired_texts[key] = notes.repaired_texts.get(key, 0) + repaired
        result.append(column)
    return pa.table(result, names=list(columns))


def _valid_text(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, int]:
    """The column as valid UTF-8, and how many values had to be repaired to get there."""
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return column.cast(pa.string()), 0
    try:
        if column.type == pa.binary():  # the same bytes with another name, to be looked at below
            column = pa.chunked_array([chunk.view(pa.string()) for chunk in column.chunks], pa.string())
        column.validate(full=True)
        return column if column.type == pa.string() else column.cast(pa.string()), 0
    except pa.ArrowInvalid:
        pass
    chunks, repaired = [], 0
    for chunk in column.chunks:
        raw = pa.Array.from_buffers(pa.binary(), len(chunk), chunk.buffers(), offset=chunk.offset)
        texts = []
        for value in raw.to_pylist():  # only for a chunk with a broken text in it
            text = None if value is None else value.decode("utf-8", "replace")
            repaired += text is not None and text.encode() != value
            texts.append(text)
        chunks.append(pa.array(texts, pa.string()))
    return pa.chunked_array(chunks, pa.string()), repaired
