"""Sentences under a table: where nsys's figure misleads, and what it is instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from nsysparse import schema, units
from nsysparse.intervals import Intervals
from nsysparse.stats.report import Shown

Note = Callable[[Shown], str]  # "" when there is nothing to say


def of(*notes: Note) -> Callable[[Shown], Sequence[str]]:
    """Several notes as one; those that have nothing to say are left out."""
    return lambda shown: [text for note in notes if (text := note(shown))]


def not_wall_time(shown: Shown) -> str:
    """What the listed total is against the time that passed."""
    total, covered, span = _times(shown.rows)
    if not span:
        return ""
    return (
        f"Time (%) is of the {units.duration(total)} that the listed events add up to. Overlaps counted once, they"
        f" cover {units.duration(covered)}: {units.percent(covered / span)} of the {units.duration(span)} from the"
        " first to the last."
    )


def nested_ranges(shown: Shown) -> str:
    """Time of a range is in its parents' too."""
    total, covered, span = _times(shown.rows)
    if not span:
        return ""
    return (
        f"Time (%) is of {units.duration(total)}, in which a nested range counts again in each range around it and"
        f" threads add up; the ranges cover {units.duration(covered)} of time."
    )


def _times(rows: pl.DataFrame) -> tuple[int, int, int]:
    """Sum, union and span of the listed events, ns; those without an end have none."""
    rows = rows.filter(pl.col("end_ns").is_not_null())
    union = Intervals.union_of(rows["start_ns"], rows["end_ns"])
    if not len(union):
        return 0, 0, 0
    return int(rows["duration"].sum()), union.length, int(union.end[-1] - union.start[0])


def backtrace_rows(shown: Shown) -> str:
    """Calls that are in the export twice, because a backtrace was recorded with them."""
    n = int((shown.rows["event_class"] == schema.BACKTRACE_CLASS).sum())
    if not n:
        return ""
    return (
        f"{units.count(n)} of these rows only carry a backtrace: the same call is there a second time. Functions listed"
        " twice, or under one name with twice the calls, are counted twice."
    )


def twin_rows(shown: Shown) -> str:
    """Kernels that a plain join with the API table repeats."""
    rows = shown.rows
    n = rows.filter("twin")["kernel_row"].n_unique()
    if not n:
        return ""
    return (
        f"{units.count(n)} of {units.count(rows['kernel_row'].n_unique())} kernels have more than one API row (a"
        " backtrace's, or the driver call inside a runtime call): each counts once a row, and so does its time."
    )


def hidden_graphs(shown: Shown) -> str:
    """Whole CUDA graphs, of whose kernels and copies the recording says nothing."""
    n = sum(t.row_count("graphs") for t in shown.traces)
    if not n:
        return ""
    return (
        f"{units.count(n)} launches of whole CUDA graphs are not in this table, nor are the kernels and copies inside"
        " them: record with --cuda-graph-trace=node."
    )


def host_and_device(shown: Shown) -> str:
    """Time of the host and of the GPU in one sum."""
    return "Host and GPU time are added up here although they run side by side: the shares are of no time that passed."


def waiting_threads(shown: Shown) -> str:
    """Waiting is most of what the OS runtime shows."""
    return (
        "Most of this is threads that wait on purpose (poll, condition variables), summed over threads: it is no work."
    )


def throughput_rounding(shown: Shown) -> str:
    """Throughput is made with a whole division by nsys."""
    copies = shown.rows.filter(pl.col("Throughput (MB/s)") >= 0)
    error = 1 - pl.col("Throughput (MB/s)") / (pl.col("Bytes (MB)") * 1e9 / pl.col("Duration (ns)"))
    errors = copies.select(error=error)["error"]
    worst = errors.filter(errors.is_finite()).max()
    if not isinstance(worst, float) or worst < 0.001:
        return ""
    return (
        "Throughput is bytes times the whole number of such copies that fit into a second, as nsys computes it: too low"
        f" by up to {units.percent(worst)} here, and 0 for a copy of more than a second. Bytes over duration is right."
    )


def unfinished_ranges(shown: Shown) -> str:
    """Ranges that never ended are given an end."""
    kinds = [schema.NVTX_PUSH_POP, schema.NVTX_START_END]
    open_range = pl.col("type").is_in(kinds) & pl.col("end_ns").is_null()
    n = sum(t.frame("nvtx").filter(open_range).height for t in shown.traces)
    if not n:
        return ""
    return f"{units.count(n)} ranges never ended: they count up to the last instant that the NVTX events know of."


def moved_ranges(shown: Shown) -> str:
    """Ranges that end on another thread."""
    kinds = [schema.NVTX_PUSH_POP, schema.NVTX_START_END]
    moved = pl.col("type").is_in(kinds) & pl.col("end_thread").is_not_null()
    n = sum(t.frame("nvtx").filter(moved).height for t in shown.traces)
    return f"{units.count(n)} ranges that ended on another thread are dropped, and so is their work." if n else ""


def projection(shown: Shown) -> str:
    """A projected range is a span, not work."""
    return (
        "Projected time runs from the first to the last operation that was sent from inside the range: gaps between"
        " them, and other work in them, count in full. It is no busy time."
    )


def every_level(shown: Shown) -> str:
    """A kernel is listed under every range around its launch."""
    return "A kernel is listed under every range around its launch: rows of nested ranges do not add up to a whole."


def graph_queue(shown: Shown) -> str:
    """Kernels of a graph share one launch."""
    n = sum(int(t.frame("kernels")["graph_node"].is_not_null().sum()) for t in shown.traces)
    if not n:
        return ""
    return (
        f"{units.count(n)} kernels ran in CUDA graphs: each is set against the whole graph's launch, so the time of the"
        " kernels before it in the graph counts as its queue."
    )


def other_waits(shown: Shown) -> str:
    """What this rule does not look at."""
    return "Event and context synchronizations, and copies that block, are not in this list."


def one_context(shown: Shown) -> str:
    """A gap of one process's context is not one of the device."""
    return "A gap is one of this process and context: another may have kept the GPU busy in it."


def overlaps_twice(shown: Shown) -> str:
    """In-Use adds up what ran side by side."""
    return (
        "In-Use (%) adds up operations that ran side by side, and is of equal parts of the recording: with overlapping"
        " streams it is too high, and short gaps inside a busy part do not show."
    )
