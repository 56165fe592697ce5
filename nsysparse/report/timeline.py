"""The timeline: how the window splits at every moment, and what the copies moved."""

from __future__ import annotations

from typing import Any

import numpy as np

from nsysparse.accounting.device import DeviceAccount
from nsysparse.accounting.timeline import bin_edges, measure_throughput
from nsysparse.intervals import Intervals, times
from nsysparse.report.drawing import (
    KINDS,
    LEGEND,
    Spec,
    colour,
    kind_colours,
    rate_scale,
    rounded,
    time_scale,
)

BINS = 1_200  # finer than a screen, so that zooming in shows more
_RATE = " rate"  # ends the names of the columns that hold throughput


def exclusive(account: DeviceAccount) -> dict[str, Intervals]:
    """The busy time of a window in parts that do not overlap.

    Where several kinds run at once the instant goes to the first of: kernels and graphs, HtoD, DtoH, other copies,
    memsets and migrations. So the parts and idle time add up to the window.
    """
    busy, copies = account.busy, account.copies
    begin, end, kind = times(copies["from_ns"]), times(copies["to_ns"]), copies["kind_name"]
    into, out = (kind == "HtoD").to_numpy(), (kind == "DtoH").to_numpy()
    # What copies have to themselves is short: it is split, rather than all that the kernels leave.
    parts, left = {"kernels": busy.compute}, busy.exposed
    for name, mine in {"htod": into, "dtoh": out, "other": ~(into | out)}.items():
        union = Intervals.union_of(begin[mine], end[mine])
        parts[name] = union & left
        left = left - union
    others = busy.by_kind["memsets"] | busy.by_kind["migrations"]
    parts["memsets"] = others - busy.compute - busy.by_kind["copies"]
    return parts


def partition(account: DeviceAccount, parts: dict[str, Intervals]) -> dict[str, int]:
    """Length of each part of the window (see :func:`exclusive`), ns, with ``idle``."""
    lengths = {name: part.length for name, part in parts.items()}
    return lengths | {"idle": account.window.length_ns - sum(lengths.values())}


def timeline(account: DeviceAccount, split: dict[str, Intervals]) -> Spec:
    """Busy share by kind and copy throughput over the window, with a strip to choose a part of it.

    Args:
        account: The device's account.
        split: Its busy time as :func:`exclusive` splits it.
    """
    edges = bin_edges(account.window, BINS)
    start, end = edges[:-1], edges[1:]
    width = end - start
    scale, unit = time_scale(account.window.length_ns)
    parts = {name: np.round(100 * part.covered(start, end) / width, 1) for name, part in split.items() if part.length}
    rates = {name: rate for name, rate in measure_throughput(account.copies, edges).items() if rate.any()}
    rate, per_second = rate_scale(max((float(r.max()) for r in rates.values()), default=0.0))
    data: Spec = {"t": rounded(start / scale, 4), "u": rounded(end / scale, 4)}
    data |= {KINDS[name]: rounded(values, 1) for name, values in parts.items()}
    data |= {f"{KINDS[name]}{_RATE}": rounded(values / rate, 3) for name, values in rates.items()}
    data["busy"] = rounded(np.sum(list(parts.values()), axis=0), 1) if parts else [0] * start.size
    for name, values in data.items():  # a step is drawn up to the next point: the last bin needs one more
        values.append(data["u"][-1] if name == "t" else values[-1])
    whole = [account.window.start_ns / scale, account.window.end_ns / scale]
    shades = [
        {"t": s / scale, "u": e / scale}
        for s, e in zip(account.hole.start.tolist(), account.hole.end.tolist(), strict=True)
    ]
    title = f"session time ({unit}), as Nsight Systems shows it"
    domain = {"domain": {"param": "zoom"}, "nice": False, "zero": False}
    x = {"field": "t", "type": "quantitative", "title": None, "scale": domain, "axis": {"grid": False, "tickCount": 12}}
    panels = [
        _panel(150, _stack(parts, x, "busy, % of time"), shades, x),
    ]
    if rates:
        panels.append(_panel(90, _lines(tuple(rates), x, f"copies, {per_second}"), shades, x))
    panels[-1]["layer"][0]["encoding"]["x"] = x | {"title": title}
    if rates:
        panels[0]["layer"][0]["encoding"]["x"] = x | {"axis": {"grid": False, "labels": False, "tickCount": 12}}
    return {
        "usermeta": {"columns": ["bins"]},
        "datasets": {"bins": data, "holes": shades},
        "spacing": 14,
        "vconcat": [*panels, _strip(whole)],
        "resolve": {"scale": {"color": "independent"}, "legend": {"color": "independent"}},
        "config": {"area": {"interpolate": "step-after"}},
    }


def zoom_to(account: DeviceAccount, start_ns: int, end_ns: int) -> str:
    """A stretch of the timeline in the units of its axis, ``FROM,TO``, for a link that zooms to it."""
    scale, _ = time_scale(account.window.length_ns)
    return f"{start_ns / scale:.6f},{end_ns / scale:.6f}"


def _panel(height: int, mark: Spec, shades: list[Spec], x: Spec) -> Spec:
    """A chart with the recording's holes shaded behind it."""
    layers = [mark]
    if shades:
        layers.append(
            {
                "data": {"name": "holes"},
                "mark": {"type": "rect", "clip": True, "fill": colour("hole"), "opacity": 0.28},
                "encoding": {
                    "x": {"field": "t", "type": "quantitative", "scale": x["scale"]},
                    "x2": {"field": "u"},
                    "tooltip": {"value": "a hole in the recording"},
                },
            }
        )
    return {"height": height, "layer": layers}


def _stack(parts: dict[str, Any], x: Spec, title: str) -> Spec:
    keys = tuple(parts) or ("kernels",)
    names = [KINDS[k] for k in keys]
    return {
        "data": {"name": "bins"},
        "transform": [
            {"fold": names, "as": ["kind", "share"]},
            {"calculate": f"indexof({names!r}, datum.kind)", "as": "place"},
        ],
        "mark": {"type": "area", "clip": True},
        "encoding": {
            "x": x,
            "y": {
                "field": "share",
                "type": "quantitative",
                "stack": "zero",
                "title": title,
                "scale": {"domain": [0, 100]},
                "axis": {"tickCount": 4},
            },
            "color": kind_colours(keys, legend=LEGEND),
            "order": {"field": "place", "type": "quantitative"},
        },
    }


def _lines(keys: tuple[str, ...], x: Spec, title: str) -> Spec:
    return {
        "data": {"name": "bins"},
        "transform": [
            {"fold": [f"{KINDS[k]}{_RATE}" for k in keys], "as": ["series", "rate"]},
            {"calculate": f"replace(datum.series, '{_RATE}', '')", "as": "kind"},
        ],
        "mark": {"type": "line", "clip": True, "interpolate": "step-after", "strokeWidth": 1.3},
        "encoding": {
            "x": x,
            "y": {
                "field": "rate",
                "type": "quantitative",
                "title": title,
                "axis": {"tickCount": 3},
            },
            "color": kind_colours(keys, legend=None),
        },
    }


def _strip(whole: list[float]) -> Spec:
    """The whole window, small: drag on it to choose what the panels above show."""
    return {
        "height": 26,
        "data": {"name": "bins"},
        "params": [
            {
                "name": "zoom",
                "select": {
                    "type": "interval",
                    "encodings": ["x"],
                    "mark": {"fill": colour("accent"), "fillOpacity": 0.18, "stroke": colour("accent")},
                },
            }
        ],
        "mark": {"type": "area", "color": colour("muted"), "opacity": 0.45},
        "encoding": {
            "x": {
                "field": "t",
                "type": "quantitative",
                "title": "drag here to zoom, double-click to go back",
                "scale": {"domain": whole, "nice": False, "zero": False},
                "axis": {"labels": False, "ticks": False, "grid": False},
            },
            "y": {
                "field": "busy",
                "type": "quantitative",
                "title": None,
                "axis": {"labels": False, "ticks": False, "grid": False, "domain": False},
            },
        },
    }
