"""Tracks and interned names of a Perfetto trace, made with the perfetto package."""

from __future__ import annotations

from typing import Any

import polars as pl

from nsysparse.errors import UsageError

INSTALL = "pip install perfetto"


def load_messages() -> Any:
    """The perfetto package's message classes.

    Raises:
        UsageError: It is not installed.
    """
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except ImportError as error:
        raise UsageError("the Perfetto export needs the perfetto package", f"install it: {INSTALL}") from error
    return perfetto_trace_pb2


class Tracks:
    """Collects tracks and names; :meth:`serialize` gives the packets that must come first."""

    def __init__(self, sequence: int) -> None:
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder

        self._messages = load_messages()
        self._builder = TraceProtoBuilder()
        self._sequence = sequence
        self._tracks: dict[tuple[object, ...], int] = {}
        self._names: dict[str, int] = {}
        first = self._builder.add_packet()
        first.trusted_packet_sequence_id = sequence
        first.sequence_flags = self._messages.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        self._interned = first.interned_data

    def _add(self, key: tuple[object, ...]) -> tuple[int, Any]:
        number = len(self._tracks) + 1
        self._tracks[key] = number
        packet = self._builder.add_packet()
        packet.trusted_packet_sequence_id = self._sequence
        packet.track_descriptor.uuid = number
        return number, packet.track_descriptor

    def process(self, pid: int, name: str) -> int:
        """The track of a process."""
        key = ("process", pid)
        if key in self._tracks:
            return self._tracks[key]
        number, track = self._add(key)
        track.process.pid = pid
        track.process.process_name = name
        return number

    def thread(self, pid: int, tid: int, name: str) -> int:
        """The track of a thread, which takes its API calls."""
        key = ("thread", pid, tid)
        if key in self._tracks:
            return self._tracks[key]
        number, track = self._add(key)
        track.thread.pid = pid
        track.thread.tid = tid
        track.thread.thread_name = name
        return number

    def named(self, parent: int, name: str, rank: int = 0) -> int:
        """A track with a name below another; parent 0 for the top."""
        key = ("named", parent, name)
        if key in self._tracks:
            return self._tracks[key]
        number, track = self._add(key)
        track.name = name
        track.sibling_order_rank = rank
        if parent:
            track.parent_uuid = parent
        return number

    def counter(self, parent: int, name: str, unit: str) -> int:
        """A counter below another track."""
        number, track = self._add(("counter", parent, name))
        track.name = name
        track.parent_uuid = parent
        track.counter.unit_name = unit
        return number

    def names(self, texts: pl.Series) -> pl.Series:
        """Numbers of interned names, for texts with repeats."""
        values = texts.cast(pl.String).fill_null("(no name)")
        for text in values.unique(maintain_order=True).to_list():
            if text not in self._names:
                self._names[text] = len(self._names) + 1
                interned = self._interned.event_names.add()
                interned.iid, interned.name = self._names[text], text
        numbers: pl.Series = values.replace_strict(self._names, return_dtype=pl.Int64)
        return numbers

    def annotation(self, name: str) -> int:
        """Number of the interned name of an annotation."""
        interned = self._interned.debug_annotation_names.add()
        interned.iid, interned.name = len(self._interned.debug_annotation_names), name
        return int(interned.iid)

    def serialize(self) -> bytes:
        """The packets of tracks and names."""
        data = self._builder.serialize()
        assert isinstance(data, bytes)
        return data
