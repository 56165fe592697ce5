"""Track events as bytes of Perfetto's protobuf, whole columns at a time.

The perfetto package makes one Python object a packet, 20 us each; a recording has millions. Here the packets of one
shape are rows of a matrix of bytes. Numbers are written as varints of a fixed width (padded with continuation bits,
which the format allows), so that all packets of a shape are equally long. Field numbers come from the package's
descriptors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nsysparse.intervals import Times

Bytes = npt.NDArray[np.uint8]
VARINT, FIXED64, MESSAGE = 0, 1, 2
BEGIN, END, COUNTER = 1, 2, 4
SEQUENCE, NEEDS_STATE = 1, 2
TIME_WIDTH, ID_WIDTH, SIZE_WIDTH = 9, 4, 9  # 63, 28 and 63 bits
CHUNK = 200_000


@dataclass(frozen=True)
class Events:
    """Track events in the order in which they are written.

    Attributes:
        time: When, ns.
        kind: BEGIN, END or COUNTER.
        track: Number of the track.
        name: Number of the interned name; of begins.
        flow: Number of the flow arrow, 0 for none; of begins.
        size: Bytes moved, -1 for none; of begins.
        value: Value; of counters.
    """

    time: Times
    kind: Times
    track: Times
    name: Times
    flow: Times
    size: Times
    value: npt.NDArray[np.float64]

    def part(self, low: int, high: int) -> Events:
        """A run of the events."""
        return Events(*(getattr(self, f)[low:high] for f in self.__dataclass_fields__))


class Encoder:
    """Makes bytes of events.

    Args:
        messages: The module with the package's message classes.
        size_name: Number of the interned name of the annotation that holds ``Events.size``.
    """

    def __init__(self, messages: Any, size_name: int) -> None:
        self._messages = messages
        self._size_name = size_name

    def encode(self, events: Events) -> bytes:
        """The packets of the events, one after the other."""
        # Shape of each: its kind, with a flow, with a size.
        shape = events.kind * 4 + (events.flow > 0) * 2 + (events.size >= 0)
        packets = {}
        for one in np.unique(shape):
            rows = np.flatnonzero(shape == one)
            packets[rows.tobytes()] = (rows, self._packets(events, rows, int(one)))
        length = np.zeros(shape.size, np.int64)
        for rows, matrix in packets.values():
            length[rows] = matrix.shape[1]
        offset = np.cumsum(length) - length
        out = np.empty(int(length.sum()), np.uint8)
        for rows, matrix in packets.values():
            out[offset[rows][:, None] + np.arange(matrix.shape[1])] = matrix
        return out.tobytes()

    def _packets(self, events: Events, rows: npt.NDArray[np.int64], shape: int) -> Bytes:
        kind = shape // 4
        fields = [
            self._varint("TrackEvent", "type", events.kind[rows], 1),
            self._varint("TrackEvent", "track_uuid", events.track[rows], ID_WIDTH),
        ]
        if kind == BEGIN:
            fields.append(self._varint("TrackEvent", "name_iid", events.name[rows], ID_WIDTH))
        if kind == COUNTER:
            fields.append(self._fixed("double_counter_value", events.value[rows].view(np.uint64)))
        if shape & 2:
            fields.append(self._fixed("flow_ids", events.flow[rows].astype(np.uint64)))
        if shape & 1:
            name = np.full(rows.size, self._size_name)
            annotation = [
                self._varint("DebugAnnotation", "name_iid", name, 1),
                self._varint("DebugAnnotation", "int_value", events.size[rows], SIZE_WIDTH),
            ]
            fields.append(self._message("TrackEvent", "debug_annotations", annotation))
        packet = [
            self._varint("TracePacket", "timestamp", events.time[rows], TIME_WIDTH),
            self._varint("TracePacket", "trusted_packet_sequence_id", np.full(rows.size, SEQUENCE), 1),
            self._varint("TracePacket", "sequence_flags", np.full(rows.size, NEEDS_STATE), 1),
            self._message("TracePacket", "track_event", fields),
        ]
        return self._message("Trace", "packet", packet)

    def _tag(self, message: str, field: str, kind: int) -> Bytes:
        number = getattr(self._messages, message).DESCRIPTOR.fields_by_name[field].number
        return _varint(np.array([number << 3 | kind]), 1 if number < 16 else 2)

    def _varint(self, message: str, field: str, values: Times, width: int) -> Bytes:
        return _beside(self._tag(message, field, VARINT), _varint(values, width))

    def _fixed(self, field: str, values: npt.NDArray[np.uint64]) -> Bytes:
        little = np.ascontiguousarray(values, "<u8").view(np.uint8).reshape(-1, 8)
        return _beside(self._tag("TrackEvent", field, FIXED64), little)

    def _message(self, message: str, field: str, parts: list[Bytes]) -> Bytes:
        body = np.concatenate(parts, axis=1)
        size = body.shape[1]
        head = np.concatenate(
            (self._tag(message, field, MESSAGE), _varint(np.array([size]), 1 if size < 128 else 2)), 1
        )
        return _beside(head, body)


def _varint(values: npt.NDArray[np.int64], width: int) -> Bytes:
    """Varints of a fixed width, one a row."""
    shifts = 7 * np.arange(width, dtype=np.int64)
    parts = (values[:, None] >> shifts) & 0x7F
    parts[:, :-1] |= 0x80
    return parts.astype(np.uint8)


def _beside(head: Bytes, body: Bytes) -> Bytes:
    """A constant head before each row."""
    return np.concatenate((np.broadcast_to(head, (body.shape[0], head.shape[1])), body), axis=1)
