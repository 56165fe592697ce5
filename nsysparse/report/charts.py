"""Charts as Vega-Lite specifications: plain data, coloured by the page's CSS variables so that they follow its theme.

A data set is written as columns of rounded numbers; the page's script turns it into rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from nsysparse.accounting.device import DeviceAccount
from nsysparse.accounting.host import ACTIVITIES, NOTHING
from nsysparse.accounting.idle import UNKNOWN_THREAD
from nsysparse.accounting.timeline import bin_window
from nsysparse.integrity import Hole
from nsysparse.intervals import Intervals
from nsysparse.report.text import visible
from nsysparse.units import instant, size

Spec = dict[str, Any]
BINS = 1_200  # of the timeline: finer than a screen, so that zooming in shows more
MAX_POINTS = 1_000  # requests drawn one by one; more are brought together in groups
KINDS = {
    "kernels": "kernels",
    "htod": "HtoD copies",
    "dtoh": "DtoH copies",
    "other": "other copies",
    "memsets": "memsets, migrations",
}
_COPIES = ("htod", "dtoh", "other")
_LEGEND = {"orient": "top", "symbolType": "square", "columns": 3}


def _colour(name: str) -> str:
    return f"var(--{name})"


def _kind_colours(keys: tuple[str, ...] = tuple(KINDS), **more: Any) -> Spec:
    return {
        "field": "kind",
        "type": "nominal",
        "title": None,
        "scale": {"domain": [KINDS[k] for k in keys], "range": [_colour(k) for k in keys]},
        **more,
    }


def exclusive(account: DeviceAccount) -> dict[str, Intervals]:
    """The busy time of a window in parts that do not overlap.

    Where several kinds run at once the instant goes to the first of: kernels and graphs, HtoD, DtoH, other copies,
    memsets and migrations. So the parts and idle time add up to the window.
    """
    busy, copies = account.busy, account.copies
    kind = copies["kind_name"]
    chosen = {"htod": kind == "HtoD", "dtoh": kind == "DtoH", "other": ~kind.is_in(["HtoD", "DtoH"])}
    taken, parts = busy.compute, {"kernels": busy.compute}
    for name, rows in chosen.items():
        part = copies.filter(rows)
        union = Intervals.union_of(part["from_ns"], part["to_ns"])
        parts[name] = union - taken
        taken = taken | union
    parts["memsets"] = busy.everything - taken
    return parts


def partition(account: DeviceAccount) -> dict[str, int]:
    """Length of each part of the window, ns, with ``idle``."""
    lengths = {name: part.length for name, part in exclusive(account).items()}
    return lengths | {"idle": account.window.length_ns - sum(lengths.values())}


def draw(account: DeviceAccount, holes: tuple[Hole, ...]) -> dict[str, Spec]:
    """The charts of a device, by name; a chart without data is left out."""
    drawn = {
        "timeline": timeline(account, holes),
        "sizes": sizes(account.tables["copy_sizes"]),
        "requests": requests(account.tables["requests"]),
        "idle": idle(account.tables["idle_by_length"]),
    }
    return {name: spec for name, spec in drawn.items() if spec is not None}


def timeline(account: DeviceAccount, holes: tuple[Hole, ...]) -> Spec:
    """Busy share by kind and copy throughput over the window, with a strip to choose a part of it."""
    frame = bin_window(account.copies, account.busy, BINS)
    start, end = frame["from_ns"].to_numpy(), frame["to_ns"].to_numpy()
    origin, width = account.window.start_ns, end - start
    scale, unit = _time_scale(account.window.length_ns)
    parts = {
        name: np.round(100 * part.covered(start, end) / width, 1)
        for name, part in exclusive(account).items()
        if part.length
    }
    rates = {name: frame[name].to_numpy() / 1e9 for name in _COPIES if frame[name].max()}
    data: Spec = {"t": _rounded((start - origin) / scale, 4), "u": _rounded((end - origin) / scale, 4)}
    data |= {KINDS[name]: _rounded(values, 1) for name, values in parts.items()}
    data |= {f"{KINDS[name]} GB/s": _rounded(values, 3) for name, values in rates.items()}
    data["busy"] = _rounded(np.sum(list(parts.values()), axis=0), 1) if parts else [0] * start.size
    length = (account.window.end_ns - origin) / scale
    shades = [
        {
            "t": max((h.start_ns - origin) / scale, 0),
            "u": min((h.end_ns - origin) / scale, length),
            "missing": visible(h.missing),
        }
        for h in holes
    ]
    title = f"time since the window's start, {instant(origin)} ({unit})"
    domain = {"domain": {"param": "zoom"}, "nice": False}
    x = {"field": "t", "type": "quantitative", "title": None, "scale": domain, "axis": {"grid": False}}
    panels = [
        _panel(150, _stack(parts, x, "busy, % of time"), shades, x),
    ]
    if rates:
        panels.append(_panel(90, _lines(rates, x), shades, x))
    panels[-1]["layer"][0]["encoding"]["x"] = x | {"title": title}
    if rates:
        panels[0]["layer"][0]["encoding"]["x"] = x | {"axis": {"grid": False, "labels": False}}
    return {
        "usermeta": {"columns": ["bins"]},
        "datasets": {"bins": data, "holes": shades},
        "spacing": 14,
        "vconcat": [*panels, _strip(length)],
        "resolve": {"scale": {"color": "independent"}, "legend": {"color": "independent"}},
        "config": {"area": {"interpolate": "step-after"}},
    }


def _panel(height: int, mark: Spec, shades: list[Spec], x: Spec) -> Spec:
    """A chart with the recording's holes shaded behind it."""
    layers = [mark]
    if shades:
        layers.append(
            {
                "data": {"name": "holes"},
                "mark": {"type": "rect", "clip": True, "fill": _colour("hole"), "opacity": 0.28},
                "encoding": {
                    "x": {"field": "t", "type": "quantitative", "scale": x["scale"]},
                    "x2": {"field": "u"},
                    "tooltip": {"field": "missing", "type": "nominal", "title": "hole in the recording"},
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
            "color": _kind_colours(keys, legend=_LEGEND),
            "order": {"field": "place", "type": "quantitative"},
        },
    }


def _lines(rates: dict[str, Any], x: Spec) -> Spec:
    keys = tuple(rates)
    return {
        "data": {"name": "bins"},
        "transform": [
            {"fold": [f"{KINDS[k]} GB/s" for k in keys], "as": ["series", "rate"]},
            {"calculate": "replace(datum.series, ' GB/s', '')", "as": "kind"},
        ],
        "mark": {"type": "line", "clip": True, "interpolate": "step-after", "strokeWidth": 1.3},
        "encoding": {
            "x": x,
            "y": {
                "field": "rate",
                "type": "quantitative",
                "title": "copies, GB/s",
                "axis": {"tickCount": 3},
            },
            "color": _kind_colours(keys, legend=None),
        },
    }


def _strip(length: float) -> Spec:
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
                    "mark": {"fill": _colour("accent"), "fillOpacity": 0.18, "stroke": _colour("accent")},
                },
            }
        ],
        "mark": {"type": "area", "color": _colour("muted"), "opacity": 0.45},
        "encoding": {
            "x": {
                "field": "t",
                "type": "quantitative",
                "title": "drag here to zoom, double-click to go back",
                "scale": {"domain": [0, length], "nice": False},
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


def sizes(table: pl.DataFrame) -> Spec | None:
    """Copies by size, every class from the smallest to the largest: how many, and how many bytes."""
    if table["from_bytes"].n_unique() < 2:  # the table says it all
        return None
    family = {"HtoD": KINDS["htod"], "DtoH": KINDS["dtoh"]}
    rows = (
        table.with_columns(kind=pl.col("kind").replace_strict(family, default=KINDS["other"], return_dtype=pl.String))
        .group_by("kind", "from_bytes")
        .agg(pl.col("count", "bytes").sum())
        .sort("from_bytes", "kind")
    )
    found = rows["from_bytes"].to_list()
    powers = [b.bit_length() for b in found if b]
    classes = [0] * (0 in found) + [1 << (p - 1) for p in range(min(powers), max(powers) + 1)]
    data = {
        "size": [size(b) for b in found],
        "kind": rows["kind"].to_list(),
        "copies": rows["count"].to_list(),
        "MB": _rounded(rows["bytes"].to_numpy() / 1e6, 4),
    }
    keys = tuple(k for k in _COPIES if KINDS[k] in set(data["kind"]))
    x = {"field": "size", "type": "ordinal", "scale": {"domain": [size(b) for b in classes]}, "title": None}
    bare, labelled = {"labels": False, "ticks": False}, {"labelAngle": -35, "labelOverlap": "greedy"}
    return {
        "usermeta": {"columns": ["sizes"]},
        "datasets": {"sizes": data},
        "data": {"name": "sizes"},
        "spacing": 10,
        "resolve": {"scale": {"color": "independent"}, "legend": {"color": "independent"}},
        "vconcat": [
            _bars("copies", "copies", x | {"axis": bare}, _kind_colours(keys, legend=_LEGEND)),
            _bars(
                "MB",
                "bytes, MB",
                x | {"title": "size of a copy, from", "axis": labelled},
                _kind_colours(keys, legend=None),
            ),
        ],
    }


def _bars(field: str, title: str, x: Spec, colour: Spec) -> Spec:
    return {
        "height": 90,
        "mark": {"type": "bar"},
        "encoding": {
            "x": x,
            "y": {"field": field, "type": "quantitative", "title": title, "axis": {"tickCount": 3}},
            "color": colour,
            "tooltip": [{"field": n} for n in ("kind", "size", "copies", "MB")],
        },
    }


def requests(table: pl.DataFrame) -> Spec | None:
    """Latency and bytes of each request in the order of their start."""
    if not table.height:
        return None
    group = -(-table.height // MAX_POINTS)
    rows = (
        table.with_columns(n=pl.int_range(pl.len(), dtype=pl.Int64) // group * group)
        .group_by("n", maintain_order=True)
        .agg(
            pl.col("latency_ns").median().alias("median"),
            pl.col("latency_ns").max().alias("max"),
            pl.col("htod_bytes", "dtoh_bytes", "other_bytes").mean(),
        )
    )
    highest = table["latency_ns"].max()
    scale, unit = _time_scale(highest if isinstance(highest, int) else 1)
    data: Spec = {"n": [n + 1 for n in rows["n"].to_list()]}
    data["latency"] = _rounded(rows["max"].to_numpy() / scale, 4)
    moved = {k: f"{k}_bytes" for k in _COPIES if rows[f"{k}_bytes"].sum()}
    data |= {KINDS[k]: _rounded(rows[column].to_numpy() / 1e6, 4) for k, column in moved.items()}
    groups = "request" if group == 1 else f"request (slowest of each {group})"
    x = {"field": "n", "type": "quantitative", "title": None, "scale": {"zero": False, "nice": False}}
    x["axis"] = {"format": "d", "tickMinStep": 1, "grid": False}
    panels: list[Spec] = [
        {
            "height": 110,
            "mark": {"type": "point", "filled": True, "size": 26, "color": _colour("accent"), "opacity": 0.8},
            "encoding": {
                "x": x | {"title": groups},
                "y": {
                    "field": "latency",
                    "type": "quantitative",
                    "title": f"latency, {unit}",
                    "axis": {"tickCount": 4},
                },
                "tooltip": [
                    {"field": "n", "title": "request"},
                    {"field": "latency", "title": f"latency, {unit}"},
                ],
            },
        }
    ]
    if moved:
        keys = tuple(moved)
        panels.append(
            {
                "height": 80,
                "transform": [{"fold": [KINDS[k] for k in keys], "as": ["kind", "MB"]}],
                "mark": {"type": "area", "interpolate": "step"},
                "encoding": {
                    "x": x | {"title": "request" if group == 1 else f"request (mean of each {group})"},
                    "y": {
                        "field": "MB",
                        "type": "quantitative",
                        "title": "bytes, MB",
                        "axis": {"tickCount": 3},
                    },
                    "color": _kind_colours(keys, legend=_LEGEND),
                },
            }
        )
    return {
        "usermeta": {"columns": ["requests"]},
        "datasets": {"requests": data},
        "data": {"name": "requests"},
        "spacing": 14,
        "resolve": {"scale": {"color": "independent"}},
        "vconcat": panels,
    }


def idle(table: pl.DataFrame) -> Spec | None:
    """Idle time by length of the gap, split by what the host was doing."""
    activities = [a for a in (*ACTIVITIES, NOTHING, UNKNOWN_THREAD) if table.height and table[a].sum()]
    if not activities:
        return None
    long = table.unpivot(activities, index="length", variable_name="activity", value_name="ns").filter(pl.col("ns") > 0)
    scale, unit = _time_scale(int(table["idle_ns"].sum()))
    every = (*ACTIVITIES, NOTHING, UNKNOWN_THREAD)
    palette = [_colour(f"activity-{every.index(a) + 1}") for a in activities]
    return {
        "usermeta": {"columns": ["idle"]},
        "datasets": {
            "idle": {
                "length": long["length"].to_list(),
                "activity": long["activity"].to_list(),
                "time": _rounded(long["ns"].to_numpy() / scale, 4),
            }
        },
        "data": {"name": "idle"},
        "height": {"step": 26},
        "mark": {"type": "bar"},
        "encoding": {
            "y": {
                "field": "length",
                "type": "ordinal",
                "sort": table["length"].to_list(),
                "title": "length of the gap",
            },
            "x": {"field": "time", "type": "quantitative", "title": f"idle time, {unit}"},
            "color": {
                "field": "activity",
                "type": "nominal",
                "title": None,
                "scale": {"domain": activities, "range": palette},
                "legend": _LEGEND,
            },
            "tooltip": [
                {"field": "length", "title": "gaps of"},
                {"field": "activity", "title": "host"},
                {"field": "time", "title": unit},
            ],
        },
    }


def _time_scale(length_ns: int) -> tuple[float, str]:
    """What to divide ns by for a chart of this length, and the unit's name."""
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if length_ns >= 2 * factor:
            return factor, unit
    return 1.0, "ns"


def _rounded(values: Any, digits: int) -> list[float | int | None]:
    """Short numbers: whole ones without a point, unknown ones as null."""
    rounded = np.round(np.asarray(values, np.float64), digits).tolist()
    return [None if v != v else int(v) if v == int(v) else v for v in rounded]
