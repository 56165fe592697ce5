"""Everything that is measured of one device in one window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import polars as pl

from nsysparse.accounting import copies as copying
from nsysparse.accounting import idle as idling
from nsysparse.accounting import kernels as running
from nsysparse.accounting.busy import Busy, measure_busy
from nsysparse.accounting.host import ACTIVITIES, NOTHING, Activity, Host, measure_host
from nsysparse.accounting.loading import Loading, StartUp, find_loading, find_startup
from nsysparse.accounting.nvtx import table_paths, table_start_end
from nsysparse.accounting.requests import Requests, find_requests
from nsysparse.accounting.sampling import RATES_HZ, table_sampling
from nsysparse.accounting.timeline import bin_window
from nsysparse.accounting.windows import (
    Window,
    check_form,
    check_pattern,
    choose_window,
    phases,
    repeated_ranges,
)
from nsysparse.errors import UsageError
from nsysparse.intervals import Intervals
from nsysparse.joins.work import Work
from nsysparse.shelf import Shelf
from nsysparse.source import Trace

MAX_REQUESTS = 10**12


@dataclass(frozen=True)
class Options:
    """What the user asked for.

    Attributes:
        window: See :data:`nsysparse.accounting.windows.FORMS`; None for the default.
        devices: Numbers of the devices to report on; empty for all.
        request_range: Regular expression on NVTX names that makes a request.
        requests: Number of requests in the window.
        whole_names: Keep NVTX names apart that differ only in their digits.
        link_peak: Peak of the host link, bytes/s, where the model does not tell.
        sampling_hz: Rates of the samplers that the exact shares are set against.
        settings: Thresholds of rules that differ from their defaults, by full name (``rule.threshold``).
        call_paths: Whether to read call stacks and weigh call paths.
    """

    window: str | None = None
    devices: tuple[int, ...] = ()
    request_range: str | None = None
    requests: int | None = None
    whole_names: bool = False
    link_peak: float | None = None
    sampling_hz: tuple[int, ...] = RATES_HZ
    settings: Mapping[str, float] = field(default_factory=dict)
    call_paths: bool = True

    def __post_init__(self) -> None:
        """Refuse what makes no sense for any recording.

        Raises:
            UsageError: With what to give instead.
        """
        if self.window is not None:
            check_form(self.window)
        if self.request_range is not None:
            check_pattern(self.request_range)
        if self.requests is not None and not 1 <= self.requests <= MAX_REQUESTS:
            raise UsageError(f"{self.requests} is no number of requests", f"give one from 1 to {MAX_REQUESTS:,}")
        if self.link_peak is not None and not 0 < self.link_peak < math.inf:
            raise UsageError(f"{self.link_peak / 1e9} GB/s is no peak of a link", "give a positive number of GB/s")


@dataclass(frozen=True)
class DeviceAccount:
    """The account of one device.

    Attributes:
        device: A row of the devices frame, plus ``link_peak`` (bytes/s or None).
        window: What the shares are shares of.
        phases: Summaries (see :meth:`Busy.summary`) of every window that the recording offers.
        busy: The window's sets of instants.
        host: The threads that feed the device.
        loading: The leading phase that loads a model, if there is one.
        startup: The beginning of a window that nobody chose, in which hardly anything ran.
        requests: The requests, if something says what they are.
        kernels: Detailed kernels (see :func:`nsysparse.accounting.kernels.detail_kernels`).
        copies: Detailed copies (see :func:`nsysparse.accounting.copies.detail_copies`).
        gaps: Idle gaps (see :func:`nsysparse.accounting.idle.find_gaps`).
        sm_fill: Time-weighted estimate, None when unknown.
        timeline: Binned window.
        tables: Aggregated tables by name, complete and in their printed order.
        paths: NVTX paths by number (see :class:`nsysparse.joins.ranges.Ranges`).
        hole: The part of the window over which the recording is known to be incomplete.
    """

    device: dict[str, Any]
    window: Window
    phases: dict[str, dict[str, Any]]
    busy: Busy
    host: Host
    loading: Loading | None
    startup: StartUp | None
    requests: Requests | None
    kernels: pl.DataFrame
    copies: pl.DataFrame
    gaps: pl.DataFrame
    sm_fill: float | None
    timeline: pl.DataFrame
    tables: dict[str, pl.DataFrame]
    paths: pl.DataFrame
    hole: Intervals

    @property
    def number(self) -> int:
        """Number of the device in this recording."""
        return int(self.device["device"])

    def put_on(self, shelf: Shelf) -> DeviceAccount:
        """The same with its long columns on a shelf."""
        return replace(
            self,
            busy=self.busy.put_on(shelf),
            kernels=self.kernels.with_columns(shelf.put(self.kernels.select("from_ns", "to_ns", "sm_fill"))),
            copies=shelf.put(self.copies),
            gaps=shelf.put(self.gaps),
        )

    def figures(self) -> dict[str, Any]:
        """The window's summary with the host's figures and the four utilizations."""
        return dict(self._figures)

    @cached_property
    def _figures(self) -> dict[str, Any]:
        summary = self.busy.summary()
        length = self.window.length_ns
        blocked = self.host.feeder_in_copy_or_sync.shared(self.busy.exposed)
        idle_waiting = self.host.blocked.shared(self.busy.idle)
        return summary | {
            "host_blocked_in_copies_ns": blocked,
            "host_blocked_in_copies_ratio": blocked / length,
            "host_in_copy_or_sync_ns": self.host.in_copy_or_sync.clip(self.window.start_ns, self.window.end_ns).length,
            "host_blocked_ns": self.host.blocked.length,
            "idle_while_host_blocked_ns": idle_waiting,
            "idle_while_host_blocked_ratio": idle_waiting / length,
            "sm_fill_ratio": self.sm_fill,
            "hole_ns": self.hole.length,
            "hole_ratio": self.hole.length / length,
        }


def account_for(
    work: Work,
    row: dict[str, Any],
    options: Options,
    activity: Activity,
    trace: Trace,
    holes: Intervals,
) -> DeviceAccount:
    """Measure one device.

    Args:
        work: The work of this device.
        row: Its row of the devices frame.
        options: What the user asked for.
        activity: What each thread was doing.
        trace: The recording, for texts.
        holes: When the recording is known to be incomplete.
    """
    repeats = repeated_ranges(work)
    offered = phases(work, repeats)
    window = choose_window(options.window, offered, repeats, work)
    busy, *others = measure_busy(work, [window, *offered.values()])
    kernels = running.detail_kernels(work, busy, row)
    copies = copying.detail_copies(work, busy)
    host = measure_host(work, busy, trace)
    gaps = idling.find_gaps(work, busy, host, activity)
    requests = find_requests(work, kernels, copies, busy, repeats, options.request_range, options.requests)
    tables = {
        **_copy_tables(copies, work, busy, host, requests),
        "sampling": table_sampling(copies, busy, host.threads["thread"], trace, options.sampling_hz),
        "memsets": copying.table_memsets(work, busy),
        "migrations": copying.table_migrations(work, busy),
        "kernels": running.table_kernels(kernels, trace, busy),
        "threads": host.threads,
        "nvtx_paths": table_paths(work, kernels, copies, busy),
        "start_end_ranges": table_start_end(work, busy),
        "idle_by_length": idling.class_gaps(gaps, busy),
        "idle_by_activity": idling.total_activity(gaps, busy),
        "longest_gaps": _longest(gaps, work, host),
        "request_distribution": requests.distribution() if requests else pl.DataFrame(),
        "requests": requests.frame if requests and requests.frame is not None else pl.DataFrame(),
    }
    return DeviceAccount(
        device=row | {"link_peak": options.link_peak or copying.link_peak(row["name"])},
        window=window,
        phases={name: other.summary() for name, other in zip(offered, others, strict=True)},
        busy=busy,
        host=host,
        loading=find_loading(work),
        startup=find_startup(work, window),
        requests=requests,
        kernels=kernels,
        copies=copies,
        gaps=idling.slim(gaps),
        sm_fill=running.mean_fill(kernels),
        timeline=bin_window(copies, busy),
        tables=tables,
        paths=work.ranges.paths,
        hole=holes.clip(window.start_ns, window.end_ns),
    )


def _copy_tables(
    copies: pl.DataFrame, work: Work, busy: Busy, host: Host, requests: Requests | None
) -> dict[str, pl.DataFrame]:
    """The tables that are groups of copies."""
    threads = host.threads.select("thread", "pid", thread_name="name")
    paths = work.ranges.paths.select("path", nvtx="text")
    named = (
        copies.join(threads, on="thread", how="left", maintain_order="left")
        .join(paths, on="path", how="left", maintain_order="left")
        .with_columns(pl.col("api", "path_by").cast(pl.String))
    )
    groups = {
        "copies_by_kind": ["kind_name", "src", "dst", "peer"],
        "copies_by_api": ["api", "kind_name"],
        "copies_by_thread": ["pid", "thread_name", "thread", "kind_name"],
        "copies_by_sender": ["nvtx", "path_by", "api", "kind_name", "src", "dst"],
    }
    count = requests.count if requests else None
    return {name: copying.table_copies(named, by, busy, count) for name, by in groups.items()} | {
        "copy_busy": copying.busy_by_kind(copies),
        "copy_sizes": copying.size_histogram(copies),
    }


def _longest(gaps: pl.DataFrame, work: Work, host: Host, n: int = 100) -> pl.DataFrame:
    """The longest gaps with the name of their thread, their NVTX path and what the host did most."""
    least = gaps["gap_ns"].top_k(n).min()
    longest = (
        gaps.filter(pl.col("gap_ns") >= pl.lit(least, pl.Int64))
        .sort("gap_ns", "start_ns", descending=[True, False])
        .head(n)
    )
    activities = [*ACTIVITIES, NOTHING, idling.UNKNOWN_THREAD]
    path, _ = work.ranges.path_of(longest["thread"].fill_null(0), longest["start_ns"])  # when the gap began
    longest = longest.with_columns(path=pl.when(pl.col("thread").is_not_null()).then(pl.Series(path)).otherwise(0))
    return (
        longest.with_columns(
            most=pl.concat_list(activities)
            .list.arg_max()
            .replace_strict(range(len(activities)), activities, return_dtype=pl.String),
            most_ns=pl.max_horizontal(activities),
        )
        .join(work.ranges.paths.select("path", nvtx="text"), on="path", how="left", maintain_order="left")
        .join(host.threads.select("thread", thread_name="name"), on="thread", how="left", maintain_order="left")
        .select(
            "start_ns", "end_ns", "gap_ns", "thread_name", pl.col("next").cast(pl.String), "nvtx", "most", "most_ns"
        )
    )
