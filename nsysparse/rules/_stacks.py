"""Call stacks as the rules look at them: the program's own functions behind its calls and in its CPU samples."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import polars as pl

from nsysparse.lazy import cached_property
from nsysparse.stacks.attribution import Attributed
from nsysparse.stacks.load import Stacks

# Functions that say nothing of the program though they are code: the frameworks' insides, the standard library's.
INSIDE = re.compile(r"^\[|^(at|c10|std|pybind11|torch)::|^ggml_backend_(cuda|sched)|^<module>|\(unresolved\)$|^_?_?Py")
NO_NAME = re.compile(r"^\[|^(cuda|cu)[A-Z]|\(unresolved\)$|^\(")  # says less than nothing at all
PYTHON_METHOD = re.compile(r"^torch::autograd::THPVariable_([a-z]\w*)$")
SHOWN = 4  # functions of a path in a sentence


class CallStacks:
    """Stacks of a recording; where they cannot be read, whoever asks for them gets the error."""

    def __init__(self, attributed: Attributed) -> None:
        self._attributed = attributed
        self._mentioned: dict[str, bool] = {}

    @property
    def stacks(self) -> Stacks:
        """Every stack of the recording."""
        return self._attributed.stacks

    @property
    def by_call(self) -> pl.DataFrame:
        """``call``, ``native`` and ``python`` (numbers of stacks, -1: none) of calls that sent work or wait."""
        return self._attributed.behind.select("call", "native", "python")

    @property
    def of_calls(self) -> int:
        """Number of CUDA calls' stacks that were recorded."""
        return self.stacks.calls.height

    @cached_property
    def _frames(self) -> pl.DataFrame:
        """Distinct frames: ``function`` (as one recording's is matched with another's), ``shown``, ``own``."""
        own = (pl.col("role") == "code") & ~pl.col("name").str.contains(INSIDE.pattern)
        return self.stacks.frames.select(
            function="name", shown=pl.when(pl.col("kind") == "python").then("label").otherwise("name"), own=own
        )

    @cached_property
    def _frame_names(self) -> pl.Series:
        """Names and places of all frames, once."""
        frames = self.stacks.frames
        return pl.concat([frames["name"], frames["place"].fill_null("")]).unique()

    def mention(self, pattern: str) -> bool:
        """Whether the name or place of any frame matches a regular expression; looked up once for all devices."""
        if pattern not in self._mentioned:
            self._mentioned[pattern] = self._frame_names.str.contains(pattern).any()
        return self._mentioned[pattern]

    def functions(self, numbers: pl.Series) -> pl.DataFrame:
        """Frames of some stacks, leaf first: ``stack``, ``depth``, ``function``, ``shown``, ``own``."""
        rows = numbers.filter(numbers >= 0).unique().sort()
        lists = self.stacks.stacks.take(rows.to_numpy())
        owner = lists.owner()
        depth = lists.length[owner] - 1 - lists.place()
        where = pl.DataFrame({"stack": rows.to_numpy()[owner], "depth": depth})
        return where.hstack(self._frames[np.asarray(lists.value)]).sort("stack", "depth")

    def own_functions(self, calls: pl.Series, nearest: int | None = None) -> list[str]:
        """The program's own functions in the stacks of some calls, once each, by name.

        Args:
            calls: Numbers of the calls.
            nearest: Only so many of each stack, from the leaf on; None for all.
        """
        mine = self.by_call
        if mine.height:
            mine = mine.filter(pl.col("call").is_in(calls.drop_nulls().implode()))
        frames = self.functions(pl.concat([mine["native"], mine["python"]])).filter("own")
        if nearest is not None:
            frames = frames.filter(pl.int_range(pl.len()).over("stack") < nearest)
        return sorted(set(frames["function"].to_list()))

    def paths(self, ops: pl.DataFrame) -> list[dict[str, Any]]:
        """The distinct ways in which the program reached some calls, the largest first.

        Args:
            ops: Columns ``call``, ``bytes``, ``copy_count``, ``in_call_ns``.

        Returns:
            Dicts with ``functions`` (leaf first: the Python method, then Python functions, or else native ones),
            ``count``, ``bytes``, ``in_call_ns``.
        """
        if not self.by_call.height:
            return []
        sent = ops.select("call", "bytes", "copy_count", "in_call_ns").join(self.by_call, on="call", how="inner")
        sent = sent.filter((pl.col("native") >= 0) | (pl.col("python") >= 0))
        if not sent.height:
            return []
        frames = self.functions(pl.concat([sent["native"], sent["python"]]))
        parts = frames.partition_by("stack", as_dict=True)
        nothing = frames.head(0)
        pairs = sent.select("native", "python").unique()
        shown = [  # distinct stacks, not calls
            " < ".join(_readable(parts.get((n,), nothing), parts.get((p,), nothing))) for n, p in pairs.iter_rows()
        ]
        table = (
            sent.join(pairs.with_columns(text=pl.Series(shown, dtype=pl.String)), on=["native", "python"])
            .group_by("text")
            .agg(pl.col("copy_count").sum().alias("count"), pl.col("bytes").sum(), pl.col("in_call_ns").sum())
            .sort("bytes", "text", descending=[True, False])
        )
        table = table.filter(pl.col("text") != "")
        return [
            {"functions": row["text"].split(" < "), **{k: row[k] for k in ("count", "bytes", "in_call_ns")}}
            for row in table.to_dicts()
        ]


def _readable(native: pl.DataFrame, python: pl.DataFrame) -> list[str]:
    """A path in a few words: what a person would name, leaf first."""
    names = native["function"].to_list()
    method = next((m[1] for f in names if (m := PYTHON_METHOD.match(f))), None)
    lead = [f"tensor.{method}()"] if method else []
    own = (python if python.height else native).filter("own")["shown"].to_list()
    return [*lead, *dict.fromkeys(own)] or [f for f in names if not NO_NAME.search(f)][:3]


def split_paths(paths: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """How the paths part: the first functions in which they differ, with the number of calls under each.

    Returns:
        (text, count), largest first: of each branch the first function and the one above it.
    """
    chains = [(list(p["functions"]), int(p["count"])) for p in paths]
    if not chains:
        return []
    shared = 0
    while all(len(f) > shared for f, _ in chains) and len({f[shared] for f, _ in chains}) == 1:
        shared += 1
    if len(chains) == 1 or shared >= min(len(f) for f, _ in chains):
        return [(" < ".join(f[:SHOWN]), n) for f, n in chains]
    found: dict[str, tuple[list[list[str]], int]] = {}
    for functions, n in chains:
        known, total = found.get(functions[shared], ([], 0))
        found[functions[shared]] = ([*known, functions[shared:]], total + n)
    texts = []
    for heads, total in found.values():
        above = 0
        while above < 2 and all(len(h) > above for h in heads) and len({h[above] for h in heads}) == 1:
            above += 1
        texts.append((" < ".join(heads[0][:above]), total))
    return sorted(texts, key=lambda t: (-t[1], t[0]))
