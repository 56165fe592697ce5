"""What a command is doing: a line on the terminal for anything that takes long, and the time of each stage."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator

from nsysparse import units
from nsysparse.watch import Watch

PATIENCE_S = 2.0  # nothing is shown before
REFRESH_S = 0.2
ESTIMATE_AFTER_S = 1.0  # of reading, before its end is foretold


class Progress(Watch):
    """The stage that a command is in; call it with the name of each stage as it begins.

    Attributes:
        stages: Seconds of wall and CPU time of each stage so far, by the first word of its name. Reading is a stage of
            its own, whichever stage asked for it.
        rows, size_bytes: Rows and bytes of columns read so far.
    """

    def __init__(self, title: str) -> None:
        self.stages: dict[str, list[float]] = {}
        self.rows = self.size_bytes = 0
        self._title, self._stage = title, "opening"
        self._lock = threading.Lock()
        self._begun = self._mark = time.perf_counter()
        self._cpu_mark = time.process_time()
        self._reading: list[tuple[str, int | None]] = []
        self._since, self._table_rows, self._table_bytes = 0.0, 0, 0

    def __call__(self, stage: str) -> None:
        """A stage begins, and the one before it is over."""
        with self._lock:
            self._charge()
            self._stage = stage

    def begin(self, table: str, rows: int | None) -> None:
        """A table is about to be read."""
        with self._lock:
            if not self._reading:
                self._charge()
                self._since, self._table_rows, self._table_bytes = time.perf_counter(), 0, 0
            self._reading.append((table, rows))

    def add(self, rows: int, size_bytes: int) -> None:
        """So many more rows were read."""
        with self._lock:
            self.rows += rows
            self.size_bytes += size_bytes
            self._table_rows += rows
            self._table_bytes += size_bytes

    def end(self) -> None:
        """The table is read."""
        with self._lock:
            if len(self._reading) == 1:
                self._charge()
            if self._reading:  # an interrupted reader says so late
                self._reading.pop()

    def _charge(self) -> None:
        """Charge the time since the last mark to what was going on."""
        now, cpu = time.perf_counter(), time.process_time()
        key = "reading" if self._reading else self._stage.split(" ", 1)[0]
        spent = self.stages.setdefault(key, [0.0, 0.0])
        spent[0] += now - self._mark
        spent[1] += cpu - self._cpu_mark
        self._mark, self._cpu_mark = now, cpu

    def profile(self) -> dict[str, object]:
        """Seconds of each stage, and what was read, for the benchmark."""
        with self._lock:
            self._charge()
        stages = {k: {"wall_s": round(w, 4), "cpu_s": round(c, 4)} for k, (w, c) in self.stages.items()}
        return {"stages": stages, "rows": self.rows, "size_bytes": self.size_bytes}

    def text(self) -> str:
        """The line: stage, rows, bytes, time left where it is known, else the time so far."""
        with self._lock:
            now = time.perf_counter()
            if not self._reading:
                return f"{self._title}: {self._stage}, {now - self._begun:.0f} s"
            expected = [rows for _, rows in self._reading]
            tables = " and ".join(table for table, _ in self._reading)
            rows, taken = self._table_rows, now - self._since
            known = sum(r for r in expected if r is not None) if None not in expected else None
            total = f" of {units.count(known)}" if known is not None else ""
            left = f"{now - self._begun:.0f} s"
            if known is not None and rows and taken > ESTIMATE_AFTER_S:
                left = f"{max(known - rows, 0) / rows * taken:.0f} s left"
            size = units.size(self._table_bytes)
            return f"{self._title}: reading {tables}, {units.count(rows)}{total} rows, {size}, {left}"


class _Line:
    """Keeps a progress' text on the last line of the terminal, from a thread of its own."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._done = progress, threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()

    def _show(self) -> None:
        wait = PATIENCE_S
        while not self._done.wait(wait):
            wait = REFRESH_S
            width = shutil.get_terminal_size().columns - 1
            # A file's name must not steer the terminal.
            text = "".join(c if c.isprintable() else "?" for c in self._progress.text())
            self._write(f"\r\x1b[K{text[:width]}")
        if wait == REFRESH_S:
            self._write("\r\x1b[K")

    @staticmethod
    def _write(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal went away
            sys.stderr.write(text)
            sys.stderr.flush()

    def close(self) -> None:
        """Clear the line."""
        self._done.set()
        self._thread.join()


@contextlib.contextmanager
def progress_line(title: str) -> Iterator[Progress]:
    """A line on stderr from two seconds on; nothing when stderr is no terminal."""
    progress = Progress(title)
    if not sys.stderr.isatty():
        yield progress
        return
    line = _Line(progress)
    try:
        yield progress
    finally:
        line.close()
