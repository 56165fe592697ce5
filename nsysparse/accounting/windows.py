"""The window that every share is a share of.

*whole*: first GPU operation's start to last GPU operation's end on the device. *ranges*: first to last of the outermost
NVTX ranges that repeat. *steady*: the same from their second repetition on; imports, loading and warm-up lie before it.
The default is *steady* where ranges repeat, else *whole*.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.accounting.grouping import counts_of
from nsysparse.errors import UsageError
from nsysparse.intervals import Index, times
from nsysparse.joins.nesting import FOREVER
from nsysparse.joins.work import FRAMES, GPU_TABLES, Work

LATEST = 1 << 62  # ns
_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "": 1_000_000_000}
_TIME = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ns|us|ms|s|)\s*$")
FORMS = "whole, ranges, steady, START..END (as in 1.5s..2500ms), nvtx:REGEX or request:N"


@dataclass(frozen=True)
class Window:
    """A window on one device's time.

    Attributes:
        name: ``whole``, ``ranges``, ``steady`` or what the user gave.
        start_ns: Start, ns since the start of the session.
        end_ns: End.
        basis: One phrase that says where it comes from.
    """

    name: str
    start_ns: int
    end_ns: int
    basis: str

    @property
    def length_ns(self) -> int:
        """Length."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Repeats:
    """The outermost NVTX ranges that repeat: what the program itself calls a step or a request."""

    label: str
    frame: pl.DataFrame


def whole_window(work: Work) -> Window | None:
    """First start to last end of the work of one device; None where it did nothing."""
    frames = [f for f in (getattr(work, name) for name in FRAMES) if f.height]
    if not frames:
        return None
    starts, end = [f["start_ns"] for f in frames], max(int(times(f["end_ns"]).max()) for f in frames)
    first, last = min(s[0] for s in starts), max(s[-1] for s in starts)  # rows are by start
    # One ns more where the last operation is an instant: a window is half-open, and it belongs to it.
    return Window("whole", first, max(end, last + 1), "first to last GPU operation")


def ranges_in(window: Window, work: Work) -> pl.Expr:
    """Whether a range (by its ``start_ns`` and ``end_ns``) belongs to a window of one device.

    It does if it starts inside. A window that leaves out none of the device's earlier work also has the ranges that
    were open when it begins: a request starts before its first operation.
    """
    start, end = pl.col("start_ns"), pl.col("end_ns")
    begun = start >= window.start_ns
    frames = (getattr(work, name) for name in FRAMES)
    if all(not f.height or f["start_ns"][0] >= window.start_ns for f in frames):
        begun = begun | (end > window.start_ns)
    return begun & (start < window.end_ns)


def repeated_ranges(work: Work) -> Repeats | None:
    """The outermost push/pop ranges that repeat in the processes that fed this device.

    A range that occurs once in its process and holds everything is no repetition: its children are looked at instead.
    Of several candidates, the one that sent the most operations. Only the default domain counts: a library's own NVTX
    (NCCL, cuDNN) repeats too, and is no step of the program.
    """
    sent_by = [f for name in GPU_TABLES if (f := getattr(work, name)).height]
    processes = sorted({process for frame in sent_by for process, _ in counts_of(frame["process"])})
    parent, depth = (work.ranges.paths[c].to_numpy() for c in ("parent", "depth"))
    most, time = np.zeros(parent.size, np.int64), np.zeros(parent.size, np.int64)
    path, process, n, took = (work.ranges.program[c].to_numpy() for c in ("path", "process", "n", "time"))
    mine = np.isin(process, processes)
    np.maximum.at(most, path[mine], n[mine])
    np.add.at(time, path[mine], took[mine])
    outermost = _outermost(parent, depth, most > 1)
    if not outermost.any():
        return None
    sent, number = np.zeros(parent.size, np.int64), np.zeros(parent.size, np.int64)
    for frame in sent_by:
        number += np.bincount(frame["path"].to_numpy(), minlength=parent.size)
    np.add.at(sent, outermost, number)
    candidates = [p for p in np.flatnonzero(sent).tolist() if p]
    if not candidates:
        return None
    best = min(candidates, key=lambda p: (-sent[p], -time[p], p))
    ranges = work.ranges.frame
    ranges = ranges[np.flatnonzero(ranges["path"].to_numpy() == best)]
    chosen = pl.col("push_pop") & (pl.col("domain") == 0) & pl.col("finished") & pl.col("process").is_in(processes)
    return Repeats(work.ranges.paths["label"][best], ranges.filter(chosen).sort("start_ns", "range"))


def _outermost(parent: Index, depth: Index, repeating: npt.NDArray[np.bool_]) -> Index:
    """For each path, its outermost ancestor (or itself) that repeats; 0 where none does."""
    found = np.where(repeating, np.arange(parent.size), 0)
    found[:1] = 0
    for level in range(2, int(depth.max(initial=0)) + 1):
        rows = np.flatnonzero(depth == level)
        above = found[parent[rows]]
        found[rows] = np.where(above > 0, above, found[rows])
    return found


def phases(work: Work, repeats: Repeats | None) -> dict[str, Window]:
    """The windows that a recording offers by itself, keyed by name."""
    whole = whole_window(work)
    if whole is None:
        return {}
    found = {"whole": whole}
    if repeats is not None:
        frame = repeats.frame
        start, end = int(frame["start_ns"][0]), int(frame["end_ns"].max())  # type: ignore[arg-type]
        what = f"{frame.height} ranges '{repeats.label}'"
        found["ranges"] = Window("ranges", start, end, f"first to last of the {what}")
        second = _second_start(frame)
        if second is not None and second < end:
            found["steady"] = Window("steady", second, end, f"the {what} from the second on")
    return found


def _second_start(frame: pl.DataFrame) -> int | None:
    """When every thread that was there from the beginning had begun its second repetition."""
    start, thread = times(frame["start_ns"]), times(frame["thread"])  # by start
    order = np.argsort(thread, kind="stable")
    start, thread = start[order], thread[order]
    first = np.flatnonzero(np.diff(thread, prepend=thread[0] - 1))
    second = first[np.diff(first, append=thread.size) > 1] + 1
    if not second.size:  # one repetition a thread: the second in time
        return int(frame["start_ns"][1])
    seconds = start[second]
    return int(seconds[start[second - 1] <= seconds.min()].max())


def choose_window(asked: str | None, offered: dict[str, Window], repeats: Repeats | None, work: Work) -> Window:
    """The window to report on.

    Args:
        asked: What the user gave, or None for the default.
        offered: As :func:`phases` returns them.
        repeats: The repeated top-level ranges.
        work: The device's work.

    Raises:
        UsageError: The recording has no such window.
    """
    if asked is None:
        return offered.get("steady", offered["whole"])
    if asked in {"whole", "ranges", "steady"}:
        if asked not in offered:
            raise UsageError(
                f"no window '{asked}': no NVTX range repeats in this recording",
                f"use another window: {FORMS}",
            )
        return offered[asked]
    if asked.startswith("nvtx:"):
        return _range_window(asked, work)
    if asked.startswith("request:"):
        return _request_window(asked, repeats)
    return _time_window(asked, offered["whole"], work)


def check_form(asked: str) -> None:
    """Whether a window can be understood, before anything is read.

    Raises:
        UsageError: It is of none of the FORMS.
    """
    if asked.startswith("nvtx:"):
        check_pattern(asked.removeprefix("nvtx:"))
    elif asked not in {"whole", "ranges", "steady"} and not asked.startswith("request:"):
        _time_bounds(asked)


def check_pattern(pattern: str) -> None:
    """Whether a regular expression is well-formed.

    Raises:
        UsageError: It is not.
    """
    try:
        pl.Series([""]).str.contains(pattern)
    except pl.exceptions.ComputeError as error:
        raise UsageError(f"'{pattern}' is no regular expression", "see the syntax of Rust's regex") from error


def _time_bounds(asked: str) -> tuple[int | None, int | None]:
    """START and END of a window, None where it leaves one out."""
    low, separator, high = asked.partition("..")
    start, end = parse_time(low), parse_time(high)
    if not separator or (start is None and low.strip()) or (end is None and high.strip()):
        raise UsageError(f"cannot read the window '{asked}'", f"a window is one of: {FORMS}")
    if start is not None and end is not None and end <= start:
        raise UsageError(f"the window '{asked}' ends before it begins", "give START..END in session time")
    return start, end


def _time_window(asked: str, whole: Window, work: Work) -> Window:
    low, high = _time_bounds(asked)
    start, end = whole.start_ns if low is None else low, whole.end_ns if high is None else high
    if end <= start or start >= _last_recorded(whole, work):
        known = f"its GPU work lies between {whole.start_ns / 1e9:.6f}s and {whole.end_ns / 1e9:.6f}s"
        raise UsageError(f"the window '{asked}' holds none of this recording", known)
    return Window(asked, start, end, "given by the user")


def _last_recorded(whole: Window, work: Work) -> int:
    """The end of what was recorded: a device that has no work any more idles while others and the host go on."""
    if not work.calls.recorded.calls and not work.ranges.frame.height:
        return FOREVER  # nothing of the host says how long others went on
    ranges = work.ranges.frame.select(pl.col("end_ns").filter("finished").max()).item()
    return max(whole.end_ns, work.calls.recorded.last_end_ns, ranges or 0)


def parse_time(text: str) -> int | None:
    """A time such as ``1.5s``, ``2500ms`` or ``3`` (seconds) in ns; None when it is none, or beyond any clock."""
    match = _TIME.match(text)
    value = float(match[1]) * _UNITS[match[2]] if match else math.inf
    return round(value) if value < LATEST else None


def _range_window(asked: str, work: Work) -> Window:
    frame = match_ranges(work, asked.removeprefix("nvtx:"))
    finished = frame.filter("finished")
    if not finished.height:
        raise UsageError(
            f"no finished NVTX range matches '{asked}'",
            "see the ranges with: nsysparse query TRACE nvtx/ranges",
        )
    start, end = finished["start_ns"].min(), finished["end_ns"].max()
    assert isinstance(start, int)
    assert isinstance(end, int)
    return Window(asked, start, max(end, start + 1), f"first to last of {finished.height} NVTX ranges")


def _request_window(asked: str, repeats: Repeats | None) -> Window:
    number = asked.removeprefix("request:")
    if repeats is None:
        raise UsageError(f"no window '{asked}': no NVTX range repeats", "use --window START..END")
    n = repeats.frame.height
    if not re.fullmatch("[0-9]{1,18}", number) or not 1 <= int(number) <= n:
        raise UsageError(f"no window '{asked}': requests are numbered 1 to {n}", "give one of these numbers")
    start, end = int(repeats.frame["start_ns"][int(number) - 1]), repeats.frame["end_ns"].max()
    assert isinstance(end, int)
    return Window(asked, start, end, f"from request {number} of {n} '{repeats.label}' on")


def match_ranges(work: Work, pattern: str) -> pl.DataFrame:
    """Ranges whose name matches a regular expression anywhere.

    Raises:
        UsageError: The expression is malformed.
    """
    check_pattern(pattern)
    names = work.ranges.frame["name"].unique().cast(pl.String)
    names = names.filter(names.str.contains(pattern)).cast(pl.Categorical)
    return work.ranges.frame.filter(pl.col("name").is_in(names.implode()) & (pl.col("end_ns") <= FOREVER))
