"""Names of devices as nsys's reports print them: ``NVIDIA H200 (0)``."""

from __future__ import annotations

import polars as pl

from nsysparse.joins.devices import find_devices
from nsysparse.source import Trace


def device_names(trace: Trace) -> pl.DataFrame:
    """Model and CUDA ordinal of each device that did any work.

    Returns:
        ``process``, ``ordinal``, ``device``: the model and the process's CUDA ordinal. The model is the GPU's that the
        export maps the ordinal to; where it maps none, and the GPUs differ, only the ordinal is printed.
    """
    devices, keys = find_devices(trace)
    known = keys.join(devices.select("device", "name"), on="device", how="left")
    return known.select(
        "process",
        "ordinal",
        pl.format("{} ({})", pl.col("name").fill_null("CUDA device"), "ordinal").cast(pl.Categorical).alias("device"),
    )
