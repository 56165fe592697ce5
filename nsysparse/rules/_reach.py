"""What the link between host and device can do, and which copies stay far below it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysparse.accounting.copies import HOST_KINDS
from nsysparse.intervals import times
from nsysparse.nulls import filled, given
from nsysparse.rules._roles import RECURS_IN, TO_DEVICE
from nsysparse.rules._scene import Scene
from nsysparse.units import percent

LINK_REACH = 0.85  # of a link's peak, what a large pinned copy reaches
PINNED = 1


@dataclass(frozen=True)
class SlowGroup:
    """Large copies of one direction and memory that stay far below the link's reach.

    Attributes:
        copies: They.
        to_device: Their direction.
        pageable: Whether one side is pageable memory.
        bandwidth: Theirs on the GPU, bytes/s.
        reach: What could be reached, bytes/s.
        basis: Where that figure comes from.
    """

    copies: pl.DataFrame
    to_device: bool
    pageable: bool
    bandwidth: float
    reach: float
    basis: str


def pinned_reference(scene: Scene, to_device: bool) -> tuple[float | None, str]:
    """Bytes/s that a large pinned copy reaches in one direction, and where the figure comes from."""
    kind, memory = (1, "src_kind") if to_device else (2, "dst_kind")
    copies = scene.work.copies
    size, took = filled(copies["bytes"]), times(copies["end_ns"]) - times(copies["start_ns"])
    pinned = (filled(copies["kind"]) == kind) & (filled(copies[memory]) == PINNED)
    large = pinned & (size >= scene.settings["slow_copies.large_bytes"]) & given(copies["bytes"]) & (took > 0)
    if large.any():
        best = (size[large] * 1e9 / took[large]).max()
        return float(best), f"best pinned {'HtoD' if to_device else 'DtoH'} copy in this recording"
    return by_model(scene)


def by_model(scene: Scene) -> tuple[float | None, str]:
    """Bytes/s that the link reaches by the GPU's model, or by the user's word."""
    peak = scene.account.device.get("link_peak")
    if isinstance(peak, (int, float)):
        return LINK_REACH * float(peak), f"{percent(LINK_REACH)} of the link's peak, by GPU model"
    return None, "unknown: no large pinned copy here, and the model does not tell the link"


def link_reach(scene: Scene, to_device: bool) -> tuple[float | None, str]:
    """The better of what the model's link reaches and what pinned copies did reach."""
    best, peak = pinned_reference(scene, to_device), by_model(scene)
    return peak if (peak[0] or 0) > (best[0] or 0) else best


def slow_groups(scene: Scene) -> list[SlowGroup]:
    """As :func:`find_slow_groups`, worked out once a device."""
    if "slow_groups" not in scene.found:
        scene.found["slow_groups"] = find_slow_groups(scene)
    groups: list[SlowGroup] = scene.found["slow_groups"]
    return groups


def find_slow_groups(scene: Scene) -> list[SlowGroup]:
    """Large recurring copies far below the link's reach, by direction and memory; loading a model does not count."""
    copies = scene.copies
    size, took = filled(copies["bytes"]), times(copies["end_ns"]) - times(copies["start_ns"])
    rows = np.flatnonzero((size >= scene.settings["slow_copies.large_bytes"]) & (took > 0) & given(copies["bytes"]))
    if not rows.size:
        return []
    large = (
        copies[rows]
        .filter(pl.col("kind_name").is_in(list(HOST_KINDS)) & (pl.col("role") != "loading"))
        .with_columns(
            to_device=pl.col("kind_name").is_in(TO_DEVICE),
            pageable=(pl.col("src") == "Pageable") | (pl.col("dst") == "Pageable"),
        )
    )
    found = []
    by = ["to_device", "pageable"]
    for (to_device, pageable), copies in large.sort(*by, "start_ns").group_by(by, maintain_order=True):
        if copies["decile"].n_unique() < RECURS_IN:
            continue
        reach, basis = link_reach(scene, bool(to_device))
        if reach is None:
            continue
        speed = int(copies["bytes"].sum()) * 1e9 / int((copies["end_ns"] - copies["start_ns"]).sum())
        if speed < scene.settings["slow_copies.reach_ratio"] * reach:
            found.append(SlowGroup(copies, bool(to_device), bool(pageable), speed, reach, basis))
    return found
