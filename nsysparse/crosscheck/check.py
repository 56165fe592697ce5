"""The cross-check: one verdict a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from nsysparse import units
from nsysparse.accounting import windows as trace_windows
from nsysparse.census.dump import Census
from nsysparse.census.windows import Window, count
from nsysparse.crosscheck.causes import (
    CENSUS,
    GRAPH_MODE,
    TRACE,
    Cause,
    causes_in_census,
    causes_in_trace,
    drops_unknown,
    hidden_a_run,
    process_set,
)
from nsysparse.crosscheck.sides import PARTS, Item, Side, Tallies, Tally, side_of_census, side_of_trace
from nsysparse.errors import UsageError
from nsysparse.integrity import Verdict
from nsysparse.joins.work import Work
from nsysparse.source import Trace

# Times of two runs of one load on one machine differed by up to 1.56 in the recordings this was made with.
TIME_FACTOR = 2.0
SHORT_NS = 1_000_000  # below this much time a factor says nothing
QUANTITIES = ("count", "bytes", "time_ns")
DIFFERENT = "not the same operations"


class Status(Enum):
    """Verdict of a row."""

    EQUAL = "equal"
    EXPLAINED = "explained"
    UNEXPLAINED = "unexplained"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Requests:
    """Requests served while each side recorded; None: not known, and then totals are compared."""

    trace: int | None = None
    census: int | None = None

    @property
    def known(self) -> bool:
        """Whether figures can be compared per request."""
        return bool(self.trace and self.census)


@dataclass(frozen=True)
class Row:
    """One row: an item's count, bytes or time on both sides.

    Attributes:
        item: What, as it is printed.
        quantity: ``count``, ``bytes`` or ``time_ns``.
        trace: In the recording; None is unknown.
        census: In the census.
        trace_per_request: The same a request; None without requests.
        census_per_request: Likewise.
        status: The verdict.
        cause: Why, or empty.
    """

    item: str
    quantity: str
    trace: int | None
    census: int | None
    trace_per_request: float | None
    census_per_request: float | None
    status: Status
    cause: str


@dataclass(frozen=True)
class Crosscheck:
    """All rows.

    Attributes:
        rows: Kernels, copies, memsets, graph launches, migrations, busy.
        window_trace: The recording's window, in words.
        window_census: The census's window, in words.
        requests: Requests on both sides.
        causes: Every cause whose sign was found, whether a row needs it or not.
    """

    rows: tuple[Row, ...]
    window_trace: str
    window_census: str
    requests: Requests
    causes: tuple[Cause, ...]

    @property
    def status(self) -> Status:
        """The worst row's: unexplained, explained, unknown, equal."""
        found = {row.status for row in self.rows}
        order = (Status.UNEXPLAINED, Status.EXPLAINED, Status.UNKNOWN)
        return next((status for status in order if status in found), Status.EQUAL)

    @property
    def summary(self) -> str:
        """One sentence."""
        n = {status: sum(row.status is status for row in self.rows) for status in Status}
        parts = [f"{n[status]} {status.value}" for status in Status if n[status]]
        return f"{len(self.rows)} rows: {', '.join(parts)}."

    @property
    def views(self) -> list[dict[str, Any]]:
        """The rows for a table: also ``quantity_name``, ``unit`` (number, bytes, time) and ``verdict``."""
        names = {"count": ("count", "number"), "bytes": ("bytes", "bytes"), "time_ns": ("time", "time")}
        return [
            asdict(row)
            | {"quantity_name": names[row.quantity][0], "unit": names[row.quantity][1], "verdict": row.status.value}
            for row in self.rows
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "status": self.status.value,
            "summary": self.summary,
            "window_trace": self.window_trace,
            "window_census": self.window_census,
            "requests": asdict(self.requests),
            "causes": [{"name": c.name, "sign": c.text, "short": c.short} for c in self.causes],
            "rows": [asdict(row) | {"status": row.status.value} for row in self.rows],
        }


def check_census(
    trace: Trace,
    work: Work,
    integrity: Verdict,
    census: Census,
    *,
    requests: Requests | None = None,
    window_trace: str | None = None,
    window_census: Window | None = None,
    tolerance: float = 0.0,
) -> Crosscheck:
    """Compare a recording with a census of the same load.

    Args:
        trace: The recording.
        work: Its joined work, of all devices.
        integrity: Its checks.
        census: The census.
        requests: Requests on both sides; then every figure is compared per request.
        window_trace: A window as ``analyze --window`` takes it; by default everything.
        window_census: A window of the census; its own requests count where none are given.
        tolerance: Relative difference of counts and bytes that is not asked about, for loads that never repeat exactly.

    Raises:
        UsageError: The recording has no such window, or a number makes no sense.
    """
    window = _window_of(work, window_trace)
    counts = count(census, window_census)
    given = requests or Requests()
    if given.census is None and window_census is not None:
        given = Requests(given.trace, window_census.requests)
    left, right = side_of_trace(trace, work, window), side_of_census(counts)
    if not left.has_memory_kinds():
        left, right = left.without_memory_kinds(), right.without_memory_kinds()
    causes = [*causes_in_trace(work, integrity, census), *causes_in_census(census, counts, window_census, work)]
    judge = _Judge(left, right, causes, given, tolerance, drops_unknown(counts), lambda n: hidden_a_run(n, work))
    return Crosscheck(
        tuple(judge.rows()),
        f"{window.name}, {window.basis}" if window else "the whole recording",
        window_census.label if window_census else "the whole recording",
        given,
        tuple(judge.causes),
    )


def _window_of(work: Work, asked: str | None) -> trace_windows.Window | None:
    if asked is None or asked == "whole":
        return None
    repeats = trace_windows.repeated_ranges(work)
    offered = trace_windows.phases(work, repeats)
    if not offered:
        raise UsageError(f"no window '{asked}': the recording holds no GPU work", "leave out --window-trace")
    return trace_windows.choose_window(asked, offered, repeats, work)


class _Judge:
    """Draws the verdict of each row from the two sides and the causes that were found."""

    def __init__(
        self, trace: Side, census: Side, causes: list[Cause], requests: Requests, tolerance: float,
        drops_unknown: bool, hidden: Callable[[int], str],
    ) -> None:  # fmt: skip
        self.trace, self.census = trace, census
        self.requests, self.tolerance, self.drops_unknown, self.hidden = requests, tolerance, drops_unknown, hidden
        found = process_set(trace, census)
        self.causes = [*([found[0]] if found else []), *causes]

    def rows(self) -> Iterator[Row]:
        left, right = self.trace.sums(), self.census.sums()
        explained: dict[str, str] = {}
        for item in _ordered(left, right):
            inherited = explained.get(item.kind, "") if item.part == "busy" else ""
            for quantity in QUANTITIES:
                row = self._row(item, quantity, left, right, inherited)
                if row is None:
                    continue
                differs = row.status in (Status.EXPLAINED, Status.UNEXPLAINED) and item.part != "migrations"
                if quantity == "count" and differs:
                    # Its time and the busy time follow: they are not of the same operations.
                    inherited = row.cause.partition(",")[0] if row.status is Status.EXPLAINED else DIFFERENT
                    explained[item.part] = _worse(explained.get(item.part), inherited)
                    explained["everything"] = _worse(explained.get("everything"), inherited)
                yield row

    def _value(self, side: Side, tallies: Tallies, item: Item, quantity: str) -> int | None:
        if item in tallies:
            value: int | None = getattr(tallies[item], quantity)
            return value
        return None if item.part in side.unknown or item.part == "migrations" else 0

    def _row(self, item: Item, quantity: str, left: Tallies, right: Tallies, inherited: str) -> Row | None:
        example = left.get(item) or right.get(item) or Tally(0)
        if getattr(example, quantity) is None:
            return None
        a, b = self._value(self.trace, left, item, quantity), self._value(self.census, right, item, quantity)
        status, cause = self._verdict(item, quantity, a, b, inherited)
        per = [n / r if n is not None and r and self.requests.known else None
               for n, r in ((a, self.requests.trace), (b, self.requests.census))]  # fmt: skip
        return Row(item.label, quantity, a, b, per[0], per[1], status, cause)

    def _verdict(self, item: Item, quantity: str, a: int | None, b: int | None, inherited: str) -> tuple[Status, str]:
        if item.part == "migrations":
            return (
                Status.EXPLAINED,
                "unified memory: rows of the trace, no copy records of CUPTI",
            )
        if a is None or b is None:
            unknown = self.trace.unknown if a is None else self.census.unknown
            return Status.UNKNOWN, unknown.get(item.part, "not known")
        if a == b:
            return Status.EQUAL, ""
        if quantity == "time_ns":
            return self._verdict_of_time(a, b, inherited)
        return self._verdict_of_count(item, a, b)

    def _scaled(self, a: int, b: int) -> tuple[int, int]:
        """Both sides over the same number of requests, in whole numbers."""
        if not self.requests.known:
            return a, b
        return a * (self.requests.census or 1), b * (self.requests.trace or 1)

    def _verdict_of_count(self, item: Item, a: int, b: int) -> tuple[Status, str]:
        x, y = self._scaled(a, b)
        lengths = f"run length: {self.requests.trace} requests in the trace, {self.requests.census} in the census"
        if x == y:
            return Status.EXPLAINED, f"{lengths}; equal per request"
        if abs(x - y) <= self.tolerance * max(x, y):
            rest = f"; {lengths}" if self.requests.known and self.requests.trace != self.requests.census else ""
            return Status.EXPLAINED, f"within the tolerance of {units.percent(self.tolerance)} that was asked for{rest}"
        short = TRACE if x < y else CENSUS
        fitting = [c for c in self.causes if c.short == short and item.part in c.parts]
        if fitting:
            names = dict.fromkeys(
                c.name + (self.hidden(b - a) if c.name == GRAPH_MODE and not self.requests.known else "")
                for c in fitting
            )
            return Status.EXPLAINED, "; ".join(names)
        if short == CENSUS and self.drops_unknown:
            return Status.UNKNOWN, "CUPTI could not say whether it dropped records of the census"
        return Status.UNEXPLAINED, f"the {short} has {units.count(abs(a - b))} less, and no sign says why"

    def _verdict_of_time(self, a: int, b: int, inherited: str) -> tuple[Status, str]:
        """Times of two runs are never equal: they agree within a factor, or follow what explains their operations."""
        if inherited:
            return Status.UNKNOWN if inherited == DIFFERENT else Status.EXPLAINED, inherited
        x, y = self._scaled(a, b)
        ratio = max(x, y) / max(1, min(x, y))
        if ratio <= TIME_FACTOR or max(a, b) < SHORT_NS:
            return Status.EQUAL, f"another run: times differ by {units.percent(ratio - 1)}"
        return Status.UNEXPLAINED, f"times differ by a factor of {ratio:.3g}, more than two runs of one load do"


def _worse(known: str | None, found: str) -> str:
    return DIFFERENT if DIFFERENT in (known, found) else known or found


def _ordered(left: Tallies, right: Tallies) -> list[Item]:
    """Kernels and memsets always, the rest where a side has it; the most bytes first within a part."""
    always = {Item("kernels"): None, Item("memsets"): None}
    both = always | dict.fromkeys([*left, *right])

    def place(item: Item) -> tuple[int, int, str]:
        bytes_moved = max((t.get(item, Tally()).bytes or 0 for t in (left, right)), default=0)
        return PARTS.index(item.part), -bytes_moved, item.label

    return sorted((i for i in both if i in always or _worth(i, left, right)), key=place)


def _worth(item: Item, left: Tallies, right: Tallies) -> bool:
    return any(any((t.count, t.bytes, t.time_ns)) for t in (left.get(item), right.get(item)) if t is not None)
