"""Copies and memsets of one device: how many, how big, how fast, who sent them."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysparse import schema
from nsysparse.accounting.busy import Busy, exposed_parts, in_window
from nsysparse.accounting.grouping import add_up, masked, number_rows, over
from nsysparse.accounting.windows import Window
from nsysparse.intervals import Index, Intervals, Times, times
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


def describe_copies(work: Work) -> pl.DataFrame:
    """All copies of a recording, with what every table of copies is made of.

    Returns:
        The rows of ``work.copies`` plus ``kind_name``, ``src``, ``dst``, ``peer``, ``waits`` and ``in_call_ns`` (time
        in its call; NULL inside graphs).
    """
    copies = work.copies
    in_call = pl.when(pl.col("does") == "copy").then(pl.col("call_end_ns") - pl.col("call_start_ns"))
    return copies.with_columns(
        waits=work.calls["waits"].gather(copies["call"]),
        kind_name=_named(copies, "kind", schema.COPY_KINDS),
        src=_named(copies, "src_kind", schema.MEMORY_KINDS),
        dst=_named(copies, "dst_kind", schema.MEMORY_KINDS),
        peer=_peers(copies, work),
        in_call_ns=in_call,
    )


def detail_copies(work: Work, busy: Busy) -> pl.DataFrame:
    """The copies that touch the window, by start.

    Args:
        work: One device's work, its copies as :func:`describe_copies` returns them.
        busy: The window's unions.

    Returns:
        Their rows plus ``from_ns``, ``to_ns``, ``counted`` and ``exposed_ns`` (its own part).
    """
    inside = in_window(work.copies, busy.window)
    return inside.hstack([pl.Series("exposed_ns", exposed_parts(inside, busy))])


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


def _named(rows: pl.DataFrame, column: str, names: dict[int, str]) -> pl.Series:
    """Names of the codes in a column; put together once a distinct code."""
    number, first = number_rows(rows, [column])
    codes = rows[column].gather(first).to_list()
    texts = ["n/a" if code is None else names.get(code, f"kind {code}") for code in codes]
    return pl.Series(texts, dtype=pl.String).gather(number)


FINE = ("kind", "src_kind", "dst_kind", "peer", "api", "thread", "path", "path_by")
NAMED = ("kind_name", "src", "dst", "peer", "thread")


class CopyGroups:
    """Copies by all that any table groups them by: groups of groups are found among few rows.

    Attributes:
        keys: One row a group: NAMED, ``api``, ``path_by``, ``nvtx`` (text of the path), ``pid`` and ``thread_name``.
    """

    def __init__(self, copies: pl.DataFrame, work: Work, threads: pl.DataFrame) -> None:
        """Number them.

        Args:
            copies: As :func:`detail_copies` returns them.
            work: The device's work.
            threads: Those that feed the device: ``thread``, ``pid`` and ``name``.
        """
        self._fine, first = number_rows(copies, FINE)
        known = {t: (pid, name) for t, pid, name in threads.select("thread", "pid", "name").iter_rows()}
        keys = copies.select(*NAMED, "api", "path_by", "path")[first]
        owners = [known.get(t, (None, None)) for t in keys["thread"].to_list()]
        self.keys = keys.with_columns(
            pl.col("api", "path_by").cast(pl.String),
            work.ranges.paths["text"].gather(keys["path"]).alias("nvtx"),
            pl.Series("pid", [pid for pid, _ in owners], pl.Int64),
            pl.Series("thread_name", [name for _, name in owners], pl.String),
        )

    def by(self, columns: list[str]) -> tuple[pl.DataFrame, Index]:
        """The distinct combinations of some columns of ``keys``, and the number of each copy's."""
        coarse, first = number_rows(self.keys, columns)
        return self.keys.select(columns)[first], coarse[self._fine]


class CopySums:
    """What copies of a window add up to, in any groups: columns that several tables share are made once."""

    def __init__(self, copies: pl.DataFrame, window: Window, requests: int | None = None) -> None:
        """Prepare.

        Args:
            copies: As :func:`detail_copies` returns them.
            window: Their window.
            requests: Number of requests in the window, for the figures per request.
        """
        self._window, self._requests = window, requests
        counted, size = copies["counted"].to_numpy(), copies["bytes"]
        self._counted = slice(None) if counted.all() else np.flatnonzero(counted)
        self._number = copies["copy_count"].fill_null(0).to_numpy()[self._counted]
        self._size = size.fill_null(0).to_numpy()
        self._took = times(copies["end_ns"]) - times(copies["start_ns"])
        self._clipped = times(copies["to_ns"]) - times(copies["from_ns"])
        self._exposed = times(copies["exposed_ns"])
        sized = np.flatnonzero(counted & size.is_not_null().to_numpy())
        self._by_size = sized[np.argsort(self._size[sized], kind="stable")]
        large = (self._size >= LARGE_COPY) & (self._took > 0) & counted
        self._large = np.flatnonzero(large & size.is_not_null().to_numpy())
        self._called = np.flatnonzero(counted & copies["in_call_ns"].is_not_null().to_numpy())
        self._in_call = times(copies["in_call_ns"].gather(self._called))
        call = copies["call"].gather(self._called).to_numpy()
        # A batch of copies is one call: its time counts once.
        self._batches = None if np.unique(call).size == call.size else call

    def table(self, keys: pl.DataFrame, group: Index) -> pl.DataFrame:
        """The copies in groups.

        Args:
            keys: What tells the groups apart, a row each.
            group: Number of each copy's group.

        Returns:
            The group columns, then ``count`` (copies; a batched record counts as the copies it stands for), ``bytes``,
            ``time_ns`` (sum of clipped durations), ``exposed_ns`` (adds up to the window's), ``exposed_ratio`` (of the
            window), ``min_bytes``, ``median_bytes``, ``max_bytes``, ``bandwidth`` (bytes/s of GPU time),
            ``in_call_ns``, ``call_bandwidth`` (bytes/s of time in the call), ``best_bandwidth`` (of the best single
            copy of at least 1 MB), ``bytes_per_request``. Groups with the most exposed time first.
        """
        n, counted = keys.height, group[self._counted]
        size, took = (add_up(v[self._counted], counted, n) for v in (self._size, self._took))
        exposed = add_up(self._exposed, group, n)
        in_call, called = self._in_calls(group, n)
        call_bandwidth = _rates(called, in_call)
        best = np.full(n, -1.0)
        np.maximum.at(best, group[self._large], self._size[self._large] * 1e9 / self._took[self._large])
        each = over(size, self._requests) if self._requests else [None] * n
        table = keys.hstack(
            [
                pl.Series("count", add_up(self._number, counted, n)),
                pl.Series("bytes", size),
                pl.Series("time_ns", add_up(self._clipped, group, n)),
                pl.Series("exposed_ns", exposed),
                pl.Series("exposed_ratio", over(exposed, self._window.length_ns)),
                *self._sizes(group, n),
                _rates(size, took).alias("bandwidth"),
                masked("in_call_ns", in_call, call_bandwidth.is_not_null().to_numpy()),
                call_bandwidth.alias("call_bandwidth"),
                masked("best_bandwidth", best, best >= 0),
                pl.Series("bytes_per_request", each, pl.Float64),
            ]
        )
        descending = [True, True, *([False] * keys.width)]
        return table.sort("exposed_ns", "bytes", *keys.columns, descending=descending, nulls_last=True)

    def _in_calls(self, group: Index, n: int) -> tuple[Times, Times]:
        """Time in the calls of each group's copies, and the bytes of those that have one."""
        mine, in_call = group[self._called], self._in_call
        called = add_up(self._size[self._called], mine, n)
        if self._batches is not None:
            order = np.lexsort((self._batches, mine))
            again = np.zeros(order.size, np.bool_)
            again[1:] = (np.diff(mine[order]) == 0) & (np.diff(self._batches[order]) == 0)
            mine, in_call = mine[order[~again]], in_call[order[~again]]
        return add_up(in_call, mine, n), called

    def _sizes(self, group: Index, n: int) -> list[pl.Series]:
        """The least, the lower median and the largest size of each group."""
        mine = group[self._by_size].astype(np.min_scalar_type(n))
        size = self._size[self._by_size[np.argsort(mine, kind="stable")]]  # by group, then by size
        count = np.bincount(mine, minlength=n)
        last, known = np.cumsum(count) - 1, count > 0
        places = {"min_bytes": last - count + 1, "median_bytes": last - count // 2, "max_bytes": last}
        return [masked(name, size[at[known]], known) for name, at in places.items()]


def _rates(size: Times, took: Times) -> pl.Series:
    """Bytes a second; NULL where nothing moved or it took no time."""
    known = (took > 0) & (size > 0)
    return masked("rate", size[known] * 1e9 / took[known], known)


def busy_by_kind(copies: pl.DataFrame) -> pl.DataFrame:
    """Union of the copies of each kind: ``kind``, ``busy_ns``."""
    number, first = number_rows(copies, ["kind_name"])
    start, end = times(copies["from_ns"]), times(copies["to_ns"])
    kinds = copies["kind_name"].gather(first).to_list()
    busy = sorted((k, Intervals.union_of(start[number == i], end[number == i]).length) for i, k in enumerate(kinds))
    return pl.DataFrame(busy, schema={"kind": pl.String, "busy_ns": pl.Int64}, orient="row")


def size_histogram(copies: pl.DataFrame) -> pl.DataFrame:
    """Copies by size in powers of two.

    Returns:
        ``kind``, ``from_bytes`` (the class holds sizes from it to below twice it; 0 holds empty copies), ``count``,
        ``bytes``, ``time_ns``, ``bandwidth`` (bytes/s of GPU time).
    """
    rows = copies.select("kind_name", "bytes", "copy_count", took=pl.col("end_ns") - pl.col("start_ns"))
    rows = rows if copies["counted"].all() else rows.filter(copies["counted"])
    size = pl.col("bytes")
    exponent = size.cast(pl.Float64).log(2).floor().cast(pl.Int64)
    classes = rows.select(
        kind="kind_name", from_bytes=pl.when(size <= 0).then(0).otherwise(pl.lit(2, pl.Int64).pow(exponent))
    )
    number, first = number_rows(classes, classes.columns)
    count, moved, took = (add_up(rows[c], number, first.size) for c in ("copy_count", "bytes", "took"))
    sums = [pl.Series("count", count), pl.Series("bytes", moved), pl.Series("time_ns", took)]
    table = classes[first].hstack([*sums, _rates(moved, took).alias("bandwidth")])
    return table.sort("kind", "from_bytes")


def table_memsets(memsets: pl.DataFrame) -> pl.DataFrame:
    """Memsets that touch a window by kind of memory: ``memory``, ``count``, ``bytes``, ``time_ns``."""
    return _by_code(memsets, "memory", "memory_kind", schema.MEMORY_KINDS)


def table_migrations(work: Work, busy: Busy) -> pl.DataFrame:
    """Unified-memory migrations by kind: ``kind``, ``count``, ``bytes``, ``time_ns``. In no other table of copies."""
    return _by_code(in_window(work.migrations, busy.window), "kind", "kind", schema.COPY_KINDS)


def _by_code(rows: pl.DataFrame, name: str, column: str, names: dict[int, str]) -> pl.DataFrame:
    """Operations that touch a window by a code that has names, most bytes first."""
    kinds = _named(rows, column, names).alias(name).to_frame()
    number, first = number_rows(kinds, [name])
    counted, n = rows["counted"].to_numpy(), first.size
    size = rows["bytes"].fill_null(0).to_numpy()[counted]
    sums = {
        "count": add_up(counted, number, n),
        "bytes": add_up(size, number[counted], n),
        "time_ns": add_up(times(rows["to_ns"]) - times(rows["from_ns"]), number, n),
    }
    table = kinds[first].hstack([pl.Series(c, values) for c, values in sums.items()])
    return table.sort("bytes", name, descending=[True, False]) if n > 1 else table
