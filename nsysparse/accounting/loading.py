"""What leads a recording and is not its subject: the loading of a model, and the program's start-up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsysparse.accounting.windows import Window, whole_window
from nsysparse.intervals import times
from nsysparse.joins.work import Work
from nsysparse.nulls import filled

BYTES_RATIO = 0.9  # of all bytes to the device
KERNELS_RATIO = 0.1  # of all kernels that may have run by then
LEAST_BYTES = 10_000_000  # less is no model
STARTUP_OPS_RATIO = 0.05  # of a device's operations that may lie in its start-up
STARTUP_GAP_NS = 10_000_000  # a silence of the device from which what went before it is another phase
STARTUP_OUTLIER = 2  # times the fifth-longest silence afterwards: what comes again and again is no start-up


@dataclass(frozen=True)
class Loading:
    """A leading phase with nearly all bytes to the device and hardly a kernel.

    Attributes:
        end_ns: When 90% of all host-to-device bytes had arrived.
        wall_ratio: The phase's share of the whole recording on this device.
        bytes: Bytes copied to the device in it.
        bytes_ratio: Their share of all such bytes.
        kernels_ratio: Share of all kernels that started in it.
    """

    end_ns: int
    wall_ratio: float
    bytes: int
    bytes_ratio: float
    kernels_ratio: float


def find_loading(work: Work) -> Loading | None:
    """The loading phase of one device, or None."""
    copies = work.copies
    to_device = np.flatnonzero(filled(copies["kind"]) == 1)
    size = filled(copies["bytes"])[to_device]
    total = int(size.sum())
    whole = whole_window(work) if total >= LEAST_BYTES and work.kernels.height else None
    if whole is None:
        return None
    start, end = (times(copies[c])[to_device] for c in ("start_ns", "end_ns"))
    order = np.argsort(end, kind="stable")
    start, end, arrived = start[order], end[order], np.cumsum(size[order])
    at = int(np.searchsorted(arrived, BYTES_RATIO * total))
    until, kernels = int(end[at]), times(work.kernels["start_ns"])  # kernels are by start
    # The last of the model comes in after the mark: as long as no kernel runs, copies are still loading.
    following = int(np.searchsorted(kernels, until))
    if following < kernels.size:
        at = int(np.count_nonzero(start < kernels[following])) - 1
    until = max(until, int(end[at]))
    ran = int(np.searchsorted(kernels, until)) / kernels.size
    if ran > KERNELS_RATIO:
        return None
    moved = int(arrived[at])
    return Loading(until, (until - whole.start_ns) / whole.length_ns, moved, moved / total, ran)


@dataclass(frozen=True)
class StartUp:
    """The beginning of a window in which the device gets a few operations and waits for imports and compilation.

    Attributes:
        end_ns: End of its last long silence.
        window_ratio: Its share of the window.
        operations: Operations in it.
        operations_ratio: Their share of the window's.
    """

    end_ns: int
    window_ratio: float
    operations: int
    operations_ratio: float


def find_startup(work: Work, window: Window) -> StartUp | None:
    """The start-up of a window that nobody chose, or None.

    It ends with the last silence among the first STARTUP_OPS_RATIO of the operations that is of STARTUP_GAP_NS and that
    the rest of the window does not know. Windows of NVTX ranges begin with the second repetition anyway, and a user's
    window is as the user wants it.
    """
    if window.name != "whole":
        return None
    frames = (work.kernels, work.copies, work.memsets, work.graphs)
    start, end = (np.concatenate([times(f[c]) for f in frames]) for c in ("start_ns", "end_ns"))
    first = int(start.size * STARTUP_OPS_RATIO)
    order = np.argsort(start, kind="stable")  # quick where much is in order
    start, end = start[order], end[order]
    silent = start[1:] - np.maximum.accumulate(end)[:-1]
    if not (silent[:first] >= STARTUP_GAP_NS).any():
        return None
    after = silent[first:]
    usual = int(np.partition(after, -5)[-5] if after.size > 5 else after.min())  # first < number of operations
    long = np.flatnonzero(silent[:first] >= max(STARTUP_GAP_NS, STARTUP_OUTLIER * usual))
    if not long.size:
        return None
    led = int(long[-1]) + 1
    until = int(start[led])
    return StartUp(until, (until - window.start_ns) / window.length_ns, led, led / start.size)
