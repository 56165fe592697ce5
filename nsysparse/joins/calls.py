"""CUDA API calls, one row a call, and the call behind each piece of GPU work.

Two API rows can stand for one call: a runtime call and the driver call inside it, or (with ``--cudabacktrace``) a row
of class 67 around the real one. They share (process, correlation id), and a plain join would double the bytes. One row
a call is made first: name and times from the outermost row of class 0 or 1, the stack from whichever row has it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse import schema
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
UNNAMED = "(name not in the export)"


def load_calls(trace: Trace) -> pl.DataFrame:
    """Every CUDA call of the recording, once.

    Returns:
        ``call`` (row number), ``start_ns``, ``end_ns``, ``thread``, ``process``, ``correlation``, ``name`` (without
        version suffix, categorical), ``does`` (a key of FUNCTIONS or "other", an enumeration), ``asynchronous`` (by its
        name: nothing else says it), ``failed``, ``reversed`` (it ends before it starts; its end
        is set to its start), ``callchain``.
    """
    api = trace.frame("api").with_columns(process=schema.process_of(pl.col("thread")))
    if api["start_ns"].null_count() or api["thread"].null_count():  # without these a call can be placed nowhere
        trace.left_out["api"] = api.select((pl.col("start_ns").is_null() | pl.col("thread").is_null()).sum()).item()
        api = api.filter(pl.col("start_ns").is_not_null() & pl.col("thread").is_not_null())
    trace.release("api")
    functions = _functions(trace.strings(api["name_id"]))
    api = _one_row_a_call(api)
    found = api.select("name_id").join(functions, on="name_id", how="left", maintain_order="left")
    return api.hstack(found.drop("name_id")).select(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("call"),
        "start_ns",
        pl.max_horizontal("start_ns", "end_ns").alias("end_ns"),
        "thread",
        "process",
        "correlation",
        pl.col("name").fill_null(UNNAMED),
        pl.col("does").fill_null(OTHER),
        pl.col("asynchronous").fill_null(False),
        (pl.col("return_value") != 0).alias("failed"),
        (pl.col("end_ns") < pl.col("start_ns")).alias("reversed"),
        "callchain",
    )


def _functions(names: pl.DataFrame) -> pl.DataFrame:
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
    usable = pl.col("correlation").is_not_null() & (pl.col("correlation") != 0)
    repeated = usable & pl.struct("process", "correlation").is_duplicated()
    if not _may_repeat(api):
        return api
    marked = api.with_row_index("row").with_columns(repeated=repeated)
    # Rows of one call overlap in time; a row after them is another call that uses the number again.
    group = ["process", "correlation"]
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
    """Whether any (process, correlation id) is there twice: by counting where the ids are dense, as they mostly are."""
    for (_,), part in api.select("process", "correlation").group_by("process"):
        ids = part["correlation"].drop_nulls().to_numpy()
        ids = ids[ids != 0]
        if not ids.size:
            continue
        low = ids.min()
        dense = ids.max() - low <= 8 * ids.size + 1_000_000
        if np.bincount(ids - low).max() > 1 if dense else np.unique(ids).size != ids.size:
            return True
    return False


def find_calls(work: pl.DataFrame, calls: pl.DataFrame) -> npt.NDArray[np.int64]:
    """The call that sent each piece of GPU work.

    Args:
        work: Columns ``process``, ``correlation``, ``start_ns``.
        calls: As :func:`load_calls` returns them.

    Returns:
        Row of the call, -1 where there is none (correlation 0 or NULL, or a call that was not recorded).
    """
    result = np.full(work.height, -1, np.int64)
    only = calls["process"].unique()
    # Very old rows have no process: safe only when one process made calls.
    processes = work["process"].fill_null(only[0]) if only.len() == 1 else work["process"]
    usable = calls.select("process", "correlation", "call", "start_ns").filter(
        pl.col("correlation").is_not_null() & (pl.col("correlation") != 0) & pl.col("process").is_not_null()
    )
    sent = pl.DataFrame({"process": processes, "row": np.arange(work.height)}).with_columns(
        work.select("correlation", "start_ns")
    )
    sent = sent.filter(
        pl.col("process").is_not_null() & pl.col("correlation").is_not_null() & (pl.col("correlation") != 0)
    )
    mine = usable.partition_by("process", as_dict=True, include_key=False)
    for process, part in sent.partition_by("process", as_dict=True, include_key=False).items():
        if process in mine:
            result[part["row"].to_numpy()] = _look_up(part, mine[process])
    return result


def _look_up(work: pl.DataFrame, calls: pl.DataFrame) -> npt.NDArray[np.int64]:
    """The call of each operation within one process: by direct address where the ids are dense, else by search."""
    wanted, ids, rows = (f.to_numpy() for f in (work["correlation"], calls["correlation"], calls["call"]))
    low, high = int(ids.min()), int(ids.max())
    if high - low > 8 * ids.size + 1_000_000:
        order = np.argsort(ids, kind="stable")
        at = np.minimum(np.searchsorted(ids[order], wanted), ids.size - 1)
        found = np.where(ids[order][at] == wanted, rows[order][at], -1)
        repeated = np.unique(ids).size != ids.size
    else:
        table = np.full(high - low + 1, -1, np.int64)
        table[ids - low] = rows
        inside = (wanted >= low) & (wanted <= high)
        found = np.where(inside, table[np.where(inside, wanted - low, 0)], -1)
        repeated = bool((table[ids - low] != rows).any())
    return _latest_before(work, calls, found) if repeated else found


def _latest_before(work: pl.DataFrame, calls: pl.DataFrame, found: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where ids come again later in a process: the latest call with the id that began before the operation did.

    ``found`` stays where no call with the id began before the operation (a broken clock).
    """
    order = calls.select("correlation", "start_ns", "call").sort("correlation", "start_ns")
    asked = work.select("correlation", "start_ns").with_row_index("row").sort("correlation", "start_ns")
    best = asked.join_asof(order, on="start_ns", by="correlation", check_sortedness=False).sort("row")["call"]
    return (
        best.fill_null(-1).to_numpy() if not best.null_count() else np.where(best.is_null(), found, best.fill_null(-1))
    )
