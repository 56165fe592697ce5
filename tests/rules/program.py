"""A program with its GPU, simulated: calls and operations of a loop, written as an export.

The host makes calls one after the other; each stream runs its operations in order, the device's engines side by side.
An operation starts LATENCY after its call began at the earliest. All times are whole ns, and the instants at which the
host waited and the device computed are kept, so that tests can work out prices by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from analyzed import MS, NEWEST, PID, SECOND, TID, US, analyzed, machine
from export_builder import DEVICE, DTOD, DTOH, HTOD, PAGEABLE, PINNED, PTOP

from nsysparse.analysis import Analysis
from nsysparse.findings import Failed, Finding, Outcome

__all__ = ["DEVICE", "DTOD", "DTOH", "HTOD", "MS", "PAGEABLE", "PINNED", "PTOP", "SECOND", "US", "Program"]

LATENCY = 2 * US
CALL = 5 * US
Span = tuple[int, int]


class Program:
    """One process on one device; `tid` is the thread that makes the next calls."""

    def __init__(self, release: str = NEWEST, gpus: int = 1) -> None:
        self.b = machine(release, gpus)
        self.clock = {TID: SECOND}
        self.tid = TID
        self.device = 0
        self.ready: dict[tuple[int, int], int] = {}
        self.kernels: list[Span] = []
        self.copies: list[Span] = []
        self.waited: list[Span] = []

    # --- the host ---

    @property
    def now(self) -> int:
        return self.clock[self.tid]

    @now.setter
    def now(self, value: int) -> None:
        self.clock[self.tid] = value

    def thread(self, number: int, name: str = "worker") -> int:
        """A further thread, begun now."""
        tid = self.b.thread(PID, PID + number, name)
        self.clock.setdefault(tid, self.now)
        return tid

    @contextmanager
    def on(self, tid: int) -> Iterator[None]:
        before, self.tid = self.tid, tid
        yield
        self.tid = before

    def think(self, ns: int) -> None:
        """The host does something that no trace shows."""
        self.now += ns

    def sleep(self, ns: int, function: str = "poll") -> None:
        """The host waits in the operating system."""
        self.b.osrt(function, self.now, self.now + ns, self.tid)
        self.now += ns

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        start, tid = self.now, self.tid
        yield
        self.b.push_pop(name, start, self.clock[tid], tid)

    # --- the device ---

    def _run(self, stream: int, ns: int) -> Span:
        start = max(self.now + LATENCY, self.ready.get((self.device, stream), 0))
        self.ready[self.device, stream] = start + ns
        return start, start + ns

    def _call(self, ns: int) -> Span:
        span = (self.now, self.now + ns)
        self.now += ns
        return span

    def launch(self, ns: int, stream: int = 7, name: str = "gemm", call: int = CALL, **more: Any) -> Span:
        span = self._run(stream, ns)
        self.b.launch(self.tid, self._call(call), span, name, device=self.device, stream=stream, **more)
        self.kernels.append(span)
        return span

    def copy(
        self, nbytes: int, kind: int, src: int, dst: int, ns: int, *, stream: int = 7, call: int = CALL,
        waits: bool | None = None, after: int = 0, **more: Any,
    ) -> Span:  # fmt: skip
        """A copy; from or to pageable memory, or with `waits`, its call lasts until the copy is done."""
        blocking = PAGEABLE in {src, dst} if waits is None else waits
        self.ready[self.device, stream] = max(self.ready.get((self.device, stream), 0), after)
        span = self._run(stream, ns)
        held = self._call(max(call, span[1] + US - self.now) if blocking else call)
        if blocking:
            self.waited.append(held)
        more = {"device": self.device, "stream": stream, **more}
        self.b.memcpy(self.tid, held, span, nbytes, kind, src, dst, **more)
        self.copies.append(span)
        return span

    def order(self, later: int, earlier: int) -> None:
        """A stream waits for another, by an event."""
        at = max(self.ready.get((self.device, s), 0) for s in (later, earlier))
        self.ready[self.device, later] = at
        self.b.api("cudaStreamWaitEvent_v3020", *self._call(US), self.tid)

    def sync(self, api: str = "cudaStreamSynchronize_v3020", stream: int | None = 7) -> Span:
        """Wait for a stream, or (None) for the device."""
        done = [t for (d, s), t in self.ready.items() if d == self.device and stream in {None, s}]
        span = self._call(max(max(done, default=0) - self.now, US) + US)
        self.b.synchronize(self.tid, span, api, device=self.device)
        self.waited.append(span)
        return span

    def allocate(self, ns: int, api: str = "cudaMalloc_v3020") -> Span:
        span = self._call(ns)
        self.b.api(api, *span, self.tid)
        return span

    def load(self, nbytes: int = 500_000_000) -> None:
        """A model, pageable, before everything else."""
        for _ in range(10):
            self.copy(nbytes // 10, HTOD, PAGEABLE, DEVICE, 5 * MS)
        self.think(MS)

    # --- the analysis ---

    def analyze(self, folder: Path, **options: Any) -> Analysis:
        return analyzed(self.b, folder, **options)

    def said(self, folder: Path, rule: str, **options: Any) -> list[Outcome]:
        """What one rule says; no rule may break."""
        analysis = self.analyze(folder, **options)
        assert not [o for o in analysis.outcomes if isinstance(o, Failed)]
        return [o for o in analysis.outcomes if o.rule == rule]

    def finding(self, folder: Path, rule: str, **options: Any) -> Finding:
        """The only finding of a rule."""
        (only,) = self.said(folder, rule, **options)
        assert isinstance(only, Finding), only
        return only


def serve(program: Program, requests: int, step: Any, name: str = "request") -> Program:
    """Run `step(number)` in a range of its own, again and again."""
    for number in range(requests):
        with program.range(name):
            step(number)
    return program
