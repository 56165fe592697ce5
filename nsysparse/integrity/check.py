"""The outcome of a check, and the verdict over all of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum

from nsysparse.intervals import Intervals


class Status(Enum):
    """What a check found, worst last."""

    OK = "ok"
    NOT_APPLICABLE = "not applicable"
    UNKNOWN = "unknown"
    NOTE = "note"
    SUSPECT = "suspect"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True)
class Hole:
    """A stretch of time in which part of the recording is missing.

    Attributes:
        start_ns: From when.
        end_ns: Until when.
        process: Serialized process id; None for all.
        missing: What is missing, one phrase.
        sign: The id of the check that saw it.
    """

    start_ns: int
    end_ns: int
    process: int | None
    missing: str
    sign: str


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        id: Stable name.
        title: What was looked at.
        status: What came of it.
        summary: One sentence with the numbers.
        evidence: The numbers, for machines.
        holes: Where data is missing, when the check can tell.
    """

    id: str
    title: str
    status: Status
    summary: str
    evidence: dict[str, object]
    holes: tuple[Hole, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """All checks of a recording."""

    checks: tuple[Check, ...]

    @property
    def status(self) -> Status:
        """INCOMPLETE or SUSPECT if any check says so, else OK."""
        found = {c.status for c in self.checks}
        return next((s for s in (Status.INCOMPLETE, Status.SUSPECT) if s in found), Status.OK)

    @property
    def holes(self) -> tuple[Hole, ...]:
        """Where data is missing, in time order."""
        return tuple(sorted((h for c in self.checks for h in c.holes), key=lambda h: (h.start_ns, h.end_ns)))

    @property
    def hole(self) -> Intervals:
        """Union of the holes."""
        return Intervals.union_of([h.start_ns for h in self.holes], [h.end_ns for h in self.holes])

    @property
    def summary(self) -> str:
        """One sentence."""
        if self.status is Status.OK:
            return "No sign of loss: every check that could be made passed."
        said = " ".join(c.summary for c in self.checks if c.status is self.status)
        word = "incomplete" if self.status is Status.INCOMPLETE else "perhaps incomplete"
        return f"This recording is {word}: {said}"

    def to_dict(self) -> dict[str, object]:
        """The verdict as plain data for JSON."""
        return {
            "status": self.status.value,
            "summary": self.summary,
            "holes": [asdict(h) for h in self.holes],
            "checks": [
                {
                    "id": c.id,
                    "title": c.title,
                    "status": c.status.value,
                    "summary": c.summary,
                    "evidence": c.evidence,
                }
                for c in self.checks
            ],
        }
