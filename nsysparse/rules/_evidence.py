"""What findings are made of: severity, senders, figures of copies, worst instances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.accounting.grouping import add_up, number_rows
from nsysparse.findings import Finding, Severity
from nsysparse.intervals import Intervals, times
from nsysparse.nulls import filled, given
from nsysparse.rules._frameworks import framework
from nsysparse.rules._periods import cadence
from nsysparse.rules._price import Price, Waits
from nsysparse.rules._scene import Scene
from nsysparse.rules._stacks import split_paths
from nsysparse.units import bandwidth, count, duration, percent

WORST = 5  # instances listed
SENDERS, PATHS = 6, 6
SUMS = {"copies": "copy_count", "bytes": "bytes", "in_call_ns": "in_call_ns", "exposed_ns": "exposed_ns"}
CONFIDENCES = ("low", "medium", "high")


@dataclass(frozen=True)
class Found:
    """A finding with the instants that it claims, for the exclusive split."""

    finding: Finding
    claim: Intervals


def judge(scene: Scene, rule: str, share: float, confidence: str) -> tuple[Severity, str] | None:
    """Severity by share, None below the rule's floor.

    A window shorter than ``recording.short_window_ns``, or one of an incomplete recording, never gives more than
    medium, and lowers the confidence by one step.
    """
    limits = {name: scene.settings[f"{rule}.{name}"] for name in ("floor", "low", "medium", "high")}
    if share < limits["floor"]:
        return None
    severity = Severity(sum(share >= limits[name] for name in ("low", "medium", "high")))
    doubtful = scene.wall_ns < scene.settings["recording.short_window_ns"] or len(scene.holes) > 0
    if doubtful:
        severity = min(severity, Severity.MEDIUM)
        confidence = CONFIDENCES[max(CONFIDENCES.index(confidence) - 1, 0)]
    return severity, confidence


def window_phrase(scene: Scene) -> str:
    """What the shares of wall time in a finding are shares of."""
    if scene.begin_ns == scene.account.window.start_ns:
        return "of the window"
    return f"of the window after {'model loading' if scene.begin_ns == scene.loading_end_ns else 'start-up'}"


def of_wall(scene: Scene, cost: Price) -> str:
    """The bound as a share of wall time, and of request latency where it is more of that."""
    text = f"{percent(cost.wall_ratio(scene))} {window_phrase(scene)}"
    latency = cost.latency_ratio or 0.0
    return f"{text}, {percent(latency)} of request latency" if latency > cost.wall_ratio(scene) else text


def copy_figures(scene: Scene, copies: pl.DataFrame, waits: Waits | None = None) -> dict[str, Any]:
    """Figures of a set of copies, and who sends them."""
    window = scene.account.window
    alone = Intervals.union_of(copies["from_ns"], copies["to_ns"]) & scene.lost
    n, size = int(copies["copy_count"].sum()), int(copies["bytes"].sum())
    took = int((copies["end_ns"] - copies["start_ns"]).sum())
    direct = copies if copies["direct"].all() else copies.filter("direct")
    in_call = int(direct["in_call_ns"].sum())
    paths = scene.recording.call_stacks.paths(direct)
    figures: dict[str, Any] = {
        "copies": n,
        "bytes": size,
        "median_bytes": lower_median(copies["bytes"]),
        "bytes_per_request": size / scene.requests if scene.requests else None,
        "requests": scene.requests,
        "bytes_per_second": size / (scene.wall_ns / 1e9),
        "gpu_time_ns": took,
        "exposed_ns": int(copies["exposed_ns"].sum()),
        "exposed_window_ratio": int(copies["exposed_ns"].sum()) / window.length_ns,
        "alone_ns": alone.length,
        "alone_wall_ratio": alone.length / scene.wall_ns,
        "in_call_ns": in_call if direct.height else None,
        "in_call_window_ratio": in_call / window.length_ns if direct.height else None,
        "bandwidth": size * 1e9 / took if took else None,
        "call_bandwidth": _call_bandwidth(direct),
        "senders": senders(scene, copies),
        "call_paths": paths[:PATHS],
        "copies_with_path": sum(p["count"] for p in paths),
        "cadence": cadence(burst_starts(copies), scene.beats),
    }
    if waits is not None:
        figures["threads"] = [
            {"thread": thread_name(scene, t), "waited_ns": s.length, "launches": t in scene.feeders[:1]}
            for t, s in waits.spans.items()
        ]
    return figures


def lower_median(sizes: pl.Series) -> int | None:
    """The median, and of an even number the lower of the two in the middle: a size that did occur."""
    known = (sizes.drop_nulls() if sizes.null_count() else sizes).to_numpy()
    middle = (known.size - 1) // 2
    return int(np.partition(known, middle)[middle]) if known.size else None


def _call_bandwidth(direct: pl.DataFrame) -> float | None:
    """Bytes/s to the callers of copies whose calls wait; of the others the call says nothing."""
    waiting = direct["waits"]
    took = int(direct["in_call_ns"].filter(waiting).sum())
    return int(direct["bytes"].filter(waiting).sum()) * 1e9 / took if took else None


def to_callers(figures: dict[str, Any]) -> str:
    """How fast the copies were to their callers, where these waited; else empty."""
    speed = figures["call_bandwidth"]
    return "" if speed is None else f", {bandwidth(speed)} to their callers"


def burst_starts(copies: pl.DataFrame) -> pl.Series:
    """When each burst began on the host; copies without a burst count one by one."""
    start, called = times(copies["start_ns"]), copies["call_start_ns"]
    burst = copies["burst"]
    key = np.where(given(burst), filled(burst), -start)
    at = np.where(given(called), filled(called), start)
    _, number = np.unique(key, return_inverse=True)
    begun = np.full(int(number.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begun, number, at)
    return pl.Series(np.sort(begun))


def senders(scene: Scene, copies: pl.DataFrame) -> list[dict[str, Any]]:
    """NVTX path, thread and API of the copies, largest first."""
    number, first = number_rows(copies, ("path", "path_by", "thread", "api", "kind_name", "src", "dst"))
    n = first.size
    columns = {c: copies[c][first].to_list() for c in ("path", "thread", "kind_name", "src", "dst")}
    columns |= {c: copies[c][first].cast(pl.String).to_list() for c in ("api", "path_by")}
    columns |= {name: add_up(copies[c], number, n).tolist() for name, c in SUMS.items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    paths = scene.account.paths["text"]
    for row in rows:
        row["nvtx"] = paths[row["path"]]
    texts = ("nvtx", "path_by", "thread", "api", "kind_name", "src", "dst")
    rows.sort(key=lambda r: (-r["bytes"], -r["copies"], *((r[c] is None, r[c]) for c in texts)))
    return [
        {
            "nvtx": row["nvtx"] if row["path"] else None,
            "nvtx_by": row["path_by"],
            "thread": thread_name(scene, row["thread"]),
            "api": row["api"],
            "kind": f"{row['kind_name']} {row['src']} to {row['dst']}",
            **{k: row[k] for k in ("copies", "bytes", "in_call_ns", "exposed_ns")},
        }
        for row in rows[:SENDERS]
    ]


def thread_name(scene: Scene, thread: int | None) -> str | None:
    """Name and number of a thread that feeds the device."""
    return None if thread is None else scene.thread_names.get(thread)


def from_where(figures: dict[str, Any]) -> str:
    """NVTX paths and stacks in a few words, as in `` from a/b (tensor.cpu())``; empty when neither was recorded."""
    rows: list[dict[str, Any]] = figures["senders"]
    paths = list(dict.fromkeys(str(r["nvtx"]) for r in rows if r["nvtx"]))
    # A few samples that hit a call say little of all the others.
    known = figures["call_paths"] if figures["copies_with_path"] >= figures["copies"] / 2 else []
    split = split_paths(known)
    parts = [", ".join(paths[:3])] if paths else []
    if split:
        shown = "; ".join(f"{text} ({count(n)})" if len(split) > 1 else text for text, n in split[:3])
        parts.append(f"({shown})" if parts else shown)
    return f" from {' '.join(parts)}" if parts else ""


def every(figures: dict[str, Any]) -> str:
    """The cadence in words, as in `` every 5.4 ms (+-1.0%)``; empty when it is irregular or unknown."""
    beat = figures["cadence"]
    if not isinstance(beat, dict) or not beat["regular"]:
        return ""
    nvtx = f", the period of range '{beat['nvtx']}'" if beat["nvtx"] else ""
    return f" every {duration(beat['period_ns'])} (+-{percent(beat['spread_ratio'])}{nvtx})"


def worst_copies(copies: pl.DataFrame) -> tuple[tuple[int, int], ...]:
    """The copies that held host or device longest, by the times of their calls where they have one of their own."""
    own = copies["direct"].to_numpy() & copies["waits"].to_numpy()
    start = np.where(own, filled(copies["call_start_ns"]), copies["start_ns"].to_numpy())
    end = np.where(own, filled(copies["call_end_ns"]), copies["end_ns"].to_numpy())
    return worst_spans(start, end)


def worst_spans(start: npt.ArrayLike, end: npt.ArrayLike) -> tuple[tuple[int, int], ...]:
    """The longest of many intervals."""
    s, e = times(start), times(end)
    took = e - s
    rows = np.arange(took.size) if took.size <= WORST else np.flatnonzero(took >= np.partition(took, -WORST)[-WORST])
    rows = rows[np.lexsort((s[rows], -took[rows]))][:WORST]
    return tuple(zip(s[rows].tolist(), e[rows].tolist(), strict=True))


def slice_around(
    scene: Scene, instances: tuple[tuple[int, int], ...], period_ns: object = None
) -> tuple[int, int] | None:
    """A stretch of the timeline that shows the worst instance with what lies around it."""
    if not instances:
        return None
    start, end = instances[0]
    margin = int(period_ns) if isinstance(period_ns, int) else 0
    margin = max(margin, end - start, 100_000)
    window = scene.account.window
    return max(start - margin, window.start_ns), min(end + margin, window.end_ns)


def make(
    scene: Scene,
    rule: str,
    judged: tuple[Severity, str],
    *,
    title: str,
    detail: str,
    remedy: str,
    price: Price,
    figures: dict[str, Any],
    instances: tuple[tuple[int, int], ...],
    key: str = "",
) -> Found:
    """A finding on a device."""
    beat = figures.get("cadence")
    period = beat["period_ns"] if isinstance(beat, dict) else None
    evidence = {**figures, **price.evidence(scene), "framework": framework(scene)}
    finding = Finding(
        rule,
        judged[0],
        judged[1],
        scene.account.number,
        title,
        detail,
        remedy,
        price.bound_ns,
        evidence,
        instances,
        slice_around(scene, instances, period),
        key=key,
    )
    return Found(finding, price.claim)
