"""The charts of one device, by name."""

from __future__ import annotations

import polars as pl

from nsysparse.accounting.device import DeviceAccount
from nsysparse.accounting.host import ACTIVITIES, NOTHING
from nsysparse.accounting.idle import UNKNOWN_THREAD
from nsysparse.intervals import Intervals
from nsysparse.report.drawing import COPY_KINDS, KINDS, LEGEND, Spec, colour, kind_colours, rounded, time_scale
from nsysparse.report.timeline import timeline
from nsysparse.units import size

MAX_POINTS = 1_000  # requests drawn one by one; more are brought together in groups


def draw(account: DeviceAccount, split: dict[str, Intervals]) -> dict[str, Spec]:
    """The charts of a device, by name; a chart without data is left out. See :func:`timeline` for the arguments."""
    drawn = {
        "timeline": timeline(account, split),
        "sizes": sizes(account.tables["copy_sizes"]),
        "requests": requests(account.tables["requests"]),
        "idle": idle(account.tables["idle_by_length"]),
    }
    return {name: spec for name, spec in drawn.items() if spec is not None}


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
        "MB": rounded(rows["bytes"].to_numpy() / 1e6, 4),
    }
    keys = tuple(k for k in COPY_KINDS if KINDS[k] in set(data["kind"]))
    x = {"field": "size", "type": "ordinal", "scale": {"domain": [size(b) for b in classes]}, "title": None}
    bare: Spec = {"labels": False, "ticks": False}
    labelled: Spec = {"labelAngle": -35, "labelOverlap": "greedy"}
    return {
        "usermeta": {"columns": ["sizes"]},
        "datasets": {"sizes": data},
        "data": {"name": "sizes"},
        "spacing": 10,
        "resolve": {"scale": {"color": "independent"}, "legend": {"color": "independent"}},
        "vconcat": [
            _bars("copies", "copies", x | {"axis": bare}, kind_colours(keys, legend=LEGEND)),
            _bars(
                "MB",
                "bytes, MB",
                x | {"title": "size of a copy, from", "axis": labelled},
                kind_colours(keys, legend=None),
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
        table.with_columns(n=pl.int_range(pl.len(), dtype=pl.Int64) // group * group + 1)
        .group_by("n", maintain_order=True)
        .agg(pl.col("latency_ns").max(), pl.col("htod_bytes", "dtoh_bytes", "other_bytes").mean())
    )
    highest = table["latency_ns"].max()
    scale, unit = time_scale(highest if isinstance(highest, int) else 1)
    moved = {KINDS[k]: f"{k}_bytes" for k in COPY_KINDS if rows[f"{k}_bytes"].sum()}
    data: Spec = {"n": rows["n"].to_list(), "latency": rounded(rows["latency_ns"].to_numpy() / scale, 4)}
    data |= {kind: rounded(rows[column].to_numpy() / 1e6, 4) for kind, column in moved.items()}
    whole = group == 1
    panels = [_latencies(f"latency, {unit}", "request" if whole else f"request (slowest of each {group})")]
    if moved:
        keys = tuple(k for k in COPY_KINDS if KINDS[k] in moved)
        panels.append(_moved(keys, "request" if whole else f"request (mean of each {group})"))
    return {
        "usermeta": {"columns": ["requests"]},
        "datasets": {"requests": data},
        "data": {"name": "requests"},
        "spacing": 14,
        "resolve": {"scale": {"color": "independent"}},
        "vconcat": panels,
    }


def _number_axis(title: str) -> Spec:
    return {
        "field": "n",
        "type": "quantitative",
        "title": title,
        "scale": {"zero": False, "nice": False},
        "axis": {"format": "d", "tickMinStep": 1, "grid": False},
    }


def _latencies(title: str, axis: str) -> Spec:
    return {
        "height": 110,
        "mark": {"type": "point", "filled": True, "size": 26, "color": colour("accent"), "opacity": 0.8},
        "encoding": {
            "x": _number_axis(axis),
            "y": {"field": "latency", "type": "quantitative", "title": title, "axis": {"tickCount": 4}},
            "tooltip": [{"field": "n", "title": "request"}, {"field": "latency", "title": title}],
        },
    }


def _moved(keys: tuple[str, ...], axis: str) -> Spec:
    return {
        "height": 80,
        "transform": [{"fold": [KINDS[k] for k in keys], "as": ["kind", "MB"]}],
        "mark": {"type": "area", "interpolate": "step"},
        "encoding": {
            "x": _number_axis(axis),
            "y": {"field": "MB", "type": "quantitative", "title": "bytes, MB", "axis": {"tickCount": 3}},
            "color": kind_colours(keys, legend=LEGEND),
        },
    }


def idle(table: pl.DataFrame) -> Spec | None:
    """Idle time by length of the gap, split by what the host was doing."""
    activities = [a for a in (*ACTIVITIES, NOTHING, UNKNOWN_THREAD) if table.height and table[a].sum()]
    if not activities:
        return None
    long = table.unpivot(activities, index="length", variable_name="activity", value_name="ns").filter(pl.col("ns") > 0)
    scale, unit = time_scale(int(table["idle_ns"].sum()))
    every = (*ACTIVITIES, NOTHING, UNKNOWN_THREAD)
    palette = [colour(f"activity-{every.index(a) + 1}") for a in activities]
    return {
        "usermeta": {"columns": ["idle"]},
        "datasets": {
            "idle": {
                "length": long["length"].to_list(),
                "activity": long["activity"].to_list(),
                "time": rounded(long["ns"].to_numpy() / scale, 4),
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
                "legend": LEGEND,
            },
            "tooltip": [
                {"field": "length", "title": "gaps of"},
                {"field": "activity", "title": "host"},
                {"field": "time", "title": unit},
            ],
        },
    }
