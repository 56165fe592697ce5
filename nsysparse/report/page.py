"""The page: templates, what they may call, and the Content-Security-Policy that binds it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nsysparse import units
from nsysparse.analysis import Analysis
from nsysparse.data import data_folder
from nsysparse.definitions import DEFINITIONS
from nsysparse.findings import Failed, Finding, Outcome, Quiet, Skipped
from nsysparse.integrity import Status
from nsysparse.report import flamegraph
from nsysparse.report.bundle import chart_library
from nsysparse.report.devices import CHARTED, DeviceView, busiest, view_devices
from nsysparse.report.flamegraph import view_flame
from nsysparse.report.kept import KeptTemplates
from nsysparse.report.sections import find_sections
from nsysparse.report.tables import TableView, by_name, cell, table
from nsysparse.report.text import visible
from nsysparse.report.timeline import zoom_to
from nsysparse.rules._labels import LABELS, label
from nsysparse.side_by_side import aside, side_by_side

if TYPE_CHECKING:
    from nsysparse.crosscheck import Crosscheck

CELLS = 30_000  # that the tables of all devices may hold, so that no trace makes a page of more than 5 MB
DETAILED = 40  # devices that get parts of their own in every section, the busiest
LISTED = 200  # devices in the table of devices, the busiest; the JSON holds all
FINDINGS = 80  # that are shown whole, those with the most to win
OUTCOMES = 300  # that are listed
COLUMNS = 180  # of all tables of one device
WHOLE = 64  # rows of a table that makes no sense when cut
FLAME_NODES = 8_000  # of the report's flame graph; its own page, made by the command flamegraph, holds more
STYLES, SCRIPT = ("report.css", "print.css"), "charts.js"
_OUTCOMES: dict[type, str] = {Finding: "fired", Quiet: "quiet", Skipped: "skipped", Failed: "failed"}


def render(analysis: Analysis, top: int, crosscheck: Crosscheck | None = None) -> str:
    """The whole page as text."""
    templates = data_folder("templates")
    every_device = view_devices(analysis)
    labels = {d.account.number: d.label for d in every_device}
    devices = busiest(every_device, DETAILED)
    with aside(CHARTED) as begin:
        tree = begin(lambda: analysis.call_paths and view_flame(analysis.call_paths.flame, FLAME_NODES))
        side_by_side(lambda device: device.charts, devices, CHARTED)  # each keeps its own
        flame = tree()
    weight = max(len(devices), 2 * len(devices) - 16, 1)  # of many devices the heads of the tables weigh as much
    shown = max(1, min(top, CELLS // (COLUMNS * weight)))
    has_charts = any(d.charts for d in devices)
    drawn = flame is not None and flame.drawn
    styles = (*STYLES, *flamegraph.STYLES) if drawn else STYLES
    style = "\n".join(read_asset(templates, name) for name in styles)
    scripts = [chart_library(), read_asset(templates, SCRIPT)] if has_charts else []
    scripts += [read_asset(templates, flamegraph.SCRIPT)] if drawn else []
    environment = make_environment(templates)
    sections = [
        (s, s.missing(analysis.recorded)) for s in find_sections(templates) if s.key != "crosscheck" or crosscheck
    ]
    environment.globals |= template_functions(every_device, shown)
    page = environment.get_template("report.html").render(
        analysis=analysis,
        crosscheck=crosscheck,
        devices=devices,
        every_device=every_device,
        listed=busiest(every_device, LISTED),
        most_findings=FINDINGS,
        sections=sections,
        facts=_facts(analysis),
        holes=_holes(analysis),
        recorded={
            state: [asdict(r) for r in analysis.recorded if r.state == state]
            for state in ("not recorded", "none seen", "recorded")
        },
        outcomes=[_outcome(o, labels) for o in analysis.outcomes[:OUTCOMES]],
        definitions=DEFINITIONS.values(),
        style=Markup(style),
        scripts=[Markup(s) for s in scripts],
        policy=content_policy(style, scripts),
        charted=CHARTED,
        flame=flame,
        ok=analysis.integrity.status is Status.OK,
    )
    return f"{page}\n"


def make_environment(templates: Path) -> Environment:
    """Jinja as every page uses it: everything escaped, nothing undefined, numbers formatted by units."""
    environment = Environment(
        loader=FileSystemLoader(templates),
        bytecode_cache=KeptTemplates(),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters |= units.FORMATTERS
    return environment


def read_asset(templates: Path, name: str) -> str:
    """A style sheet or script of ours."""
    return templates.joinpath("assets", name).read_text(encoding="utf-8").replace("\r\n", "\n").strip()


def template_functions(devices: list[DeviceView], shown: int) -> dict[str, Any]:
    """What templates may call beside the filters."""
    labels = {d.account.number: d.label for d in devices}

    def make_table(
        data: Any, title: str, columns: Sequence[Sequence[str]], device: DeviceView | None = None, **more: Any
    ) -> TableView:
        marked = device is not None and device.over_hole
        rows = more.pop("top", max(shown, WHOLE) if more.pop("whole", False) and len(devices) <= CHARTED else shown)
        return table(data, title, columns, top=rows, marked=marked, **more)

    return {
        "make_table": make_table,
        "cell": cell,
        "by_name": by_name,
        "chart_data": _json,
        "device_label": partial(_label, labels),
        "evidence_label": label,
        "evidence_labels": LABELS,
        "timeline_slice": partial(_timeline_slice, {d.account.number: d for d in devices if d.charted}),
    }


def _label(labels: dict[int, str], number: int | None) -> str:
    return "whole recording" if number is None else labels.get(number, f"device {number}")


def _timeline_slice(charted: dict[int, DeviceView], finding: Finding) -> dict[str, str] | None:
    """Where a finding lies in its device's timeline; None where there is no such chart."""
    device = charted.get(-1 if finding.device is None else finding.device)
    if device is None or finding.slice_ns is None:
        return None
    return {"anchor": device.anchor, "zoom": zoom_to(device.account, *finding.slice_ns)}


def _json(spec: dict[str, Any]) -> Markup:
    """A chart's specification as JSON that cannot end its element."""
    text = json.dumps(spec, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def content_policy(style: str, scripts: list[str]) -> str:
    """Nothing may be loaded; only these scripts and this style sheet may act."""
    allowed = " ".join(_hash(s) for s in scripts) or "'none'"
    return f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _facts(analysis: Analysis) -> list[tuple[str, str]]:
    """What the head of the page says of the file."""
    trace = analysis.trace
    size = trace["size_bytes"]
    return [
        ("export", f"{trace['kind']}, {units.size(size if isinstance(size, int) else None)}"),
        ("made by", f"Nsight Systems {trace['release'] or '(release not in the export)'}"),
        ("devices", units.count(len(analysis.devices))),
        ("analyzed by", f"nsysparse {analysis.version}"),
    ]


def _holes(analysis: Analysis) -> list[dict[str, Any]]:
    return [
        {
            "start_ns": h.start_ns,
            "end_ns": h.end_ns,
            "length_ns": h.end_ns - h.start_ns,
            "process": "all" if h.process is None else str(h.process >> 24 & 0xFFFFFF),
            "missing": h.missing,
            "sign": h.sign,
        }
        for h in analysis.integrity.holes
    ]


def _outcome(outcome: Outcome, labels: dict[int, str]) -> dict[str, str | None]:
    why = {Skipped: "reason", Failed: "error", Finding: "title"}.get(type(outcome))
    return {
        "rule": outcome.rule,
        "device": _label(labels, outcome.device),
        "outcome": _OUTCOMES[type(outcome)],
        "why": getattr(outcome, why) if why else "",
    }
