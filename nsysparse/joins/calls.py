"""CUDA API calls, one row a call, and the call behind each piece of GPU work.

Two API rows can stand for one call: a runtime call and the driver call inside it, or (with ``--cudabacktrace``) a row
of class 67 around the real one. They share (process, correlation id), and a plain join would double the bytes. One row
a call is made first: name and times from the outermost row of class 0 or 1, the stack from whichever row has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse import schema
from nsysparse.joins.order import by_start, codes_of
from nsysparse.shelf import Index
from nsysparse.side_by_side import in_order
from nsysparse.source import Trace

# What a function does, told by its name without suffixes: no column of an export says it.
FUNCTIONS = {
    "graph launch": r"^(cuda|cu)GraphLaunch$",
    "launch": r"^(cuda|cu)Launch(Kernel|Cooperative|Grid|$)",
    "copy": r"^(cuda|cu)(Memcpy|GraphicsMemcpy)",
    "memset": r"^(cuda|cu)Memset",
    "synchronize": r"^(cuda|cu)(Device|Thread|Ctx|Stream|Event)Synchronize$",
    "allocate": r"^(cuda(Malloc|Free|HostAlloc|Host(Unr|R)egister)|cuMem(Alloc|Free|Create|Map|Unmap|Release|Host))",
    "begin capture": r"^(cuda|cu)StreamBeginCapture",
    "end capture": r"^(cuda|cu)StreamEndCapture$",
}
WORK = ("launch", "graph launch", "copy", "memset")
OTHER = "other"
DOES = pl.Enum([*FUNCTIONS, OTHER])
NOWHERE = -(1 << 62)  # no string has this number
DENSE_NAMES = 1 << 24  # below this a name is found by its number, beyond by search
NO_ID = 0  # what has no correlation id
ROOM = 65_536  # ids that a table may have room for beyond those there are, however few these are
UNNAMED = "(name not in the export)"


Ids = npt.NDArray[Any]


def load_calls(trace: Trace) -> pl.DataFrame:
    """Every CUDA call of the recording, once, by thread and start; see :func:`make_calls`."""
    return make_calls(read_api(trace), trace)


def read_api(trace: Trace) -> pl.DataFrame:
    """The canonical table ``api``, narrow, without rows that can be placed nowhere."""
    api = trace.api()
    if api["start_ns"].null_count() or api["thread"].null_count():
        trace.left_out["api"] = api.select((pl.col("start_ns").is_null() | pl.col("thread").is_null()).sum()).item()
        api = api.filter(pl.col("start_ns").is_not_null() & pl.col("thread").is_not_null())
    return api


def make_calls(api: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Calls of API rows.

    Args:
        api: What :func:`read_api` returns.
        trace: The recording, for its names.

    Returns:
        ``call`` (row number, Int32), ``start_ns``, ``end_ns``, ``thread``, ``correlation``, ``name`` (without version
        suffix, categorical), ``does`` (a key of FUNCTIONS or "other", an enumeration),
        ``asynchronous`` (by its name: nothing else says it), ``failed``, ``reversed`` (it ends before it starts; its
        end is set to its start), ``callchain``.
    """
    room = next(trace.shelf.parts(api.height)).stop
    order, cuts = _by_thread(api, room)

    def piece(cut: tuple[int, int]) -> pl.DataFrame:
        """Calls of some threads: rows of one call are on one thread."""
        low, high = cut
        whole = order is None and high - low == api.height
        return _calls(api if whole else api[_rows(order, low, high)], trace)

    calls = trace.shelf.keep(in_order(piece, pairwise(cuts), trace.shelf.at_once))
    return calls.with_columns(pl.int_range(pl.len(), dtype=pl.Int32).alias("call"))


def _calls(rows: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    start, end = pl.col("start_ns"), pl.col("end_ns")
    part = _one_row_a_call(rows)
    return part.select(
        pl.lit(0, pl.Int32).alias("call"),
        start,
        pl.max_horizontal(start, end).alias("end_ns"),
        "thread",
        "correlation",
        *_functions(part["name_id"], trace),
        (pl.col("return_value") != 0).alias("failed"),
        (end < start).alias("reversed"),
        "callchain",
    )


def _rows(order: Index | None, low: int, high: int) -> Index | slice:
    return slice(low, high) if order is None else order[low:high]


def _by_thread(api: pl.DataFrame, room: int) -> tuple[Index | None, list[int]]:
    """The order of rows by thread, those of a thread by start, end and id, equal ones as they were.

    Returns:
        Rows in that order, None where they are in it; and where to cut it between threads, into pieces of about as
        many rows as there is room for.
    """
    threads, codes = codes_of(api["thread"].to_numpy())
    then = (api[c].fill_null(0).to_numpy() for c in ("end_ns", "correlation"))
    order, bounds = by_start(codes, threads.size, api["start_ns"].to_numpy(), *then)
    cuts = [0]
    for at in bounds[1:].tolist():
        if at - cuts[-1] >= room or at == api.height:
            cuts.append(at)
    return order, cuts if len(cuts) > 1 else [0, 0]


def _functions(ids: pl.Series, trace: Trace) -> list[pl.Series]:
    """``name``, ``does`` and ``asynchronous`` of each call."""
    known = _describe(trace.strings(ids)).sort("name_id")
    unknown = pl.DataFrame({"name_id": [None], "name": [UNNAMED], "does": [OTHER], "asynchronous": [False]})
    table = pl.concat([known, unknown.cast(known.schema)])
    named = known["name_id"].cast(pl.Int64).to_numpy()
    low, high = ids.min(), ids.max()
    if not ids.null_count() and isinstance(low, int) and isinstance(high, int) and low >= 0 and high < DENSE_NAMES:
        place = np.full(high + 1, named.size, np.uint32)
        place[named] = np.arange(named.size)
        row = place[ids.to_numpy()]
    else:
        wanted = ids.cast(pl.Int64).fill_null(NOWHERE).to_numpy()
        at = np.searchsorted(named, wanted)
        there = named[np.minimum(at, named.size - 1)] == wanted if named.size else np.zeros(wanted.size, np.bool_)
        row = np.where(there, at, named.size).astype(np.uint32)
    return [table[c].gather(row) for c in ("name", "does", "asynchronous")]


def _describe(names: pl.DataFrame) -> pl.DataFrame:
    """What each function is: one row a ``name_id``."""
    does = pl.when(False).then(pl.lit(OTHER))
    for function, pattern in FUNCTIONS.items():
        does = does.when(pl.col("name").str.contains(pattern)).then(pl.lit(function))  # type: ignore[assignment]
    return (
        names.select(name_id="id", name=schema.normalized_api_name(pl.col("value").str.strip_chars()))
        .with_columns(does=does.otherwise(pl.lit(OTHER)).cast(DOES), asynchronous=pl.col("name").str.contains("Async"))
        .with_columns(pl.col("name").cast(pl.Categorical))
    )


def _one_row_a_call(api: pl.DataFrame) -> pl.DataFrame:
    """Drop the inner and the backtrace rows of a call; keep its stack."""
    if not _may_repeat(api):
        return api
    group = ["thread", "correlation"]
    usable = pl.col("correlation").is_not_null() & (pl.col("correlation") != 0)
    marked = api.with_row_index("row").with_columns(repeated=usable & pl.struct(group).is_duplicated())
    # Rows of one call overlap in time; a row after them is another call that uses the number again.
    several = marked.filter("repeated").sort(*group, "start_ns", "row")
    again = pl.col("start_ns") > pl.col("end_ns").cum_max().shift(1).over(group)
    several = several.with_columns(again=again.fill_null(True).cast(pl.Int64).cum_sum().over(group))
    kept = (
        several.with_columns(
            callchain=pl.coalesce("callchain", pl.col("callchain").drop_nulls().first().over(*group, "again"))
        )
        .sort(
            *group,
            "again",
            pl.col("event_class") == schema.BACKTRACE_CLASS,
            "start_ns",
            "end_ns",
            "row",
            descending=[False, False, False, False, False, True, False],
        )
        .unique([*group, "again"], keep="first", maintain_order=True)
        .drop("again")
    )
    return pl.concat([marked.filter(~pl.col("repeated")), kept]).sort("row").drop("row", "repeated")


def _may_repeat(api: pl.DataFrame) -> bool:
    """Whether any (thread, correlation id) is there twice: by marking where the ids are dense, as they mostly are."""
    every = _wide(api["correlation"])
    for _, rows in rows_by(api["thread"]):
        ids = every[rows]
        ids = ids[ids != NO_ID]
        if not ids.size:
            continue
        low, high = int(ids.min()), int(ids.max())
        if high - low > 8 * ids.size + ROOM:
            distinct = np.unique(ids).size
        else:
            seen = np.zeros(high - low + 1, np.bool_)
            seen[ids - low] = True
            distinct = int(np.count_nonzero(seen))
        if distinct != ids.size:
            return True
    return False


def rows_by(keys: pl.Series) -> Iterator[tuple[int, slice | Index]]:
    """Each distinct key with its rows: a slice where they lie together; NULLs are left out."""
    runs = keys.rle().struct.unnest()
    length, value = runs["len"].to_numpy().astype(np.int64), runs["value"]
    if value.n_unique() == value.len():
        ends = np.cumsum(length)
        for key, end, n in zip(value.to_list(), ends.tolist(), length.tolist(), strict=True):
            if key is not None:
                yield key, slice(end - n, end)
        return
    distinct = keys.drop_nulls().unique().sort()
    code = np.searchsorted(distinct.to_numpy(), keys.fill_null(distinct[0]).to_numpy())
    code[keys.is_null().to_numpy()] = distinct.len()
    code = code.astype(np.min_scalar_type(distinct.len()))
    order = np.argsort(code, kind="stable")
    cuts = np.searchsorted(code[order], np.arange(distinct.len() + 1))
    for i, key in enumerate(distinct.to_list()):
        yield key, order[cuts[i] : cuts[i + 1]]


def rows_by_process(calls: pl.DataFrame) -> dict[int, slice]:
    """Where each process's calls lie, which are ordered by thread: a process's threads are neighbours."""
    found: dict[int, slice] = {}
    runs = calls["thread"].rle().struct.unnest().with_columns(end=pl.col("len").cum_sum())
    for process, low, high in (
        runs.group_by(process=schema.process_of(pl.col("value")), maintain_order=True)
        .agg((pl.col("end") - pl.col("len")).first().alias("low"), pl.col("end").last())
        .iter_rows()
    ):
        found[process] = slice(low, high)
    return found


def find_calls(work: pl.DataFrame, calls: pl.DataFrame) -> Index:
    """The call that sent each piece of GPU work.

    Args:
        work: Columns ``process``, ``correlation``, ``start_ns``.
        calls: As :func:`load_calls` returns them.

    Returns:
        Row of the call, -1 where there is none (correlation 0 or NULL, or a call that was not recorded).
    """
    result = np.full(work.height, -1, np.int64)
    mine = rows_by_process(calls)
    # Very old rows have no process: safe only when one process made calls.
    process = work["process"].fill_null(next(iter(mine))) if len(mine) == 1 else work["process"]
    wanted, ids = _wide(work["correlation"]), _wide(calls["correlation"])
    if wanted.dtype != ids.dtype:
        wanted, ids = wanted.astype(np.int64), ids.astype(np.int64)
    number = calls["call"].to_numpy()
    for key, rows in rows_by(process):  # arrays, not frames: there may be many processes
        if key not in mine:
            continue
        sent, made = wanted[rows], ids[mine[key]]
        call = number[mine[key]]
        if not sent.all():
            rows = np.arange(work.height)[rows][sent != NO_ID]
            sent = wanted[rows]
        if not made.all():
            call, made = call[made != NO_ID], made[made != NO_ID]
        if sent.size and made.size:
            found, repeated = _look_up(sent, made, call)
            result[rows] = _latest_before(work[rows], calls[mine[key]], found) if repeated else found
    return result


def _look_up(wanted: Ids, ids: Ids, rows: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], bool]:
    """The call of each id within one process: by direct address where the ids are dense, else by search.

    Returns:
        Row of the call, -1 for none; and whether several calls have one id.
    """
    low, high = int(ids.min()), int(ids.max())
    if high - low > 8 * ids.size + ROOM:
        order = np.argsort(ids, kind="stable")
        at = np.minimum(np.searchsorted(ids[order], wanted), ids.size - 1)
        found = np.where(ids[order][at] == wanted, rows[order][at], -1)
        repeated = np.unique(ids).size != ids.size
    else:
        table = np.full(high - low + 1, -1, rows.dtype)
        table[ids - low] = rows
        inside = (wanted >= low) & (wanted <= high)
        found = (
            table[wanted - low] if inside.all() else np.where(inside, table[np.where(inside, wanted, low) - low], -1)
        )
        repeated = np.count_nonzero(table >= 0) != rows.size
    return found, bool(repeated)


def _wide(ids: pl.Series) -> Ids:
    """Ids in a type in which the difference of two near ones has room; NO_ID for NULL."""
    ids = ids.fill_null(NO_ID) if ids.null_count() else ids
    return (ids if ids.dtype in (pl.Int32, pl.Int64) else ids.cast(pl.Int32)).to_numpy()


def _latest_before(work: pl.DataFrame, calls: pl.DataFrame, found: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Where ids come again later in a process: the latest call with the id that began before the operation did.

    ``found`` stays where no call with the id began before the operation (a broken clock).
    """
    wide = pl.col("correlation").cast(pl.Int64)
    order = calls.select(wide, "start_ns", "call").sort("correlation", "start_ns")
    asked = work.select(wide, "start_ns").with_row_index("row").sort("correlation", "start_ns")
    best = asked.join_asof(order, on="start_ns", by="correlation", check_sortedness=False).sort("row")["call"]
    return (
        best.fill_null(-1).to_numpy() if not best.null_count() else np.where(best.is_null(), found, best.fill_null(-1))
    )
