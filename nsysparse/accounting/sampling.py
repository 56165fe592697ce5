"""What a sampling profiler would have shown of the copies, beside what is exact.

A fair sampler that looks at the device N times a second sees each class of copies with a probability equal to its
share of the window: its estimate is unbiased, and noisy on short windows. One operation that is shorter than the
sampling period is mostly missed. A CPU sampler sees something else altogether: a copy shows only while a thread is
inside its call, and no thread is inside an asynchronous copy.
"""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from nsysparse.accounting.busy import Busy, union_by_thread, union_of_rows
from nsysparse.intervals import Intervals, Times, times
from nsysparse.joins.calls import rows_by
from nsysparse.source import Trace

RATES_HZ = (10, 100, 1000)
CLASS = ["kind_name", "src", "dst"]


def table_sampling(
    copies: pl.DataFrame, busy: Busy, threads: pl.Series, trace: Trace, rates: tuple[int, ...] = RATES_HZ
) -> pl.DataFrame:
    """Each class of copies as it is, and as samplers would show it.

    Args:
        copies: As :func:`nsysparse.accounting.copies.detail_copies` returns them.
        busy: The window's unions.
        threads: Threads that feed the device: the CPU samples that count.
        trace: For the CPU samples, if there are any.
        rates: Samples a second.

    Returns:
        ``kind_name``, ``src``, ``dst``, ``count``, ``time_ns`` (union in the window), ``window_ratio`` (exact, and what
        every fair sampler shows in the mean), ``busy_ratio`` (of the device's busy time), ``median_ns`` (one
        operation),
        ``in_call_ns`` (union of its calls on these threads: what a CPU sampler can see), ``in_call_ratio`` (of the
        window),
        ``cpu_samples`` (inside these calls), ``cpu_samples_of`` (all of these threads in the window),
        ``cpu_sample_ratio`` (NULL without samples), and for each rate N: ``samples_N`` (the sampler takes in the
        window), ``error_N`` (standard error of its share), ``missed_N`` (chance that a single operation of median
        length is never hit), ``unseen_N`` (chance that it sees none of the class).
    """
    window = busy.window
    length, total_busy = window.length_ns, busy.everything.length
    samples = _samples(trace, threads, window.start_ns, window.end_ns)
    taken = sum(when.size for when in samples.values())
    rows = []
    for key, part in copies.group_by(CLASS, maintain_order=True):  # classes, not copies
        took = Intervals.union_of(part["from_ns"], part["to_ns"]).length
        durations = (part["end_ns"] - part["start_ns"]).filter(part["counted"])
        in_call, hits = _in_calls(part, threads, samples, window.start_ns, window.end_ns)
        median = durations.median() if durations.len() else None
        share = took / length
        row = {
            **dict(zip(CLASS, key, strict=True)),
            "count": int(part.filter("counted")["copy_count"].sum()),
            "time_ns": took,
            "window_ratio": share,
            "busy_ratio": took / total_busy if total_busy else None,
            "median_ns": median,
            "in_call_ns": in_call,
            "in_call_ratio": in_call / length,
            "cpu_samples": hits if taken else None,
            "cpu_samples_of": taken or None,
            "cpu_sample_ratio": hits / taken if taken else None,
        }
        for rate in rates:
            row |= _expected(share, float(median or 0), length, rate)
        rows.append(row)
    return pl.DataFrame(rows, schema=_schema(rates)).sort("time_ns", *CLASS, descending=[True, False, False, False])


def _schema(rates: tuple[int, ...]) -> dict[str, type[pl.DataType]]:
    schema: dict[str, type[pl.DataType]] = dict.fromkeys(CLASS, pl.String)
    schema |= {"count": pl.Int64, "time_ns": pl.Int64, "window_ratio": pl.Float64, "busy_ratio": pl.Float64}
    schema |= {"median_ns": pl.Float64, "in_call_ns": pl.Int64, "in_call_ratio": pl.Float64}
    schema |= {"cpu_samples": pl.Int64, "cpu_samples_of": pl.Int64, "cpu_sample_ratio": pl.Float64}
    for rate in rates:
        schema |= dict.fromkeys((f"{c}_{rate}" for c in ("samples", "error", "missed", "unseen")), pl.Float64)
    return schema


def _expected(share: float, operation_ns: float, window_ns: int, rate: int) -> dict[str, float]:
    """A sampler that looks ``rate`` times a second, begun at any moment."""
    n = window_ns / 1e9 * rate
    return {
        f"samples_{rate}": n,
        f"error_{rate}": math.sqrt(share * (1 - share) / n),
        f"missed_{rate}": max(0.0, 1 - operation_ns / 1e9 * rate),
        f"unseen_{rate}": (1 - share) ** n,
    }


def _samples(trace: Trace, threads: pl.Series, low: int, high: int) -> dict[int, Times]:
    """When each of some threads was sampled in a window."""
    at = pl.col("time_ns")
    inside = pl.col("thread").is_in(threads.implode()) & (at >= low) & (at < high)
    frame = trace.frame("samples").select(pl.col("thread", "time_ns").filter(inside))
    when = times(frame["time_ns"])
    return {thread: when[rows] for thread, rows in rows_by(frame["thread"])}


def _in_calls(
    copies: pl.DataFrame, threads: pl.Series, samples: dict[int, Times], low: int, high: int
) -> tuple[int, int]:
    """Union of the copies' own calls over all threads, and how many samples of each call's thread lie in it."""
    direct = copies.select("thread", start_ns="call_start_ns", end_ns="call_end_ns").filter(
        copies["in_call_ns"].is_not_null() & copies["thread"].is_in(threads.implode())
    )
    hits = 0
    if samples:
        for thread, calls in union_by_thread(direct).items():
            hits += int(np.count_nonzero(calls.clip(low, high).contains(samples.get(thread, []))))
    return union_of_rows(direct).clip(low, high).length, hits
