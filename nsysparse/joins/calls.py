"""CUDA API calls, and the call behind each piece of GPU work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse import schema
from nsysparse.intervals import Times, times
from nsysparse.joins.order import count_codes
from nsysparse.lazy import cached_property
from nsysparse.nulls import filled
from nsysparse.shelf import Index

# What a function does, told by its name without suffixes: no column of an export says it.
FUNCTIONS = {
    "graph launch": r"^(cuda|cu)GraphLaunch$",
    "launch": r"^(cuda|cu)Launch(Kernel|Cooperative|Grid|$)",
    "copy": r"^(cuda|cu)(Memcpy|GraphicsMemcpy)",
    "memset": r"^(cuda|cu)Memset",
    "synchronize": r"^(cuda|cu)(Device|Thread|Ctx|Stream|Event)Synchronize$",
    "allocate": r"^(cuda(Malloc|Free|HostAlloc|Host(Unr|R)egister)"
    r"|cuMem(Alloc|Free|Create|Map|Unmap|Release|Host|SetAccess|Address(Reserve|Free)))",
    "begin capture": r"^(cuda|cu)StreamBeginCapture",
    "end capture": r"^(cuda|cu)StreamEndCapture$",
}
WORK = ("launch", "graph launch", "copy", "memset")
OTHER = "other"
DOES = pl.Enum([*FUNCTIONS, OTHER])
NO_ID = 0  # what has no correlation id
ROOM = 65_536  # ids that a table may have room for beyond those there are, however few these are

Ids = npt.NDArray[Any]


@dataclass(frozen=True)
class Recorded:
    """What is said of all calls that a recording holds.

    Attributes:
        calls: How many there are.
        with_stack: How many of them have a call stack.
        last_end_ns: When the last of them ended; 0 where there is none.
    """

    calls: int
    with_stack: int
    last_end_ns: int


@dataclass(frozen=True)
class Calls:
    """Every CUDA call once, by thread and start.

    Attributes:
        frame: ``start_ns``, ``end_ns``, ``name`` (without version suffix, an enumeration in the order of the alphabet),
            ``waits`` (the call blocks its thread), ``failed``, ``reversed`` (it ends before it starts; its end is set
            to its start), ``callchain``, and ``correlation`` while it is needed. A call's thread and number are told by
            its row, what it is for by its name: see :meth:`at`.
        threads: The threads that made calls, ascending.
        bounds: First row of each thread, then the number of rows.
        numbers: Numbers of the calls where these are a part of all; else a call's number is its row.
        of_all: What is said of all calls where not all are kept, see :attr:`recorded`.
    """

    frame: pl.DataFrame
    threads: Index
    bounds: Index
    numbers: pl.Series | None = None
    of_all: Recorded | None = None

    @property
    def height(self) -> int:
        """How many calls there are here."""
        return self.frame.height

    @property
    def recorded(self) -> Recorded:
        """All calls that the recording holds."""
        if self.of_all is not None:
            return self.of_all
        return Recorded(self.height, self.frame["callchain"].count(), int(self.end.max(initial=0)))

    def __getitem__(self, column: str) -> pl.Series:
        """A column of ``frame``."""
        return self.frame[column]

    @cached_property
    def start(self) -> Times:
        """Starts, ns."""
        return times(self.frame["start_ns"])

    @cached_property
    def end(self) -> Times:
        """Ends, ns."""
        return times(self.frame["end_ns"])

    @cached_property
    def _functions(self) -> pl.Series:
        """What is called by each word of the names: a key of FUNCTIONS or "other"."""
        does = pl.when(False).then(pl.lit(OTHER))
        for function, pattern in FUNCTIONS.items():
            does = does.when(pl.col("name").str.contains(pattern)).then(pl.lit(function))  # type: ignore[assignment]
        words = pl.DataFrame({"name": vocabulary(self["name"])})
        return words.select(does=does.otherwise(pl.lit(OTHER)).cast(DOES)).to_series()

    @cached_property
    def _named(self) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Number of each call's name."""
        return self["name"].to_physical().to_numpy()

    @cached_property
    def _done(self) -> npt.NDArray[np.uint8]:
        """Number in DOES of what is called by each name."""
        return self._functions.to_physical().to_numpy()

    def does(self, rows: Index | slice) -> npt.NDArray[np.uint8]:
        """What some calls are for, by their name: its number in DOES."""
        does: npt.NDArray[np.uint8] = self._done[self._named[rows]]
        return does

    @cached_property
    def _counts(self) -> Index:
        """How often each name was called."""
        return count_codes(self._named, self._functions.len())

    def _names_of(self, functions: tuple[str, ...]) -> npt.NDArray[np.bool_]:
        """The names that were called for one of these."""
        meant: npt.NDArray[np.bool_] = self._functions.cast(pl.String).is_in(functions).to_numpy() & (self._counts > 0)
        return meant

    def doing(self, *functions: str) -> pl.Series:
        """Whether each call is for one of these; see :meth:`does`."""
        meant = self._names_of(functions)
        return pl.Series("does", meant[self._named] if meant.any() else np.zeros(self.height, np.bool_))

    def number_doing(self, *functions: str) -> int:
        """How many calls are for one of these."""
        return int(self._counts[self._names_of(functions)].sum())

    @property
    def names(self) -> pl.Series:
        """The functions that were called, in the order of the alphabet."""
        return vocabulary(self["name"]).gather(np.flatnonzero(self._counts))

    def rows_of(self, thread: int) -> slice:
        """The rows of a thread's calls; where it made none, an empty slice at the place where they would be."""
        place = int(np.searchsorted(self.threads, thread))
        there = place < self.threads.size and self.threads[place] == thread
        return slice(int(self.bounds[place]), int(self.bounds[place + there]))

    def waiting(self, thread: int) -> Index:
        """The rows of a thread's calls that wait."""
        rows = self.rows_of(thread)
        waiting: Index = np.flatnonzero(self.frame["waits"][rows].to_numpy()) + rows.start
        return waiting

    def by_process(self) -> dict[int, slice]:
        """Where each process's calls lie: its threads are neighbours."""
        runs = pl.select(schema.process_of(pl.lit(pl.Series(self.threads)))).to_series().rle().struct.unnest()
        cuts = self.bounds[[0, *runs["len"].cum_sum()]]
        return {p: slice(low, high) for p, (low, high) in zip(runs["value"], pairwise(cuts.tolist()), strict=True)}

    def at(self, rows: Index | slice) -> pl.DataFrame:
        """Some calls: ``call`` (its number, Int32), the columns of ``frame``, ``does`` and ``thread``."""
        if isinstance(rows, slice):
            number = pl.int_range(rows.start, rows.stop, dtype=pl.Int32, eager=True)
            threads = np.repeat(self.threads, np.diff(self.bounds.clip(rows.start, rows.stop)))
        else:
            number = pl.Series(rows, dtype=pl.Int32)
            threads = self.threads[np.searchsorted(self.bounds, rows, side="right") - 1]
        if self.numbers is not None:
            number = self.numbers.gather(number)
        does = pl.lit(pl.Series("does", self.does(rows))).cat.to(DOES)
        return self.frame[rows].select(number.alias("call"), pl.all(), does, pl.Series("thread", threads))

    def of(self, *threads: int) -> pl.DataFrame:
        """The calls of one thread or of several, as :meth:`at` gives them."""
        parts = [self.at(self.rows_of(t)) for t in sorted(set(threads))]
        return parts[0] if len(parts) == 1 else pl.concat([self.at(slice(0, 0)), *parts], rechunk=False)

    def where(self, condition: pl.Expr | pl.Series) -> pl.DataFrame:
        """The calls for which a condition on the columns of ``frame`` holds, as :meth:`at` gives them."""
        return self.at(np.flatnonzero(self._holds(condition)))

    def times_of(self, calls: pl.Series) -> pl.DataFrame:
        """``call_start_ns`` and ``call_end_ns`` of some calls by their rows; NULL for NULL."""
        return self.frame.select(
            pl.col("start_ns").gather(calls).alias("call_start_ns"), pl.col("end_ns").gather(calls).alias("call_end_ns")
        )

    def whole(self) -> pl.DataFrame:
        """All calls, as :meth:`at` gives them."""
        return self.at(slice(0, self.height))

    def part(self, condition: pl.Expr | pl.Series) -> Calls:
        """The calls for which a condition holds, under the numbers they have."""
        rows = np.flatnonzero(self._holds(condition))
        number = pl.Series(rows, dtype=pl.Int32)
        return replace(
            self,
            frame=self.frame[rows],
            bounds=np.searchsorted(rows, self.bounds),
            numbers=number if self.numbers is None else self.numbers.gather(number),
        )

    def waiting_for(self, copies: pl.DataFrame) -> Calls:
        """The same calls with ``waits``: synchronizations, synchronous copies, copies from or to pageable memory.

        No column says whether a copy was asynchronous; an ``Async`` copy of pageable memory blocks all the same.

        Args:
            copies: ``src_kind``, ``dst_kind`` and ``call``.
        """
        pageable = (pl.col("src_kind") == schema.PAGEABLE) | (pl.col("dst_kind") == schema.PAGEABLE)
        sent = copies.filter(pageable)["call"].drop_nulls().to_numpy()
        synchronizing, copying = (self._names_of((function,)) for function in ("synchronize", "copy"))
        asynchronous = vocabulary(self["name"]).str.contains("Async").to_numpy()
        waits = (synchronizing | copying & ~asynchronous)[self._named]
        # A graph launch that holds a pageable copy does not wait for it: only a copy call does.
        waits[sent] = (synchronizing | copying)[self._named[sent]]
        return replace(self, frame=self.frame.with_columns(waits=pl.Series(waits)))

    def without_ids(self) -> Calls:
        """The same calls without ``correlation``, which is needed to find what they sent and what is missing."""
        return replace(self, frame=self.frame.drop("correlation", strict=False))

    def give_away(self) -> pl.DataFrame:
        """The columns, for whoever takes them out one by one: this object is empty then."""
        for view in ("start", "end", "_named", "_counts"):
            self.__dict__.pop(view, None)
        return self.frame

    def _holds(self, condition: pl.Expr | pl.Series) -> npt.NDArray[np.bool_]:
        holds: npt.NDArray[np.bool_] = self.frame.select(condition.fill_null(False)).to_series().to_numpy()
        return holds


def vocabulary(names: pl.Series) -> pl.Series:
    """The texts of an enumeration, in the order of their numbers."""
    words = names.dtype
    assert isinstance(words, pl.Enum)
    return words.categories


def dense(ids: Ids) -> bool:
    """Whether a table with a place for every number between the least and the greatest id is worth its memory."""
    return bool(int(ids.max()) - int(ids.min()) <= 8 * ids.size + ROOM)


def wide(ids: pl.Series) -> Ids:
    """Ids in a type in which the difference of two near ones has room; NO_ID for NULL."""
    return filled(ids if ids.dtype in (pl.Int32, pl.Int64) else ids.cast(pl.Int32), NO_ID)
