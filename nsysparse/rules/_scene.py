"""What several rules look at, worked out once a device: the host's turns, bursts of copies, and the role of each copy.

Every copy has one role, so that no two rules price the same copy. Roles, the first that fits:

* ``loading``: to the device, in the leading phase that loads a model;
* ``scalar``: a few bytes to the host;
* ``save``: recurring bursts of a megabyte or more to the host;
* ``reload``: to the device, of sizes that were saved before;
* ``weights``: the same sequence of sizes to the device, over and over;
* ``input``, ``output``: other recurring copies between host and device whose call waits;
* ``async``: other recurring copies between host and device whose call does not wait;
* ``device``: within a device or between devices;
* ``once``: what does not recur.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import polars as pl

from nsysparse.accounting.copies import HOST_KINDS
from nsysparse.accounting.device import DeviceAccount
from nsysparse.integrity import Verdict
from nsysparse.intervals import Intervals, Times, times
from nsysparse.joins.work import Work
from nsysparse.rules import _periods
from nsysparse.rules._recording import Recording

PAUSE_NS = 1_000_000  # a host pause longer than this ends a burst of copies
DECILES = 10
RECURS_IN = 3  # deciles of the device's operations in which something must be seen to recur
HOLE_SIGNS = ("id_jumps", "empty_ranges", "tail")  # checks whose holes have a beginning and an end
GROUP = ("kind_name", "src", "dst", "path")
TO_DEVICE, TO_HOST = ("HtoD", "HtoA"), ("DtoH", "AtoH")


class Scene:
    """One device's window, as the rules see it.

    Attributes:
        account: The device's account.
        work: The device's own work; calls and ranges are the whole recording's.
        integrity: Whether the recording can be trusted.
        recording: Stacks, samples and OS runtime calls.
        settings: Every threshold by its full name.
        claimed: Instants that findings with a cause of their own have claimed so far.
    """

    def __init__(
        self,
        account: DeviceAccount,
        work: Work,
        integrity: Verdict,
        recording: Recording,
        settings: Mapping[str, float],
    ) -> None:
        self.account = account
        self.work = work
        self.integrity = integrity
        self.recording = recording
        self.settings = settings
        self.claimed = Intervals.none()

    @cached_property
    def holes(self) -> Intervals:
        """Stretches of the window of which part of the recording is missing: they are neither idle nor busy."""
        window = self.account.window
        known = [h for h in self.integrity.holes if h.sign in HOLE_SIGNS]
        return Intervals.union_of([h.start_ns for h in known], [h.end_ns for h in known]).clip(
            window.start_ns, window.end_ns
        )

    @cached_property
    def lost(self) -> Intervals:
        """The window's time without a kernel or graph: all that any rule can win back."""
        window = self.account.window
        return self.account.busy.compute.gaps(window.start_ns, window.end_ns) - self.holes

    @cached_property
    def wall_ns(self) -> int:
        """The window without holes and without the phase that loads a model: what severities are shares of."""
        window = self.account.window
        begin = max(window.start_ns, self.loading_end_ns)
        return max(window.end_ns - begin - self.holes.clip(begin, window.end_ns).length, 1)

    @cached_property
    def feeders(self) -> list[int]:
        """Threads that launch this device's kernels in the window; those that send anything where none does."""
        window = self.account.window
        inside = (pl.col("start_ns") < window.end_ns) & (pl.col("end_ns") > window.start_ns)
        parts = [f.filter(inside)["thread"] for f in (self.work.kernels, self.work.graphs)]
        launching = pl.concat(parts).drop_nulls()
        if not launching.len():
            return [int(t) for t in self.account.host.threads["thread"].to_list()]
        counts = launching.value_counts().sort("count", "thread", descending=[True, False])
        return [int(t) for t in counts["thread"].to_list()]

    @cached_property
    def turns(self) -> pl.DataFrame:
        """The calls of the threads that send this device work, in their order, around the window.

        Returns:
            Columns of ``work.calls`` in ``thread``, ``start_ns`` order, plus ``turn`` (row number), ``pause_ns``
            (silence of the thread before it), ``stretch`` (number of the stretch without a pause), ``last_work`` (the
            thread's last call that sent work, itself included) and
            ``next_start_ns`` (of the thread's next call).
        """
        window = self.account.window
        threads = pl.concat(
            [self.account.host.threads["thread"], self.account.copies["thread"].drop_nulls().unique()]
        ).unique()
        near = (pl.col("end_ns") >= window.start_ns) & (pl.col("start_ns") <= window.end_ns)
        calls = self.work.calls.filter(near & pl.col("thread").is_in(threads.implode()))
        sends = pl.col("does").cast(pl.String).is_in(["launch", "graph launch", "copy", "memset"])
        return (
            calls.sort("thread", "start_ns", "end_ns", "correlation", maintain_order=True)
            .with_columns(
                pl.col("does").cast(pl.String),
                pl.col("name").cast(pl.String),
                reach_ns=pl.col("end_ns").cum_max().over("thread"),
                last_work=pl.when(sends).then("call").forward_fill().over("thread"),
            )
            .with_columns(pause_ns=pl.col("start_ns") - pl.col("reach_ns").shift(1).over("thread"))
            .with_columns(stretch=(pl.col("pause_ns") > PAUSE_NS).fill_null(True).cum_sum())
            .drop("reach_ns")
            .with_row_index("turn")
            .with_columns(pl.col("turn").cast(pl.Int64))
        )

    @cached_property
    def copies(self) -> pl.DataFrame:
        """Copies that start in the window: ``account.copies`` plus ``direct``, ``burst``, ``decile`` and ``role``."""
        copies = self.account.copies.filter("counted").with_columns(
            direct=(pl.col("does").cast(pl.String) == "copy").fill_null(False),
            waits=pl.col("waits").fill_null(False),
            decile=pl.Series(self.deciles(self.account.copies.filter("counted")["start_ns"])),
        )
        copies = copies.join(self._bursts, on="call", how="left", maintain_order="left")
        return _with_roles(copies, self)

    def deciles(self, instants: pl.Series) -> Times:
        """For each instant, in which tenth of the device's operations (not of its time) it lies."""
        starts = self._op_starts
        rank = np.searchsorted(starts, instants.to_numpy(), side="right")
        return times(np.minimum(rank * DECILES // max(starts.size, 1), DECILES - 1))

    @cached_property
    def _op_starts(self) -> Times:
        window = self.account.window
        starts = times(self.work.all()["start_ns"].sort())
        return starts[(starts >= window.start_ns) & (starts < window.end_ns)]

    @cached_property
    def _bursts(self) -> pl.DataFrame:
        """Runs of copy calls of one direction on one thread, unbroken by a send or a pause: ``call``, ``burst``."""
        kinds = self.account.copies.group_by("call").agg(pl.col("kind").first())
        sends = self.turns.filter(pl.col("call") == pl.col("last_work")).join(
            kinds, on="call", how="left", maintain_order="left"
        )
        token = pl.when(pl.col("does") == "copy").then(pl.col("kind").fill_null(-2)).otherwise(-1)
        sends = sends.with_columns(token=token)
        begins = pl.any_horizontal(
            [(pl.col(c) != pl.col(c).shift(1)).fill_null(True) for c in ("token", "thread", "stretch")]
        )
        return (
            sends.with_columns(burst=begins.cum_sum().cast(pl.Int64))
            .filter(pl.col("token") > 0)
            .select("call", "burst")
        )

    def role(self, *names: str) -> pl.DataFrame:
        """The copies of some roles."""
        return self.copies.filter(pl.col("role").is_in(names))

    @cached_property
    def loading_end_ns(self) -> int:
        """When the phase that loads a model ends; before everything where there is none."""
        loading = self.account.loading
        return loading.end_ns if loading else self.account.window.start_ns

    @cached_property
    def requests(self) -> int | None:
        """Requests in the window, None when nothing says what a request is."""
        return self.account.requests.count if self.account.requests else None


def recurs(deciles: pl.Expr) -> pl.Expr:
    """Whether something is seen in enough tenths of the device's operations to be part of its loop."""
    return deciles.n_unique() >= RECURS_IN


def _with_roles(copies: pl.DataFrame, scene: Scene) -> pl.DataFrame:
    kind = pl.col("kind_name")
    host = kind.is_in(list(HOST_KINDS))
    loading = kind.is_in(TO_DEVICE) & (pl.col("end_ns") <= scene.loading_end_ns) & (scene.account.loading is not None)
    scalar = kind.is_in(TO_HOST) & pl.col("direct") & (pl.col("bytes") <= scene.settings["scalar_readback.max_bytes"])
    copies = copies.with_columns(
        role=pl.when(loading)
        .then(pl.lit("loading"))
        .when(scalar)
        .then(pl.lit("scalar"))
        .when(~host)
        .then(pl.lit("device"))
    )
    copies = _mark_saves(copies, scene)
    copies = _mark_reloads(copies)
    copies = _mark_weights(copies, scene)
    open_ = pl.col("role").is_null()
    again = recurs(pl.col("decile")).over(GROUP)
    rest = (
        pl.when(~again)
        .then(pl.lit("once"))
        .when(pl.col("waits") & kind.is_in(TO_DEVICE))
        .then(pl.lit("input"))
        .when(pl.col("waits"))
        .then(pl.lit("output"))
        .otherwise(pl.lit("async"))
    )
    return copies.with_columns(role=pl.when(open_).then(rest).otherwise("role"))


def _mark_saves(copies: pl.DataFrame, scene: Scene) -> pl.DataFrame:
    least = scene.settings["state_offload.burst_bytes"]
    open_ = copies.filter(pl.col("role").is_null() & pl.col("kind_name").is_in(TO_HOST))
    bursts = open_.group_by(*GROUP, burst=pl.coalesce("burst", -pl.col("start_ns"))).agg(
        pl.col("bytes").sum(), pl.col("decile").first()
    )
    groups = bursts.group_by(GROUP).agg(saves=(pl.col("bytes").median() >= least) & recurs(pl.col("decile")))
    return _mark(copies, groups.filter("saves"), "save")


def _mark(copies: pl.DataFrame, groups: pl.DataFrame, role: str) -> pl.DataFrame:
    chosen = groups.select(GROUP).with_columns(chosen=pl.lit(True))
    return (
        copies.join(chosen, on=GROUP, how="left", maintain_order="left", nulls_equal=True)
        .with_columns(
            role=pl.when(pl.col("role").is_null() & pl.col("chosen").fill_null(False))
            .then(pl.lit(role))
            .otherwise("role")
        )
        .drop("chosen")
    )


def _mark_reloads(copies: pl.DataFrame) -> pl.DataFrame:
    """Groups to the device of which nearly all bytes are of sizes that were saved."""
    saved = copies.filter(pl.col("role") == "save")["bytes"].unique()
    open_ = copies.filter(pl.col("role").is_null() & pl.col("kind_name").is_in(TO_DEVICE))
    known = pl.col("bytes").is_in(saved.implode())
    groups = open_.group_by(GROUP).agg(
        reloads=(pl.col("bytes").filter(known).sum() >= 0.9 * pl.col("bytes").sum()) & (pl.len() >= 2)
    )
    return _mark(copies, groups.filter("reloads"), "reload")


def _mark_weights(copies: pl.DataFrame, scene: Scene) -> pl.DataFrame:
    """The same sequence of sizes, again and again, too large and too many to be a step's input."""
    s = scene.settings
    large = pl.col("bytes") >= s["streamed_weights.copy_bytes"]
    open_ = pl.col("role").is_null() & pl.col("kind_name").is_in(TO_DEVICE) & pl.col("direct") & large
    candidates = copies.filter(open_).sort("call_start_ns", "start_ns")
    if candidates["decile"].n_unique() < RECURS_IN:
        return copies
    period = _periods.find_period(candidates["bytes"].to_numpy())
    if scene.requests and scene.account.requests and scene.account.requests.frame is not None:
        per_request = candidates.height / scene.requests
        period = max(period, round(per_request)) if period else round(per_request)
    moved = candidates["bytes"].head(period).sum() if period else 0
    alone = period == 1 and _mean(candidates["bytes"]) >= s["streamed_weights.table_bytes"]
    several = period >= s["streamed_weights.copies_per_step"] and moved >= s["streamed_weights.step_bytes"]
    repeats = period > 0 and candidates.height >= 3 * period
    if not (repeats and (alone or several)):
        return copies
    return copies.with_columns(role=pl.when(open_).then(pl.lit("weights")).otherwise("role"))


def _mean(values: pl.Series) -> float:
    mean = values.cast(pl.Float64).mean()
    return mean if isinstance(mean, float) else 0.0
