"""When a device was busy, and what the host did while it idled: what has to look at every call of the host."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from nsysparse.accounting.busy import Busy, measure_busy
from nsysparse.accounting.host import ACTIVITIES, NOTHING, Activity, Host, measure_host
from nsysparse.accounting.idle import UNKNOWN_THREAD, Gaps, class_gaps, find_gaps, total_activity
from nsysparse.accounting.windows import Repeats, Window, choose_window, phases, repeated_ranges
from nsysparse.intervals import times
from nsysparse.joins.work import Work
from nsysparse.nulls import filled, given
from nsysparse.shelf import Shelf


@dataclass(frozen=True)
class Timed:
    """When one device was busy, and what the threads that feed it did meanwhile.

    Attributes:
        device: Its row of the devices frame.
        repeats: The NVTX ranges that requests can be.
        window, phases, busy, host, idling: As :class:`nsysparse.accounting.device.DeviceAccount` has them.
        tables: Those of the idle gaps.
    """

    device: dict[str, Any]
    repeats: Repeats | None
    window: Window
    phases: dict[str, dict[str, Any]]
    busy: Busy
    host: Host
    idling: Gaps
    tables: dict[str, pl.DataFrame]

    def put_on(self, shelf: Shelf) -> Timed:
        """The same with its long columns on a shelf."""
        gaps = replace(self.idling, facts=shelf.put(self.idling.facts))
        return replace(self, busy=self.busy.put_on(shelf), idling=gaps)


def time_device(row: dict[str, Any], asked: str | None, work: Work, activity: Activity) -> Timed | None:
    """Find when a device was busy, and what the host did in its idle gaps.

    Args:
        row: Its row of the devices frame.
        asked: The window as ``--window`` takes it; None for the default.
        work: The joined recording with every call.
        activity: What each thread was doing.

    Returns:
        None where none of its operations has usable times.
    """
    work = work.on(row["device"])
    repeats = repeated_ranges(work)
    offered = phases(work, repeats)
    if not offered:
        return None
    window = choose_window(asked, offered, repeats, work)
    busy, *others = measure_busy(work, [window, *offered.values()])
    host = measure_host(work, busy, activity)
    gaps = find_gaps(work, busy, host, activity)
    return Timed(
        device=row,
        repeats=repeats,
        window=window,
        phases={name: other.summary() for name, other in zip(offered, others, strict=True)},
        busy=busy,
        host=host,
        idling=Gaps.of(gaps),
        tables={
            "idle_by_length": class_gaps(gaps, busy),
            "idle_by_activity": total_activity(gaps, busy),
            "longest_gaps": _longest(gaps, work, host),
        },
    )


def _longest(gaps: pl.DataFrame, work: Work, host: Host, n: int = 100) -> pl.DataFrame:
    """The longest gaps with the name of their thread, their NVTX path and what the host did most."""
    took = times(gaps["gap_ns"])
    rows = np.arange(took.size) if took.size <= n else np.flatnonzero(took >= np.partition(took, -n)[-n])
    rows = rows[np.argsort(-took[rows], kind="stable")[:n]]  # gaps are by start
    activities = [*ACTIVITIES, NOTHING, UNKNOWN_THREAD]
    longest = gaps[rows]
    spent = longest.select(activities).to_numpy().astype(np.int64)
    path, _ = work.ranges.path_of(pl.Series(filled(longest["thread"])), longest["start_ns"])  # when the gap began
    path = np.where(given(longest["thread"]), path, 0)
    names = dict(zip(host.threads["thread"], host.threads["name"], strict=True))
    return longest.select(
        *("start_ns", "end_ns", "gap_ns"),
        pl.Series("thread_name", [names.get(t) for t in longest["thread"]], pl.String),
        pl.col("next").cast(pl.String),
        work.ranges.paths["text"][path].alias("nvtx"),
        pl.Series("most", [activities[i] for i in spent.argmax(axis=1)] if rows.size else [], pl.String),
        pl.Series("most_ns", spent.max(axis=1, initial=0)),
    )
