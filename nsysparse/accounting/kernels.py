"""Kernels by name, and how full they keep the multiprocessors (an estimate from launch shape and device limits)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.accounting.busy import Busy, clipped, starts_inside, touching
from nsysparse.accounting.grouping import number_rows
from nsysparse.joins.work import Work
from nsysparse.nulls import filled, given, masked
from nsysparse.source import Trace

# Allocation granularities of the CUDA occupancy calculator, compute capability 7.0 and later.
REGISTER_UNIT, WARP_UNIT, SHARED_UNIT = 256, 4, 128
SHAPE = (
    *("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"),
    *("registers", "static_shared_bytes", "dynamic_shared_bytes"),
)
PIECE = 1 << 17  # kernels looked at together: what is worked out for them stays in the processor's cache
Numbers = npt.NDArray[np.float64]  # integers: quotients of them round as integers would, and are quick
NO_NAME = "(name not in the export)"
SHARED_RESERVED = 1_024  # shared memory a block that the runtime takes, compute capability 8.0 and later


def sm_fill(kernels: pl.DataFrame, device: dict[str, Any]) -> pl.Series:
    """For each kernel, its resident blocks over the blocks of its shape that the device can hold.

    A block's room is limited by warps, blocks, registers and shared memory an SM. 1 means that the grid fills every SM
    at least once; it does not mean that the SMs compute at their peak.

    Args:
        kernels: Canonical kernel columns.
        device: A row of the devices frame.

    Returns:
        Float64 between 0 and 1; NULL where the launch shape or a limit is unknown.
    """
    limits = [float(device.get(c) or 0) for c in ("sm_count", "warp_threads", "sm_warps", "sm_blocks")]
    if not all(limit > 0 for limit in limits):
        return pl.Series("sm_fill", [None] * kernels.height, pl.Float64)
    sms, warp_threads, sm_warps, sm_blocks = limits
    registers, shared = device.get("sm_registers"), device.get("sm_shared_bytes")
    threads, blocks = _volume(kernels, "block"), _volume(kernels, "grid")
    warps = np.maximum(np.ceil(threads / warp_threads), 1)
    room = np.minimum(np.floor(sm_warps / warps), sm_blocks)
    with np.errstate(divide="ignore"):  # what takes nothing, or is not known, has room without end
        if registers:
            a_warp = np.ceil(filled(kernels["registers"]).clip(0) * warp_threads / REGISTER_UNIT) * REGISTER_UNIT
            held = np.floor(np.floor(registers / a_warp) / WARP_UNIT) * WARP_UNIT
            room = np.minimum(room, np.floor(held / warps))
        if shared:
            modern = (device.get("compute_major") or 8) >= 8
            used = _shared(kernels, SHARED_RESERVED if modern else 0)
            room = np.minimum(room, np.floor(shared / used))
    fill = blocks / (np.maximum(room, 1) * sms)  # it ran, so one fits
    return masked("sm_fill", np.minimum(fill, 1), (threads > 0) & (blocks > 0))


def _volume(kernels: pl.DataFrame, of: str) -> Numbers:
    """Blocks of each kernel's grid, or threads of its block; 0 where they are not known."""
    volume: Numbers = filled(kernels[f"{of}_x"]).astype(np.float64)
    for side in "yz":
        volume *= filled(kernels[f"{of}_{side}"])
    return volume


def _shared(kernels: pl.DataFrame, reserved: int) -> Numbers:
    """Shared memory that a block of each kernel takes, bytes; 0 where it is not known."""
    parts = [kernels["static_shared_bytes"], kernels["dynamic_shared_bytes"]]
    used: Numbers = np.add(*(filled(part) for part in parts), dtype=np.float64) + reserved
    used = np.ceil(used.clip(0) / SHARED_UNIT) * SHARED_UNIT
    if any(part.null_count() for part in parts):
        used *= given(parts[0]) & given(parts[1])
    return used


def detail_kernels(work: Work, busy: Busy, device: dict[str, Any]) -> pl.DataFrame:
    """The kernels that touch the window, with ``counted`` (they start inside) and ``sm_fill``."""
    inside, before = touching(work.kernels, busy.window)
    shapes = inside.select(SHAPE)
    pieces = [sm_fill(shapes[at : at + PIECE], device) for at in range(0, max(shapes.height, 1), PIECE)]
    return inside.hstack([starts_inside(inside, before), pl.concat(pieces, rechunk=True)])


def mean_fill(kernels: pl.DataFrame, busy: Busy) -> float | None:
    """SM fill of the window, weighted by kernel time; None when no kernel's is known."""
    fill, took = kernels["sm_fill"], clipped(kernels, busy.window)
    if fill.null_count():
        took, fill = took[given(fill)], fill.drop_nulls()
    time = int(took.sum())
    return float(pl.Series(fill.to_numpy() * took).sum()) / time if time else None


class KernelNames:
    """Names of kernels, looked up once for all devices."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._known: dict[int | None, str] = {}

    def of(self, references: pl.Series) -> pl.Series:
        """Texts behind string references, and what to say where the export lacks one."""
        ids = references.to_list()
        if any(i not in self._known for i in ids):
            found = dict(self._trace.strings(references).iter_rows())
            self._known.update((i, found.get(i, NO_NAME)) for i in ids)
        return pl.Series([self._known[i] for i in ids], dtype=pl.String)


def table_kernels(kernels: pl.DataFrame, names: KernelNames, busy: Busy) -> pl.DataFrame:
    """Kernels by demangled name, most time first.

    Returns:
        ``short_name``, ``name``, ``count``, ``time_ns`` (sum of clipped durations), ``time_ratio`` (of the kernels'
        sum), ``window_ratio`` (of the window; streams may add up to more than 1), ``mean_ns``, ``median_ns``,
        ``min_ns``, ``max_ns`` (of those that start inside), ``sm_fill`` (time-weighted).
    """
    number, first = number_rows(kernels, ("name_id", "short_name_id"))  # Polars groups by one number far quicker
    rows = kernels.select("counted", "sm_fill", took=pl.col("end_ns") - pl.col("start_ns")).hstack(
        [pl.Series("number", number), pl.Series("clipped", clipped(kernels, busy.window))]
    )
    took, counted, inside = pl.col("took"), pl.col("counted"), pl.col("clipped")
    filled = inside
    if not kernels["counted"].all():  # most often all are, and a filter in a group is dear
        took = took.filter(counted)
    if kernels["sm_fill"].null_count():
        filled = inside.filter(pl.col("sm_fill").is_not_null())
    table = rows.group_by("number").agg(
        counted.sum().cast(pl.Int64).alias("count"),
        inside.sum().alias("time_ns"),
        took.mean().alias("mean_ns"),
        took.quantile(0.5, "lower").cast(pl.Int64).alias("median_ns"),
        took.min().alias("min_ns"),
        took.max().alias("max_ns"),
        ((pl.col("sm_fill") * inside).sum() / filled.sum()).alias("sm_fill"),
    )
    total = table["time_ns"].sum()
    fill, named = table["sm_fill"], kernels[["name_id", "short_name_id"]][first[table["number"].to_numpy()]]
    return table.select(
        names.of(named["short_name_id"]).alias("short_name"),
        names.of(named["name_id"]).alias("name"),
        *("count", "time_ns"),
        (pl.col("time_ns") / total if total else pl.lit(None, pl.Float64)).alias("time_ratio"),
        (pl.col("time_ns") / busy.window.length_ns).alias("window_ratio"),
        *("mean_ns", "median_ns", "min_ns", "max_ns"),
        pl.when(fill.is_finite()).then(fill).alias("sm_fill"),
    ).sort("time_ns", "name", descending=[True, False])
