"""Detectors, one module each: a module in this package that has ``check`` is a rule.

A rule module has

* a docstring, which is its published page (see :mod:`nsysparse.rules._pages`);
* ``ID``, its stable name, which is the module's; ``NEEDS``, what must have been recorded (keys of REASONS);
* ``THRESHOLDS``, its named numbers with their sources (see :mod:`nsysparse.rules.settings`);
* ``check(scene)``, which yields :class:`~nsysparse.rules._evidence.Found` or Skipped for one device, or, where
  ``SCOPE = "recording"``, ``check(scenes, integrity)`` for the recording as a whole;
* ``REST = True`` where it explains what the others leave: it runs after them and sees ``scene.claimed``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType

import polars as pl

from nsysparse.accounting.device import DeviceAccount
from nsysparse.findings import Failed, Finding, Outcome, Quiet, Skipped
from nsysparse.integrity import Verdict
from nsysparse.intervals import Intervals
from nsysparse.joins.work import Work
from nsysparse.rules._evidence import Found
from nsysparse.rules._recording import Recording
from nsysparse.rules._scene import Scene
from nsysparse.rules.settings import Threshold, resolve
from nsysparse.side_by_side import large, side_by_side, worth_at_once
from nsysparse.source import Trace
from nsysparse.stacks.attribution import Attributed

UNEXPLAINED, LOADING, STARTUP = "no finding", "model loading", "start-up"
Said = Found | Skipped | Quiet | Failed

# What a rule can need, how to tell that it is not there, and what to say then.
REASONS: dict[str, tuple[Callable[[Scene], bool], str]] = {
    "calls": (
        lambda s: not s.work.calls.recorded.calls,
        "no CUDA API calls were recorded: record with -t cuda",
    ),
    "kernels": (
        lambda s: not s.account.ran.height and not s.account.busy.by_kind["graphs"].length,
        "no kernel ran on this device in the window",
    ),
    "visible kernels": (
        lambda s: not s.account.ran.height and bool(s.account.busy.by_kind["graphs"].length),
        "kernels are hidden in whole CUDA graphs: record with --cuda-graph-trace=node",
    ),
    "visible copies": (
        lambda s: not s.account.copies.height and bool(s.account.busy.by_kind["graphs"].length),
        "copies are hidden in whole CUDA graphs: record with --cuda-graph-trace=node",
    ),
}


@dataclass(frozen=True)
class RuleRun:
    """What the rules said.

    Attributes:
        outcomes: One or more a rule and device.
        lost: Exclusive split of each device's time without a kernel: ``device``, ``finding`` (an id, LOADING,
            STARTUP or UNEXPLAINED), ``lost_ns``, ``window_ratio``; the rows of a device add up to all of its window's
            time without a kernel.
    """

    outcomes: tuple[Outcome, ...]
    lost: pl.DataFrame


def load_rules() -> list[ModuleType]:
    """The rule modules, by name."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{n}") for n in names]
    return [m for m in modules if hasattr(m, "check")]


def thresholds() -> dict[str, Threshold]:
    """Every threshold by its full name."""
    return {f"{rule.ID}.{name}": t for rule in load_rules() for name, t in rule.THRESHOLDS.items()}


def run_rules(
    accounts: list[DeviceAccount],
    work: Work,
    integrity: Verdict,
    trace: Trace,
    stacks: Attributed,
    settings: Mapping[str, float] | None = None,
    room: AbstractContextManager[object] | None = None,
) -> RuleRun:
    """Run every rule on every device; a rule that breaks is an outcome too.

    Args:
        accounts: The devices that are reported on.
        work: The whole recording.
        integrity: Whether it can be trusted.
        trace: For OS runtime calls and names, read only when a rule looks at them.
        stacks: Call stacks and samples, and the stack behind each call.
        settings: Changed thresholds by full name.
        room: Entered while a large device is judged: it lets in as many at a time as there is memory for.

    Raises:
        UsageError: A threshold that no rule has.
    """
    limits = resolve(thresholds(), settings or {})
    recording = Recording(trace, work, stacks)
    scenes = [Scene(a, work.on(a.number), integrity, recording, limits) for a in accounts]
    rules = sorted(load_rules(), key=lambda r: (getattr(r, "REST", False), r.ID))
    outcomes: list[Outcome] = []
    lost = []
    rest = {r.ID for r in rules if getattr(r, "REST", False)}
    by_device = [r for r in rules if getattr(r, "SCOPE", "device") == "device"]

    def judge(scene: Scene) -> tuple[list[Outcome], list[tuple[int, str, int, float]]]:
        with heavy or nullcontext():
            split = _split(_on_device(by_device, scene), scene, rest)
            scene.forget()
        return split

    operations = sum(s.account.ran.height + s.account.copies.height for s in scenes)
    heavy = room if large(len(scenes), operations) else None
    at_once = worth_at_once(len(scenes), operations, trace.shelf.at_once)
    for split, rows in side_by_side(judge, scenes, at_once):
        outcomes += split
        lost += rows
    for rule in rules:
        if getattr(rule, "SCOPE", "device") == "recording":
            said = _guarded(rule.ID, None, partial(rule.check, scenes, integrity))
            outcomes += [s.finding if isinstance(s, Found) else s for s in said]
    order = {r.ID: i for i, r in enumerate(sorted(rules, key=lambda r: r.ID))}
    outcomes.sort(key=lambda o: (order[o.rule], -1 if o.device is None else o.device, _id(o)))
    schema = {"device": pl.Int64, "finding": pl.String, "lost_ns": pl.Int64, "window_ratio": pl.Float64}
    return RuleRun(tuple(outcomes), pl.DataFrame(lost, schema=schema, orient="row"))


def _id(outcome: Outcome) -> str:
    return outcome.id if isinstance(outcome, Finding) else ""


def _on_device(rules: list[ModuleType], scene: Scene) -> list[Said]:
    said: list[Said] = []
    for rule in rules:
        missing = next((text for need in rule.NEEDS for absent, text in [REASONS[need]] if absent(scene)), None)
        if missing is not None:
            said.append(Skipped(rule.ID, scene.account.number, missing))
            continue
        new = _guarded(rule.ID, scene.account.number, partial(rule.check, scene))
        for found in new:
            if isinstance(found, Found):
                scene.claimed = scene.claimed | found.claim
        said += new
    return said


def _guarded(name: str, device: int | None, check: Callable[[], Iterable[Said]]) -> list[Said]:
    try:
        found = list(check())
    except Exception as error:  # the report must go on
        return [Failed(name, device, f"{type(error).__name__}: {error}")]
    return found or [Quiet(name, device)]


def _split(said: list[Said], scene: Scene, rest: set[str]) -> tuple[list[Outcome], list[tuple[int, str, int, float]]]:
    """Give every instant without a kernel to one finding: causes of their own first, then the most to win."""
    found = sorted(
        (s for s in said if isinstance(s, Found)),
        key=lambda f: (
            f.finding.rule in rest,
            -f.finding.severity,
            -(f.finding.bound_ns or 0),
            f.finding.rule,
        ),
    )
    length, number = scene.account.window.length_ns, scene.account.number
    window = scene.account.window
    lost = scene.account.busy.compute.gaps(window.start_ns, window.end_ns)
    taken = Intervals.none()  # of what is lost
    own: dict[str, int] = {}
    rows = []
    for each in found:
        mine: Intervals = (lost & each.claim) - taken
        taken = taken | mine
        own[each.finding.id] = mine.length
        rows.append((number, each.finding.id, mine.length, mine.length / length))

    def left(start: int, end: int) -> int:
        return lost.clip(start, end).length - taken.clip(start, end).length

    loading = left(window.start_ns, scene.loading_end_ns)
    startup = left(max(window.start_ns, scene.loading_end_ns), scene.begin_ns)
    rows += [(number, name, ns, ns / length) for name, ns in ((LOADING, loading), (STARTUP, startup)) if ns]
    rest_ns = left(window.start_ns, window.end_ns) - loading - startup
    rows.append((number, UNEXPLAINED, rest_ns, rest_ns / length))
    outcomes: list[Outcome] = [
        replace(s.finding, own_ns=own[s.finding.id]) if isinstance(s, Found) else s for s in said
    ]
    return outcomes, rows
