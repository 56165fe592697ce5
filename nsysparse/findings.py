"""What a rule can say: it fired (a Finding), had nothing to say, could not look, or broke. All four are reported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum


class Severity(IntEnum):
    """How much there is to win; from shares of wall time or of request latency, never of busy time."""

    INFO = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3


@dataclass(frozen=True)
class Finding:
    """One stall, named.

    Attributes:
        rule: Stable id of the rule.
        severity: How much there is to win.
        confidence: ``low``, ``medium`` or ``high``: how sure the rule is of the cause.
        device: Number of the device, None for the recording as a whole.
        title: One line with the number that matters.
        detail: One or two sentences: what, who sends it, what it costs.
        remedy: What to do, in the words of the user's framework.
        bound_ns: What winning it back could at most bring in the window; None when it cannot be said.
        evidence: The numbers, for machines: names end in ``_ns``, ``_bytes`` or ``_ratio``.
        instances: (start_ns, end_ns) of the worst operations, to be found in Nsight Systems.
        slice_ns: (start_ns, end_ns) of a stretch of the timeline that shows it; None when there is none to show.
        own_ns: Its part of the time without a kernel, when every instant is given to one finding only.
        key: What tells several findings of one rule on one device apart.
    """

    rule: str
    severity: Severity
    confidence: str
    device: int | None
    title: str
    detail: str
    remedy: str
    bound_ns: int | None
    evidence: dict[str, object] = field(default_factory=dict)
    instances: tuple[tuple[int, int], ...] = ()
    slice_ns: tuple[int, int] | None = None
    own_ns: int | None = None
    key: str = ""

    @property
    def id(self) -> str:
        """Stable id of the finding: the rule, the device and, where there are several, what it is about."""
        parts = [self.rule, "recording" if self.device is None else str(self.device)]
        return ":".join([*parts, self.key] if self.key else parts)


@dataclass(frozen=True)
class Quiet:
    """The rule looked and had nothing to say."""

    rule: str
    device: int | None


@dataclass(frozen=True)
class Skipped:
    """The rule could not look: what it needs was not recorded."""

    rule: str
    device: int | None
    reason: str


@dataclass(frozen=True)
class Failed:
    """The rule broke; the report goes on."""

    rule: str
    device: int | None
    error: str


Outcome = Finding | Quiet | Skipped | Failed


def rank(outcomes: Iterable[Outcome]) -> tuple[Finding, ...]:
    """The findings among some outcomes, most to win first."""
    found = (o for o in outcomes if isinstance(o, Finding))
    return tuple(sorted(found, key=lambda f: (-f.severity, -(f.bound_ns or 0), f.rule, f.device or 0, f.key)))
