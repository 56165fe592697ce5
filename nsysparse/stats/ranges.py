"""NVTX ranges as nsys's reports list them: names with their domain, and an end for those that never ended."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from nsysparse import schema
from nsysparse.joins.ranges import domain_names
from nsysparse.source import Trace
from nsysparse.stats.cut import overlapping, row_numbers, whole_of
from nsysparse.stats.events import duration

PUSH_POP, START_END = "PushPop", "StartEnd"
STYLES = {PUSH_POP: (59, 70), START_END: (60, 71)}  # NVTX's own types and those of the older text format


def load_stats_ranges(
    trace: Trace, styles: Collection[str] = (PUSH_POP, START_END), closed_by_all: bool = False
) -> pl.DataFrame:
    """Ranges, in the order of the export. One that never ended ends, as nsys has it, at the last instant it knows of.

    Args:
        trace: The recording.
        styles: Which ranges.
        closed_by_all: Whether that instant is the last of all NVTX events, or of ranges of these styles. nsys's
            summaries by name do the one, all its other reports the other.

    Returns:
        ``id`` (row number in the export, from 1), ``start_ns``, ``end_ns``, ``duration``, ``thread``, ``pid``, ``tid``,
        ``Range`` (domain, colon, text), ``Style``, ``moved`` (ended on another thread). Where no event at all has an
        end, ``end_ns`` and ``duration`` are NULL.
    """
    types = [number for style in styles for number in STYLES[style]]
    last = _last_instant(whole_of(trace).frame("nvtx"), None if closed_by_all else types)
    events = trace.frame("nvtx").with_columns(row_numbers(trace, "nvtx").alias("id"))
    ranges = events.filter(pl.col("type").is_in(types)).with_columns(
        pl.col("end_ns").fill_null(last), process=schema.process_of(pl.col("thread"))
    )
    ranges = _with_names(overlapping(trace, ranges), trace)
    push_pop = pl.col("type").is_in(STYLES[PUSH_POP])
    return ranges.select(
        pl.col("id").cast(pl.Int64),
        "start_ns",
        "end_ns",
        duration(),
        "thread",
        schema.pid_of(pl.col("thread")).alias("pid"),
        schema.tid_of(pl.col("thread")).alias("tid"),
        "Range",
        pl.when(push_pop).then(pl.lit(PUSH_POP)).otherwise(pl.lit(START_END)).cast(pl.Categorical).alias("Style"),
        pl.col("end_thread").is_not_null().alias("moved"),
    )


def _last_instant(events: pl.DataFrame, types: Collection[int] | None) -> pl.Expr:
    """Latest start or end of the events of these types; NULL where none of them has an end."""
    if types is not None:
        events = events.filter(pl.col("type").is_in(types))
    start, end = events["start_ns"].max(), events["end_ns"].max()
    if not isinstance(start, int) or not isinstance(end, int):
        return pl.lit(None, pl.Int64)
    return pl.lit(max(start, end), pl.Int64)


def _with_names(ranges: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Add ``Range``: put together once a distinct name, not once a range."""
    key = ["process", "domain", "text_id", "text"]
    names = ranges.select(key).unique(maintain_order=True)
    names = names.join(trace.strings(names["text_id"]), left_on="text_id", right_on="id", how="left")
    names = names.join(domain_names(trace), on=["process", "domain"], how="left")
    domain = pl.coalesce("domain_name", pl.lit(""))
    text = pl.coalesce("value", pl.col("text").str.split("\x00").list.first(), pl.lit(""))
    names = names.select(*key, pl.concat_str(domain, pl.lit(":"), text).cast(pl.Categorical).alias("Range"))
    return ranges.join(names, on=key, how="left", maintain_order="left", nulls_equal=True)
