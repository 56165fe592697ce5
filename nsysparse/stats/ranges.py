"""NVTX ranges as nsys's reports list them: names with their domain, and their nesting on a thread."""

from __future__ import annotations

import polars as pl

from nsysparse import schema
from nsysparse.joins.nesting import Nesting
from nsysparse.joins.ranges import domain_names
from nsysparse.source import Trace
from nsysparse.stats.cut import row_numbers
from nsysparse.stats.events import duration

# NVTX's own types and those of the older text format.
PUSH_POP, START_END = (59, 70), (60, 71)


def load_stats_ranges(trace: Trace) -> pl.DataFrame:
    """Finished ranges, in the order of the export.

    Returns:
        ``id`` (row number in the export, from 1), ``start_ns``, ``end_ns``, ``duration``, ``thread``, ``pid``, ``tid``,
        ``Range`` (domain, colon, text), ``Style`` (PushPop or StartEnd), ``moved`` (ended on another thread).
    """
    events = trace.frame("nvtx").with_columns(row_numbers(trace, "nvtx").alias("id"))
    style = (
        pl.when(pl.col("type").is_in(PUSH_POP))
        .then(pl.lit("PushPop"))
        .when(pl.col("type").is_in(START_END))
        .then(pl.lit("StartEnd"))
        .cast(pl.Categorical)
    )
    ranges = events.with_columns(style.alias("Style"), process=schema.process_of(pl.col("thread")))
    ranges = ranges.filter(pl.col("Style").is_not_null() & pl.col("end_ns").is_not_null())
    ranges = _with_names(ranges, trace)
    return ranges.select(
        pl.col("id").cast(pl.Int64),
        "start_ns",
        "end_ns",
        duration(),
        "thread",
        schema.pid_of(pl.col("thread")).alias("pid"),
        schema.tid_of(pl.col("thread")).alias("tid"),
        "Range",
        "Style",
        (pl.col("end_thread").is_not_null() & (pl.col("end_thread") != pl.col("thread"))).alias("moved"),
    )


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


def with_tree(ranges: pl.DataFrame) -> pl.DataFrame:
    """Add each range's place among those of its thread.

    Returns:
        The ranges with ``parent`` (id, NULL for an outermost one), ``level`` (0 outermost), ``children``,
        ``children_ns`` (time of its direct children) and ``stack`` (ids from the outermost one, ``:1:4:9``).
    """
    nesting = Nesting(ranges["thread"], ranges["start_ns"], ranges["end_ns"])
    inside = nesting.row >= 0
    above = nesting.row[nesting.parent[inside]]
    tree = pl.DataFrame({"row": nesting.row[inside], "above": above, "level": nesting.depth[inside] - 1})
    ids = ranges.select("id", "duration").with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    tree = tree.join(ids, on="row", how="left")
    tree = tree.join(ids.select(above="row", parent="id"), on="above", how="left")
    children = tree.group_by("parent").agg(
        pl.len().cast(pl.Int64).alias("children"), pl.col("duration").sum().alias("children_ns")
    )
    tree = tree.select("id", "parent", "level").join(
        children.filter(pl.col("parent").is_not_null()), left_on="id", right_on="parent", how="left"
    )
    tree = tree.with_columns(pl.col("children", "children_ns").fill_null(0))
    return ranges.join(_with_stack(tree), on="id", how="left", maintain_order="left")


def _with_stack(tree: pl.DataFrame) -> pl.DataFrame:
    """Add ``stack``, level by level: as many joins as the ranges are deep."""
    above = pl.DataFrame(schema={"id": pl.Int64, "stack": pl.String})
    done = []
    deepest = tree["level"].max()
    for level in range(deepest + 1 if isinstance(deepest, int) else 0):
        here = tree.filter(pl.col("level") == level).join(
            above.rename({"id": "parent", "stack": "above"}), on="parent", how="left"
        )
        here = here.with_columns(stack=pl.format("{}:{}", pl.col("above").fill_null(""), "id")).drop("above")
        done.append(here)
        above = here.select("id", "stack")
    return pl.concat(done) if done else tree.with_columns(stack=pl.lit(None, pl.String))
