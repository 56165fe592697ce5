"""What all charts share: colours, legends, short numbers.

A chart is a Vega-Lite specification: plain data, coloured by the page's CSS variables so that it follows its theme. A
data set is written as columns of rounded numbers; the page's script turns it into rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Spec = dict[str, Any]
KINDS = {
    "kernels": "kernels",
    "htod": "HtoD copies",
    "dtoh": "DtoH copies",
    "other": "other copies",
    "memsets": "memsets, migrations",
}
COPY_KINDS = ("htod", "dtoh", "other")
LEGEND = {"orient": "top", "symbolType": "square"}


def colour(name: str) -> str:
    """One of the style sheet's colours."""
    return f"var(--{name})"


def kind_colours(keys: tuple[str, ...] = tuple(KINDS), **more: Any) -> Spec:
    """A colour encoding of the field ``kind`` in which every kind of work has the colour it has everywhere."""
    return {
        "field": "kind",
        "type": "nominal",
        "title": None,
        "scale": {"domain": [KINDS[k] for k in keys], "range": [colour(k) for k in keys]},
        **more,
    }


def rate_scale(highest: float) -> tuple[float, str]:
    """What to divide bytes/s by for a chart up to this rate, and the unit's name."""
    return next(((f, unit) for f, unit in ((1e9, "GB/s"), (1e6, "MB/s")) if highest >= f), (1e3, "kB/s"))


def time_scale(length_ns: int) -> tuple[float, str]:
    """What to divide ns by for a chart of this length, and the unit's name."""
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if length_ns >= 2 * factor:
            return factor, unit
    return 1.0, "ns"


def rounded(values: Any, digits: int) -> list[float | int | None]:
    """Short numbers: whole ones without a point, unknown ones as null."""
    rounded = np.round(np.asarray(values, np.float64), digits)
    shown = rounded.astype(object)
    whole = rounded == np.trunc(rounded)
    shown[whole] = rounded[whole].astype(np.int64)
    shown[np.isnan(rounded)] = None
    return list(shown.tolist())
