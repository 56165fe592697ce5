"""Every stack of a recording in one numbering: of CUDA calls, CPU samples, OS runtime calls and Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysparse import schema
from nsysparse.joins.api import load_calls
from nsysparse.joins.calls import Calls
from nsysparse.source import Trace
from nsysparse.stacks.chains import Chains, Codes, Index, Lists, chains_of, number_chains
from nsysparse.stacks.frames import FrameNumbers
from nsysparse.stacks.names import describe_native, describe_python
from nsysparse.stacks.payload import PythonStacks, read_python

NATIVE_SOURCES = ("cuda_stacks", "sample_stacks", "osrt_stacks")
OF_OS_CALLS, UNREADABLE = "stacks of OS runtime calls", "Python stacks that cannot be read"
PIECE = 500_000  # rows read at once: columns of that many stay in the processor's cache


@dataclass(frozen=True)
class Calibration:
    """How an API row's ``callchainId`` leads to its chain.

    Attributes:
        offset: Added to ``callchainId`` to get the chain's id.
        rows: API rows with a stack.
        matched: Those whose own name is in the chain that the offset leads to.
    """

    offset: int
    rows: int
    matched: int

    @property
    def sure(self) -> bool:
        """Whether anything confirmed the offset (nothing does where no API name was resolved)."""
        return self.matched > 0


@dataclass(frozen=True)
class Stacks:
    """All stacks; equal ones have one number.

    Attributes:
        frames: Distinct frames; the row is the frame's number: ``function``, ``place`` (module or source file),
            ``line``, ``kind``, ``role``, ``label``, ``name``; see :mod:`nsysparse.stacks.names`.
        stacks: Frames of each stack, root first.
        calls: ``chain`` (as ``callchain`` of a call holds it, calibrated) to ``stack``.
        samples: CPU samples: ``time_ns``, ``thread``, ``stack`` (-1: none), in order of time.
        osrt: The same of OS runtime calls.
        python: Python stacks: ``time_ns``, ``thread``, ``by``, ``stack``, in order of time.
        calibration: The offset of ``calls``.
        undecoded: Python events that could not be read.
    """

    frames: pl.DataFrame
    stacks: Lists
    calls: pl.DataFrame
    samples: pl.DataFrame
    osrt: pl.DataFrame
    python: pl.DataFrame
    calibration: Calibration
    undecoded: int

    def frame(self) -> pl.DataFrame:
        """The canonical frame, one row a frame of a stack.

        Returns:
            ``stack``, ``depth`` (0 is the leaf), ``function``, ``place``, ``line``, ``kind``; nothing is folded.
        """
        stack = self.stacks.owner()
        depth = self.stacks.length[stack] - 1 - self.stacks.place()
        rows = self.frames.select("function", "place", "line", "kind")[self.stacks.value]
        return pl.DataFrame({"stack": stack, "depth": depth}).hstack(rows).sort("stack", "depth")

    def recorded(self) -> dict[str, int]:
        """How much of each kind there is."""
        by_call = self.python["by"] == "backtrace"
        return {
            "stacks of CUDA calls": self.calls.height,
            "CPU samples": self.samples.height,
            OF_OS_CALLS: self.osrt.height,
            "Python stacks of CUDA calls": int(by_call.sum()),
            "Python samples": int((~by_call).sum()),
            UNREADABLE: self.undecoded,
        }


def load_stacks(trace: Trace, calls: Calls | None = None) -> Stacks:
    """Read and number every stack.

    Args:
        trace: The recording.
        calls: Its calls (see :func:`nsysparse.joins.api.load_calls`), where they have been read already.
    """
    calls = load_calls(trace) if calls is None else calls
    numbers = FrameNumbers()
    found: dict[str, tuple[Index, Index, Lists]] = {}
    for source in NATIVE_SOURCES:
        ids, chains = _read_chains(trace, source, numbers)
        found[source] = (ids, *number_chains(chains))
        del chains
    python = read_python(trace)
    frames = _frames(trace, numbers.keys, python, calls.names)
    python_stack, python_lists = _number_python(python, numbers.keys.height)
    lists = [*(stacks for _, _, stacks in found.values()), python_lists]
    first = dict(zip((*found, "python"), np.cumsum([0, *map(len, lists)]).tolist(), strict=False))
    stacks = _end_to_end(lists)
    tables = {
        source: pl.DataFrame({"chain": ids, "stack": number + first[source]})
        for source, (ids, number, _) in found.items()
    }
    calibration = calibrate_cuda(calls, tables["cuda_stacks"], stacks, frames)
    of_osrt = calibrate_osrt(trace, tables["osrt_stacks"], stacks, frames)
    return Stacks(
        frames,
        stacks,
        tables["cuda_stacks"].with_columns(pl.col("chain") - calibration.offset),
        _samples(trace, tables["sample_stacks"]),
        tables["osrt_stacks"].with_columns(pl.col("chain") - of_osrt.offset).filter(pl.col("chain") != 0),
        python.events.with_columns(stack=pl.Series(python_stack + first["python"], dtype=pl.Int64)),
        calibration,
        python.undecoded,
    )


def _read_chains(trace: Trace, source: str, numbers: FrameNumbers) -> tuple[Index, Lists]:
    """Ids of one table's chains and their frames, leaf first, read piece by piece."""
    chains = Chains()
    for rows in _pieces(trace, source, numbers):
        if not chains.add(*rows):
            break
    else:
        return chains.finish()
    parts = list(_pieces(trace, source, numbers))  # out of order, as only other tools leave it: all at once
    return chains_of(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _pieces(trace: Trace, source: str, numbers: FrameNumbers) -> Iterator[tuple[Index, Codes, Codes]]:
    """Chain, depth and frame of each row: there may be 100 million of samples."""
    for piece in trace.chunks(source, PIECE):
        piece = piece.drop_nulls(["chain", "depth"])
        yield piece["chain"].to_numpy(), piece["depth"].cast(pl.Int32).to_numpy(), numbers.of(piece)


def _frames(trace: Trace, keys: pl.DataFrame, python: PythonStacks, api: pl.Series) -> pl.DataFrame:
    """Describe all frames, native ones first."""
    strings = trace.strings(pl.concat([keys["symbol_id"], keys["module_id"]]))
    native = keys
    for column in ("symbol", "module"):
        native = native.join(
            strings.rename({"value": column}),
            left_on=f"{column}_id",
            right_on="id",
            how="left",
            maintain_order="left",
        )
    return pl.concat([describe_native(native, set(api.to_list())), describe_python(python.table)])


def _number_python(python: PythonStacks, first_frame: int) -> tuple[Index, Lists]:
    lists = python.frames
    frame = (lists.value + first_frame).astype(np.int32)
    return number_chains(Lists(lists.start, frame))


def _end_to_end(parts: list[Lists]) -> Lists:
    return Lists.of_lengths(
        np.concatenate([p.length for p in parts]), np.concatenate([p.value for p in parts]).astype(np.int32)
    )


def _samples(trace: Trace, chains: pl.DataFrame) -> pl.DataFrame:
    rows = trace.frame("samples")
    trace.release("samples")
    return (
        rows.drop_nulls(["time_ns", "thread"])
        .join(chains, left_on="sample", right_on="chain", how="left", maintain_order="left")
        .select("time_ns", "thread", pl.col("stack").fill_null(-1))
        .sort("time_ns", "thread", maintain_order=True)
    )


def calibrate_cuda(calls: Calls, chains: pl.DataFrame, stacks: Lists, frames: pl.DataFrame) -> Calibration:
    """The offset of CUDA calls' stacks; see :func:`calibrate`."""
    rows = calls.frame.filter(pl.col("callchain").is_not_null()).select(
        pl.col("callchain").cast(pl.Int64), pl.col("name").cast(pl.String)
    )
    called = pl.when(pl.col("role") == "api").then(schema.normalized_api_name(pl.col("function")))
    return calibrate(rows, chains, stacks, frames.select(called.alias("name"))["name"])


def calibrate_osrt(trace: Trace, chains: pl.DataFrame, stacks: Lists, frames: pl.DataFrame) -> Calibration:
    """The offset of OS runtime calls' stacks; there 0 says that none was taken."""
    rows = trace.frame("osrt").filter(pl.col("callchain") > 0).select("callchain", "name_id")
    names = trace.strings(rows["name_id"]).select(name_id="id", name="value")
    rows = rows.join(names, on="name_id", how="left", maintain_order="left").select("callchain", "name")
    called = pl.when(pl.col("function").is_in(names["name"].implode())).then("function")
    return calibrate(rows, chains, stacks, frames.select(called.alias("name"))["name"])


def calibrate(rows: pl.DataFrame, chains: pl.DataFrame, stacks: Lists, called: pl.Series) -> Calibration:
    """Find the offset from ``callchainId`` to the chain's id: the call's name must be in its own chain.

    Releases differ (equal in 2025.3, one less in 2022.2), and nothing in an export says which it is.

    Args:
        rows: ``callchain`` and ``name`` of each call with a stack.
        chains: ``chain`` (the table's own id) to ``stack``.
        stacks: Frames of each stack.
        called: Name of the call that each frame is, NULL where it is none.
    """
    if not rows.height or not chains.height:
        return Calibration(0, rows.height, 0)
    held = stacks.where(stacks.each(called.is_not_null().to_numpy()))
    names_in = pl.DataFrame({"stack": held.owner(), "name": called.gather(held.value)})
    names_in = chains.join(names_in, on="stack").select("chain", "name").unique()
    counted = rows.group_by("callchain", "name").len()
    best = Calibration(0, rows.height, 0)
    for offset in (0, 1, -1):  # the first of equals wins
        moved = counted.with_columns(pl.col("callchain") + offset)
        matched = moved.join(names_in, left_on=["callchain", "name"], right_on=["chain", "name"])["len"].sum()
        if matched > best.matched:
            best = Calibration(offset, rows.height, int(matched))
    return best
