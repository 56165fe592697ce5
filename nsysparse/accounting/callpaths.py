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
from nsysparse.accounting.osruntime import measure_os_stacks, os_calls
from nsysparse.intervals import Intervals, owned, times
from nsysparse.joins.ranges import IN_TIME, attribute
from nsysparse.joins.work import Work
from nsysparse.source import Trace
from nsysparse.stacks.attribution import attribute_stacks, program_threads
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
COLUMNS = (*KEY, *(w.key for w in WEIGHTS))
NO_CALL = "(no API call recorded)"
_TEXTS = {"api", "operation", "colour"}
_EMPTY = pl.DataFrame(
    schema={c: pl.String if c in _TEXTS else pl.Boolean if c == "in_time" else pl.Int64 for c in COLUMNS}
)


@dataclass(frozen=True)
class Weighed:
    """Grouped rows.

    Attributes:
        rows: One row a distinct call path: KEY and a column a weight (see WEIGHTS).
        calls: See :func:`nsysparse.stacks.attribution.attribute_stacks`.
        os_coverage: See :func:`nsysparse.accounting.osruntime.measure_os_stacks`.
        window: Earliest start and latest end of the devices' windows, ns.
        window_ns: Length of the devices' windows, added: what time weights are shares of.
    """

    rows: pl.DataFrame
    calls: pl.DataFrame
    os_coverage: pl.DataFrame
    window: tuple[int, int]
    window_ns: int


def weigh(work: Work, accounts: Sequence[DeviceAccount], stacks: Stacks, folded: Folded, trace: Trace) -> Weighed:
    """Group everything that the windows of some devices hold.

    Args:
        work: The whole recording.
        accounts: The devices.
        stacks: Its stacks.
        folded: The same, folded.
        trace: The recording, for texts.
    """
    attributed = attribute_stacks(work, stacks)
    parts = [_operations(work.on(a.number), a, trace) for a in accounts]
    low = min((a.window.start_ns for a in accounts), default=0)
    high = max((a.window.end_ns for a in accounts), default=0)
    operations = pl.concat([*parts, _waiting(work, accounts, low, high, parts)], how="diagonal")
    operations = operations.join(
        attributed.select("call", "native", "python"), on="call", how="left", maintain_order="left"
    )
    in_os = os_calls(trace, stacks, _feeding(accounts), low, high)
    grouped = [_grouped(part) for part in (operations, _os(in_os, work), *_samples(work, stacks, folded, low, high))]
    rows = pl.concat([_EMPTY, *grouped], how="diagonal").select(
        *KEY, *(pl.col(c).fill_null(0) for c in COLUMNS if c not in KEY)
    )
    length = sum(a.window.length_ns for a in accounts)
    return Weighed(rows.sort(KEY, nulls_last=True), attributed, measure_os_stacks(in_os), (low, high), length)


def _feeding(accounts: Sequence[DeviceAccount]) -> pl.Series:
    """The threads that feed these devices."""
    none = pl.Series("thread", [], dtype=pl.Int64)
    return pl.concat([none, *(a.host.threads["thread"] for a in accounts)]).unique()


def _grouped(rows: pl.DataFrame) -> pl.DataFrame:
    weights = [c for c in COLUMNS if c not in KEY and c in rows.columns]
    return rows.group_by(KEY).agg(pl.col(weights).sum())


def _operations(work: Work, account: DeviceAccount, trace: Trace) -> pl.DataFrame:
    """The operations of one device's window, with what each weighs."""
    window = account.window
    took = pl.col("to_ns") - pl.col("from_ns")
    pair = pl.format("{} copy, {} to {}", "kind_name", "src", "dst")
    names = trace.strings(account.kernels["short_name_id"])
    parts = [
        account.kernels.select(
            *_SENT,
            operation=pl.col("short_name_id").replace_strict(
                names["id"], names["value"], default="(name not in the export)", return_dtype=pl.String
            ),
            colour=pl.lit("kernel"),
            operations=pl.col("counted").cast(pl.Int64),
        ),
        account.copies.select(
            *_SENT,
            "exposed_ns",
            operation=pair,
            colour=pl.col("kind_name"),
            bytes=pl.when("counted").then("bytes").otherwise(0),
            operations=pl.when("counted").then("copy_count").otherwise(0),
        ),
        _plain(in_window(work.memsets, window), "memset", "memset"),
        _plain(in_window(work.graphs, window), "CUDA graph", "kernel"),
        _migrations(in_window(work.migrations, window)),
    ]
    rows = pl.concat(parts, how="diagonal")
    start, end = owned(rows["from_ns"], rows["to_ns"])
    return rows.with_columns(
        busy_ns=pl.Series(end - start),
        operation_ns=took,
        device=pl.lit(account.number, pl.Int64),
    ).drop("from_ns", "to_ns")


_SENT = (
    *("call", "process", "thread", "path", "from_ns", "to_ns"),
    pl.col("api").cast(pl.String),
    (pl.col("path_by").cast(pl.String) == IN_TIME).alias("in_time"),
)


def _plain(rows: pl.DataFrame, operation: str, colour: str) -> pl.DataFrame:
    return rows.select(
        *_SENT, operation=pl.lit(operation), colour=pl.lit(colour), operations=pl.col("counted").cast(pl.Int64)
    )


def _migrations(rows: pl.DataFrame) -> pl.DataFrame:
    """Unified-memory migrations: no call sent them."""
    kind = pl.col("kind").replace_strict(schema.COPY_KINDS, default="Unified", return_dtype=pl.String)
    return rows.select(
        "process",
        "from_ns",
        "to_ns",
        *(pl.lit(None, t).alias(c) for c, t in (("call", pl.Int64), ("thread", pl.Int64), ("api", pl.String))),
        path=pl.lit(0, pl.Int64),
        in_time=pl.lit(False),
        operation=pl.format("{} migration", kind),
        colour=pl.lit("migration"),
        operations=pl.col("counted").cast(pl.Int64),
    )


def _waiting(
    work: Work, accounts: Sequence[DeviceAccount], low: int, high: int, operations: list[pl.DataFrame]
) -> pl.DataFrame:
    """The waiting calls of the threads that feed these devices: how long they held them, with the GPU idle or not."""
    calls = work.calls.filter(
        pl.col("waits")
        & pl.col("thread").is_in(_feeding(accounts).implode())
        & (pl.col("start_ns") < high)
        & (pl.col("end_ns") > low)
    )
    start, end = times(calls["start_ns"].clip(low, high)), times(calls["end_ns"].clip(low, high))
    idle = Intervals.span(low, high)
    for account in accounts:
        idle = idle - account.busy.everything
    first, last = owned(start, end)
    placed = attribute(calls, work.ranges)
    sent = pl.concat([o.select("call", "operation", "colour", "device") for o in operations] or [_NOTHING_SENT])
    sent = sent.drop_nulls("call").unique("call", keep="first", maintain_order=True)
    rows = calls.select("call", "process", "thread", pl.col("name").cast(pl.String).alias("api")).with_columns(
        path=placed["path"],
        in_time=placed["path_by"].cast(pl.String) == IN_TIME,
        blocked_ns=pl.Series(end - start),
        idle_ns=pl.Series(idle.covered(first, last)),
        calls=pl.lit(1, pl.Int64),
    )
    return rows.join(sent, on="call", how="left", maintain_order="left")


_NOTHING_SENT = pl.DataFrame(schema={"call": pl.Int64, "operation": pl.String, "colour": pl.String, "device": pl.Int64})


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
