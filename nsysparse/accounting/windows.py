"""The window that every share is a share of.

*whole*: first GPU operation's start to last GPU operation's end on the device. *ranges*: first to last of the repeated
top-level NVTX ranges. *steady*: the same from their second repetition on; imports, loading and warm-up lie before it.
The default is *steady* where top-level ranges repeat, else *whole*.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

from nsysparse.errors import UsageError
from nsysparse.joins.nesting import FOREVER
from nsysparse.joins.work import Work

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
    """The top-level NVTX ranges that repeat: what the program itself calls a step or a request."""

    label: str
    frame: pl.DataFrame


def whole_window(work: Work) -> Window | None:
    """First start to last end of the work of one device; None where it did nothing."""
    frames = (work.kernels, work.copies, work.memsets, work.graphs, work.migrations)
    bounds = [(f["start_ns"].min(), f["end_ns"].max()) for f in frames if f.height]
    if not bounds:
        return None
    start, end = min(b[0] for b in bounds), max(b[1] for b in bounds)  # type: ignore[type-var]
    assert isinstance(start, int)
    assert isinstance(end, int)
    return Window("whole", start, max(end, start + 1), "first to last GPU operation")


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
    """The repeating top-level push/pop ranges of the processes that fed this device.

    Of several, those that sent the most operations. Only the default domain counts: a library's own NVTX (NCCL, cuDNN)
    repeats too, and is no step of the program.
    """
    ops = work.all()
    processes = ops["process"].unique()
    top = work.ranges.frame.filter(
        pl.col("push_pop")
        & (pl.col("depth") == 1)
        & (pl.col("domain") == 0)
        & pl.col("finished")
        & pl.col("process").is_in(processes.implode())
    )
    groups = top.group_by("path").agg(
        pl.len().alias("n"),
        pl.col("label").first(),
        (pl.col("end_ns") - pl.col("start_ns")).sum().alias("time"),
    )
    groups = groups.filter(pl.col("n") > 1)
    if not groups.height:
        return None
    sent = _top_paths(work, ops)
    best = (
        groups.join(sent, on="path", how="left")
        .sort(pl.col("sent").fill_null(0), "time", "label", descending=[True, True, False])
        .row(0, named=True)
    )
    if not best["sent"]:
        return None
    return Repeats(best["label"], top.filter(pl.col("path") == best["path"]).sort("start_ns"))


def _top_paths(work: Work, ops: pl.DataFrame) -> pl.DataFrame:
    """Operations sent under each outermost path: ``path``, ``sent``."""
    parents = work.ranges.paths["parent"].to_list()
    outermost = list(range(len(parents)))
    for path in range(1, len(parents)):
        outermost[path] = path if parents[path] == 0 else outermost[parents[path]]
    counts = ops.group_by("path").len()
    return (
        counts.with_columns(path=pl.Series([outermost[p] for p in counts["path"].to_list()], dtype=pl.Int64))
        .group_by("path")
        .agg(pl.col("len").sum().cast(pl.Int64).alias("sent"))
        .filter(pl.col("path") > 0)
    )


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
    there = seconds.filter(pl.col("first") < earliest)["second"].max()
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
                f"no window '{asked}': no top-level NVTX range repeats in this recording",
                f"use another window: {FORMS}",
            )
        return offered[asked]
    if asked.startswith("nvtx:"):
        return _range_window(asked, work)
    if asked.startswith("request:"):
        return _request_window(asked, repeats)
    return _time_window(asked, offered["whole"])


def _time_window(asked: str, whole: Window) -> Window:
    low, separator, high = asked.partition("..")
    bounds = [parse_time(low), parse_time(high)]
    start = whole.start_ns if not low.strip() else bounds[0]
    end = whole.end_ns if not high.strip() else bounds[1]
    if not separator or start is None or end is None:
        raise UsageError(f"cannot read the window '{asked}'", f"a window is one of: {FORMS}")
    if end <= start:
        raise UsageError(f"the window '{asked}' ends before it begins", "give START..END in session time")
    return Window(asked, start, end, "given by the user")


def parse_time(text: str) -> int | None:
    """A time such as ``1.5s``, ``2500ms`` or ``3`` (seconds) in ns; None when it is none."""
    match = _TIME.match(text)
    return round(float(match[1]) * _UNITS[match[2]]) if match else None


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
        raise UsageError(f"no window '{asked}': no top-level NVTX range repeats", "use --window START..END")
    n = repeats.frame.height
    if not number.isdigit() or not 1 <= int(number) <= n:
        raise UsageError(f"no window '{asked}': requests are numbered 1 to {n}", "give one of these numbers")
    start, end = int(repeats.frame["start_ns"][int(number) - 1]), repeats.frame["end_ns"].max()
    assert isinstance(end, int)
    return Window(asked, start, end, f"from request {number} of {n} '{repeats.label}' on")


def match_ranges(work: Work, pattern: str) -> pl.DataFrame:
    """Ranges whose name matches a regular expression anywhere.

    Raises:
        UsageError: The expression is malformed.
    """
    names = work.ranges.frame["name"].unique()
    try:
        names = names.filter(names.str.contains(pattern))
    except pl.exceptions.ComputeError as error:
        raise UsageError(f"'{pattern}' is no regular expression", "see the syntax of Rust's regex") from error
    return work.ranges.frame.filter(pl.col("name").is_in(names.implode()) & (pl.col("end_ns") <= FOREVER))
