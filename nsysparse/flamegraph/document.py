"""The call paths as JSON: exact integers, stable order, no time of writing."""

from __future__ import annotations

import json
from typing import Any

from nsysparse._version import __version__
from nsysparse.flamegraph.difference import Difference
from nsysparse.flamegraph.flame import LEVELS, Flame

FORMAT, FORMAT_VERSION = "nsysparse-flamegraph", 1


def to_json(flame: Flame) -> str:
    """The whole as a JSON text."""
    return json.dumps(to_dict(flame), ensure_ascii=False, separators=(",", ":")) + "\n"


def to_dict(flame: Flame) -> dict[str, Any]:
    """Facts, labels and weighed paths; a path is a list of labels' numbers, root first."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "nsysparse_version": __version__,
        **facts(flame),
        "labels": {c: flame.labels[c].to_list() for c in flame.labels.columns},
        "paths": flame.paths.to_lists(),
        "values": {w.key: flame.values[:, i].tolist() for i, w in enumerate(flame.weights)},
    }


def facts(flame: Flame) -> dict[str, Any]:
    """What the numbers are of."""
    return {
        "trace": flame.name,
        "window": {
            "start_ns": flame.window[0],
            "end_ns": flame.window[1],
            "length_ns": flame.window_ns,
            "basis": flame.basis,
        },
        "requests": flame.requests,
        "levels": list(LEVELS),
        "weights": [
            {"key": w.key, "title": w.title, "unit": w.unit, "meaning": w.meaning, "total": flame.total(w.key)}
            for w in flame.weights
        ],
        "absent": list(flame.absent),
        "stacks": flame.stacks,
        "coverage": flame.coverage.to_dicts(),
    }


def difference_to_json(difference: Difference) -> str:
    """Two recordings as a JSON text: exact weights of both on one set of paths, and what they are per."""
    whole = {
        "format": f"{FORMAT}-difference",
        "format_version": FORMAT_VERSION,
        "nsysparse_version": __version__,
        "base": facts(difference.base),
        "new": facts(difference.new),
        "per": {"what": difference.per, "base": difference.base_number, "new": difference.new_number},
        "totals": difference.totals().to_dicts(),
        "labels": {c: difference.labels[c].to_list() for c in difference.labels.columns},
        "paths": difference.paths.to_lists(),
        "values": {
            w.key: {"base": difference.base_values[:, i].tolist(), "new": difference.new_values[:, i].tolist()}
            for i, w in enumerate(difference.weights)
        },
    }
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")) + "\n"
