"""What leads a recording and is not its subject: the loading of a model, and the program's start-up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysparse.accounting.windows import Window, whole_window
from nsysparse.joins.work import Work

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
    whole = whole_window(work)
    to_device = work.copies.filter(pl.col("kind") == 1).sort("end_ns")
    total = int(to_device["bytes"].sum())
    if whole is None or total < LEAST_BYTES or not work.kernels.height:
        return None
    arrived = np.cumsum(to_device["bytes"].fill_null(0).to_numpy())
    at = int(np.searchsorted(arrived, BYTES_RATIO * total))
    end = int(to_device["end_ns"][at])
    # The last of the model comes in after the mark: as long as no kernel runs, copies are still loading.
    following = work.kernels.filter(pl.col("start_ns") >= end)["start_ns"].min()
    at = to_device.filter(pl.col("start_ns") < following).height - 1 if following is not None else at
    end = max(end, int(to_device["end_ns"][at]))
    kernels = work.kernels.filter(pl.col("start_ns") < end).height / work.kernels.height
    if kernels > KERNELS_RATIO:
        return None
    size = int(arrived[at])
    return Loading(end, (end - whole.start_ns) / whole.length_ns, size, size / total, kernels)


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
    ops = pl.concat(f.select("start_ns", "end_ns") for f in frames).sort("start_ns")
    first, start = int(ops.height * STARTUP_OPS_RATIO), ops["start_ns"].to_numpy()
    silent = start[1:] - np.maximum.accumulate(ops["end_ns"].to_numpy())[:-1]
    usual = np.sort(silent[first:])[-5:]
    least = max(STARTUP_GAP_NS, STARTUP_OUTLIER * int(usual[0]) if usual.size else 0)
    long = np.flatnonzero(silent[:first] >= least)
    if not long.size:
        return None
    led = int(long[-1]) + 1
    end = int(start[led])
    return StartUp(end, (end - window.start_ns) / window.length_ns, led, led / ops.height)
