"""What is weighed: operations, waiting calls and samples, each with its thread, NVTX path and stacks.

Everything is grouped before anything is drawn, so that millions of samples become as many rows as there are
distinct call paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysparse import schema
from nsysparse.accounting.busy import in_window
from nsysparse.accounting.device import DeviceAccount
from nsysparse.accounting.grouping import add_up, number_rows
from nsysparse.accounting.osruntime import measure_os_stacks, os_calls
from nsysparse.intervals import Index, Intervals, owned, times
from nsysparse.joins.order import rows_among
from nsysparse.joins.ranges import IN_TIME, attribute
from nsysparse.joins.work import Work
from nsysparse.nulls import filled
from nsysparse.source import Trace
from nsysparse.stacks.attribution import program_threads
from nsysparse.stacks.folding import Folded
from nsysparse.stacks.load import Stacks
from nsysparse.stacks.payload import BY_SAMPLING


@dataclass(frozen=True)
class Weight:
    """What the width of a frame can stand for.

    Attributes:
        key: Column of the rows.
        title: Its name on the page.
        unit: ``ns``, ``bytes``, ``samples``, ``operations`` or ``calls``.
        meaning: One sentence.
    """

    key: str
    title: str
    unit: str
    meaning: str


WEIGHTS = (
    Weight(
        "busy_ns",
        "GPU time",
        "ns",
        "Time that the GPU was busy; each instant counts once, for the operation that started first.",
    ),
    Weight(
        "exposed_ns",
        "Exposed copy time",
        "ns",
        "Time that a copy ran and no kernel did; each instant counts once.",
    ),
    Weight("bytes", "Bytes copied", "bytes", "Bytes of the copies that start in the window."),
    Weight(
        "operation_ns",
        "GPU time, streams added",
        "ns",
        "Durations of all operations, added; where streams overlap this is more than the time that passed.",
    ),
    Weight(
        "blocked_ns",
        "Host blocked",
        "ns",
        "Time in synchronize calls and copies that wait, added over threads.",
    ),
    Weight(
        "idle_ns",
        "GPU idle, host blocked",
        "ns",
        "Time that the GPU idled while a thread that feeds it waited in a call; each instant counts once.",
    ),
    Weight(
        "os_ns",
        "In OS runtime calls",
        "ns",
        "Time of the threads that feed the GPU in reads, locks, waits and other calls of the OS runtime.",
    ),
    Weight("cpu_samples", "CPU samples", "samples", "Samples of the program's threads, running ones only."),
    Weight("python_samples", "Python samples", "samples", "Samples of the Python interpreter's threads."),
    Weight("operations", "Operations", "operations", "Operations that start in the window; a batched copy is several."),
    Weight("calls", "Waiting calls", "calls", "Synchronize calls and copies that wait."),
)
KEY = ("device", "process", "thread", "path", "in_time", "native", "python", "api", "operation", "colour")
_OF_CALL = ("process", "thread", "path", "in_time", "native", "python", "api")
COLUMNS = (*KEY, *(w.key for w in WEIGHTS))
NO_CALL = "(no API call recorded)"
_TEXTS = {"api", "operation", "colour"}
_EMPTY = pl.DataFrame(
    schema=dict.fromkeys(COLUMNS, pl.Int64)
    | dict.fromkeys(_TEXTS, pl.String)
    | {"in_time": pl.Boolean, "path": pl.Int32}
)


@dataclass(frozen=True)
class Weighed:
    """Grouped rows.

    Attributes:
        rows: One row a distinct call path: KEY and a column a weight (see WEIGHTS).
        os_coverage: See :func:`nsysparse.accounting.osruntime.measure_os_stacks`.
        window: Earliest start and latest end of the devices' windows, ns.
        window_ns: Length of the devices' windows, added: what time weights are shares of.
    """

    rows: pl.DataFrame
    os_coverage: pl.DataFrame
    window: tuple[int, int]
    window_ns: int


def weigh(
    work: Work, accounts: Sequence[DeviceAccount], stacks: Stacks, behind: pl.DataFrame, folded: Folded, trace: Trace
) -> Weighed:
    """Group everything that the windows of some devices hold.

    Args:
        work: The whole recording.
        accounts: The devices.
        stacks: Its stacks.
        behind: The stack behind each call, see :func:`nsysparse.stacks.attribution.attribute_stacks`.
        folded: The stacks, folded.
        trace: The recording, for texts.
    """
    of_calls = _Behind.of(behind)
    low = min((a.window.start_ns for a in accounts), default=0)
    high = max((a.window.end_ns for a in accounts), default=0)
    sent = pl.concat([_NOTHING_SENT, *(_sent_by_waiting(account) for account in accounts)])
    # One device at a time: what is held of it is then little, and in an analysis the rules run beside.
    found = [_operations(a, work.on(a.number), of_calls) for a in accounts]
    grouped = [_named([kernels for kernels, _ in found], trace), *(part for _, others in found for part in others)]
    grouped.append(_grouped(of_calls.added_to(_waiting(work, accounts, low, high, sent))))
    in_os = os_calls(trace, stacks, _feeding(accounts), low, high)
    grouped += [_grouped(part) for part in (_os(in_os, work), *_samples(work, stacks, folded, low, high))]
    # A copy that waits and its call are one path, and kernels of one name.
    rows = _grouped(pl.concat([_EMPTY, *grouped], how="diagonal")).select(
        *KEY, *(pl.col(c).fill_null(0) for c in COLUMNS if c not in KEY)
    )
    del found, grouped  # all of it is in the rows
    length = sum(a.window.length_ns for a in accounts)
    return Weighed(rows.sort(KEY, nulls_last=True), measure_os_stacks(in_os), (low, high), length)


def _feeding(accounts: Sequence[DeviceAccount]) -> pl.Series:
    """The threads that feed these devices."""
    none = pl.Series("thread", [], dtype=pl.Int64)
    return pl.concat([none, *(a.host.threads["thread"] for a in accounts)]).unique()


@dataclass(frozen=True)
class _Behind:
    """The stacks behind the calls.

    Attributes:
        call: The calls that have one, ascending.
        stacks: Their ``native`` and ``python``; the last row is for none.
    """

    call: Index
    stacks: pl.DataFrame

    @classmethod
    def of(cls, attributed: pl.DataFrame) -> _Behind:
        none = pl.DataFrame({"native": [-1], "python": [-1]}, schema={"native": pl.Int64, "python": pl.Int64})
        return cls(attributed["call"].to_numpy(), pl.concat([attributed.select("native", "python"), none]))

    def added_to(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with a column ``call`` and the stacks behind it."""
        if not self.call.size:
            return rows.with_columns(pl.lit(-1, pl.Int64).alias(c) for c in self.stacks.columns)
        return rows.hstack(self.stacks[rows_among(self.call, filled(rows["call"], -1))])


def _grouped(rows: pl.DataFrame, by: Sequence[str] = KEY) -> pl.DataFrame:
    """One row a distinct combination of ``by``, weights added."""
    number, first = number_rows(rows, by)
    sums = {c: add_up(rows[c], number, first.size) for c in COLUMNS if c not in KEY and c in rows.columns}
    grouped = rows.select(by)[first].with_columns(pl.Series(c, added) for c, added in sums.items())
    return grouped.with_columns(pl.col("api").cast(pl.String))


def _operations(account: DeviceAccount, work: Work, behind: _Behind) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
    """The operations of one device's window by kind, grouped, with what each path weighs; first of all the kernels.

    Kernels have the number of their name, see :func:`_named`.
    """
    window = account.window
    kernels = account.kernels.select(*_SENT, "short_name_id", operations=pl.col("counted").cast(pl.UInt8))
    copies = account.copies.select(
        *_SENT,
        "exposed_ns",
        operation=_PAIR,
        colour=pl.col("kind_name"),
        bytes=pl.when("counted").then("bytes").otherwise(0),
        operations=pl.when("counted").then("copy_count").otherwise(0),
    )
    parts = [
        kernels,
        copies,
        _plain(in_window(work.memsets, window), "memset", "memset"),
        _plain(in_window(work.graphs, window), "CUDA graph", "kernel"),
        _migrations(in_window(work.migrations, window)),
    ]
    bounds = [pl.concat([p[c] for p in parts]) for c in ("from_ns", "to_ns")]
    start, end = owned(*bounds)
    mine = np.split(end - start, np.cumsum([p.height for p in parts])[:-1])
    parts = [
        behind.added_to(part).with_columns(
            busy_ns=pl.Series(owns, dtype=pl.Int64),
            operation_ns=pl.col("to_ns") - pl.col("from_ns"),
        )
        for part, owns in zip(parts, mine, strict=True)
    ]
    by = (*_OF_CALL, "operation", "colour")
    number = pl.lit(account.number, pl.Int64).alias("device")
    kernels, *others = parts
    return (
        _grouped(kernels, (*_OF_CALL, "short_name_id")).with_columns(number),
        [_grouped(part, by).with_columns(number) for part in others if part.height],
    )


def _named(parts: list[pl.DataFrame], trace: Trace) -> pl.DataFrame:
    """The kernels of all devices with their names in place of the numbers; some names have several."""
    if not parts:
        return _EMPTY
    kernels = pl.concat(parts, how="vertical_relaxed")
    names = trace.strings(kernels["short_name_id"])
    return kernels.with_columns(
        colour=pl.lit("kernel"),
        operation=pl.col("short_name_id").replace_strict(
            names["id"], names["value"], default="(name not in the export)", return_dtype=pl.String
        ),
    ).drop("short_name_id")


_PAIR = pl.format("{} copy, {} to {}", "kind_name", "src", "dst")


def _sent_by_waiting(account: DeviceAccount) -> pl.DataFrame:
    """What the calls that wait have sent to a device: copies, for a synchronization sends nothing."""
    return account.copies.filter(pl.col("waits") & pl.col("call").is_not_null()).select(
        "call", operation=_PAIR, colour=pl.col("kind_name"), device=pl.lit(account.number, pl.Int64)
    )


_SENT = (
    *("call", "process", "thread", "path", "from_ns", "to_ns"),
    "api",
    (pl.col("path_by") == IN_TIME).alias("in_time"),
)


def _plain(rows: pl.DataFrame, operation: str, colour: str) -> pl.DataFrame:
    return rows.select(
        *_SENT, operation=pl.lit(operation), colour=pl.lit(colour), operations=pl.col("counted").cast(pl.UInt8)
    )


def _migrations(rows: pl.DataFrame) -> pl.DataFrame:
    """Unified-memory migrations: no call sent them."""
    kind = pl.col("kind").replace_strict(schema.COPY_KINDS, default="Unified", return_dtype=pl.String)
    return rows.select(
        "process",
        "from_ns",
        "to_ns",
        *(pl.lit(None, t).alias(c) for c, t in (("call", pl.Int32), ("thread", pl.Int64), ("api", pl.Categorical))),
        path=pl.lit(0, pl.Int32),
        in_time=pl.lit(False),
        operation=pl.format("{} migration", kind),
        colour=pl.lit("migration"),
        operations=pl.col("counted").cast(pl.UInt8),
    )


_OF_WAITING = ("call", "thread", "name", "start_ns", "end_ns")


def _waiting(work: Work, accounts: Sequence[DeviceAccount], low: int, high: int, sent: pl.DataFrame) -> pl.DataFrame:
    """The waiting calls of the threads that feed these devices: how long they held them, with the GPU idle or not."""
    waiting = [work.calls.waiting(thread) for thread in _feeding(accounts).sort()]
    calls = work.calls.at(np.concatenate([np.arange(0), *waiting])).select(_OF_WAITING)
    calls = calls.filter((pl.col("start_ns") < high) & (pl.col("end_ns") > low))
    start, end = times(calls["start_ns"].clip(low, high)), times(calls["end_ns"].clip(low, high))
    first, last = owned(start, end)
    idle = Intervals.union_of(first, last)  # only while somebody waits: the rest is not asked for
    for account in accounts:
        idle = idle - account.busy.everything
    placed = attribute(calls, work.ranges)
    sent = sent.unique("call", keep="first", maintain_order=True)
    rows = calls.select("call", "thread", api="name").with_columns(
        process=schema.process_of(pl.col("thread")),
        path=placed["path"],
        in_time=placed["path_by"].cast(pl.String) == IN_TIME,
        blocked_ns=pl.Series(end - start),
        idle_ns=pl.Series(idle.covered(first, last)),
        calls=pl.lit(1, pl.Int64),
    )
    return rows.join(sent, on="call", how="left", maintain_order="left")


_NOTHING_SENT = pl.DataFrame(schema={"call": pl.Int32, "operation": pl.String, "colour": pl.String, "device": pl.Int64})


def _samples(work: Work, stacks: Stacks, folded: Folded, low: int, high: int) -> list[pl.DataFrame]:
    """CPU and Python samples of the window, by thread, path and stack."""
    inside = (pl.col("time_ns") >= low) & (pl.col("time_ns") < high)
    cpu = stacks.samples.filter(inside)
    cpu = cpu.filter(pl.col("thread").is_in(program_threads(work, cpu["thread"]).implode()))
    python = stacks.python.filter(inside & (pl.col("by") == BY_SAMPLING))
    labels = stacks.frames["label"]
    api_at = np.append(folded.api, -1)[cpu["stack"].to_numpy()]
    api = labels.gather(np.maximum(api_at, 0)) if labels.len() else pl.Series([None] * cpu.height, dtype=pl.String)
    cpu = cpu.with_columns(
        native=pl.col("stack"),
        python=pl.lit(-1, pl.Int64),
        api=pl.when(pl.Series(api_at >= 0)).then(api),
        cpu_samples=pl.lit(1, pl.Int64),
    )
    python = python.with_columns(
        native=pl.lit(-1, pl.Int64),
        python=pl.col("stack"),
        api=pl.lit(None, pl.String),
        python_samples=pl.lit(1, pl.Int64),
    )
    return [_placed(cpu, work), _placed(python, work)]


def _os(calls: pl.DataFrame, work: Work) -> pl.DataFrame:
    """Calls of the OS runtime; colour and path are those of no operation."""
    rows = calls.drop("took_ns").with_columns(native=pl.col("stack"), python=pl.lit(-1, pl.Int64))
    return _placed(rows, work)


def _placed(samples: pl.DataFrame, work: Work) -> pl.DataFrame:
    """Add process and NVTX path; a sample is of its own thread, so nothing is placed by time."""
    path, _ = work.ranges.path_of(samples["thread"], samples["time_ns"])
    return samples.drop("stack", "time_ns").with_columns(
        process=schema.process_of(pl.col("thread")),
        path=pl.Series(path),
        in_time=pl.lit(False),
        device=pl.lit(None, pl.Int64),
        operation=pl.lit(None, pl.String),
        colour=pl.lit(None, pl.String),
    )
