"""One device as the report shows it: its account, with what the page alone needs worked out beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from nsysparse.accounting.device import DeviceAccount
from nsysparse.analysis import Analysis
from nsysparse.intervals import Intervals
from nsysparse.lazy import cached_property
from nsysparse.report import charts, timeline
from nsysparse.report.tables import Cell, cell
from nsysparse.units import percent, size

CHARTED = 8  # devices that get charts, the busiest first

# Parts of the window that do not overlap and add up to it: (class, label, what it is made of).
_PARTS = (
    ("kernels", "kernels"),
    ("htod", "HtoD copies alone"),
    ("dtoh", "DtoH copies alone"),
    ("other", "other copies alone"),
    ("memsets", "memsets and migrations alone"),
    ("idle", "idle"),
)


_TIMES = (
    ("Busy", "busy", "busy"),
    ("Kernels", "kernels", "kind"),
    ("Whole graphs", "graphs", "kind"),
    ("Copies", "copies", "kind"),
    ("\u2003exposed", "copies_exposed", "exposed"),
    ("\u2003overlapped by kernels", "copies_overlapped", "overlapped"),
    ("\u2003exposed and held up a kernel", "held_up", "held-up"),
    ("\u2003exposed while the host was blocked in copies", "host_blocked_in_copies", "host-blocked-in-copies"),
    ("Memsets", "memsets", "kind"),
    ("Unified-memory migrations", "migrations", "kind"),
    ("Idle", "idle", "idle"),
    ("\u2003idle while the host was blocked", "idle_while_host_blocked", "idle-while-blocked"),
)
_FILLED = "share of the GPU's room for blocks that the kernels took; of kernel time, not of the window"
_FIGURES = {
    "latency_ns": "Latency",
    "kernels": "Kernels",
    "kernel_ns": "Kernel time",
    "graphs": "Whole graphs",
    "graph_ns": "Graph time",
    "copies": "Copies",
    "htod_bytes": "Bytes HtoD",
    "dtoh_bytes": "Bytes DtoH",
    "other_bytes": "Bytes of other copies",
    "copy_ns": "Copy time",
    "exposed_ns": "Copy time exposed",
    "blocked_ns": "Host blocked",
}


@dataclass(frozen=True)
class Part:
    """A piece of the bar that splits the window: where it lies in percent, its class, its label and its share."""

    css: str
    label: str
    x: str
    width: str
    share: Cell


@dataclass(frozen=True)
class DeviceView:
    """One device on the page.

    Attributes:
        account: What was measured.
        incomplete: When the recording is known to be incomplete, in all of it.
        charted: Whether it gets charts.
    """

    account: DeviceAccount
    incomplete: Intervals
    charted: bool

    @property
    def label(self) -> str:
        """Its printed name."""
        return str(self.account.device["label"])

    @property
    def anchor(self) -> str:
        """What links to it end in."""
        return f"device-{self.account.number}"

    @property
    def over_hole(self) -> bool:
        """Whether its window overlaps a hole in the recording."""
        return len(self.account.hole) > 0

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """The account's tables."""
        return self.account.tables

    @cached_property
    def figures(self) -> dict[str, Any]:
        """The window's figures."""
        return self.account.figures()

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The figures with the device's label and anchor: a row of the table of all devices."""
        return self.figures | {"label": self.label, "over_hole": self.over_hole}

    @cached_property
    def split(self) -> dict[str, Intervals]:
        """The busy time in parts that do not overlap."""
        return timeline.exclusive(self.account)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The window as one bar: disjoint parts that add up to it."""
        lengths = timeline.partition(self.account, self.split)
        window, at, parts = self.account.window.length_ns, 0.0, []
        for css, label in _PARTS:
            share = lengths[css] / window
            if share or css in {"kernels", "idle"}:
                parts.append(
                    Part(
                        css,
                        label,
                        f"{100 * at:.4f}",
                        f"{100 * share:.4f}",
                        cell(share, "share", self.over_hole),
                    )
                )
            at += share
        return tuple(parts)

    @cached_property
    def utilizations(self) -> list[dict[str, Any]]:
        """The four utilizations as rows: ``what``, ``term``, ``ratio``, ``says``."""
        f = self.figures
        return [
            _share("Kernel-busy", "utilization", f["kernels_ratio"], "a kernel ran: what nvidia-smi reports"),
            _share("Copy-busy", "utilization", f["copies_ratio"], "a copy ran"),
            _share("Busy", "busy", f["busy_ratio"], "anything ran"),
            _share("SM fill, while kernels ran (estimate)", "sm-fill", f["sm_fill_ratio"], _FILLED)
            | {"over_hole": False},
        ]

    @cached_property
    def difference(self) -> str:
        """One sentence on why the four utilizations differ here."""
        f = self.figures
        fill = f["sm_fill_ratio"]
        filled = f", and while kernels ran they filled {percent(fill)} of the GPU" if fill is not None else ""
        apart = f["busy_ratio"] - f["kernels_ratio"]
        if f["graphs_ns"]:
            apart_text = "whole CUDA graphs were recorded as one span each, which kernel-busy leaves out"
        elif apart >= 0.05:
            apart_text = f"{percent(apart)} of the window went to copies and fills with no kernel beside them"
        elif f["idle_ratio"] >= 0.5:
            apart_text = f"all are low because the GPU was idle {percent(f['idle_ratio'])} of the window"
        else:
            apart_text = "copies and fills add little to the kernels' share"
        return f"A kernel ran {percent(f['kernels_ratio'])} of the time{filled}; {apart_text}."

    @cached_property
    def times(self) -> list[dict[str, Any]]:
        """Where the window went, as rows: ``what``, ``term``, ``ns``, ``ratio``."""
        f = self.figures
        optional = {"graphs", "memsets", "migrations"}
        return [
            {"what": what, "term": term, "ns": f[f"{key}_ns"], "ratio": f[f"{key}_ratio"]}
            for what, key, term in _TIMES
            if key not in optional or f[f"{key}_ns"]
        ]

    @property
    def phases(self) -> list[dict[str, Any]]:
        """Every window that the recording offers, and the one used if the user gave another."""
        rows = list(self.account.phases.values())
        if self.account.window.name not in self.account.phases:
            rows.append(self.account.busy.summary())
        return [
            row | {"over_hole": len(self.incomplete.clip(row["window_start_ns"], row["window_end_ns"])) > 0}
            for row in rows
        ]

    @property
    def loading(self) -> str:
        """One sentence on the loading phase, empty without one."""
        loading = self.account.loading
        if loading is None:
            return ""
        before = self.account.window.start_ns >= loading.end_ns
        where = "before this window" if before else "inside this window: choose a later one with --window"
        return (
            f"A model is loaded during the first {percent(loading.wall_ratio)} of the recording"
            f" ({size(loading.bytes)} to the device, {percent(loading.kernels_ratio)} of the kernels); {where}."
        )

    @property
    def distribution(self) -> pl.DataFrame:
        """Figures of the requests with their printed names as ``what``."""
        names = pl.col("figure").replace_strict(_FIGURES, default=pl.col("figure"), return_dtype=pl.String)
        return self.tables["request_distribution"].with_columns(what=names)

    @property
    def slowest(self) -> pl.DataFrame:
        """The requests, slowest first."""
        return self.tables["requests"].sort("latency_ns", "request", descending=[True, False], nulls_last=True)

    @property
    def longest_gaps(self) -> pl.DataFrame:
        """The longest gaps; the last may be ended by the window instead of an operation."""
        return self.tables["longest_gaps"].with_columns(pl.col("next").fill_null("the window's end"))

    @property
    def paths(self) -> pl.DataFrame:
        """The NVTX paths, those with the most kernel and copy time (their own and below) first."""
        heavy = pl.col("total_kernel_ns") + pl.col("total_copy_ns")
        return self.tables["nvtx_paths"].sort(heavy, "text", "path_by", descending=[True, False, False])

    @cached_property
    def charts(self) -> dict[str, dict[str, Any]]:
        """Chart specifications by name; empty beyond the busiest devices."""
        return charts.draw(self.account, self.split) if self.charted else {}


def _share(what: str, term: str, ratio: float | None, says: str) -> dict[str, Any]:
    return {"what": what, "term": term, "ratio": ratio, "says": says}


def view_devices(analysis: Analysis) -> list[DeviceView]:
    """The devices in their order, the busiest of them with charts."""
    views = [DeviceView(a, analysis.integrity.hole, False) for a in analysis.devices]
    charted = {view.account.number for view in busiest(views, CHARTED)}
    return [replace(view, charted=view.account.number in charted) for view in views]


def busiest(devices: list[DeviceView], most: int) -> list[DeviceView]:
    """The busiest of some devices, in the order that they had."""
    if len(devices) <= most:
        return devices
    ranked = sorted(devices, key=lambda d: (-d.account.figures()["busy_ns"], d.account.number))[:most]
    chosen = {d.account.number for d in ranked}
    return [d for d in devices if d.account.number in chosen]
