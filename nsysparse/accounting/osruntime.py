"""Time that threads spend in calls of the OS runtime (reads, locks, condition variables), by call and by stack."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysparse import schema
from nsysparse.intervals import owned, times
from nsysparse.source import Trace
from nsysparse.stacks.load import Stacks


def os_calls(trace: Trace, stacks: Stacks, threads: pl.Series, low: int, high: int) -> pl.DataFrame:
    """The OS runtime calls of some threads in a window.

    Returns:
        ``process``, ``thread``, ``time_ns`` (their start), ``stack`` (-1: none was taken, as of short calls), ``api``
        (the function), ``took_ns`` (inside the window), ``os_ns`` (the same, but an instant of a thread counts once
        where one call lies in another: for the outer one).
    """
    rows = trace.frame("osrt").filter(
        pl.col("thread").is_in(threads.implode())
        & (pl.col("end_ns") > pl.col("start_ns"))
        & (pl.col("start_ns") < high)
        & (pl.col("end_ns") > low)
    )
    start, end = times(rows["start_ns"].clip(low, high)), times(rows["end_ns"].clip(low, high))
    # Each thread gets a stretch of time of its own, so that only calls of one thread share instants.
    shift = times(rows["thread"].rank("dense").cast(pl.Int64)) * (high - low + 1)
    first, last = owned(start + shift, end + shift)
    names = trace.strings(rows["name_id"]).select(name_id="id", api="value")
    chains = stacks.osrt.unique("chain", keep="first", maintain_order=True)
    return (
        rows.join(names, on="name_id", how="left", maintain_order="left")
        .join(chains, left_on="callchain", right_on="chain", how="left", maintain_order="left")
        .select(
            schema.process_of(pl.col("thread")).alias("process"),
            "thread",
            pl.col("start_ns").alias("time_ns"),
            pl.col("stack").fill_null(-1),
            pl.col("api").fill_null("(name not in the export)"),
            took_ns=pl.Series(end - start),
            os_ns=pl.Series(last - first),
        )
    )


def measure_os_stacks(calls: pl.DataFrame) -> pl.DataFrame:
    """How many OS runtime calls have a stack, in the form of :func:`nsysparse.stacks.attribution.measure_stacks`."""
    has = calls["stack"] >= 0
    n, total, time = int(has.sum()), calls.height, int(calls["took_ns"].sum())
    covered = int(np.sum(times(calls["took_ns"])[has.to_numpy()]))
    row = {
        "kind": "OS runtime calls",
        "stack": "native",
        "by_call": n,
        "by_sample": 0,
        "of_operations": total,
        "operations_ratio": n / total if total else None,
        "time_ratio": covered / time if time else None,
    }
    frame = pl.DataFrame([row], schema_overrides={"operations_ratio": pl.Float64, "time_ratio": pl.Float64})
    return frame.head(1 if total else 0)
