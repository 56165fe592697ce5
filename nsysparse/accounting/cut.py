"""A part of a recording: some of its devices, or what overlaps a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from nsysparse.accounting.windows import Window, choose_window, phases, repeated_ranges
from nsysparse.errors import UsageError
from nsysparse.joins.work import Work

FRAMES = ("kernels", "copies", "memsets", "graphs", "migrations")


def cut_work(work: Work, devices: Sequence[int] = (), asked: str | None = None) -> tuple[Work, tuple[int, int] | None]:
    """The operations of some devices that overlap a window, the calls that sent them, and what overlaps it on the host.

    Nothing is clipped: rows are kept whole or not at all.

    Args:
        work: The joined recording.
        devices: Numbers of devices; all when empty.
        asked: A window as ``--window`` takes it; of several devices the windows are taken together. None for all.

    Returns:
        The part of the work, and the window (start, end; ns), None for all of the recording.

    Raises:
        UsageError: The recording has no such device or window.
    """
    chosen = _known(work, devices)
    if devices:
        mine = pl.col("device").is_in(chosen)
        work = replace(work, **{name: getattr(work, name).filter(mine) for name in FRAMES})
    windows = [w for d in chosen if asked is not None and (w := _window(work.on(d), asked)) is not None]
    if not windows:
        return work, None
    low, high = min(w.start_ns for w in windows), max(w.end_ns for w in windows)
    inside = (pl.col("start_ns") < high) & (pl.col("end_ns") > low)
    frames = {name: getattr(work, name).filter(inside) for name in FRAMES}
    sent = pl.concat([f["call"] for name, f in frames.items() if name != "migrations"]).drop_nulls().unique()
    sends = np.zeros(work.calls.height, np.bool_)
    sends[sent.to_numpy()] = True
    calls = work.calls.part(inside | pl.Series(sends))
    ranges = replace(work.ranges, frame=work.ranges.frame.filter(inside))
    return replace(work, **frames, calls=calls, ranges=ranges), (low, high)


def _known(work: Work, devices: Sequence[int]) -> list[int]:
    labels = dict(work.devices.select("device", "label").iter_rows())
    missing = [d for d in devices if d not in labels]
    if missing:
        listed = "; ".join(f"{n}: {label}" for n, label in labels.items()) or "none did any work"
        raise UsageError(f"no device {missing[0]} in this recording", f"its devices are {listed}")
    return list(dict.fromkeys(devices)) or list(labels)


def _window(work: Work, asked: str) -> Window | None:
    repeats = repeated_ranges(work)
    offered = phases(work, repeats)
    return choose_window(asked, offered, repeats, work) if offered else None
