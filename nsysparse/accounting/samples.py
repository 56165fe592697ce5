"""What the program's threads were doing when the profiler sampled them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse import schema
from nsysparse.accounting.host import thread_names
from nsysparse.intervals import Intervals
from nsysparse.joins.calls import DOES, FUNCTIONS, Calls
from nsysparse.joins.order import rows_by
from nsysparse.joins.work import Work
from nsysparse.source import Trace
from nsysparse.stacks.attribution import program_threads
from nsysparse.stacks.chains import Index
from nsysparse.stacks.load import Stacks

_SHARED = {"copy": "copy", "sync": "synchronize"}


def share_samples(
    work: Work, stacks: Stacks, trace: Trace, start_ns: int | None = None, end_ns: int | None = None
) -> pl.DataFrame:
    """What each thread of the program was doing when it was sampled.

    Told twice: by the stack of the sample (a CUDA copy or synchronize function is on it), and by its time (it fell
    inside such a call of the thread). Broken stacks escape the first, calls that were not recorded the second.

    Returns:
        One row a thread, most samples first: ``thread``, ``pid``, ``tid``, ``name``, ``samples``, ``copy_on_stack``,
        ``sync_on_stack``, ``either_ratio`` (share of samples with one or the other on the stack), ``inside_copy``,
        ``inside_sync``, ``inside_ratio``.
    """
    samples = stacks.samples
    if start_ns is not None and end_ns is not None:
        samples = samples.filter((pl.col("time_ns") >= start_ns) & (pl.col("time_ns") < end_ns))
    samples = samples.filter(pl.col("thread").is_in(program_threads(work, samples["thread"]).implode()))
    marks = pl.DataFrame(
        {f"{what}_on_stack": _holds(stacks, does)[samples["stack"].to_numpy()] for what, does in _SHARED.items()}
    )
    by_thread = dict(rows_by(samples["thread"]))
    inside = pl.DataFrame(
        {f"inside_{what}": _within(samples, by_thread, work.calls, does) for what, does in _SHARED.items()}
    )
    marked = samples.select("thread").hstack(marks).hstack(inside)
    table = marked.group_by("thread").agg(
        pl.len().cast(pl.Int64).alias("samples"),
        pl.col("copy_on_stack", "sync_on_stack").sum().cast(pl.Int64),
        (pl.col("copy_on_stack") | pl.col("sync_on_stack")).mean().alias("either_ratio"),
        pl.col("inside_copy", "inside_sync").sum().cast(pl.Int64),
        (pl.col("inside_copy") | pl.col("inside_sync")).mean().alias("inside_ratio"),
    )
    return (
        thread_names(trace, table["thread"])
        .join(table, on="thread", how="right", maintain_order="right")
        .sort("samples", "thread", descending=[True, False])
        .select("thread", "pid", "tid", "name", *table.columns[1:])
    )


def _holds(stacks: Stacks, does: str) -> npt.NDArray[np.bool_]:
    """Whether each stack holds a function that does this; False for -1, the last."""
    plain = schema.normalized_api_name(pl.col("function"))
    marked = stacks.frames.select(m=plain.str.contains(FUNCTIONS[does]) & (pl.col("kind") != "python"))["m"].to_numpy()
    return np.append(stacks.stacks.any(stacks.stacks.each(marked)), False)


def _within(
    samples: pl.DataFrame, by_thread: Mapping[int, slice | Index], calls: Calls, does: str
) -> npt.NDArray[np.bool_]:
    """Whether each sample fell inside such a call of its thread."""
    result, instants = np.zeros(samples.height, np.bool_), samples["time_ns"].to_numpy()
    wanted = DOES.categories.to_list().index(does)
    for thread, rows in by_thread.items():
        mine = calls.rows_of(thread)
        such = np.flatnonzero(calls.does(mine) == wanted) + mine.start
        if such.size:
            result[rows] = Intervals.union_of(calls.start[such], calls.end[such]).contains(instants[rows])
    return result
