"""Which GPU each piece of work ran on: (process, CUDA ordinal), folded onto the physical GPU where the export lets us.

``deviceId`` in an export is the process's CUDA ordinal, and ``TARGET_INFO_GPU.id`` is not: under CUDA_VISIBLE_DEVICES
or MIG the same ordinal is another GPU. From 2025.1 a table maps them, and before 2021.5 another one did by PCI bus. In
between only a machine with one GPU is safe, and a model name is printed only if all its GPUs are of that model.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nsysparse import schema
from nsysparse.source import Trace

LIMITS = (
    *("sm_count", "warp_threads", "sm_warps", "sm_blocks"),
    *("sm_registers", "sm_shared_bytes", "compute_major"),
)
GPU_FACTS = ("gpu", "name", "bus", "memory_bytes", *LIMITS)
WORK_TABLES = ("kernels", "copies", "memsets", "graphs")


def find_devices(trace: Trace, rows: Mapping[str, pl.DataFrame] | None = None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The devices that did any work.

    Args:
        trace: The recording.
        rows: The WORK_TABLES, where they have been read already.

    Returns:
        ``devices``: one row a device: ``device`` (0, 1, ... in printed order), ``label``, ``name`` (model or NULL),
        ``gpu`` (number on its machine or NULL), ``mapped`` (whether the export says which GPU it is), ``processes``
        (ids, as text) and the limits that SM fill needs (NULL when unknown).
        ``keys``: (``process``, ``ordinal``) to ``device``.
    """
    wide = (pl.col("process").cast(pl.Int64), pl.col("ordinal").cast(pl.Int64))
    tables = [trace.frame(t) if rows is None else rows[t] for t in WORK_TABLES]
    found = pl.concat([t.select(wide).unique() for t in tables]).unique()
    found = found.with_columns(pid=schema.pid_of(pl.col("process"))).sort("process", "ordinal")
    gpus = _gpus(trace)
    found = _with_gpu(found, trace, gpus)
    same = _common_facts(gpus)
    mapped = found.join(gpus.select(GPU_FACTS), on="gpu", how="left").with_columns(
        [pl.coalesce(pl.col(c), pl.lit(same[c])).alias(c) for c in ("name", *LIMITS) if same.get(c) is not None]
        if same
        else []
    )
    # A device of which only the process knows the size (a MIG slice, from 2025.6) has fewer multiprocessors than its
    # GPU; how much of the GPU's memory is its own, no table says.
    mapped = mapped.with_columns(sliced=(pl.col("slice_sm_count") < pl.col("sm_count")).fill_null(False)).with_columns(
        sm_count=pl.coalesce("slice_sm_count", "sm_count"),
        memory_bytes=pl.when(~pl.col("sliced")).then("memory_bytes"),
    )
    mapped = mapped.with_columns(
        fold=pl.when(pl.col("gpu").is_not_null())
        .then(pl.concat_str(pl.lit("g"), "gpu", pl.coalesce("uuid", pl.lit("")), separator="|"))
        .otherwise(pl.concat_str(pl.lit("p"), "process", "ordinal", separator="|", ignore_nulls=True))
    )
    devices = (
        mapped.sort("gpu", "process", "ordinal", nulls_last=True)
        .group_by("fold", maintain_order=True)
        .agg(
            pl.col(*GPU_FACTS).first(),
            pl.col("ordinal").first(),
            pl.col("pid").unique().sort().cast(pl.String).str.join(", ").alias("processes"),
            pl.col("pid", "sliced").first(),
        )
        .with_row_index("device")
        .with_columns(slice=pl.col("sliced").cum_sum().over("gpu"))
        .with_columns(pl.col("device").cast(pl.Int32), mapped=pl.col("gpu").is_not_null(), label=_label())
    )
    keys = mapped.join(devices.select("fold", "device"), on="fold").select("process", "ordinal", "device")
    return devices.drop("fold", "pid", "sliced", "slice"), keys


def name_peers(trace: Trace, copies: pl.DataFrame) -> pl.DataFrame:
    """The devices at both ends of peer copies, whether or not they did any work of their own.

    Returns:
        ``process``, ``ordinal`` and ``name``: ``GPU 1`` where the export says which GPU it is, else ``CUDA device 1``.
    """
    peers = copies.filter(pl.col("kind") == schema.PEER_KIND)
    ends = [peers.select("process", ordinal=pl.col(f"{side}_ordinal")) for side in ("src", "dst")]
    found = pl.concat(ends).drop_nulls().unique().with_columns(pid=schema.pid_of(pl.col("process")))
    found = _with_gpu(found, trace, _gpus(trace)).sort("process", "ordinal")
    name = pl.coalesce(pl.format("GPU {}", "gpu"), pl.format("CUDA device {}", "ordinal"))
    return found.select("process", "ordinal", name=name)


def _gpus(trace: Trace) -> pl.DataFrame:
    """The machine's GPUs, once each; before 2021.5 their limits are in the table of CUDA devices, joined by bus."""
    gpus = trace.frame("gpus").unique("gpu", keep="first", maintain_order=True)
    old = trace.frame("cuda_gpus").unique("bus", keep="first", maintain_order=True)
    if not old.height:
        return gpus
    facts = ("memory_bytes", *LIMITS)
    known = old.select(_bus(), *(pl.col(c).alias(f"{c}_old") for c in facts)).unique("bus_key", keep="first")
    return (
        gpus.with_columns(_bus())
        .join(known, on="bus_key", how="left", maintain_order="left")
        .with_columns(pl.coalesce(c, f"{c}_old").alias(c) for c in facts)
    )


def _bus() -> pl.Expr:
    """A PCI location without its domain's zeros: releases write ``0000:07:00.0`` and ``00000000:07:00.0``."""
    return pl.col("bus").str.to_lowercase().str.replace(r"^0+:", "").alias("bus_key")


def _with_gpu(found: pl.DataFrame, trace: Trace, gpus: pl.DataFrame) -> pl.DataFrame:
    """Add ``gpu``, ``uuid`` and ``slice_sm_count`` to (process, ordinal)."""
    table = trace.frame("cuda_devices").unique(["pid", "ordinal"], keep="first", maintain_order=True)
    found = found.join(
        table.select("pid", "ordinal", "gpu", "uuid", pl.col("sm_count").alias("slice_sm_count")),
        on=["pid", "ordinal"],
        how="left",
    )
    old = trace.frame("cuda_gpus").unique(["pid", "ordinal"], keep="first", maintain_order=True)
    if old.height:
        by_bus = old.select("pid", "ordinal", _bus()).join(
            gpus.select(_bus(), pl.col("gpu").alias("gpu_of_bus")), on="bus_key"
        )
        found = found.join(by_bus.drop("bus_key"), on=["pid", "ordinal"], how="left")
        found = found.with_columns(gpu=pl.coalesce("gpu", "gpu_of_bus")).drop("gpu_of_bus")
    elif not table.height and gpus["gpu"].n_unique() == 1:
        only = gpus["gpu"][0]
        found = found.with_columns(gpu=pl.when(pl.col("ordinal") == 0).then(pl.lit(only, pl.Int64)))
    return found.with_columns(gpu=pl.when(pl.col("gpu").is_in(gpus["gpu"].implode())).then("gpu"))


def _common_facts(gpus: pl.DataFrame) -> dict[str, object]:
    """Facts in which all GPUs of the machine agree."""
    if not gpus.height:
        return {}
    return {c: gpus[c][0] for c in ("name", *LIMITS) if gpus[c].n_unique() == 1}


def _label() -> pl.Expr:
    model = pl.when(pl.col("name").is_not_null()).then(pl.format(" ({})", "name")).otherwise(pl.lit(""))
    part = pl.when("sliced").then(pl.format(" slice {}", "slice")).otherwise(pl.lit(""))
    known = pl.format("GPU {}{}{}", "gpu", part, model)
    ordinal, pid = (pl.col(c).cast(pl.String).fill_null("?") for c in ("ordinal", "pid"))
    unknown = pl.format("CUDA device {} of process {}{}", ordinal, pid, model)
    return pl.when(pl.col("gpu").is_not_null()).then(known).otherwise(unknown)
