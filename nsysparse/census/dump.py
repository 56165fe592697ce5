"""Read a census: one file a process, each an append-only JSON Lines file that may be cut at any byte.

Only times and offsets of the totals lines are kept; the few lines that a question needs are read when it is
asked, so a file of a month reads like a file of a minute.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from nsysparse.census import FORMAT_NAME, FORMAT_VERSION, MARKS_FILE
from nsysparse.errors import NsysparseError, SourceError

Record = dict[str, Any]


@dataclass(frozen=True)
class Mark:
    """A moment that the user named.

    Attributes:
        unix_ns: When, in nanoseconds since 1970.
        label: Its name.
        requests: Requests served until then, or None.
    """

    unix_ns: int
    label: str
    requests: int | None = None


@dataclass(frozen=True)
class TotalsRef:
    """Where one totals line stands in its file.

    Attributes:
        unix_ns: The line's time.
        same_until_ns: Until when the line before it held, or None.
        offset: Byte offset in the file.
        final: Whether the recorder wrote it at exit.
    """

    unix_ns: int
    same_until_ns: int | None
    offset: int
    final: bool


@dataclass
class Process:
    """One process of a census.

    Attributes:
        path: Its file.
        header: The header line as written.
        totals: References to its totals lines, in order.
        kernels: The last kernels line, or None.
        notes: What the recorder had to say, in order.
        cut: Whether the last line is incomplete, as after SIGKILL or on a full disk.
        bad_lines: Lines in the middle that are no JSON records; 0 unless something else wrote to the file.
        size: Bytes read so far, up to the end of the last whole line.
    """

    path: Path
    header: Record
    totals: list[TotalsRef] = field(default_factory=list)
    kernels: Record | None = None
    notes: list[str] = field(default_factory=list)
    cut: bool = False
    bad_lines: int = 0
    size: int = 0

    @property
    def pid(self) -> int:
        """Process id."""
        return int(self.header["pid"])

    @property
    def program(self) -> str:
        """Program name, without arguments."""
        return str(self.header.get("program") or "")

    @property
    def start_ns(self) -> int:
        """When the recorder started, in nanoseconds since 1970."""
        return int(self.header["start_unix_ns"])

    @property
    def end_ns(self) -> int:
        """The last totals line's time, or the start when there is none."""
        return self.totals[-1].unix_ns if self.totals else self.start_ns

    @property
    def finished(self) -> bool:
        """Whether the program ended in a way that let the recorder finish."""
        return bool(self.totals) and self.totals[-1].final

    @property
    def key(self) -> str:
        """A name that no other process of the folder has: pid and start."""
        return f"{self.pid}-{self.start_ns}"

    def read(self, ref: TotalsRef) -> Record:
        """Read one totals line from the file.

        Raises:
            SourceError: The file changed under us.
        """
        with self.path.open("rb") as file:
            file.seek(ref.offset)
            record = _parse(file.readline())
        if record is None or record.get("record") != "totals":
            raise SourceError(f"{self.path} changed while it was read", "read it again")
        return record

    def lines(self) -> Iterator[Record]:
        """Read all totals lines in order."""
        for ref in self.totals:
            yield self.read(ref)

    def device(self, ordinal: int) -> Record:
        """What the header says of a device; empty when it does not know it."""
        for device in self.header.get("devices") or []:
            if isinstance(device, dict) and device.get("ordinal") == ordinal:
                return device
        return {}


@dataclass
class Census:
    """All processes of a folder.

    Attributes:
        folder: Where they were read from.
        processes: In the order of their start.
        marks: In the order of their time.
        problems: One sentence for each file or line that could not be used.
    """

    folder: Path
    processes: list[Process]
    marks: list[Mark]
    problems: list[str]

    @property
    def start_ns(self) -> int:
        """The first process's start."""
        return min(p.start_ns for p in self.processes)

    @property
    def end_ns(self) -> int:
        """The last totals line of all processes."""
        return max(p.end_ns for p in self.processes)


def _parse(line: bytes) -> Record | None:
    """One complete line as a record, or None."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # ValueError covers bad JSON and bad UTF-8
        return None
    return record if isinstance(record, dict) else None


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_header(path: Path, record: Record | None) -> Record:
    if record is None or record.get("record") != "header" or record.get("format") != FORMAT_NAME:
        raise SourceError(f"{path} is not a census file", "name a folder that `nsysparse census run` wrote")
    version = record.get("version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise SourceError(
            f"{path.name} is in census format {version!r:.20}; this nsysparse reads format {FORMAT_VERSION}",
            "read it with the nsysparse that recorded it, or a newer one",
        )
    if not _whole(record.get("pid")) or not _whole(record.get("start_unix_ns")):
        raise SourceError(f"{path.name} has a header without pid or start", "the file was edited; record again")
    return record


def _take(process: Process, record: Record, offset: int) -> bool:
    """Sort one record in; False when it is not what its name says."""
    kind = record.get("record")
    if kind == "totals":
        time_ns, same = record.get("unix_ns"), record.get("same_until_unix_ns")
        if not isinstance(time_ns, int) or not isinstance(record.get("devices"), list):
            return False
        known = same if isinstance(same, int) else None
        process.totals.append(TotalsRef(time_ns, known, offset, record.get("final") is True))
    elif kind == "kernels":
        process.kernels = record
    elif kind == "note":
        process.notes.append(str(record.get("text", "")))
    return True  # a record of an unknown name is skipped: later versions may add some


def read_process(path: Path) -> Process | None:
    """Read one process's file; None when it was cut before its header was complete.

    Raises:
        SourceError: Not a census file, or one of an unknown format version.
    """
    try:
        with path.open("rb") as file:
            first = file.readline()
            if not first.endswith(b"\n"):
                return None
            process = Process(path, _check_header(path, _parse(first)), size=len(first))
            _read_on(process, file)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}", "check the path and its permissions") from error
    return process


def _read_on(process: Process, file: BinaryIO) -> None:
    """Take the lines that came since the last time."""
    file.seek(process.size)
    process.cut = False
    for line in file:
        if not line.endswith(b"\n"):
            process.cut = True
            return
        record = _parse(line)
        if record is None or not _take(process, record, process.size):
            process.bad_lines += 1
        process.size += len(line)


def read_marks(folder: Path) -> list[Mark]:
    """The marks of a folder, in the order of their time; lines that are none are skipped."""
    path, marks = folder / MARKS_FILE, []
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        return []
    for line in lines:
        record = _parse(line)
        if record is None or not isinstance(record.get("unix_ns"), int) or not isinstance(record.get("label"), str):
            continue
        requests = record.get("requests")
        marks.append(Mark(record["unix_ns"], record["label"], requests if _whole(requests) else None))
    return sorted(marks, key=lambda mark: mark.unix_ns)


def read(path: str | os.PathLike[str]) -> Census:
    """Read a census folder, or one file of it.

    Raises:
        SourceError: Nothing there, nothing usable in it, or an unknown format version.
    """
    source = Path(path)
    if not source.exists():
        raise SourceError(f"{source} does not exist", "name a folder that `nsysparse census run` wrote")
    files = [source] if source.is_file() else sorted(source.glob("census-*.jsonl"))
    folder = source.parent if source.is_file() else source
    if not files:
        raise SourceError(f"{source} holds no census files", "record with `nsysparse census run --out DIR -- COMMAND`")
    processes, problems = [], []
    for file in files:
        process = read_process(file)
        if process is None:
            problems.append(f"{file.name} was cut before its header was complete: that process is not counted")
            continue
        processes.append(process)
        if process.bad_lines:
            problems.append(f"{file.name}: {process.bad_lines} lines in the middle are damaged and were skipped")
        problems += [f"{file.name}: {note}" for note in process.notes]
    if not processes:
        raise SourceError(f"no file in {source} holds a complete header", "the program ended before its first line")
    processes.sort(key=lambda p: (p.start_ns, p.pid))
    return Census(folder, processes, read_marks(folder), problems)


def refresh(census: Census) -> None:
    """Take in what was written since the census was read: new lines, and new processes."""
    known = {process.path for process in census.processes}
    for process in census.processes:
        try:
            with process.path.open("rb") as file:
                _read_on(process, file)
        except OSError:  # the file was taken away: what was read of it stays
            continue
    for path in sorted(set(census.folder.glob("census-*.jsonl")) - known):
        new = read_process(path)
        if new is not None:
            census.processes.append(new)


def write_mark(folder: Path, label: str, requests: int | None = None) -> Mark:
    """Append a mark to the folder's marks file, in one write.

    Raises:
        NsysparseError: The folder is not there or cannot be written to.
    """
    mark = Mark(time.time_ns(), label, requests)
    record = {"record": "mark", "unix_ns": mark.unix_ns, "label": label, "requests": requests}
    try:
        handle = os.open(folder / MARKS_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, (json.dumps(record) + "\n").encode())
        finally:
            os.close(handle)
    except OSError as error:
        raise NsysparseError(
            f"cannot write to {folder}: {error.strerror}", "name the folder that the recorder writes to"
        ) from error
    return mark


def _may_run(process: Process) -> bool:
    """Whether a recorder can still be there: each writes a line a minute, even when nothing happens."""
    try:
        age_s = time.time() - process.path.stat().st_mtime
    except OSError:
        return False
    return not process.finished and age_s < 70 + process.header.get("interval_ns", 0) / 1e9


def await_mark(folder: Path, mark: Mark, patience_s: float) -> tuple[int, int]:
    """Wait until each running recorder has written a line after a mark: work begun now then comes after it.

    Returns:
        How many recorders answered, and how many had not finished before the mark.
    """
    deadline = time.monotonic() + patience_s
    census = Census(folder, [], [], [])
    while True:
        refresh(census)
        running = [p for p in census.processes if p.end_ns >= mark.unix_ns or _may_run(p)]
        answered = sum(p.end_ns >= mark.unix_ns for p in running)
        if answered == len(running) or time.monotonic() > deadline:
            return answered, len(running)
        time.sleep(0.02)
