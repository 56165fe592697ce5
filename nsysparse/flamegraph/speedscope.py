"""The file format of speedscope (https://www.speedscope.app): one sampled profile a weight."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl

from nsysparse._version import __version__
from nsysparse.flamegraph.difference import Difference
from nsysparse.flamegraph.flame import LEVELS, Flame
from nsysparse.intervals import Times

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
UNITS = {"ns": "nanoseconds", "bytes": "bytes"}  # any other number has no unit


def to_speedscope(flame: Flame) -> str:
    """Every weight as a profile; the paths' order is that of the JSON."""
    stacks = flame.paths.to_lists()
    profiles = [
        _profile(weight.title, weight.unit, stacks, flame.values[:, column])
        for column, weight in enumerate(flame.weights)
    ]
    return _document(flame.name, flame.labels, profiles)


def difference_to_speedscope(difference: Difference) -> str:
    """Every weight of either recording as a profile, exact: the format knows no differences."""
    stacks = difference.paths.to_lists()
    profiles = []
    for column, weight in enumerate(difference.weights):
        for name, values in (
            (difference.base.name, difference.base_values),
            (difference.new.name, difference.new_values),
        ):
            profiles.append(_profile(f"{weight.title}, {name}", weight.unit, stacks, values[:, column]))
    return _document(f"{difference.base.name} and {difference.new.name}", difference.labels, profiles)


def _frames(labels: pl.DataFrame) -> list[dict[str, Any]]:
    frames = []
    for text, level, detail in labels.select("text", "level", "detail").iter_rows():
        frame = {"name": text}
        if LEVELS[level] in {"python", "native"}:
            frame["file"] = detail.rsplit("\n", 1)[-1]
        frames.append(frame)
    return frames


def _profile(title: str, unit: str, stacks: list[list[int]], values: Times) -> dict[str, Any]:
    """One profile: its samples are stacks of frame numbers, root first."""
    there = np.flatnonzero(values).tolist()
    return {
        "type": "sampled",
        "name": title,
        "unit": UNITS.get(unit, "none"),
        "startValue": 0,
        "endValue": int(values.sum()),
        "samples": [stacks[i] for i in there],
        "weights": values[there].tolist(),
    }


def _document(name: str, labels: pl.DataFrame, profiles: list[dict[str, Any]]) -> str:
    whole = {
        "$schema": SCHEMA,
        "name": name,
        "exporter": f"nsysparse {__version__}",
        "activeProfileIndex": 0,
        "shared": {"frames": _frames(labels)},
        "profiles": profiles,
    }
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")) + "\n"
