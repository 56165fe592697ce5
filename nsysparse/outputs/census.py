"""A census as JSON: exact integers, no path of the machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nsysparse._version import __version__
from nsysparse.census.dump import Census
from nsysparse.census.windows import DeviceCount, Window

FORMAT, FORMAT_VERSION = "nsysparse-census-analysis", 1


def census_to_json(census: Census, window: Window, counts: Sequence[DeviceCount], requests: int | None) -> str:
    """The counts of a census's window as a JSON text; null is unknown, never 0."""
    data = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "nsysparse_version": __version__,
        "census": census.folder.name,
        "code_attribution": None,
        "window": asdict(window),
        "requests": requests,
        "problems": census.problems,
        "counts": [count_to_dict(c) for c in counts],
    }
    return json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def count_to_dict(c: DeviceCount) -> dict[str, Any]:
    """One (process, device) as plain data; ``copies`` is a list, or None when copies were not recorded."""
    data = {name: getattr(c, name) for name in c.__dataclass_fields__ if name != "copies"}
    copies = None if c.copies is None else [{**asdict(key), **asdict(sums)} for key, sums in c.copies.items()]
    return {**data, "copies": copies, "wall_ns": c.wall_ns, "coverage_ratio": c.coverage_ratio}
