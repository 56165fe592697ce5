"""Call stacks behind CUDA calls and CPU samples, as chains of functions. The one place where rules look at stacks."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import polars as pl

from nsysparse.joins.work import Work
from nsysparse.source import Trace

CHAIN = {"chain": pl.Int64, "depth": pl.Int64, "function": pl.String, "module": pl.String}
# Frames that say nothing of the program: the profiler's, the language's, the framework's plumbing.
PLUMBING = re.compile(
    r"^(0x|\[|cuda[A-Z]|cu[A-Z]|_?_?Py|_start$|__libc|start_thread|clone"
    r"|c10::|at::|std::|void c10::|torch::autograd::VariableType"
    r"|pybind11::|cfunction_|method_vectorcall|type_call|slot_tp|_Z|ggml_backend_cuda|ggml_backend_sched)"
)
PYTHON_METHOD = re.compile(r"^torch::autograd::THPVariable_(?!.*(?:_wrap|_get))([a-z]\w*)$")


def load_cuda_chains(trace: Trace, work: Work) -> pl.DataFrame:
    """Stacks of CUDA calls, leaf first, without the profiler's frames above the API.

    Returns:
        ``chain`` (as in ``work.calls.callchain``), ``depth``, ``function`` (without arguments), ``module`` (file name
        without folders). No rows when no stacks were recorded.
    """
    frames = _named(trace, "cuda_stacks")
    if not frames.height:
        return frames
    frames = frames.with_columns(chain=pl.col("chain") + _offset(frames, work))
    api = pl.col("function").str.contains(r"^(cuda|cu)[A-Z]")
    last_api = pl.col("depth").filter(api).max().over("chain")
    return frames.filter(pl.col("depth") > last_api.fill_null(-1)).select(CHAIN.keys())


def load_sample_chains(trace: Trace, samples: pl.Series) -> pl.DataFrame:
    """Stacks of some CPU samples, leaf first: columns as :func:`load_cuda_chains`, ``chain`` is the sample's id."""
    if not samples.len():
        return pl.DataFrame(schema=CHAIN)
    return _named(trace, "sample_stacks").filter(pl.col("chain").is_in(samples.implode()))


def _named(trace: Trace, table: str) -> pl.DataFrame:
    frames = trace.frame(table)
    if not frames.height:
        return pl.DataFrame(schema=CHAIN)
    functions = trace.strings(frames["symbol_id"]).with_columns(function=short_function(pl.col("value")))
    modules = trace.strings(frames["module_id"]).with_columns(module=pl.col("value").str.extract(r"([^/\\]*)$"))
    return (
        frames.join(functions.select("id", "function"), left_on="symbol_id", right_on="id", how="left")
        .join(modules.select("id", "module"), left_on="module_id", right_on="id", how="left")
        .with_columns(pl.col("function", "module").fill_null("[unknown]"))
        .sort("chain", "depth")
        .select(CHAIN.keys())
    )


def short_function(name: pl.Expr) -> pl.Expr:
    """A function's name without arguments, template arguments and lambdas."""
    plain = name.str.replace_all("(anonymous namespace)", "{anonymous}", literal=True)
    plain = plain.str.replace_all("operator()", "operator{}", literal=True)
    for _ in range(4):  # innermost angle brackets first
        plain = plain.str.replace_all(r"<[^<>]*>", "")
    return plain.str.replace(r"[\[(].*$", "").str.replace(r"::\{lambda.*$", "").str.strip_chars()


def _offset(frames: pl.DataFrame, work: Work) -> int:
    """What to add to a chain's id to get a call's: in some releases they are one apart.

    The API's own name is in its chain; the offset for which that holds most often is the right one.
    """
    calls = work.calls.filter(pl.col("callchain").is_not_null()).select("callchain", pl.col("name").cast(pl.String))
    calls = calls.unique("callchain", keep="first", maintain_order=True).head(2_000)
    known = frames.select("chain", name="function").unique()
    hits = [
        calls.with_columns(chain=pl.col("callchain") - offset).join(known, on=["chain", "name"], how="semi").height
        for offset in (0, 1, -1)
    ]
    return (0, 1, -1)[int(np.argmax(hits))]


def is_plumbing(function: str) -> bool:
    """Whether a frame belongs to the profiler, the language or a framework's inside."""
    return PLUMBING.match(function) is not None


def call_paths(ops: pl.DataFrame, chains: pl.DataFrame, at_most: int = 6) -> list[dict[str, Any]]:
    """The distinct ways in which the program reached some calls, the largest first.

    Args:
        ops: Columns ``callchain``, ``bytes``, ``copy_count``, ``in_call_ns``.
        chains: As :func:`load_cuda_chains` returns them.
        at_most: Number of paths.

    Returns:
        Dicts with ``functions`` (leaf first, plumbing left out; where nothing else is left, the Python method or the
        framework's frames), ``count``, ``bytes``, ``in_call_ns``.
    """
    wanted = ops.select(pl.col("callchain").drop_nulls().unique())
    if not wanted.height or not chains.height:
        return []
    mine = chains.join(wanted, left_on="chain", right_on="callchain", how="semi")
    texts = mine.group_by("chain", maintain_order=True).agg(pl.col("function"))
    shown = [_readable(f) for f in texts["function"].to_list()]  # distinct chains, not calls
    texts = texts.with_columns(pl.Series("text", [" < ".join(f) for f in shown], dtype=pl.String))
    table = (
        ops.join(texts.select("chain", "text"), left_on="callchain", right_on="chain", how="inner")
        .group_by("text")
        .agg(pl.col("copy_count").sum().alias("count"), pl.col("bytes").sum(), pl.col("in_call_ns").sum())
        .sort("bytes", "text", descending=[True, False])
    )
    return [
        {"functions": row["text"].split(" < "), **{k: row[k] for k in ("count", "bytes", "in_call_ns")}}
        for row in table.head(at_most).to_dicts()
    ]


def _readable(functions: list[str]) -> list[str]:
    method = next((m[1] for f in functions if (m := PYTHON_METHOD.match(f))), None)
    own = [f for f in functions if f and not is_plumbing(f) and not f.startswith("torch::")]
    lead = [f"tensor.{method}()"] if method else []
    return [*lead, *dict.fromkeys(own)] or functions[:3]


def split_paths(paths: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """How the paths part: the first functions in which they differ, with the number of calls under each.

    Returns:
        (text, count), largest first: the function that all share below the fork, then the two above it.
    """
    chains: list[tuple[list[str], int]] = [(list(p["functions"]), int(p["count"])) for p in paths]
    if not chains:
        return []
    shared = 0
    while all(len(f) > shared for f, _ in chains) and len({f[shared] for f, _ in chains}) == 1:
        shared += 1
    if len(chains) == 1 or shared >= min(len(f) for f, _ in chains):
        return [(" < ".join(f[:4]), n) for f, n in chains]
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
