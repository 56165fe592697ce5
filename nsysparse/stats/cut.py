"""A part of a recording for the reports: what overlaps a window, and the GPU work of some devices."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from nsysparse import schema, units
from nsysparse.accounting.cut import cut_work
from nsysparse.joins.devices import find_devices
from nsysparse.joins.work import load_work
from nsysparse.source import Trace

WORK = ("kernels", "copies", "memsets", "graphs")
KEYS = ["process", "correlation"]


class CutTrace(Trace):
    """A recording of which reports see a part; rows are whole or not there at all.

    Attributes:
        notes: What must be said under every table.
        whole: All of it.
        window: Start and end, ns; None for all.
    """

    def __init__(self, whole: Trace, devices: Sequence[int], window: tuple[int, int] | None) -> None:
        super().__init__(whole.backend)
        self.whole, self.window = whole, window
        self._keys = find_devices(whole)[1].filter(pl.col("device").is_in(list(devices))) if devices else None
        self._kept: dict[str, pl.Series] = {}
        self.notes = _said(devices, window)

    def frame(self, name: str) -> pl.DataFrame:
        """A canonical table, as far as it is part of this."""
        if name not in self._frames:
            frame = self.whole.frame(name)
            kept = self._mask(name, frame)
            self._frames[name] = frame if kept is None else frame.filter(kept)
            if kept is not None:
                self._kept[name] = kept
        return self._frames[name]

    def part(self, name: str, columns: Sequence[str]) -> pl.DataFrame:
        """Some columns of a canonical table, as far as it is part of this."""
        return self.frame(name).select(columns)

    def row_count(self, name: str) -> int:
        """Rows of a canonical table that are part of this."""
        return self.frame(name).height

    def kept(self, name: str) -> pl.Series | None:
        """Which rows of the whole table are part of this; None for all."""
        self.frame(name)
        return self._kept.get(name)

    def _mask(self, name: str, frame: pl.DataFrame) -> pl.Series | None:
        if name in WORK:
            return self._of_devices(frame) & self._inside(frame)
        if self.window is None or not {"start_ns", "end_ns"} <= set(frame.columns):
            return None
        inside = self._inside(frame)
        if name == "nvtx":  # rows without an end register names, or are of ranges that end later
            return inside | frame["end_ns"].is_null()
        return inside | self._sent(frame) if name == "api" else inside

    def _inside(self, frame: pl.DataFrame) -> pl.Series:
        low, high = self.window or (0, 0)
        test = (pl.col("start_ns") < high) & (pl.col("end_ns") > low) if self.window else pl.lit(True)
        return _test(frame, test)

    def _of_devices(self, frame: pl.DataFrame) -> pl.Series:
        if self._keys is None:
            return _test(frame, pl.lit(True))
        rows = frame.select("process", "ordinal").join(
            self._keys, on=["process", "ordinal"], how="left", maintain_order="left", nulls_equal=True
        )
        return rows["device"].is_not_null()

    def _sent(self, api: pl.DataFrame) -> pl.Series:
        """Calls that sent work which is part of this."""
        sent = pl.concat([self.frame(n).select(KEYS) for n in WORK]).filter(pl.col("correlation") != 0).unique()
        rows = api.select(schema.process_of(pl.col("thread")).alias("process"), "correlation")
        rows = rows.join(sent.with_columns(sent=pl.lit(True)), on=KEYS, how="left", maintain_order="left")
        return rows["sent"].fill_null(False)


def _test(frame: pl.DataFrame, test: pl.Expr) -> pl.Series:
    found: pl.Series = frame.with_columns(kept=test)["kept"].fill_null(False)
    return found


def _said(devices: Sequence[int], window: tuple[int, int] | None) -> tuple[str, ...]:
    said = []
    if window is not None:
        said.append(
            f"Only what overlaps {units.instant(window[0])} to {units.instant(window[1])}, each event whole, and the"
            " calls that sent such work."
        )
    if devices:
        numbers = ", ".join(map(str, sorted(set(devices))))
        said.append(
            f"GPU work of device {numbers} only; calls, ranges and system calls are those of the whole program."
        )
    return tuple(said)


def cut_trace(trace: Trace, devices: Sequence[int] = (), asked: str | None = None) -> Trace:
    """The recording itself, or a part of it.

    Args:
        trace: The recording.
        devices: Numbers of devices; all when empty.
        asked: A window as ``--window`` takes it.

    Raises:
        UsageError: The recording has no such device or window.
    """
    if not devices and asked is None:
        return trace
    _, window = cut_work(load_work(trace), devices, asked)
    return CutTrace(trace, devices, window)


def whole_of(trace: Trace) -> Trace:
    """The recording of which this is a part, or itself."""
    return trace.whole if isinstance(trace, CutTrace) else trace


def overlapping(trace: Trace, ranges: pl.DataFrame) -> pl.DataFrame:
    """The ranges that overlap the part's window; one whose end is NULL never ends."""
    window = trace.window if isinstance(trace, CutTrace) else None
    if window is None:
        return ranges
    return ranges.filter(
        (pl.col("start_ns") < window[1]) & (pl.col("end_ns").is_null() | (pl.col("end_ns") > window[0]))
    )


def kept_rows(trace: Trace, name: str, values: pl.Series) -> pl.Series:
    """Of a column read from the export itself, the rows that the recording's part has."""
    kept = trace.kept(name) if isinstance(trace, CutTrace) else None
    return values if kept is None else values.filter(kept)


def row_numbers(trace: Trace, name: str) -> pl.Series:
    """Numbers of a table's rows in the export, from 1, as far as they are part of the recording's part."""
    whole = trace.frame(name).height
    kept = trace.kept(name) if isinstance(trace, CutTrace) else None
    numbers: pl.Series = pl.int_range(1, (whole if kept is None else kept.len()) + 1, dtype=pl.Int64, eager=True)
    return numbers if kept is None else numbers.filter(kept)
