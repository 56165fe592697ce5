"""The leading phase in which a model is loaded: serving has not begun, and its shares say nothing of serving."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysparse.accounting.windows import whole_window
from nsysparse.joins.work import Work

BYTES_RATIO = 0.9  # of all bytes to the device
KERNELS_RATIO = 0.1  # of all kernels that may have run by then


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
    if whole is None or not total or not work.kernels.height:
        return None
    arrived = np.cumsum(to_device["bytes"].fill_null(0).to_numpy())
    at = int(np.searchsorted(arrived, BYTES_RATIO * total))
    end = int(to_device["end_ns"][at])
    kernels = work.kernels.filter(pl.col("start_ns") < end).height / work.kernels.height
    if kernels > KERNELS_RATIO:
        return None
    size = int(arrived[at])
    return Loading(end, (end - whole.start_ns) / whole.length_ns, size, size / total, kernels)
