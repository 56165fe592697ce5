"""The pipeline: a recording in, an :class:`Analysis` out. Pure data; nothing here prints, renders or writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from threading import Semaphore
from typing import Any

import polars as pl

from nsysparse._version import __version__
from nsysparse.accounting.device import Common, DeviceAccount, Options, account_for
from nsysparse.accounting.host import Activity
from nsysparse.accounting.timed import Timed, time_device
from nsysparse.coverage import measure_coverage
from nsysparse.errors import NsysparseError, UsageError
from nsysparse.findings import Finding, Outcome, rank
from nsysparse.flamegraph import CallPaths, read_call_path_tables, weigh_call_paths
from nsysparse.integrity import Verdict, begin_checking, check_recording
from nsysparse.integrity.export import META_TABLES
from nsysparse.joins.needed import Needed, find_needed, keep_needed
from nsysparse.joins.work import GPU_TABLES, Work, load_work
from nsysparse.memory import give_back
from nsysparse.recorded import Recorded, list_recorded
from nsysparse.rules import RuleRun, run_rules
from nsysparse.side_by_side import LARGE_AT_ONCE, aside, side_by_side, worth_at_once
from nsysparse.source import Trace
from nsysparse.stacks.attribution import Attributed
from nsysparse.stacks.load import Stacks, load_stacks
from nsysparse.verdict import state_verdict

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Analysis:
    """Everything that the outputs show.

    Attributes:
        trace: Facts of the file: ``name``, ``kind``, ``size_bytes``, ``release``, ``schema``, ``session_start_utc_ns``.
        options: What was asked for.
        work: The joined recording, as :func:`nsysparse.joins.needed.keep_needed` and
            :meth:`nsysparse.joins.work.Work.accounted` leave it.
        devices: One account a device, in the order of their numbers.
        integrity: Whether the recording can be trusted.
        coverage: See :func:`nsysparse.coverage.measure_coverage`.
        recorded: What it holds and lacks.
        outcomes: What every rule said.
        lost: Who is to blame for each device's time without a kernel, see :class:`nsysparse.rules.RuleRun`.
        verdict: Two or three sentences with the numbers that matter.
        stacks: Call stacks and samples, and the stack behind each call.
        call_paths: Who sent the work, weighed; None where it was not asked for.
        version: Version of nsysparse.
    """

    trace: dict[str, object]
    options: Options
    work: Work
    devices: tuple[DeviceAccount, ...]
    integrity: Verdict
    coverage: pl.DataFrame
    recorded: tuple[Recorded, ...]
    outcomes: tuple[Outcome, ...]
    lost: pl.DataFrame
    verdict: tuple[str, ...]
    stacks: Attributed
    call_paths: CallPaths | None = None
    version: str = __version__

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the rules found, most to win first."""
        return rank(self.outcomes)


def analyze(trace: Trace, options: Options | None = None, progress: Progress = lambda _: None) -> Analysis:
    """Analyze a recording.

    Args:
        trace: The recording.
        options: Window, devices and requests; the defaults suit a first look.
        progress: Called with the name of each stage as it begins.

    Returns:
        The analysis; the trace may be closed afterwards.

    Raises:
        UsageError: An option does not fit this recording.
    """
    options = options or Options()
    progress("joining GPU work to its calls")
    work = load_work(trace, options.whole_names)
    chosen = _choose(work, options)
    give_back()
    integrity, read, needed = _check(trace, work, options, progress)
    work = replace(work, calls=work.calls.without_ids())
    stacks = Attributed.of(work, read)
    activity = Activity(work, trace)
    give_back()
    timed = _time(trace, work, activity, chosen, options, progress)
    work, (found,) = keep_needed(work, needed, trace.shelf, stacks.found)
    stacks = replace(stacks, found=found)
    activity.calls = work.calls
    common = Common(work, trace, activity, integrity.hole)
    accounts = _account(trace, common, timed, options, progress)
    del needed, activity, common
    work = work.accounted()
    give_back()
    ruled, call_paths = _judge(trace, work, accounts, options, integrity, stacks, progress)
    return Analysis(
        trace_facts(trace),
        options,
        work,
        tuple(accounts),
        integrity,
        measure_coverage(work),
        tuple(list_recorded(trace)),
        ruled.outcomes,
        ruled.lost,
        tuple(state_verdict(accounts, work, integrity, rank(ruled.outcomes))),
        stacks,
        call_paths,
    )


def _check(
    trace: Trace, work: Work, options: Options, progress: Progress
) -> tuple[Verdict, Stacks | NsysparseError, Needed]:
    """Check the recording, and beside that read its stacks and find the calls that will be needed.

    Where no call paths are asked for, stacks that cannot be read are an error of the rules that look at them only.
    """
    progress("checking integrity")
    # What reads goes first: whether texts had to be repaired is said of what was read so far.
    finish = begin_checking(trace, work)
    with aside(trace.shelf.at_once) as begin:
        checked, found = begin(finish), begin(partial(find_needed, work))
        progress("weighing call paths")
        stacks: Stacks | NsysparseError
        try:
            stacks = load_stacks(trace, work.calls)
        except NsysparseError as error:
            if options.call_paths:
                raise
            stacks = error
        progress("checking integrity")
        return checked(), stacks, found()


def _time(
    trace: Trace,
    work: Work,
    activity: Activity,
    chosen: list[dict[str, Any]],
    options: Options,
    progress: Progress,
) -> list[Timed]:
    """Find when every device was busy, some side by side; a device whose times are all missing is left out."""

    def time(row: dict[str, Any]) -> Timed | None:
        progress(f"accounting for {row['label']}")
        mine = time_device(row, options.window, work, activity)
        if mine is None and options.devices:
            raise UsageError(f"no operation on device {row['device']} has usable times", "choose another --device")
        return mine and mine.put_on(trace.shelf)  # where every time on it is missing, the clock check says so

    timed = side_by_side(time, chosen, _at_once(trace, work))
    activity.forget_calls()
    return [t for t in timed if t is not None]


def _account(
    trace: Trace, common: Common, timed: list[Timed], options: Options, progress: Progress
) -> list[DeviceAccount]:
    """Account for every device's time, some devices side by side."""

    def account(mine: Timed) -> DeviceAccount:
        progress(f"accounting for {mine.device['label']}")
        made = account_for(mine, options, common).put_on(trace.shelf)
        made.figures()  # kept: now it is known when the device did anything
        return made

    accounts = list(side_by_side(account, timed, _at_once(trace, common.work)))
    common.forget()
    return accounts


def _at_once(trace: Trace, work: Work) -> int:
    """How many devices are worked on at a time."""
    return worth_at_once(work.devices.height, sum(getattr(work, t).height for t in GPU_TABLES), trace.shelf.at_once)


def _judge(
    trace: Trace,
    work: Work,
    accounts: list[DeviceAccount],
    options: Options,
    integrity: Verdict,
    stacks: Attributed,
    progress: Progress,
) -> tuple[RuleRun, CallPaths | None]:
    """Run the rules, and weigh the call paths beside them, where these are asked for."""
    call_paths = None
    room = Semaphore(LARGE_AT_ONCE)
    with aside(trace.shelf.at_once) as begin:
        if options.call_paths:
            progress("weighing call paths")
            read_call_path_tables(trace)  # what is left to do then only computes

            def weigh() -> CallPaths:
                with room:
                    return weigh_call_paths(work, accounts, trace, stacks)

            weighed = begin(weigh)
        give_back()
        progress("running rules")
        ruled = run_rules(accounts, work, integrity, trace, stacks, options.settings, room)
        if options.call_paths:
            progress("weighing call paths")
            call_paths = weighed()
    return ruled, call_paths


def inspect(trace: Trace, progress: Progress = lambda _: None) -> dict[str, object]:
    """What a recording is and holds, without accounting for its time; plain data for JSON.

    Returns:
        ``trace``, ``gpus``, ``devices``, ``recorded``, ``coverage`` and ``integrity``.
    """
    progress("joining GPU work to its calls")
    work = load_work(trace)
    progress("checking integrity")
    integrity = check_recording(trace, work)
    return {
        "trace": trace_facts(trace),
        "gpus": trace.frame("gpus").drop("bus").to_dicts(),
        "devices": work.devices.drop("bus").to_dicts(),
        "recorded": [asdict(r) for r in list_recorded(trace)],
        "coverage": measure_coverage(work).to_dicts(),
        "integrity": integrity.to_dict(),
    }


def _choose(work: Work, options: Options) -> list[dict[str, Any]]:
    rows = work.devices.to_dicts()
    if not options.devices:
        return rows
    known = {r["device"]: r for r in rows}
    missing = [d for d in options.devices if d not in known]
    if missing:
        listed = "; ".join(f"{n}: {r['label']}" for n, r in known.items()) or "none did any work"
        raise UsageError(f"no device {missing[0]} in this recording", f"its devices are {listed}")
    return [known[d] for d in dict.fromkeys(options.devices)]


def trace_facts(trace: Trace) -> dict[str, object]:
    """Facts of the file that are safe to print: no host, no user, no path."""
    meta = trace.metadata(*META_TABLES)
    start = trace.metadata_value("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    return {
        "name": trace.path.name,
        "kind": trace.kind,
        "size_bytes": trace.backend.size_bytes,
        "release": meta.get("EXPORT_PRODUCT_VERSION"),
        "schema": meta.get("EXPORT_SCHEMA_VERSION"),
        "session_start_utc_ns": start,
    }
