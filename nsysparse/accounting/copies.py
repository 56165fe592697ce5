"""Copies and memsets of one device: how many, how big, how fast, who sent them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from nsysparse import schema
from nsysparse.accounting.busy import Busy, exposed_parts, in_window
from nsysparse.accounting.grouping import add_up, number_rows, over
from nsysparse.accounting.windows import Window
from nsysparse.intervals import Index, Intervals, Times, times
from nsysparse.joins.work import Work
from nsysparse.nulls import filled, given, masked

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
        The rows of ``work.copies`` plus ``call_start_ns``, ``call_end_ns``, ``kind_name``, ``src``, ``dst``, ``peer``,
        ``waits`` and ``in_call_ns`` (time in its call; NULL inside graphs).
    """
    copies = work.copies.hstack(work.calls.times_of(work.copies["call"]))
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
    codes = rows[column][first].to_list()
    texts = ["n/a" if code is None else names.get(code, f"kind {code}") for code in codes]
    return pl.Series(texts, dtype=pl.String)[number]


FINE = ("kind", "src_kind", "dst_kind", "peer", "api", "thread", "path", "path_by")
KEYS = {  # what copies are grouped by, and its type
    **dict.fromkeys(("kind_name", "src", "dst", "peer", "api", "path_by", "nvtx", "thread_name"), pl.String),
    **dict.fromkeys(("thread", "pid"), pl.Int64),
}


@dataclass(frozen=True)
class Groups:
    """Copies in groups.

    Attributes:
        columns: Names of what they are grouped by, of KEYS.
        keys: What tells each group from the others.
        number: Number of each copy's group.
    """

    columns: tuple[str, ...]
    keys: list[tuple[Any, ...]]
    number: Index


class CopyGroups:
    """Copies by all that any table groups them by: groups of groups are found among few rows."""

    def __init__(self, copies: pl.DataFrame, work: Work, threads: pl.DataFrame) -> None:
        """Number them.

        Args:
            copies: As :func:`detail_copies` returns them.
            work: The device's work.
            threads: Those that feed the device: ``thread``, ``pid`` and ``name``.
        """
        self._fine, first = number_rows(copies, FINE)
        known = dict(zip(threads["thread"], zip(threads["pid"], threads["name"], strict=True), strict=True))
        columns = {c: copies[c][first].to_list() for c in ("kind_name", "src", "dst", "peer", "thread")}
        columns |= {c: copies[c][first].cast(pl.String).to_list() for c in ("api", "path_by")}
        columns["nvtx"] = work.ranges.paths["text"][copies["path"].to_numpy()[first]].to_list()
        owners = [known.get(t, (None, None)) for t in columns["thread"]]
        self._columns = columns | {"pid": [pid for pid, _ in owners], "thread_name": [name for _, name in owners]}

    def by(self, *columns: str) -> Groups:
        """The copies by some of KEYS; a loop over the groups of all, not over copies."""
        number: dict[tuple[Any, ...], int] = {}
        keys = zip(*(self._columns[c] for c in columns), strict=True)
        coarse = np.fromiter((number.setdefault(key, len(number)) for key in keys), np.int64)
        return Groups(columns, list(number), coarse[self._fine])


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
        self._number = filled(copies["copy_count"])[self._counted]
        self._size = filled(size)
        self._took = times(copies["end_ns"]) - times(copies["start_ns"])
        self._clipped = times(copies["to_ns"]) - times(copies["from_ns"])
        self._exposed = times(copies["exposed_ns"])
        sized = np.flatnonzero(counted & given(size))
        self._by_size = sized[np.argsort(self._size[sized])]
        large = (self._size >= LARGE_COPY) & (self._took > 0) & counted
        self._large = np.flatnonzero(large & given(size))
        self._called = np.flatnonzero(counted & given(copies["in_call_ns"]))
        self._in_call = filled(copies["in_call_ns"])[self._called]
        call = filled(copies["call"], -1)[self._called]
        # A batch of copies is one call: its time counts once.
        self._batches = None if np.unique(call).size == call.size else call

    def table(self, groups: Groups) -> pl.DataFrame:
        """The copies in groups.

        Returns:
            The group columns, then ``count`` (copies; a batched record counts as the copies it stands for), ``bytes``,
            ``time_ns`` (sum of clipped durations), ``exposed_ns`` (adds up to the window's), ``exposed_ratio`` (of the
            window), ``min_bytes``, ``median_bytes``, ``max_bytes``, ``bandwidth`` (bytes/s of GPU time),
            ``in_call_ns``, ``call_bandwidth`` (bytes/s of time in the call), ``best_bandwidth`` (of the best single
            copy of at least 1 MB), ``bytes_per_request``. Groups with the most exposed time first.
        """
        n, group = len(groups.keys), groups.number
        exposed, size = add_up(self._exposed, group, n), add_up(self._size[self._counted], group[self._counted], n)
        order = np.lexsort((-size, -exposed))
        tied = ((np.diff(exposed[order]) == 0) & (np.diff(size[order]) == 0)).any()
        exposed, size = exposed[order], size[order]
        group = np.argsort(order)[group]
        counted = group[self._counted]
        took = add_up(self._took[self._counted], counted, n)
        in_call, called = self._in_calls(group, n)
        call_bandwidth = _rates(called, in_call)
        best = np.full(n, -1.0)
        np.maximum.at(best, group[self._large], self._size[self._large] * 1e9 / self._took[self._large])
        each = over(size, self._requests) if self._requests else [None] * n
        schema = {c: KEYS[c] for c in groups.columns}
        table = pl.DataFrame([groups.keys[i] for i in order], schema=schema, orient="row").hstack(
            [
                pl.Series("count", add_up(self._number, counted, n)),
                pl.Series("bytes", size),
                pl.Series("time_ns", add_up(self._clipped, group, n)),
                pl.Series("exposed_ns", exposed),
                pl.Series("exposed_ratio", over(exposed, self._window.length_ns)),
                *self._sizes(group, n),
                _rates(size, took).alias("bandwidth"),
                masked("in_call_ns", in_call, given(call_bandwidth)),
                call_bandwidth.alias("call_bandwidth"),
                masked("best_bandwidth", best, best >= 0),
                pl.Series("bytes_per_request", each, pl.Float64),
            ]
        )
        if not tied:  # then the keys decide nothing
            return table
        descending = [True, True, *([False] * len(schema))]
        return table.sort("exposed_ns", "bytes", *schema, descending=descending, nulls_last=True)

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
    kinds = copies["kind_name"][first].to_list()
    busy = sorted((k, Intervals.union_of(start[number == i], end[number == i]).length) for i, k in enumerate(kinds))
    return pl.DataFrame(busy, schema={"kind": pl.String, "busy_ns": pl.Int64}, orient="row")


def size_histogram(copies: pl.DataFrame) -> pl.DataFrame:
    """Copies by size in powers of two.

    Returns:
        ``kind``, ``from_bytes`` (the class holds sizes from it to below twice it; 0 holds empty copies), ``count``,
        ``bytes``, ``time_ns``, ``bandwidth`` (bytes/s of GPU time).
    """
    rows = copies[["kind_name", "bytes", "copy_count", "start_ns", "end_ns"]]
    rows = rows if copies["counted"].all() else rows.filter(copies["counted"])
    size, took = rows["bytes"], times(rows["end_ns"]) - times(rows["start_ns"])
    large = filled(size) > 0
    exponent = np.where(large, filled(size.cast(pl.Float64).log(2).floor()), 0).astype(np.int64)
    from_bytes = np.where(large, np.left_shift(1, exponent), 0)
    classes = pl.DataFrame({"kind": rows["kind_name"], "from_bytes": masked("from_bytes", from_bytes, given(size))})
    number, first = number_rows(classes, classes.columns)
    count, moved, spent = (add_up(v, number, first.size) for v in (rows["copy_count"], size, took))
    sums = [pl.Series("count", count), pl.Series("bytes", moved), pl.Series("time_ns", spent)]
    return classes[first].hstack([*sums, _rates(moved, spent).alias("bandwidth")]).sort("kind", "from_bytes")


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
    size = filled(rows["bytes"])[counted]
    sums = {
        "count": add_up(counted, number, n),
        "bytes": add_up(size, number[counted], n),
        "time_ns": add_up(times(rows["to_ns"]) - times(rows["from_ns"]), number, n),
    }
    table = kinds[first].hstack([pl.Series(c, values) for c, values in sums.items()])
    return table.sort("bytes", name, descending=[True, False]) if n > 1 else table
