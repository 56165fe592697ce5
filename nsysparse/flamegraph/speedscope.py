"""The file format of speedscope (https://www.speedscope.app): one sampled profile a weight."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from nsysparse._version import __version__
from nsysparse.flamegraph.flame import LEVELS, Flame

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
UNITS = {"ns": "nanoseconds", "bytes": "bytes"}  # any other number has no unit


def to_speedscope(flame: Flame) -> str:
    """Every weight as a profile; the paths' order is that of the JSON."""
    lists = np.split(flame.paths.value, flame.paths.start[1:-1]) if len(flame.paths) else []
    stacks = [part.tolist() for part in lists]
    profiles = []
    for column, weight in enumerate(flame.weights):
        values = flame.values[:, column].tolist()
        there = [i for i, value in enumerate(values) if value]
        profiles.append(profile(weight.title, weight.unit, [stacks[i] for i in there], [values[i] for i in there]))
    return document(flame.name, _frames(flame), profiles)


def _frames(flame: Flame) -> list[dict[str, Any]]:
    frames = []
    for text, level, detail in flame.labels.select("text", "level", "detail").iter_rows():
        frame = {"name": text}
        if LEVELS[level] in {"python", "native"}:
            frame["file"] = detail.rsplit("\n", 1)[-1]
        frames.append(frame)
    return frames


def profile(title: str, unit: str, samples: list[list[int]], weights: list[int]) -> dict[str, Any]:
    """One profile: its samples are stacks of frame numbers, root first."""
    return {
        "type": "sampled",
        "name": title,
        "unit": UNITS.get(unit, "none"),
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def document(name: str, frames: list[dict[str, Any]], profiles: list[dict[str, Any]]) -> str:
    """A whole file."""
    return json.dumps(
        {
            "$schema": SCHEMA,
            "name": name,
            "exporter": f"nsysparse {__version__}",
            "activeProfileIndex": 0,
            "shared": {"frames": frames},
            "profiles": profiles,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )
