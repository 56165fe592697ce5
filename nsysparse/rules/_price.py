"""What winning something back could at most bring.

A call that blocks its thread for ``d`` ns can delay the GPU by at most ``d``: without it the thread would do all that
follows ``d`` earlier. So its price is the time inside the call in which nothing ran but its own copy, and then, of the
idle time that follows at once, at most as much as the thread had waited for running kernels (time in which it could
have run ahead). Time in which other copies ran is theirs, whoever waited meanwhile.
A copy that nobody waits for costs what it held up: a kernel had been submitted and had not started. Threads work side
by side, so the wall gets shorter by at most what the thread that loses most would save; threads are never added up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from nsysparse.accounting.busy import unions_by
from nsysparse.intervals import Index, Intervals
from nsysparse.joins.order import rows_among
from nsysparse.nulls import filled, given
from nsysparse.rules._scene import Scene


@dataclass(frozen=True)
class Price:
    """An upper bound with its instants.

    Attributes:
        bound_ns: What could at most be won of the window.
        claim: The instants behind it, all without a kernel; of several threads, of any of them.
        by_thread: The claim of each thread that feeds the device.
        waited_ns: Time that any of these threads was inside the calls; it overlaps kernels as well.
        idle_while_ns: Time in which nothing ran but the calls' own copies while one of them was inside.
        after_ns: Time without a kernel right after the calls, within the bound.
        around_ns: Silent host time around the calls that was told to belong to them; None when that cannot be told.
        held_up_ns: Time in which these copies kept a submitted kernel from starting.
        latency_ratio: Share of the requests' latency, by the thread of each; None without requests. What was held up
            on the device makes a request longer only while a thread waits for the device.
        of_calls: Whether these are the instants of calls at all; if not, nobody waited in them that we know of.
    """

    bound_ns: int
    claim: Intervals
    by_thread: Mapping[int, Intervals]
    waited_ns: int
    idle_while_ns: int
    after_ns: int
    around_ns: int | None
    held_up_ns: int
    latency_ratio: float | None
    of_calls: bool = True

    def wall_ratio(self, scene: Scene) -> float:
        """Share of the window, without the phase that loads a model."""
        return min(self.bound_ns / scene.wall_ns, 1.0)

    def share(self, scene: Scene) -> float:
        """The larger of the shares of wall time and of request latency."""
        return max(self.wall_ratio(scene), self.latency_ratio or 0.0)

    def evidence(self, scene: Scene) -> dict[str, Any]:
        """The figures, for a finding."""
        return {
            "bound_ns": self.bound_ns,
            "bound_window_ratio": self.bound_ns / scene.account.window.length_ns,
            "bound_wall_ratio": self.wall_ratio(scene),
            "bound_latency_ratio": self.latency_ratio,
            "host_waited_ns": self.waited_ns if self.of_calls else None,
            "idle_while_host_waited_ns": self.idle_while_ns if self.of_calls else None,
            "idle_after_ns": self.after_ns if self.of_calls else None,
            "around_ns": self.around_ns,
            "held_up_ns": self.held_up_ns,
        }


@dataclass(frozen=True)
class Waits:
    """Calls that blocked their threads.

    Attributes:
        spans: Thread to the union of its calls.
        rows: Their rows of ``turns``.
        turns: The turns of the scene.
    """

    spans: Mapping[int, Intervals]
    rows: Index = field(repr=False)
    turns: pl.DataFrame = field(repr=False)

    @classmethod
    def none(cls, scene: Scene) -> Waits:
        """No calls."""
        return cls({}, np.empty(0, np.int64), scene.turns)

    @property
    def calls(self) -> pl.DataFrame:
        """The calls, as ``scene.turns`` has them."""
        found: pl.DataFrame = self.turns[self.rows]
        return found


def waits_for(scene: Scene, copies: pl.DataFrame) -> Waits:
    """The calls that hold a thread up for some copies: those that wait, and the synchronizations that follow them.

    A synchronization belongs to the copy that its thread sent last, if it sent nothing else since; the call of such a
    copy belongs to it even if it does not wait by itself.
    """
    marks, call = scene.marks, copies["call"]
    ids = np.unique(filled(call)[copies["direct"].to_numpy() & given(call)])
    if not ids.size:
        return Waits.none(scene)
    syncs = marks.syncs[rows_among(ids, marks.last_work[marks.syncs]) >= 0]
    own = rows_among(marks.call, ids)
    own = own[own >= 0]
    synced = np.unique(marks.last_work[syncs])
    own = own[marks.waits[own] | (rows_among(synced, marks.call[own]) >= 0)]
    return waits_at(scene, np.concatenate((own, syncs)))


def waits_at(scene: Scene, rows: Index) -> Waits:
    """Those of some turns that are calls of threads that feed the device, by thread."""
    marks, window = scene.marks, scene.account.window
    rows = rows[marks.feeds[rows]]
    unions = unions_by(marks.thread[rows], marks.start_ns[rows], marks.end_ns[rows])
    spans = {t: union.clip(window.start_ns, window.end_ns) for t, union in unions.items()}
    return Waits(spans, rows, scene.turns)


def price(
    scene: Scene,
    waits: Waits,
    copies: pl.DataFrame | None = None,
    around: Mapping[int, Intervals] | None = None,
    ahead: Waits | None = None,
    held_up: bool = True,
    queued: Intervals | None = None,
) -> Price:
    """Price some blocking calls and copies.

    Args:
        scene: The device.
        waits: The calls.
        copies: The calls' own copies.
        around: Silent host time that belongs to them, by thread.
        ahead: Those of the calls without which the thread could have gone on; by default all. What a thread waits for
            because it needs it does not let it run ahead.
        held_up: Whether the time in which the copies held a submitted kernel up counts as well.
        queued: Idle time that no thread can shorten, because its next operation had been sent before it began.
    """
    by_thread, after, none = {}, 0, Intervals.none()
    queued = queued or none
    own = none if copies is None else Intervals.union_of(copies["from_ns"], copies["to_ns"])
    alone, won = own & scene.lost, []
    for thread, spans in waits.spans.items():
        inside = ((spans & scene.idle) | (spans & alone)) - queued
        won.append(inside)
        free = (waits if ahead is None else ahead).spans.get(thread, none)
        following = _idle_after(scene, thread, free) - queued
        nearby = (around or {}).get(thread, none) & scene.lost
        by_thread[thread] = inside | following | nearby
        after += (following - inside - nearby).length
    claim = Intervals.any_of(by_thread.values())
    held = (scene.account.busy.held_up - scene.holes) & own if held_up else none
    extra = (held - claim).length
    largest = max((c.length for c in by_thread.values()), default=0)
    return Price(
        largest + extra,
        claim | held,
        by_thread,
        Intervals.any_of(waits.spans.values()).length,
        Intervals.any_of(won).length,
        after,
        None if around is None else sum((a - waits.spans.get(t, none)).length for t, a in around.items()),
        held.length,
        latency_ratio(scene, by_thread, held & scene.account.host.blocked),
    )


def _idle_after(scene: Scene, thread: int, spans: Intervals) -> Intervals:
    """Idle time right after each span, at most as long as the span had run beside kernels."""
    busy, idle = scene.account.busy, scene.device_idle
    if not len(spans) or not len(idle):
        return Intervals.none()
    lead = busy.compute.covered(spans.start, spans.end)
    at = np.searchsorted(idle.start, spans.end, side="right") - 1
    safe = np.maximum(at, 0)
    inside = (at >= 0) & (spans.end < idle.end[safe]) & (lead > 0)
    until = np.minimum(spans.end + lead, idle.end[safe])
    found = Intervals.union_of(spans.end[inside], until[inside])
    return found - scene.recording.os_waits(thread)


def latency_ratio(scene: Scene, by_thread: Mapping[int, Intervals], of_all: Intervals | None = None) -> float | None:
    """Share of the requests' latency that lies in the instants of their own threads, or in those of all."""
    total = sum(requests.length for requests in scene.latencies.values())
    if not total:
        return None
    inside, none = 0, Intervals.none()
    for thread, requests in scene.latencies.items():
        claim = by_thread.get(thread, none) | (of_all or none)
        inside += requests.inside(claim) if len(claim) else 0
    return inside / total
