"""NVTX ranges: names, domains, nesting, full paths, and the range around a call.

Push/pop ranges nest on their thread and give each call its path. Start/end ranges may overlap and may end on another
thread; they are listed and can be requests, but they are no level of a path. An unfinished range lasts to the end.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse import schema
from nsysparse.intervals import Intervals
from nsysparse.joins.nesting import FOREVER, Index, Nesting
from nsysparse.joins.order import codes_of
from nsysparse.lazy import cached_property
from nsysparse.nulls import given
from nsysparse.source import Trace

NUMBERS = 1 << 16  # values that lie closer together are numbers already
MAX_DEPTH = 64  # levels of a path; deeper ranges count for their ancestor at this depth
NO_PATH = 0
Codes = npt.NDArray[np.int32]
BY_THREAD, IN_TIME, NO_RANGE = "thread", "in time", "none"
PATH_BY = pl.Enum([IN_TIME, NO_RANGE, BY_THREAD])  # in the order of the alphabet
BY_NUMBER = {word: np.uint8(number) for number, word in enumerate(PATH_BY.categories)}


@dataclass(frozen=True)
class Ranges:
    """The ranges of a recording.

    Attributes:
        frame: One row a range: ``range`` (row number), ``start_ns``, ``end_ns`` (FOREVER when unfinished),
            ``finished``, ``thread``, ``end_thread``, ``process``, ``domain``, ``push_pop``, ``name`` (as written, with
            its domain in front), ``label`` (the name, or a pattern with # for digits when several names differ only in
            these; both categorical), ``path`` (0 for start/end ranges), ``depth``.
        paths: One row a path: ``path``, ``parent``, ``label``, ``depth``, ``text`` (the labels from the outside in).
            Path 0 is "no range".
        nesting: Push/pop ranges by thread; its rows are those of ``frame``.
    """

    frame: pl.DataFrame
    paths: pl.DataFrame
    nesting: Nesting

    def path_of(self, thread: pl.Series, instant: pl.Series) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Path and innermost push/pop range around each instant of a thread.

        Returns:
            Path (0: none) and row of the range (-1: none).
        """
        node = self.nesting.enclosing(thread.to_numpy(), instant.to_numpy())
        found = self.nesting.rows_of(node).astype(np.int32, copy=False)
        path = self.frame["path"].to_numpy()
        if not path.size:
            return np.full_like(found, NO_PATH), found
        return np.where(found >= 0, path[found], np.int32(NO_PATH)), found

    @cached_property
    def covered_by(self) -> dict[int, list[tuple[int, Intervals]]]:
        """Of each process with push/pop ranges its threads, and when one of theirs is open."""
        found: dict[int, list[tuple[int, Intervals]]] = defaultdict(list)
        for thread, start, end in self.nesting.outermost():
            process = pl.select(schema.process_of(pl.lit(thread, pl.Int64))).item()
            found[process].append((thread, Intervals.union_of(start, end)))
        return dict(found)

    @cached_property
    def program(self) -> pl.DataFrame:
        """Finished push/pop ranges of the default domain: ``path``, ``process``, number ``n``, ``time`` (ns)."""
        took = self.frame.select("path", "process", time=pl.col("end_ns") - pl.col("start_ns")).filter(
            self.frame.select(c=pl.col("push_pop") & (pl.col("domain") == 0) & pl.col("finished"))["c"]
        )
        figures = (pl.len().alias("n"), pl.col("time").sum())
        if took["process"].n_unique() < 2:  # one column is quicker to group by
            return took.group_by("path").agg(pl.col("process").first(), *figures)
        return took.group_by("path", "process").agg(*figures)


def make_ranges(rows: pl.DataFrame, trace: Trace, whole_names: bool = False) -> Ranges:
    """Name and nest the ranges.

    Args:
        rows: What :meth:`nsysparse.source.Trace.nvtx` returns.
        trace: The recording, for its names.
        whole_names: Keep names apart that differ only in their digits.
    """
    events = rows.filter(
        pl.col("type").is_in([schema.NVTX_PUSH_POP, schema.NVTX_START_END])
        & pl.col("start_ns").is_not_null()
        & pl.col("thread").is_not_null()
    )
    moved = events.select((pl.col("end_thread") != pl.col("thread")).any()).item()
    frame = _named(events, trace, whole_names).select(
        *("start_ns", "thread", "process", "name", "label"),
        *([pl.coalesce("end_thread", "thread")] if moved else []),
        events["domain"].shrink_dtype(),
        finished=pl.col("end_ns").is_not_null(),
        end_ns=pl.col("end_ns").fill_null(FOREVER),
        push_pop=pl.col("type") == schema.NVTX_PUSH_POP,
    )
    length = pl.col("end_ns") - pl.col("start_ns")  # negative also where it exceeds 64 bits
    usable = (pl.col("end_ns") >= pl.col("start_ns")) & (~pl.col("finished") | (length >= 0))
    frame = frame if frame.select(usable.all()).item() else frame.filter(usable)
    frame = frame.with_columns(range=pl.int_range(pl.len(), dtype=pl.Int32))
    nested = frame.select("range", "thread", "start_ns", "end_ns", "push_pop")
    nested = nested if nested["push_pop"].all() else nested.filter("push_pop")
    nesting = Nesting(nested["thread"], nested["start_ns"], nested["end_ns"], nested["range"].to_numpy())
    labels = frame["label"].unique(maintain_order=True)
    known = labels.to_physical().to_numpy()
    code = np.zeros(int(known.max(initial=0)) + 1, np.int32)
    code[known] = np.arange(known.size)
    path, parents, names = _paths(nesting, code[frame["label"].to_physical().to_numpy()])
    row_path, row_depth = np.zeros(frame.height, np.int32), np.zeros(frame.height, nesting.depth.dtype)
    at = nesting.row >= 0
    row_path[nesting.row[at]] = path[at]
    row_depth[nesting.row[at]] = nesting.depth[at]
    frame = frame.with_columns(path=pl.Series(row_path), depth=pl.Series(row_depth))
    frame = trace.shelf.keep(frame[part] for part in trace.shelf.parts(frame.height))
    # Where no range ends on another thread it is the same column, not a copy.
    frame = frame.with_columns(end_thread=pl.col("end_thread" if moved else "thread")).select(
        *("range", "start_ns", "end_ns", "finished", "thread", "end_thread", "process", "domain"),
        *("push_pop", "name", "label", "path", "depth"),
    )
    return Ranges(frame, _path_table(parents, names, labels.cast(pl.String)), nesting)


def _named(events: pl.DataFrame, trace: Trace, whole_names: bool) -> pl.DataFrame:
    """Add ``name`` and ``label``; texts are put together once a distinct name, not once a range."""
    key = ["process", "domain", "text_id", "text"]
    events = events.with_columns(process=schema.process_of(pl.col("thread")))
    number, first = _numbered_rows(events.select(key))
    mine = events.select(key)[first]
    prefix = (
        pl.when(pl.col("domain") == 0)
        .then(pl.lit(""))
        .otherwise(pl.format("{}:", pl.coalesce("domain_name", pl.format("domain {}", "domain"))))
    )
    texts = (
        mine.join(trace.strings(mine["text_id"]), left_on="text_id", right_on="id", how="left", maintain_order="left")
        .join(domain_names(trace), on=["process", "domain"], how="left", maintain_order="left")
        .with_columns(
            name=prefix + pl.coalesce("value", pl.col("text").str.split("\x00").list.first(), pl.lit("(unnamed)"))
        )
    )
    # Digits give way to # only where that brings names together: a lone "layer_7" keeps its number.
    pattern = pl.col("name").str.replace_all(r"\d+", "#")
    several = pl.col("name").n_unique().over(pattern) > 1
    label = pl.col("name") if whole_names else pl.when(several).then(pattern).otherwise("name")
    named = texts.with_columns(label=label).select(pl.col("name", "label").cast(pl.Categorical))
    return events.hstack(named[number])


def _numbered_rows(rows: pl.DataFrame) -> tuple[Index, Index]:
    """Number the distinct rows, in the order in which they come first.

    Returns:
        Number of each row; first row of each number.
    """
    code, count = np.zeros(rows.height, np.int64), min(rows.height, 1)
    for column in rows:
        if not _constant(column):  # mostly all but one
            number, bound = _numbers(column)
            distinct, code = _numbered(code * bound + number, count * bound)
            count = distinct.size
    first = np.empty(count, np.int64)
    first[code[::-1]] = np.arange(rows.height)[::-1]
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(count)
    return place[code], first[order]


def _numbers(column: pl.Series) -> tuple[Index, int]:
    """Small numbers that are the same where values are, 0 for NULL; and the first number that none has."""
    values = column if column.dtype.is_integer() else column.cast(pl.Categorical).to_physical()
    known, number = values.drop_nulls().to_numpy().astype(np.int64), np.zeros(values.len(), np.int64)
    low, high = int(known.min()), int(known.max())
    if high - low < NUMBERS:
        known, bound = known - low, high - low + 2
    else:
        distinct, codes = codes_of(known)
        known, bound = codes.astype(np.int64), distinct.size + 1
    number[given(column)] = known + 1
    return number, bound


def _constant(values: pl.Series) -> bool:
    """Whether all are the same, NULL or not."""
    nulls = values.null_count()
    return nulls == values.len() or (not nulls and values.min() == values.max())


def domain_names(trace: Trace) -> pl.DataFrame:
    """(``process``, ``domain``) to ``domain_name``, from the rows that register domains."""
    rows = trace.nvtx_domains.filter(pl.col("domain") != 0)
    strings = trace.strings(rows["text_id"])
    return (
        rows.join(strings, left_on="text_id", right_on="id", how="left")
        .select(
            schema.process_of(pl.col("thread")).alias("process"),
            "domain",
            domain_name=pl.coalesce("value", "text"),
        )
        .unique(["process", "domain"], keep="first", maintain_order=True)
    )


def _paths(nesting: Nesting, labels: Codes) -> tuple[Codes, list[int], list[int]]:
    """Number the distinct paths; labels are by row of the ranges.

    Returns:
        Path of each node; parent and label of each path (of path 0: -1).
    """
    depth = nesting.depth
    path = np.zeros(depth.size, np.int32)
    parents, names = [np.array([-1])], [np.array([-1])]
    order = np.argsort(depth, kind="stable")
    deepest = int(depth.max(initial=0))
    cuts = np.searchsorted(depth[order], np.arange(1, deepest + 2)) if deepest <= MAX_DEPTH else None
    if cuts is None:
        cuts = np.concatenate((np.searchsorted(depth[order], np.arange(1, MAX_DEPTH + 2)), [depth.size]))
    n_labels, following = int(labels.max(initial=0)) + 1, 1
    for level, (low, high) in enumerate(pairwise(cuts), start=1):
        nodes = order[low:high]
        if level > MAX_DEPTH:
            path[nodes] = path[_ancestor(nesting, nodes)]
            break
        key = path[nesting.parent[nodes]] * np.int64(n_labels) + labels[nesting.row[nodes]]
        distinct, code = _numbered(key, following * n_labels)
        path[nodes] = following + code
        parents.append(distinct // n_labels)
        names.append(distinct % n_labels)
        following += distinct.size
    return path, np.concatenate(parents).tolist(), np.concatenate(names).tolist()


def _numbered(keys: Index, bound: int) -> tuple[Index, Index]:
    """The distinct keys, all below a bound, in ascending order, and each key's number among them."""
    if bound > 4 * keys.size + 1_000_000:
        distinct, code = np.unique(keys, return_inverse=True)
        return distinct, code.ravel()
    there = np.zeros(bound, np.bool_)
    there[keys] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[keys]


def _ancestor(nesting: Nesting, nodes: Index) -> Index:
    """The ancestor at MAX_DEPTH of nodes that lie deeper, by doubling."""
    hops = [nesting.parent]
    while 1 << len(hops) <= int(nesting.depth.max()):
        hops.append(hops[-1][hops[-1]])
    at: Index = nodes.copy()
    to_go = nesting.depth[nodes] - MAX_DEPTH
    for i, hop in enumerate(hops):
        jump = (to_go >> i) & 1 == 1
        at[jump] = hop[at[jump]]
    return at


def _path_table(parents: list[int], names: list[int], labels: pl.Series) -> pl.DataFrame:
    """Text and depth of each path; a loop over distinct paths, not over ranges."""
    texts, depths, known = ["(no NVTX range)"], [0], labels.to_list()
    for parent, name in zip(parents[1:], names[1:], strict=True):
        texts.append(f"{texts[parent]}/{known[name]}" if parent else known[name])
        depths.append(depths[parent] + 1)
    return pl.DataFrame(
        {
            "path": list(range(len(texts))),
            "parent": [max(p, 0) for p in parents],
            "label": ["(no NVTX range)", *(known[n] for n in names[1:])],
            "depth": depths,
            "text": texts,
        },
        schema={
            "path": pl.Int32,
            "parent": pl.Int32,
            "label": pl.String,
            "depth": pl.Int32,
            "text": pl.String,
        },
    )


def attribute(calls: pl.DataFrame, ranges: Ranges) -> pl.DataFrame:
    """Give calls their NVTX path.

    A call belongs to the innermost push/pop range around its start on its own thread. Where its thread has none there
    (autograd's thread, say), the range that encloses it in time in the same process is taken and labelled so, but only
    if one single thread of the process has a range open then: otherwise the choice would be a guess.

    Args:
        calls: Columns ``thread``, ``start_ns``.
        ranges: The ranges.

    Returns:
        Columns ``path``, ``range`` (-1: none), ``path_by`` ("thread", "in time" or "none"), in the order of the calls.
    """
    path, found = ranges.path_of(calls["thread"], calls["start_ns"])
    missing = np.flatnonzero(found < 0)
    by = np.full(found.size, BY_NUMBER[BY_THREAD])
    by[missing] = BY_NUMBER[NO_RANGE]
    lone = calls.select(schema.process_of(pl.col("thread").gather(missing))).to_series().to_numpy()
    for process in ranges.covered_by if missing.size else ():
        rows = missing[lone == process]
        if rows.size:
            instants = calls["start_ns"].gather(rows).to_numpy()
            thread = _only_thread(ranges, process, instants)
            one = thread >= 0
            rows, threads = rows[one], thread[one]
            path[rows], found[rows] = ranges.path_of(pl.Series(threads), pl.Series(instants[one]))
            by[rows] = BY_NUMBER[IN_TIME]
    return pl.DataFrame({"path": path, "range": found, "path_by": pl.Series(by).cat.to(PATH_BY)})


def _only_thread(ranges: Ranges, process: int, instants: Index) -> Index:
    """The one thread of a process with a push/pop range open at each instant, -1 for none or several."""
    count = np.zeros(instants.size, np.int32)
    which = np.full(instants.size, -1, np.int64)
    for thread, covered in ranges.covered_by.get(process, ()):
        inside = covered.contains(instants)
        count += inside
        which[inside] = thread
    return np.where(count == 1, which, -1)
