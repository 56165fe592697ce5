"""Everything that is measured of one device in one window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from nsysparse.accounting import copies as copying
from nsysparse.accounting import kernels as running
from nsysparse.accounting.busy import Busy, Inside, clipped_times, in_window
from nsysparse.accounting.host import Activity, Host
from nsysparse.accounting.idle import Gaps
from nsysparse.accounting.loading import Loading, StartUp, find_loading, find_startup
from nsysparse.accounting.nvtx import table_paths, table_start_end
from nsysparse.accounting.requests import Requests, find_requests
from nsysparse.accounting.sampling import RATES_HZ, table_sampling
from nsysparse.accounting.timed import Timed
from nsysparse.accounting.timeline import bin_window
from nsysparse.accounting.windows import Window, check_form, check_pattern, ranges_in
from nsysparse.errors import UsageError
from nsysparse.intervals import Intervals, times
from nsysparse.joins.work import Work, accounted_rows
from nsysparse.lazy import cached_property
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
        ran: The kernels that touch the window, with ``counted``: whether they start inside.
        copies: Detailed copies (see :func:`nsysparse.accounting.copies.detail_copies`).
        idling: The idle gaps, as they are kept.
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
    ran: pl.DataFrame
    copies: pl.DataFrame
    idling: Gaps
    sm_fill: float | None
    timeline: pl.DataFrame
    tables: dict[str, pl.DataFrame]
    paths: pl.DataFrame
    hole: Intervals

    @property
    def number(self) -> int:
        """Number of the device in this recording."""
        return int(self.device["device"])

    @property
    def kernels(self) -> pl.DataFrame:
        """The kernels with ``from_ns`` and ``to_ns`` (clipped), which are not kept."""
        return self.ran.hstack(clipped_times(self.ran, self.window))

    @property
    def gaps(self) -> pl.DataFrame:
        """The idle gaps (see :func:`nsysparse.accounting.idle.find_gaps`), made anew whenever they are asked for."""
        return self.idling.frame(self.busy.idle)

    def put_on(self, shelf: Shelf) -> DeviceAccount:
        """The same with its long columns on a shelf, as those of the time it ran are already."""
        return replace(self, copies=shelf.put(self.copies))

    def figures(self) -> dict[str, Any]:
        """The window's summary with the host's figures and the four utilizations."""
        return dict(self._figures)

    @cached_property
    def _figures(self) -> dict[str, Any]:
        summary = self.busy.summary()
        length = self.window.length_ns
        blocked = self.host.in_copy_or_sync.shared(self.busy.exposed)
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


class Common:
    """What the accounts of all devices share.

    Attributes:
        work: The joined recording, its copies described.
        activity: When each thread waited, and was sampled.
        names: Names of kernels.
        holes: When the recording is known to be incomplete.
        path_rank: Place of each NVTX path's text among all of them.
    """

    def __init__(self, work: Work, trace: Trace, activity: Activity, holes: Intervals) -> None:
        self.work = replace(work, copies=copying.describe_copies(work))
        self.activity = activity
        self.names = running.KernelNames(trace)
        self.holes = holes
        self.path_rank = times(work.ranges.paths["text"].rank("dense").cast(pl.Int64))

    def forget(self) -> None:
        """Give back what was worked out for one device and may be asked for by others."""
        self.activity.forget()


def account_for(timed: Timed, options: Options, common: Common) -> DeviceAccount:
    """Measure one device; of calls only those that sent work, waited or allocated are looked at.

    Args:
        timed: When it was busy.
        options: What the user asked for.
        common: What the accounts of all devices share.
    """
    work, busy, row = common.work.on(timed.device["device"]), timed.busy, timed.device
    inside = Inside(
        running.detail_kernels(work, busy, row),
        copying.detail_copies(work, busy),
        in_window(work.memsets, timed.window),
        in_window(work.graphs, timed.window),
    )
    asked = (common.activity, options.request_range, options.requests)
    requests = find_requests(work, inside, busy, timed.repeats, *asked)
    return DeviceAccount(
        device=row | {"link_peak": options.link_peak or copying.link_peak(row["name"])},
        window=timed.window,
        phases=timed.phases,
        busy=busy,
        host=timed.host,
        loading=find_loading(work),
        startup=find_startup(work, timed.window),
        requests=requests,
        ran=accounted_rows(inside.kernels).drop("sm_fill"),
        copies=accounted_rows(inside.copies),
        idling=timed.idling,
        sm_fill=running.mean_fill(inside.kernels, busy),
        timeline=bin_window(inside.copies, busy),
        tables=_tables(work, inside, timed, requests, common, options),
        paths=work.ranges.paths,
        hole=common.holes.clip(timed.window.start_ns, timed.window.end_ns),
    )


def _tables(
    work: Work, inside: Inside, timed: Timed, requests: Requests | None, common: Common, options: Options
) -> dict[str, pl.DataFrame]:
    """The aggregated tables by name."""
    busy, host = timed.busy, timed.host
    chosen = work.ranges.frame.select(ranges_in(busy.window, work)).to_series()
    return {
        **_copy_tables(inside.copies, work, busy, host, requests, common.activity, options),
        "memsets": copying.table_memsets(inside.memsets),
        "migrations": copying.table_migrations(work, busy),
        "kernels": running.table_kernels(inside.kernels, common.names, busy),
        "threads": host.threads,
        "nvtx_paths": table_paths(work, inside, busy, chosen, common.path_rank),
        "start_end_ranges": table_start_end(work, chosen),
        **timed.tables,
        "request_distribution": requests.distribution() if requests else pl.DataFrame(),
        "requests": requests.frame if requests and requests.frame is not None else pl.DataFrame(),
    }


def _copy_tables(
    copies: pl.DataFrame,
    work: Work,
    busy: Busy,
    host: Host,
    requests: Requests | None,
    activity: Activity,
    options: Options,
) -> dict[str, pl.DataFrame]:
    """The tables that are groups of copies."""
    groups = copying.CopyGroups(copies, work, host.threads)
    sums = copying.CopySums(copies, busy.window, requests.count if requests else None)
    by = {
        "copies_by_kind": ["kind_name", "src", "dst", "peer"],
        "copies_by_api": ["api", "kind_name"],
        "copies_by_thread": ["pid", "thread_name", "thread", "kind_name"],
        "copies_by_sender": ["nvtx", "path_by", "api", "kind_name", "src", "dst"],
    }
    threads, window = host.threads["thread"], busy.window
    samples = activity.samples(threads, window.start_ns, window.end_ns)
    return {name: sums.table(groups.by(*columns)) for name, columns in by.items()} | {
        "copy_busy": copying.busy_by_kind(copies),
        "copy_sizes": copying.size_histogram(copies),
        "sampling": table_sampling(copies, groups, busy, threads, samples, options.sampling_hz),
    }
