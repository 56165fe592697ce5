"""What each copy is for. Every copy has one role, so that no two rules price the same copy.

Roles, the first that fits:

* ``loading``: to the device, in the leading phase that loads a model;
* ``scalar``: a few bytes to the host;
* ``save``: recurring bursts of a megabyte or more to the host that are state rather than results;
* ``reload``: to the device, of what was saved;
* ``weights``: the same sequence of sizes to the device, over and over;
* ``small``: runs of small copies in one direction;
* ``input``, ``output``: other recurring copies between host and device whose call waits;
* ``async``: other recurring copies between host and device whose call does not wait;
* ``device``: within a device or between devices;
* ``once``: what does not recur.

A trace shows sizes and senders, not meanings. Where several roles are possible, names decide (NVTX path and call path),
and where these say nothing, what is usual.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from nsysparse.accounting.copies import HOST_KINDS
from nsysparse.intervals import Intervals
from nsysparse.rules import _periods

if TYPE_CHECKING:
    from nsysparse.rules._scene import Scene

RECURS_IN = 3  # tenths of the device's operations in which something must be seen to be part of its loop
GROUP = ("kind_name", "src", "dst", "path")
TO_DEVICE, TO_HOST = ("HtoD", "HtoA"), ("DtoH", "AtoH")
STATE = re.compile(
    r"(?i)state|cache|(^|[^a-z])kv|offload|checkpoint|swap|evict|spill|snapshot|save|restore|reload|seq_get|seq_set"
)
RESULT = re.compile(r"(?i)to_host|result|output|logit|fetch|predict|response|sample|postproc")
WEIGHTS = re.compile(r"(?i)weight|param|layer|table|embed|offload|stream")
NEAR_RANGES, NEAR_FUNCTIONS = 2, 4
LIBRARY = re.compile(r"cupy|libtorch|libc10|^(at|c10|torch|xla|std)::|libpython|^_?Py[A-Z_]|^cu(da)?[A-Z]|numpy|jaxlib")
RESULTS_PER_INPUT = 4  # times the bytes that came in, from which unnamed blocks to the host are state
DISTINCT = 3  # sizes that must come back before unnamed copies to the device are a reload
LAYERS = 8  # equal copies a burst, out and in, from which blocks of one size are a cache's layers
DOMINATES = 2  # times the kernels' time, from which equal large copies are no batch that a step works on
MANY_EQUAL = 16  # equal copies a request that are a model's layers even if nothing names them


def assign_roles(copies: pl.DataFrame, scene: Scene) -> pl.DataFrame:
    """Add ``role`` to the copies of a window (columns as ``scene.copies`` has them before)."""
    kind = pl.col("kind_name")
    host = kind.is_in(list(HOST_KINDS))
    loading = kind.is_in(TO_DEVICE) & (pl.col("end_ns") <= scene.loading_end_ns) & (scene.account.loading is not None)
    scalar = kind.is_in(TO_HOST) & pl.col("direct") & (pl.col("bytes") <= scene.settings["scalar_readback.max_bytes"])
    copies = copies.with_columns(
        role=pl.when(loading)
        .then(pl.lit("loading"))
        .when(scalar)
        .then(pl.lit("scalar"))
        .when(~host)
        .then(pl.lit("device"))
    )
    copies = _mark_saves(copies, scene)
    copies = _mark_weights(copies, scene)
    return _mark_rest(_mark_small(copies, scene))


def names_of(copies: pl.DataFrame, scene: Scene) -> str:
    """Innermost NVTX ranges of some copies and the nearest functions in their stacks: one text to search.

    Only what is near says what a copy is for; the name of a program or its file does not, nor do those of libraries.
    """
    paths = scene.account.paths.filter((pl.col("path") > 0) & pl.col("path").is_in(copies["path"].implode()))
    ranges = ["/".join(str(t).split("/")[-NEAR_RANGES:]) for t in paths["text"].to_list()]
    functions = scene.recording.call_stacks.own_functions(copies["call"], NEAR_FUNCTIONS)
    own = (f.partition(" (")[0] for f in functions if not LIBRARY.search(f))
    return "\n".join([*ranges, *own])


def _mark(copies: pl.DataFrame, groups: list[tuple[object, ...]], role: str) -> pl.DataFrame:
    if not groups:
        return copies
    chosen = pl.DataFrame(groups, schema={c: copies.schema[c] for c in GROUP}, orient="row").with_columns(
        chosen=pl.lit(True)
    )
    return (
        copies.join(chosen, on=GROUP, how="left", maintain_order="left", nulls_equal=True)
        .with_columns(role=pl.when(pl.col("role").is_null() & pl.col("chosen")).then(pl.lit(role)).otherwise("role"))
        .drop("chosen")
    )


def _mark_saves(copies: pl.DataFrame, scene: Scene) -> pl.DataFrame:
    """Saved state, and what brings it back."""
    unmarked = pl.col("role").is_null()
    back, into = (copies.filter(unmarked & pl.col("kind_name").is_in(kinds)) for kinds in (TO_HOST, TO_DEVICE))
    blocks = _blocks(back, scene)
    if not blocks.height:  # then nothing is saved, and nothing comes back
        return copies
    came_in = int(into["bytes"].sum())
    returning = set(back["bytes"].unique()) & set(into["bytes"].unique())
    returning = {b for b in returning if b >= scene.settings["streamed_weights.copy_bytes"]}
    layers = _layer_sizes(back) & _layer_sizes(into)
    saves = [
        key
        for key, group in back.join(blocks, on=GROUP, how="semi", nulls_equal=True).group_by(GROUP, maintain_order=True)
        if layers & set(group["bytes"].unique()) or _is_state(group, scene, came_in, len(returning))
    ]
    copies = _mark(copies, saves, "save")
    saved = copies.filter(pl.col("role") == "save")["bytes"].unique()
    reloads = []
    for key, group in into.group_by(GROUP, maintain_order=True):
        known = group.filter(pl.col("bytes").is_in(saved.implode()))
        mostly = int(known["bytes"].sum()) >= 0.9 * int(group["bytes"].sum()) and known.height >= 2
        several = known["bytes"].n_unique() >= DISTINCT or bool(layers & set(known["bytes"].unique()))
        if mostly and (several or STATE.search(names_of(group, scene))):
            reloads.append(key)
    return _mark(copies, reloads, "reload")


def _layer_sizes(copies: pl.DataFrame) -> set[int]:
    """Sizes that come in bursts of at least LAYERS equal copies."""
    runs = copies.drop_nulls("burst").group_by("burst", "bytes").len()
    return set(runs.filter(pl.col("len") >= LAYERS)["bytes"].unique())


def _blocks(copies: pl.DataFrame, scene: Scene) -> pl.DataFrame:
    """The groups that recur in bursts that are large: GROUP."""
    bursts = copies.group_by(*GROUP, key=pl.coalesce("burst", -pl.col("start_ns"))).agg(
        pl.col("bytes").sum(), pl.col("decile").first()
    )
    groups = bursts.group_by(GROUP).agg(pl.col("bytes").cast(pl.Float64).median(), pl.col("decile").n_unique())
    large = pl.col("bytes") >= scene.settings["state_offload.burst_bytes"]
    return groups.filter(large & (pl.col("decile") >= RECURS_IN)).select(GROUP)


def _is_state(group: pl.DataFrame, scene: Scene, came_in: int, returning: int) -> bool:
    """Whether blocks to the host are state: by name, else because they come back, or are far more than came in."""
    names = names_of(group, scene)
    if STATE.search(names):
        return True
    if RESULT.search(names):
        return False
    if returning >= DISTINCT:
        return True
    return bool(group["waits"].any()) and int(group["bytes"].sum()) >= RESULTS_PER_INPUT * came_in


def _mark_weights(copies: pl.DataFrame, scene: Scene) -> pl.DataFrame:
    """The same sequence of sizes, again and again, too large and too many to be a step's input."""
    s = scene.settings
    open_ = (
        pl.col("role").is_null()
        & pl.col("kind_name").is_in(TO_DEVICE)
        & pl.col("direct")
        & (pl.col("bytes") >= s["streamed_weights.copy_bytes"])
    )
    candidates = copies.filter(open_).sort("call_start_ns", "start_ns")
    if candidates["decile"].n_unique() < RECURS_IN:
        return copies
    period = _periods.find_period(candidates["bytes"].to_numpy())
    equal = period == 1
    if scene.requests and scene.account.requests and scene.account.requests.frame is not None:
        period = max(period, round(candidates.height / scene.requests))
    moved = int(candidates["bytes"].head(period).sum()) if period else 0
    several = period >= s["streamed_weights.copies_per_step"] and moved >= s["streamed_weights.step_bytes"]
    table = equal and moved >= max(period, 1) * s["streamed_weights.table_bytes"]
    if candidates.height < 3 * period or not (several or table):
        return copies
    named = WEIGHTS.search(names_of(candidates, scene)) is not None
    several = several and (named or not equal or period >= MANY_EQUAL)
    took = Intervals.union_of(candidates["from_ns"], candidates["to_ns"]).length
    waited = bool(candidates["waits"].any())  # then it is an input, and pageable_copies prices it
    alone = table and (named or (not waited and took >= DOMINATES * scene.account.busy.compute.length))
    if not (several or alone):
        return copies
    return copies.with_columns(role=pl.when(open_).then(pl.lit("weights")).otherwise("role"))


def _mark_small(copies: pl.DataFrame, scene: Scene) -> pl.DataFrame:
    """Runs of small copies of one direction that recur."""
    s = scene.settings
    small = pl.col("role").is_null() & pl.col("direct") & (pl.col("bytes") <= s["small_copies.max_bytes"])
    runs = copies.filter(small).filter(pl.len().over("burst") >= s["small_copies.run"])
    if runs["decile"].n_unique() < RECURS_IN:
        return copies
    return copies.with_columns(
        role=pl.when(small & pl.col("burst").is_in(runs["burst"].unique().implode()))
        .then(pl.lit("small"))
        .otherwise("role")
    )


def _mark_rest(copies: pl.DataFrame) -> pl.DataFrame:
    again = (pl.col("decile").n_unique() >= RECURS_IN).over(GROUP)
    rest = (
        pl.when(~again)
        .then(pl.lit("once"))
        .when(pl.col("waits") & pl.col("kind_name").is_in(TO_DEVICE))
        .then(pl.lit("input"))
        .when(pl.col("waits"))
        .then(pl.lit("output"))
        .otherwise(pl.lit("async"))
    )
    return copies.with_columns(role=pl.coalesce("role", rest))
