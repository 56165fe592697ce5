"""Copies and memsets of one device: how many, how big, how fast, who sent them."""

from __future__ import annotations

import polars as pl

from nsysparse import schema
from nsysparse.accounting.busy import Busy, exposed_parts, in_window
from nsysparse.intervals import Intervals
from nsysparse.joins.work import Work

# Peak of the host link in one direction, bytes/s: PCIe lanes x rate after encoding, from the vendor's data sheets by
# model. A model that comes in several forms with different links is not listed: unknown is "n/a".
LINK_PEAKS = (
    ("GH200", 450e9),
    ("B200", 63e9),
    ("H200", 63e9),
    ("H100", 63e9),
    ("H800", 63e9),
    ("L40", 31.5e9),
    ("L4", 31.5e9),
    ("A100", 31.5e9),
    ("A800", 31.5e9),
    ("A30", 31.5e9),
    ("A10", 31.5e9),
    ("V100", 15.75e9),
    ("T4", 15.75e9),
)
LARGE_COPY = 1_000_000  # bytes from which a copy's bandwidth is the link's rather than the latency's
HOST_KINDS = ("HtoD", "DtoH", "HtoA", "AtoH")


def link_peak(model: str | None) -> float | None:
    """Peak of the host link by GPU model, bytes/s; None when the model does not tell."""
    return next((peak for name, peak in LINK_PEAKS if name in (model or "")), None)


def detail_copies(work: Work, busy: Busy) -> pl.DataFrame:
    """The copies that touch the window, with what every table of copies is made of.

    Returns:
        The rows of ``work.copies`` plus ``from_ns``, ``to_ns``, ``counted``, ``call_start_ns``, ``call_end_ns``,
        ``exposed_ns`` (its own part),
        ``kind_name``, ``src``, ``dst``, ``peer``, ``waits`` and ``in_call_ns`` (time in its call; NULL inside graphs).
    """
    inside = in_window(work.copies, busy.window)
    inside = inside.hstack(work.calls.times_of(inside["call"]))
    direct = pl.col("does") == "copy"
    return inside.with_columns(
        exposed_ns=pl.Series(exposed_parts(inside, busy)),
        waits=work.calls["waits"].gather(inside["call"]),
    ).with_columns(
        kind_name=_named("kind", schema.COPY_KINDS),
        src=_named("src_kind", schema.MEMORY_KINDS),
        dst=_named("dst_kind", schema.MEMORY_KINDS),
        peer=_peers(inside, work),
        in_call_ns=pl.when(direct).then(pl.col("call_end_ns") - pl.col("call_start_ns")),
    )


def _peers(copies: pl.DataFrame, work: Work) -> pl.Series:
    """The two devices of each peer copy, ``GPU 0 to GPU 1``, by the table that maps ordinals; NULL for other copies."""
    if not (copies["kind"] == schema.PEER_KIND).any():
        return pl.repeat(None, copies.height, dtype=pl.String, eager=True).alias("peer")
    sides = copies.select("kind", "process", "src_ordinal", "dst_ordinal")
    for side in ("src", "dst"):
        sides = sides.join(
            work.peers.rename({"ordinal": f"{side}_ordinal", "name": side}),
            on=["process", f"{side}_ordinal"],
            how="left",
            maintain_order="left",
        )
    return sides.select(
        pl.when(pl.col("kind") == schema.PEER_KIND).then(
            pl.format("{} to {}", pl.col("src").fill_null("?"), pl.col("dst").fill_null("?"))
        )
    ).to_series()


def _named(column: str, names: dict[int, str]) -> pl.Expr:
    number = pl.col(column)
    known = number.replace_strict(list(names), list(names.values()), default=None, return_dtype=pl.String)
    return pl.coalesce(known, pl.format("kind {}", number), pl.lit("n/a")).alias(column)


def table_copies(copies: pl.DataFrame, by: list[str], busy: Busy, requests: int | None = None) -> pl.DataFrame:
    """Copies in groups.

    Args:
        copies: As :func:`detail_copies` returns them.
        by: Columns to group by.
        busy: The window's unions.
        requests: Number of requests in the window, for the figures per request.

    Returns:
        The group columns, then ``count`` (copies; a batched record counts as the copies it stands for), ``bytes``,
        ``time_ns`` (sum of clipped durations), ``exposed_ns`` (adds up to the window's), ``exposed_ratio`` (of the
        window), ``min_bytes``, ``median_bytes``, ``max_bytes``, ``bandwidth`` (bytes/s of GPU time),
        ``in_call_ns``, ``call_bandwidth`` (bytes/s of time in the call), ``best_bandwidth`` (of the best single copy of
        at least 1 MB), ``bytes_per_request``. Groups with the most exposed time first.
    """
    counted, number = pl.col("counted"), pl.col("copy_count")
    size, took = pl.col("bytes"), pl.col("end_ns") - pl.col("start_ns")
    single = pl.when(counted & (size >= LARGE_COPY) & (took > 0)).then(size * 1e9 / took)
    with_call = counted & pl.col("in_call_ns").is_not_null()
    called = size.filter(with_call).sum()
    if not copies["counted"].all():  # most often all are, and a filter in a group is dear
        number, size, took = (column.filter(counted) for column in (number, size, took))
    # A batch of copies is one call: its time counts once.
    in_call = pl.col("in_call_ns").filter(with_call).filter(pl.col("call").filter(with_call).is_first_distinct()).sum()
    table = copies.group_by(by, maintain_order=True).agg(
        number.sum().alias("count"),
        size.sum().alias("bytes"),
        (pl.col("to_ns") - pl.col("from_ns")).sum().alias("time_ns"),
        pl.col("exposed_ns").sum(),
        (pl.col("exposed_ns").sum() / busy.window.length_ns).alias("exposed_ratio"),
        size.min().alias("min_bytes"),
        size.quantile(0.5, "lower").cast(pl.Int64, strict=False).alias("median_bytes"),
        size.max().alias("max_bytes"),
        _rate(size.sum(), took.sum()).alias("bandwidth"),
        in_call.alias("in_call_ns"),
        _rate(called, in_call).alias("call_bandwidth"),
        single.max().alias("best_bandwidth"),
    )
    per_request = pl.col("bytes") / requests if requests else pl.lit(None, pl.Float64)
    return table.with_columns(
        in_call_ns=pl.when(pl.col("call_bandwidth").is_not_null()).then("in_call_ns"),
        bytes_per_request=per_request,
    ).sort("exposed_ns", "bytes", *by, descending=[True, True, *([False] * len(by))], nulls_last=True)


def _rate(size: pl.Expr, took: pl.Expr) -> pl.Expr:
    return pl.when((took > 0) & (size > 0)).then(size * 1e9 / took)


def busy_by_kind(copies: pl.DataFrame) -> pl.DataFrame:
    """Union of the copies of each kind: ``kind``, ``busy_ns``."""
    rows = [
        (name, Intervals.union_of(part["from_ns"], part["to_ns"]).length)
        for (name,), part in copies.group_by("kind_name", maintain_order=True)
    ]
    return pl.DataFrame(rows, schema={"kind": pl.String, "busy_ns": pl.Int64}, orient="row").sort("kind")


def size_histogram(copies: pl.DataFrame) -> pl.DataFrame:
    """Copies by size in powers of two.

    Returns:
        ``kind``, ``from_bytes`` (the class holds sizes from it to below twice it; 0 holds empty copies), ``count``,
        ``bytes``, ``time_ns``, ``bandwidth`` (bytes/s of GPU time).
    """
    took = pl.col("end_ns") - pl.col("start_ns")
    size = pl.col("bytes")
    exponent = size.cast(pl.Float64).log(2).floor().cast(pl.Int64)
    counted = copies.filter("counted").with_columns(
        from_bytes=pl.when(size <= 0).then(0).otherwise(pl.lit(2, pl.Int64).pow(exponent))
    )
    return (
        counted.group_by(pl.col("kind_name").alias("kind"), "from_bytes")
        .agg(
            pl.col("copy_count").sum().alias("count"),
            size.sum().alias("bytes"),
            took.sum().alias("time_ns"),
            _rate(size.sum(), took.sum()).alias("bandwidth"),
        )
        .sort("kind", "from_bytes")
    )


def table_memsets(work: Work, busy: Busy) -> pl.DataFrame:
    """Memsets by kind of memory: ``memory``, ``count``, ``bytes``, ``time_ns``."""
    inside = in_window(work.memsets, busy.window).with_columns(
        memory=_named("memory_kind", schema.MEMORY_KINDS).alias("memory")
    )
    counted = pl.col("counted")
    return (
        inside.group_by("memory")
        .agg(
            counted.sum().cast(pl.Int64).alias("count"),
            pl.col("bytes").filter(counted).sum(),
            (pl.col("to_ns") - pl.col("from_ns")).sum().alias("time_ns"),
        )
        .sort("bytes", "memory", descending=[True, False])
    )


def table_migrations(work: Work, busy: Busy) -> pl.DataFrame:
    """Unified-memory migrations by kind: ``kind``, ``count``, ``bytes``, ``time_ns``. In no other table of copies."""
    inside = in_window(work.migrations, busy.window).with_columns(kind=_named("kind", schema.COPY_KINDS).alias("kind"))
    counted = pl.col("counted")
    return (
        inside.group_by("kind")
        .agg(
            counted.sum().cast(pl.Int64).alias("count"),
            pl.col("bytes").filter(counted).sum(),
            (pl.col("to_ns") - pl.col("from_ns")).sum().alias("time_ns"),
        )
        .sort("bytes", "kind", descending=[True, False])
    )
