"""The report of a census alone: what the GPUs were asked to do and how busy they were, without the code behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from nsysparse import units
from nsysparse._version import __version__
from nsysparse.census.dump import Census
from nsysparse.census.windows import DeviceCount, Window, kernel_frame
from nsysparse.crosscheck.sides import Side, side_of_census
from nsysparse.data import data_folder
from nsysparse.report.page import STYLES, content_policy, make_environment, read_asset, template_functions

PARTS = ("kernels", "copies", "memsets", "graph launches")


def render_census(
    census: Census, window: Window, counts: Sequence[DeviceCount], requests: int | None = None, top: int = 20
) -> str:
    """One HTML page, without scripts.

    Args:
        census: What was recorded.
        window: The window counted.
        counts: What :func:`nsysparse.census.windows.count` made of it.
        requests: Requests in the window, or None.
        top: Kernel names to list.
    """
    templates = data_folder("templates")
    style = "\n".join(read_asset(templates, name) for name in STYLES)
    environment = make_environment(templates)
    environment.globals |= template_functions([], top)
    page = environment.get_template("census.html").render(
        census=census,
        window=window,
        requests=requests,
        facts=_facts(census, counts),
        work=work_rows(side_of_census(counts), requests),
        unknown=sorted(side_of_census(counts).unknown.values()),
        busy=busy_rows(counts),
        kernels=kernel_frame(census),
        style=Markup(style),
        scripts=[],
        policy=content_policy(style, []),
    )
    return f"{page}\n"


def _facts(census: Census, counts: Sequence[DeviceCount]) -> list[tuple[str, str]]:
    start, end = min((c.start_ns for c in counts), default=0), max((c.end_ns for c in counts), default=0)
    return [
        ("census", f"{units.count(len(census.processes))} processes"),
        ("window", units.duration(end - start) if counts else units.UNKNOWN),
        ("unfinished", units.count(sum(not p.finished for p in census.processes))),
        ("analyzed by", f"nsysparse {__version__}"),
    ]


def work_rows(side: Side, requests: int | None) -> list[dict[str, Any]]:
    """One row an item: ``item``, ``count``, ``bytes``, ``time_ns``, both per request, ``bandwidth`` (bytes/s)."""
    rows = []
    for item, tally in side.sums().items():
        if item.part not in PARTS or not tally.count:
            continue
        rate = tally.bytes * 1e9 / tally.time_ns if tally.bytes and tally.time_ns else None
        rows.append(
            {
                "item": item.label,
                "count": tally.count,
                "bytes": tally.bytes,
                "time_ns": tally.time_ns,
                "count_per_request": tally.count / requests if requests else None,
                "bytes_per_request": tally.bytes / requests if requests and tally.bytes is not None else None,
                "bandwidth": rate if item.part == "copies" else None,
                "order": (PARTS.index(item.part), -(tally.bytes or 0), item.label),
            }
        )
    return sorted(rows, key=lambda row: row["order"])


def busy_rows(counts: Sequence[DeviceCount]) -> list[dict[str, Any]]:
    """One row a (process, device): shares of the recorded time, and what qualifies them."""
    rows = []
    for c in counts:
        wall = c.covered_ns or None
        shares = {
            f"{name}_ratio": value / wall if value is not None and wall else None
            for name, value in (("kernels", c.kernel_busy_ns), ("copies", c.copy_busy_ns), ("busy", c.busy_ns))
        }
        name = f"{c.device}: {c.device_name or 'model not known'}, process {c.pid} {c.program}"
        facts = {"covered_ns": c.covered_ns, "coverage_ratio": c.coverage_ratio}
        rows.append({"name": name, **shares, **facts, "dropped": c.dropped, "busy_late_ns": c.busy_late_ns})
    return rows
