"""What a sampling profiler would have shown of the copies, beside what is exact.

A fair sampler that looks at the device N times a second sees each class of copies with a probability equal to its
share of the window: its estimate is unbiased, and noisy on short windows. One operation that is shorter than the
sampling period is mostly missed. A CPU sampler sees something else altogether: a copy shows only while a thread is
inside its call, and no thread is inside an asynchronous copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.accounting.busy import Busy
from nsysparse.accounting.copies import CopyGroups
from nsysparse.intervals import Index, Intervals, Times, times
from nsysparse.joins.order import rows_of
from nsysparse.nulls import filled, given

RATES_HZ = (10, 100, 1000)
CLASS = ["kind_name", "src", "dst"]


def table_sampling(
    copies: pl.DataFrame,
    groups: CopyGroups,
    busy: Busy,
    threads: pl.Series,
    samples: dict[int, Times],
    rates: tuple[int, ...] = RATES_HZ,
) -> pl.DataFrame:
    """Each class of copies as it is, and as samplers would show it.

    Args:
        copies: As :func:`nsysparse.accounting.copies.detail_copies` returns them.
        groups: The same copies, numbered.
        busy: The window's unions.
        threads: Threads that feed the device.
        samples: When each of them was sampled in the window: the CPU samples that count.
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
    taken = sum(when.size for when in samples.values())
    classes = groups.by(*CLASS)
    columns = _Columns.of(copies, threads)
    rows = []
    for number, key in enumerate(classes.keys):  # classes, not copies
        mine = columns.take(np.flatnonzero(classes.number == number))
        took = Intervals.union_of(mine.from_ns, mine.to_ns).length
        in_call, hits = mine.in_calls(samples, window.start_ns, window.end_ns)
        median = float(np.median(mine.took[mine.counted])) if mine.counted.any() else None
        share = took / length
        row = {
            **dict(zip(CLASS, key, strict=True)),
            "count": int(mine.copies[mine.counted].sum()),
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
            row |= _expected(share, median or 0.0, length, rate)
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


@dataclass(frozen=True)
class _Columns:
    """Columns of some copies as arrays."""

    from_ns: Times
    to_ns: Times
    took: Times
    counted: npt.NDArray[np.bool_]
    copies: Times
    direct: npt.NDArray[np.bool_]  # it has a call of its own, on a thread that feeds the device
    thread: Times
    call_start_ns: Times
    call_end_ns: Times

    @classmethod
    def of(cls, copies: pl.DataFrame, threads: pl.Series) -> _Columns:
        called = (times(filled(copies[c])) for c in ("thread", "call_start_ns", "call_end_ns"))
        direct = given(copies["in_call_ns"]) & given(copies["thread"])
        return cls(
            times(copies["from_ns"]),
            times(copies["to_ns"]),
            times(copies["end_ns"]) - times(copies["start_ns"]),
            copies["counted"].to_numpy(),
            times(filled(copies["copy_count"])),
            direct & np.isin(filled(copies["thread"]), times(threads)),
            *called,
        )

    def take(self, rows: Index) -> _Columns:
        """Those of some rows."""
        return _Columns(*(getattr(self, field.name)[rows] for field in fields(self)))

    def in_calls(self, samples: dict[int, Times], low: int, high: int) -> tuple[int, int]:
        """Union of the copies' own calls over all threads, and how many samples of each call's thread lie in it."""
        thread, start, end = (v[self.direct] for v in (self.thread, self.call_start_ns, self.call_end_ns))
        hits = 0
        if samples:
            for one, rows in rows_of(thread):
                when = samples.get(one)
                if when is not None:
                    calls = Intervals.union_of(start[rows], end[rows]).clip(low, high)
                    hits += int(np.count_nonzero(calls.contains(when)))
        return Intervals.union_of(start, end).clip(low, high).length, hits
