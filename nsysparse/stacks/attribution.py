"""The stack behind each call: recorded with it, or seen by a sample that fell inside it; and how much that covers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.errors import NsysparseError
from nsysparse.joins.work import Work
from nsysparse.shelf import PIECE_ROWS
from nsysparse.stacks.chains import Index
from nsysparse.stacks.load import Stacks
from nsysparse.stacks.payload import BY_CALL, BY_SAMPLING

WITH_CALL, BY_SAMPLE, NONE = "call", "sample", "none"
MAX_LEAD_NS = 1_000_000  # a Python stack comes 0.05 to 15 us before its call; a later call is another's
KINDS = ("kernels", "copies", "memsets", "graphs", "synchronizations")


@dataclass(frozen=True)
class Attributed:
    """A recording's stacks, and the stack behind each call.

    Attributes:
        read: The stacks, or the error that reading them raised: then whoever asks for them gets it.
        found: See :func:`attribute_stacks`; empty where they cannot be read.
    """

    read: Stacks | NsysparseError
    found: pl.DataFrame

    @classmethod
    def of(cls, work: Work, read: Stacks | NsysparseError) -> Attributed:
        """Give the calls of a recording their stacks."""
        none = dict.fromkeys(("native_by", "python_by"), pl.String)
        columns = {"call": pl.Int32, "native": pl.Int64, "python": pl.Int64} | none
        return cls(read, attribute_stacks(work, read) if isinstance(read, Stacks) else pl.DataFrame(schema=columns))

    @property
    def stacks(self) -> Stacks:
        """The stacks, or the error."""
        if isinstance(self.read, NsysparseError):
            raise self.read
        return self.read

    @property
    def behind(self) -> pl.DataFrame:
        """The stack behind each call, or the error."""
        if isinstance(self.read, NsysparseError):
            raise self.read
        return self.found


def attribute_stacks(work: Work, stacks: Stacks) -> pl.DataFrame:
    """Give the calls that sent work or wait their stacks.

    A recorded stack is taken first. Else the first CPU sample inside the call that shows a CUDA call, and the first
    Python sample inside it: while a thread is in a call its stack below the call does not change.

    Returns:
        ``call``, ``native`` and ``python`` (numbers of stacks, -1: none), ``native_by`` and ``python_by`` ("call",
        "sample" or "none"), in the order of the calls; a call without either stack has no row.
    """
    shown = stacks.samples.filter(pl.Series(_shows_api(stacks)[stacks.samples["stack"].to_numpy()]))
    sampled = stacks.python.filter(pl.col("by") == BY_SAMPLING)
    told = _announced(work, stacks)
    # Most calls of a recording without backtraces have no stack: the others are not even looked at.
    possible = np.zeros(work.calls.height, np.bool_)
    possible[told["call"].to_numpy()] = True
    for thread in {*shown["thread"].unique(), *sampled["thread"].unique()}:
        possible[work.calls.rows_of(thread)] = True
    if stacks.calls.height:
        possible |= work.calls["callchain"].is_not_null().to_numpy()
    rows = np.flatnonzero(possible & _wanted(work)) if possible.any() else np.empty(0, np.int64)
    chains = stacks.calls.unique("chain", keep="first")
    return pl.concat(  # piece by piece: few of many calls may have a stack
        _stacks_of(work.calls.at(rows[low : low + PIECE_ROWS]), chains, told, shown, sampled)
        for low in range(0, max(rows.size, 1), PIECE_ROWS)
    )


def _stacks_of(
    calls: pl.DataFrame, chains: pl.DataFrame, told: pl.DataFrame, shown: pl.DataFrame, sampled: pl.DataFrame
) -> pl.DataFrame:
    """As :func:`attribute_stacks`, of some calls by their number."""
    native, python = _recorded(calls, chains), np.full(calls.height, -1, np.int64)
    told = told.filter(pl.col("call").is_in(calls["call"].implode()))
    python[np.searchsorted(calls["call"].to_numpy(), told["call"].to_numpy())] = told["stack"].to_numpy()
    seen, inside = _inside(calls, shown), _inside(calls, sampled)
    found: pl.DataFrame = calls.select("call").with_columns(
        native=pl.Series(np.where(native >= 0, native, seen)),
        native_by=_by(native, seen),
        python=pl.Series(np.where(python >= 0, python, inside)),
        python_by=_by(python, inside),
    )
    return found.filter((pl.col("native") >= 0) | (pl.col("python") >= 0))


def _wanted(work: Work) -> npt.NDArray[np.bool_]:
    """The calls that sent work or wait."""
    wanted: npt.NDArray[np.bool_] = work.calls["waits"].to_numpy().copy()
    for kind in KINDS[:-1]:
        wanted[getattr(work, kind)["call"].drop_nulls().to_numpy()] = True
    return wanted


def _recorded(calls: pl.DataFrame, chains: pl.DataFrame) -> Index:
    """Stack that was recorded with each call, -1 for none."""
    joined = calls.select(pl.col("callchain").cast(pl.Int64)).join(
        chains, left_on="callchain", right_on="chain", how="left", maintain_order="left"
    )
    found: Index = joined["stack"].fill_null(-1).to_numpy()
    return found


def _by(recorded: Index, sampled: Index) -> pl.Series:
    code = np.where(recorded >= 0, 0, np.where(sampled >= 0, 1, 2))
    words: pl.Series = pl.Series([WITH_CALL, BY_SAMPLE, NONE]).gather(code)
    return words


def _shows_api(stacks: Stacks) -> npt.NDArray[np.bool_]:
    """Whether each stack holds a CUDA call; False for -1, the last."""
    api = (stacks.frames["role"] == "api").to_numpy()
    return np.append(stacks.stacks.any(stacks.stacks.each(api)), False)


def _inside(calls: pl.DataFrame, samples: pl.DataFrame) -> Index:
    """Stack of the first sample inside each call, on its thread; -1 for none."""
    result = np.full(calls.height, -1, np.int64)
    threads = set(samples["thread"].unique().to_list())
    for thread in calls["thread"].unique().to_list():  # threads, not calls
        if thread not in threads:
            continue
        mine = samples.filter(pl.col("thread") == thread)
        rows = np.flatnonzero((calls["thread"] == thread).to_numpy())
        at = np.searchsorted(mine["time_ns"].to_numpy(), calls["start_ns"].to_numpy()[rows])
        there = at < mine.height
        rows, at = rows[there], at[there]
        inside = mine["time_ns"].to_numpy()[at] <= calls["end_ns"].to_numpy()[rows]
        result[rows[inside]] = mine["stack"].to_numpy()[at[inside]]
    return result


def _announced(work: Work, stacks: Stacks) -> pl.DataFrame:
    """``call`` and Python ``stack``: the profiler records it on the call's thread just before the call begins."""
    found = [pl.DataFrame(schema={"call": pl.Int32, "stack": pl.Int64})]
    events = stacks.python.filter(pl.col("by") == BY_CALL)
    for (thread,), mine in events.group_by("thread"):
        calls = work.calls.of(int(thread)).select("call", "start_ns")
        at = np.searchsorted(calls["start_ns"].to_numpy(), mine["time_ns"].to_numpy())
        there = at < calls.height
        at, events_here = at[there], mine.filter(pl.Series(there))
        lead = calls["start_ns"].to_numpy()[at] - events_here["time_ns"].to_numpy()
        near = lead <= MAX_LEAD_NS
        told = pl.DataFrame(
            {"call": calls["call"].to_numpy()[at[near]], "stack": events_here["stack"].to_numpy()[near]}
        )
        # Of two events before one call the later one is the call's: it is written last.
        found.append(told.unique("call", keep="last", maintain_order=True))
    return pl.concat(found)


def measure_stacks(work: Work, attributed: pl.DataFrame) -> pl.DataFrame:
    """How much of each kind of work has a stack, by number and by time.

    Returns:
        ``kind`` (see KINDS; synchronizations are calls and their time is time in the call), ``stack`` ("native",
        "python", "any"), ``by_call`` and ``by_sample`` (operations whose stack was recorded with the call, and seen by
        a sample), ``of_operations``, ``operations_ratio``, ``time_ratio``; ratios are NULL where there is nothing.
    """
    rows: list[tuple[object, ...]] = []
    for kind in KINDS:
        if kind == "synchronizations":
            operations = work.calls.where(work.calls.doing("synchronize"))
        else:
            operations = getattr(work, kind).select("call", "start_ns", "end_ns")
        if operations.height:
            rows.extend((kind, *row) for row in _coverage(operations, attributed))
    return pl.DataFrame(
        rows,
        orient="row",
        schema={
            **{"kind": pl.String, "stack": pl.String, "by_call": pl.Int64, "by_sample": pl.Int64},
            **{"of_operations": pl.Int64, "operations_ratio": pl.Float64, "time_ratio": pl.Float64},
        },
    )


def _coverage(operations: pl.DataFrame, attributed: pl.DataFrame) -> list[tuple[object, ...]]:
    took = pl.col("end_ns") - pl.col("start_ns")
    joined = operations.head(operations.height if attributed.height else 0).join(attributed, on="call")  # with a stack
    native, python = pl.col("native_by"), pl.col("python_by")
    tests = {
        "native": (native == WITH_CALL, native == BY_SAMPLE),
        "python": (python == WITH_CALL, python == BY_SAMPLE),
    }
    tests["any"] = (
        (native == WITH_CALL) | (python == WITH_CALL),
        ~((native == WITH_CALL) | (python == WITH_CALL)) & ((native == BY_SAMPLE) | (python == BY_SAMPLE)),
    )
    total, time = operations.height, operations.select(took.sum()).item()
    rows: list[tuple[object, ...]] = []
    for stack, (call, sample) in tests.items():
        n, m, covered = joined.select(call.sum(), sample.sum().alias("sample"), took.filter(call | sample).sum()).row(0)
        rows.append((stack, n, m, total, (n + m) / total, covered / time if time else None))
    return rows


def program_threads(work: Work, threads: pl.Series) -> pl.Series:
    """Of some threads, those of processes that made CUDA calls: samples can be of the whole machine."""
    frame = pl.DataFrame({"thread": threads.unique()})
    process = pl.col("thread") - (pl.col("thread") & 0xFFFFFF)
    return frame.filter(process.is_in(work.processes.implode()))["thread"]
