"""Detectors, one module each: a module in this package that has ``check`` is a rule."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType

from nsysparse.accounting.device import DeviceAccount
from nsysparse.findings import Failed, Finding, Outcome, Quiet, Skipped
from nsysparse.integrity import Verdict
from nsysparse.joins.work import Work


def load_rules() -> list[ModuleType]:
    """The rule modules, by name."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{n}") for n in names]
    return [m for m in modules if hasattr(m, "check")]


def run_rules(accounts: list[DeviceAccount], work: Work, integrity: Verdict) -> tuple[Outcome, ...]:
    """Run every rule on every device; a rule that breaks is an outcome too."""
    outcomes: list[Outcome] = []
    for rule in load_rules():
        for account in accounts:
            outcomes.extend(_run(rule, account, work, integrity))
    return tuple(outcomes)


def _run(rule: ModuleType, account: DeviceAccount, work: Work, integrity: Verdict) -> Iterable[Outcome]:
    name = rule.ID
    try:
        found: list[Finding | Skipped] = list(rule.check(account, work, integrity))
    except Exception as error:  # the report must go on
        return [Failed(name, account.number, f"{type(error).__name__}: {error}")]
    return found or [Quiet(name, account.number)]
