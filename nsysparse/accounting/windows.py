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
import polars as pl

from nsysparse.errors import UsageError
from nsysparse.intervals import times
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
    starts, ends = [times(f["start_ns"]) for f in frames], [times(f["end_ns"]) for f in frames]
    first, last, end = min(s.min() for s in starts), max(s.max() for s in starts), max(e.max() for e in ends)
    # One ns more where the last operation is an instant: a window is half-open, and it belongs to it.
    return Window("whole", int(first), max(int(end), int(last) + 1), "first to last GPU operation")


def ranges_in(window: Window, work: Work) -> pl.Expr:
    """Whether a range (by its ``start_ns`` and ``end_ns``) belongs to a window of one device.

    It does if it starts inside. A window that leaves out none of the device's earlier work also has the ranges that
    were open when it begins: a request starts before its first operation.
    """
    start, end = pl.col("start_ns"), pl.col("end_ns")
    whole = whole_window(work)
    begun = start >= window.start_ns
    if whole is not None and window.start_ns <= whole.start_ns:
        begun = begun | (end > window.start_ns)
    return begun & (start < window.end_ns)


def repeated_ranges(work: Work) -> Repeats | None:
    """The outermost push/pop ranges that repeat in the processes that fed this device.

    A range that occurs once in its process and holds everything is no repetition: its children are looked at instead.
    Of several candidates, the one that sent the most operations. Only the default domain counts: a library's own NVTX
    (NCCL, cuDNN) repeats too, and is no step of the program.
    """
    sent_by = pl.concat(getattr(work, name).select("process", "path") for name in GPU_TABLES)
    processes = sent_by["process"].unique()
    candidate = (
        pl.col("push_pop") & (pl.col("domain") == 0) & pl.col("finished") & pl.col("process").is_in(processes.implode())
    )
    ranges = work.ranges.frame
    each = work.ranges.program.filter(pl.col("process").is_in(processes.implode()))
    repeats = each.group_by("path").agg(pl.col("n").max(), pl.col("time").sum()).filter(pl.col("n") > 1)
    repeating = set(repeats["path"].to_list())
    parents = work.ranges.paths["parent"].to_list()
    outermost = _outermost(parents, repeating)
    candidates = repeats.filter(pl.col("path").is_in([p for p in repeating if outermost[p] == p]))
    if not candidates.height:
        return None
    number = np.zeros(len(parents), np.int64)
    np.add.at(number, outermost, np.bincount(sent_by["path"].to_numpy(), minlength=len(parents)))
    sent = pl.DataFrame({"path": np.arange(number.size, dtype=np.int32), "sent": number}).filter(pl.col("sent") > 0)
    best = (
        candidates.join(sent, on="path")
        .join(work.ranges.paths, on="path")
        .sort("sent", "time", "path", descending=[True, True, False])
    )
    if not best.height:
        return None
    return Repeats(
        best["label"][0], ranges.filter(candidate & (pl.col("path") == best["path"][0])).sort("start_ns", "range")
    )


def _outermost(parents: list[int], repeating: set[int]) -> list[int]:
    """For each path, its outermost ancestor (or itself) that repeats; 0 where none does."""
    found = [0] * len(parents)
    for path in range(1, len(parents)):  # parents come first
        found[path] = found[parents[path]] or (path if path in repeating else 0)
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
    by_thread = frame.group_by("thread").agg(
        pl.col("start_ns").min().alias("first"),
        pl.col("start_ns").sort().get(1, null_on_oob=True).alias("second"),
    )
    seconds = by_thread.drop_nulls("second")
    if not seconds.height:  # one repetition a thread: the second in time
        return int(frame["start_ns"].sort()[1])
    earliest = seconds["second"].min()
    there = seconds.filter(pl.col("first") <= earliest)["second"].max()
    assert isinstance(there, int)
    return there


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
    return _time_window(asked, offered["whole"])


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


def _time_window(asked: str, whole: Window) -> Window:
    low, high = _time_bounds(asked)
    start, end = whole.start_ns if low is None else low, whole.end_ns if high is None else high
    if end <= start:
        known = f"its GPU work lies between {whole.start_ns / 1e9:.6f}s and {whole.end_ns / 1e9:.6f}s"
        raise UsageError(f"the window '{asked}' holds none of this recording", known)
    return Window(asked, start, end, "given by the user")


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
