"""The figures of findings worked out again from a recording: plain SQL and loops, and nothing of nsysparse.

One process, one device, one feeding thread (or several that are asked for one by one), as in the recordings used here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from independent import Span, length, merged, overlap, sql

RANGES = """
    SELECT n.start, n.end, n.globalTid, coalesce(s.value, n.text)
    FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId
    WHERE n.eventType = 59 AND n.domainId = 0 AND n.end IS NOT NULL ORDER BY n.start
"""
CALLS = """
    SELECT r.start, r.end, r.globalTid, r.correlationId, s.value
    FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = r.nameId
    WHERE r.eventClass IN (0, 1) ORDER BY r.globalTid, r.start
"""
OPS = {
    "kernel": "SELECT start, end, correlationId, 0, 0, 0, 0 FROM CUPTI_ACTIVITY_KIND_KERNEL",
    "copy": "SELECT start, end, correlationId, bytes, copyKind, srcKind, dstKind FROM CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "SELECT start, end, correlationId, bytes, 0, 0, 0 FROM CUPTI_ACTIVITY_KIND_MEMSET",
}
HTOD, DTOH = 1, 2
PAGEABLE = 0


@dataclass(frozen=True)
class Call:
    start: int
    end: int
    thread: int
    correlation: int
    name: str

    def does(self, *names: str) -> bool:
        return any(n in self.name for n in names)


@dataclass(frozen=True)
class Op:
    kind: str
    start: int
    end: int
    correlation: int
    nbytes: int
    copy_kind: int
    src: int
    dst: int

    @property
    def pageable(self) -> bool:
        return self.kind == "copy" and PAGEABLE in {self.src, self.dst}


@dataclass
class Plain:
    """A recording, from the second range of a name to the end of its last one, or (without a name) as a whole."""

    path: Path
    steps: str | None = None
    calls: list[Call] = field(init=False)
    ops: list[Op] = field(init=False)

    def __post_init__(self) -> None:
        self.calls = self._one_row_a_call([Call(*row) for row in sql(self.path, CALLS)])
        tables = {row[0] for row in sql(self.path, "SELECT name FROM sqlite_master")}
        self.ops = sorted(
            (
                Op(kind, *row)
                for kind, text in OPS.items()
                if text.split()[-1] in tables
                for row in sql(self.path, text)
            ),
            key=lambda o: o.start,
        )
        if self.steps is None:
            self.low, self.high = min(o.start for o in self.ops), max(o.end for o in self.ops)
        else:
            found = self.ranges(self.steps)
            self.low, self.high = sorted(found)[1][0], max(e for _, e in found)
        self.by_correlation = {c.correlation: c for c in self.calls}
        self.kernels = merged(((o.start, o.end) for o in self.ops if o.kind == "kernel"), self.low, self.high)
        self.busy = merged(((o.start, o.end) for o in self.ops), self.low, self.high)

    @staticmethod
    def _one_row_a_call(calls: list[Call]) -> list[Call]:
        """Without driver calls inside a runtime call of the same number."""
        kept: dict[int, Call] = {}
        for call in calls:
            other = kept.get(call.correlation)
            if other is None or call.start < other.start or (call.start == other.start and call.end > other.end):
                kept[call.correlation] = call
        return sorted(kept.values(), key=lambda c: (c.thread, c.start))

    @property
    def wall(self) -> int:
        return self.high - self.low

    def ranges(self, name: str) -> list[Span]:
        """Ranges whose name begins so."""
        return [(s, e) for s, e, _, text in sql(self.path, RANGES) if text.startswith(name)]

    def copies(self, kind: int | None = None, pageable: bool | None = None, most: int | None = None) -> list[Op]:
        """Copies that start in the window."""
        return [
            o
            for o in self.ops
            if o.kind == "copy"
            and self.low <= o.start < self.high
            and kind in {None, o.copy_kind}
            and pageable in {None, o.pageable}
            and (most is None or o.nbytes <= most)
        ]

    def call_of(self, op: Op) -> Call:
        return self.by_correlation[op.correlation]

    def held(self, copies: list[Op]) -> list[Call]:
        """The copies' calls and the synchronizations after them, up to the thread's next call that sends work."""
        own = {o.correlation for o in copies}
        found, active = [], False
        for before, call in zip([None, *self.calls], self.calls, strict=False):
            if before is not None and before.thread != call.thread:
                active = False
            if call.does("Memcpy", "Launch", "Memset"):
                active = call.correlation in own
                if active:
                    found.append(call)
            elif active and call.does("Synchronize"):
                found.append(call)
        return found

    def without_kernel(self, spans: list[Span]) -> int:
        """Time of the spans, inside the window, in which no kernel ran."""
        union = merged(spans, self.low, self.high)
        return length(union) - overlap(union, self.kernels)

    def gaps(self) -> list[Span]:
        """Idle gaps of the window."""
        edges = [(self.low, self.low), *self.busy, (self.high, self.high)]
        return [(a[1], b[0]) for a, b in pairwise(edges) if b[0] > a[1]]

    def os_calls(self, thread: int) -> list[Span]:
        rows = sql(self.path, "SELECT start, end FROM OSRT_API WHERE globalTid = ? AND end > start", thread)
        return merged(rows, -(1 << 60), 1 << 60)

    def launch_gaps(self, longest: int) -> list[Span]:
        """Gaps of up to a length that ended when a call returned that its thread did not wait in.

        Without gaps at least half of which their thread spent in synchronizations, allocations or the system.
        """
        starts: dict[int, list[Op]] = {}
        for op in self.ops:
            starts.setdefault(op.start, []).append(op)
        system: dict[int, list[Span]] = {}
        found = []
        for start, end in self.gaps():
            ops = starts.get(end, [])
            if not ops or end - start > longest:
                continue
            calls = [self.call_of(o) for o in ops]
            if max(c.end for c in calls) <= start or any(o.pageable for o in ops):
                continue
            thread = calls[0].thread
            if thread not in system:
                system[thread] = self._elsewhere(thread)
            if 2 * overlap([(start, end)], self._near(system[thread], start, end)) < end - start:
                found.append((start, end))
        return found

    def _elsewhere(self, thread: int) -> list[Span]:
        """Synchronizations, allocations and system calls of a thread; a CUDA call hides the system calls inside it."""
        mine = [c for c in self.calls if c.thread == thread]
        waits = [(c.start, c.end) for c in mine if c.does("Synchronize", "Malloc", "Free", "MemAlloc", "HostAlloc")]
        inside = merged([(c.start, c.end) for c in mine], -(1 << 60), 1 << 60)
        outside = []
        for s, e in self.os_calls(thread):
            cuts = [(max(a, s), min(b, e)) for a, b in self._near(inside, s, e)]
            edges = [(s, s), *cuts, (e, e)]
            outside += [(x[1], y[0]) for x, y in pairwise(edges) if y[0] > x[1]]
        return merged([*waits, *outside], -(1 << 60), 1 << 60)

    @staticmethod
    def _near(spans: list[Span], start: int, end: int) -> list[Span]:
        """Of sorted, disjoint spans those that touch an interval."""
        low = bisect_right(spans, start, key=lambda s: s[1])
        return spans[low : bisect_left(spans, end, key=lambda s: s[0])]

    def silences(self, calls: list[Call]) -> tuple[list[Span], int]:
        """Silences of the thread next to some calls (or to a synchronization just before one), and its usual silence.

        Waiting in the system is taken out. The usual one is the median after other synchronizations.
        """
        thread = calls[0].thread
        mine = [c for c in self.calls if c.thread == thread]
        chosen = {c.correlation for c in calls}
        flags = [c.correlation in chosen for c in mine]
        flags = [
            f or (c.does("Synchronize") and nxt) for f, c, nxt in zip(flags, mine, [*flags[1:], False], strict=True)
        ]
        near, other = [], []
        for i in range(1, len(mine)):
            span = (mine[i - 1].end, mine[i].start)
            if span[1] <= span[0] or span[1] < self.low or span[0] > self.high:
                continue
            if flags[i] or flags[i - 1]:
                near.append(span)
            elif mine[i - 1].does("Synchronize"):
                other.append(span)
        system = self.os_calls(thread)
        usual = median(e - s - overlap([(s, e)], self._near(system, s, e)) for s, e in other)
        kept = []
        for s, e in near:
            cuts = [(max(a, s), min(b, e)) for a, b in self._near(system, s, e)]
            edges = [(s, s), *cuts, (e, e)]
            kept += [(x[1], y[0]) for x, y in pairwise(edges) if y[0] > x[1]]
        return kept, round(usual)
