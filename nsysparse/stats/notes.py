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
    rows = shown.rows
    if not rows.height:
        return ""
    total = int(rows["duration"].sum())
    union = Intervals.union_of(rows["start_ns"], rows["end_ns"])
    if not len(union):
        return ""
    span = int(union.end[-1] - union.start[0])
    return (
        f"Time (%) is of the {units.duration(total)} that the listed events add up to. Overlaps counted once, they cover"
        f" {units.duration(union.length)}: {units.percent(union.length / span)} of the {units.duration(span)} from the"
        " first to the last."
    )


def backtrace_rows(shown: Shown) -> str:
    """Calls that are in the export twice, because a backtrace was recorded with them."""
    rows = shown.rows
    n = int((rows["event_class"] == schema.BACKTRACE_CLASS).sum())
    if not n:
        return ""
    return (
        f"{units.count(n)} of these rows only carry a backtrace: the same call is there a second time, so calls and time of"
        " functions listed twice (or with a second spelling) are counted twice."
    )


def twin_rows(shown: Shown) -> str:
    """Kernels that a plain join with the API table repeats."""
    rows = shown.rows
    distinct = rows.select("kernel_row").n_unique() if rows.height else 0
    n = int(rows["twin"].sum())
    if not n:
        return ""
    return (
        f"{units.count(n)} of {units.count(distinct)} kernels have more than one API row (a backtrace's, or the driver call"
        " inside a runtime call): they are counted once for each, and so is their time."
    )


def hidden_graphs(shown: Shown) -> str:
    """Whole CUDA graphs, of whose kernels and copies the recording says nothing."""
    n = sum(t.row_count("graphs") for t in shown.traces)
    if not n:
        return ""
    return f"{units.count(n)} launches of whole CUDA graphs are not in this table, nor are the kernels and copies inside them."


def host_and_device(shown: Shown) -> str:
    """Time of the host and of the GPU in one sum."""
    return "Host and GPU time are added up here although they run side by side: use the shares to find names, not to compare."


def waiting_threads(shown: Shown) -> str:
    """Waiting is most of what the OS runtime shows."""
    return "Threads that sleep on purpose (poll, condition waits) lead this table: it is time waited, not work, summed over threads."


def throughput_rounding(shown: Shown) -> str:
    """nsys's throughput is made with a whole division."""
    rows = shown.rows
    copies = rows.filter(pl.col("Throughput (MB/s)").is_not_null())
    if not copies.height:
        return ""
    true = copies.select(
        error=1 - pl.col("Throughput (MB/s)") / (pl.col("Bytes (MB)") * 1e9 / pl.col("Duration (ns)"))
    )["error"]
    worst = true.filter(true.is_finite()).max()
    assert worst is None or isinstance(worst, float)
    if worst is None or worst < 0.001:
        return ""
    return (
        "Throughput is bytes times the whole number of such copies that fit into a second, as nsys computes it: too low by"
        f" up to {units.percent(worst)} here, and 0 for a copy of more than a second. Bytes over duration is right."
    )


def nested_ranges(shown: Shown) -> str:
    """Time of a range is in its parents' too."""
    rows = shown.rows
    total, union = int(rows["duration"].sum()), Intervals.union_of(rows["start_ns"], rows["end_ns"])
    if not len(union):
        return ""
    return (
        f"Time (%) is of {units.duration(total)}, in which a nested range counts again in each range around it and threads"
        f" add up; the ranges cover {units.duration(union.length)} of time."
    )


def unfinished_ranges(shown: Shown) -> str:
    """Ranges that never ended have no length."""
    n = 0
    for trace in shown.traces:
        nvtx = trace.frame("nvtx")
        n += nvtx.filter(
            pl.col("type").is_in([schema.NVTX_PUSH_POP, schema.NVTX_START_END]) & pl.col("end_ns").is_null()
        ).height
    return f"{units.count(n)} ranges that never ended are left out." if n else ""


def moved_ranges(shown: Shown) -> str:
    """Ranges that end on another thread."""
    n = 0
    for trace in shown.traces:
        nvtx = trace.frame("nvtx")
        n += nvtx.filter(pl.col("end_thread").is_not_null() & (pl.col("end_thread") != pl.col("thread"))).height
    return f"{units.count(n)} ranges that ended on another thread are dropped, and so is their work." if n else ""


def projection(shown: Shown) -> str:
    """A projected range is a span, not work."""
    return (
        "Projected time runs from the first to the last operation that was sent from inside the range: gaps between them,"
        " and other work in them, count in full. It is no busy time."
    )


def every_level(shown: Shown) -> str:
    """A kernel is listed under every range around its launch."""
    return "A kernel is listed under every range around its launch: rows of nested ranges do not add up to a whole."


def graph_queue(shown: Shown) -> str:
    """Kernels of a graph share one launch."""
    n = 0
    for trace in shown.traces:
        n += int(trace.frame("kernels")["graph_node"].is_not_null().sum())
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


def chunks(shown: Shown) -> str:
    """What the chunks hide."""
    return "In-Use is time in which anything ran, in equal parts of the recording; short gaps inside a busy part do not show."
