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
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.accounting.grouping import number_rows
from nsysparse.intervals import Index, Intervals
from nsysparse.nulls import filled, given
from nsysparse.rules import _periods

if TYPE_CHECKING:
    from nsysparse.rules._scene import Scene

DECILES = 10
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


ROLES = ("loading", "scalar", "device", "save", "reload", "weights", "small", "once", "input", "output", "async")
CODE = {role: code for code, role in enumerate(ROLES)}
NONE = -1  # no role yet
Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int8]


@dataclass
class _Copies:
    """Copies on the way to their roles.

    Attributes:
        frame: Their columns, as ``scene.copies`` has them before.
        role: Place of each one's role in ROLES, or NONE.
        into, out: Whether they go to the device, or to the host.
    """

    frame: pl.DataFrame
    role: Codes
    into: Bools
    out: Bools

    def open(self, chosen: Bools) -> Index:
        """Rows of such copies that have no role yet."""
        return np.flatnonzero((self.role == NONE) & chosen)


def assign_roles(copies: pl.DataFrame, scene: Scene) -> pl.Series:
    """``role`` of the copies of a window (columns as ``scene.copies`` has them before)."""
    kind, size = copies["kind_name"], copies["bytes"]
    into, out = (((kind == a) | (kind == b)).to_numpy() for a, b in (TO_DEVICE, TO_HOST))
    role = np.full(copies.height, NONE, np.int8)
    role[~(into | out)] = CODE["device"]
    most = scene.settings["scalar_readback.max_bytes"]
    role[out & copies["direct"].to_numpy() & given(size) & (filled(size) <= most)] = CODE["scalar"]
    if scene.account.loading is not None:
        role[into & (copies["end_ns"].to_numpy() <= scene.loading_end_ns)] = CODE["loading"]
    marked = _Copies(copies, role, into, out)
    _mark_saves(marked, scene)
    _mark_weights(marked, scene)
    _mark_small(marked, scene)
    _mark_rest(marked)
    return pl.Series("role", ROLES, pl.Enum(ROLES))[marked.role.astype(np.int64)]


def names_of(copies: pl.DataFrame, scene: Scene) -> str:
    """Innermost NVTX ranges of some copies and the nearest functions in their stacks: one text to search.

    Only what is near says what a copy is for; the name of a program or its file does not, nor do those of libraries.
    """
    paths = scene.account.paths.filter((pl.col("path") > 0) & pl.col("path").is_in(copies["path"].implode()))
    ranges = ["/".join(str(t).split("/")[-NEAR_RANGES:]) for t in paths["text"].to_list()]
    functions = scene.recording.call_stacks.own_functions(copies["call"], NEAR_FUNCTIONS)
    own = (f.partition(" (")[0] for f in functions if not LIBRARY.search(f))
    return "\n".join([*ranges, *own])


def _mark(copies: _Copies, rows: Index, groups: list[tuple[object, ...]], role: str) -> None:
    """Give a role to those of some rows that are in some groups."""
    if not groups:
        return
    part = copies.frame.select(GROUP)[rows]
    chosen = pl.DataFrame(groups, schema={c: part.schema[c] for c in GROUP}, orient="row")
    mine = part.with_row_index("row").join(chosen, on=GROUP, how="semi", nulls_equal=True)
    copies.role[rows[mine["row"].to_numpy()]] = CODE[role]


def _mark_saves(copies: _Copies, scene: Scene) -> None:
    """Saved state, and what brings it back."""
    outgoing, incoming = copies.open(copies.out), copies.open(copies.into)
    size = filled(copies.frame["bytes"])
    if not outgoing.size or size[outgoing].sum() < scene.settings["state_offload.burst_bytes"]:  # nor a block of them
        return
    looked_at = copies.frame.select(*GROUP, "start_ns", "bytes", "call", "burst", "decile", "waits")
    back, into = looked_at[outgoing], looked_at[incoming]
    blocks = _blocks(back, scene)
    if not blocks.height:  # then nothing is saved, and nothing comes back
        return
    came_in = int(into["bytes"].sum())
    returning = set(back["bytes"].unique()) & set(into["bytes"].unique())
    returning = {b for b in returning if b >= scene.settings["streamed_weights.copy_bytes"]}
    layers = _layer_sizes(back) & _layer_sizes(into)
    saves = [
        key
        for key, group in back.join(blocks, on=GROUP, how="semi", nulls_equal=True).group_by(GROUP, maintain_order=True)
        if layers & set(group["bytes"].unique()) or _is_state(group, scene, came_in, len(returning))
    ]
    _mark(copies, outgoing, saves, "save")
    saved = copies.frame["bytes"][np.flatnonzero(copies.role == CODE["save"])].unique()
    reloads = []
    for key, group in into.group_by(GROUP, maintain_order=True):
        known = group.filter(pl.col("bytes").is_in(saved.implode()))
        mostly = int(known["bytes"].sum()) >= 0.9 * int(group["bytes"].sum()) and known.height >= 2
        several = known["bytes"].n_unique() >= DISTINCT or bool(layers & set(known["bytes"].unique()))
        if mostly and (several or STATE.search(names_of(group, scene))):
            reloads.append(key)
    _mark(copies, incoming, reloads, "reload")


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


def _mark_weights(copies: _Copies, scene: Scene) -> None:
    """The same sequence of sizes, again and again, too large and too many to be a step's input."""
    s, frame = scene.settings, copies.frame
    large = given(frame["bytes"]) & (filled(frame["bytes"]) >= s["streamed_weights.copy_bytes"])
    rows = copies.open(copies.into & frame["direct"].to_numpy() & large)
    if np.unique(frame["decile"].to_numpy()[rows]).size < RECURS_IN:
        return
    columns = ("call_start_ns", "start_ns", "bytes", "path", "call", "from_ns", "to_ns", "waits")
    candidates = frame.select(columns)[rows].sort("call_start_ns", "start_ns")
    period = _periods.find_period(candidates["bytes"].to_numpy())
    equal = period == 1
    if scene.requests and scene.account.requests and scene.account.requests.frame is not None:
        period = max(period, round(candidates.height / scene.requests))
    moved = int(candidates["bytes"].head(period).sum()) if period else 0
    several = period >= s["streamed_weights.copies_per_step"] and moved >= s["streamed_weights.step_bytes"]
    table = equal and moved >= max(period, 1) * s["streamed_weights.table_bytes"]
    if candidates.height < 3 * period or not (several or table):
        return
    named = WEIGHTS.search(names_of(candidates, scene)) is not None
    several = several and (named or not equal or period >= MANY_EQUAL)
    took = Intervals.union_of(candidates["from_ns"], candidates["to_ns"]).length
    waited = bool(candidates["waits"].any())  # then it is an input, and pageable_copies prices it
    alone = table and (named or (not waited and took >= DOMINATES * scene.account.busy.compute.length))
    if several or alone:
        copies.role[rows] = CODE["weights"]


def _mark_small(copies: _Copies, scene: Scene) -> None:
    """Runs of small copies of one direction that recur."""
    s, frame = scene.settings, copies.frame
    small = given(frame["bytes"]) & (filled(frame["bytes"]) <= s["small_copies.max_bytes"])
    rows = copies.open(frame["direct"].to_numpy() & small)
    burst = filled(frame["burst"], NONE)[rows]
    _, number, count = np.unique(burst, return_inverse=True, return_counts=True)
    runs = count[number] >= s["small_copies.run"]
    if np.unique(frame["decile"].to_numpy()[rows[runs]]).size >= RECURS_IN:
        copies.role[rows[runs & (burst != NONE)]] = CODE["small"]


def _mark_rest(copies: _Copies) -> None:
    """What recurs by whether its call waits, and what does not."""
    number, first = number_rows(copies.frame, GROUP)
    seen = np.zeros((first.size, DECILES + 1), np.bool_)  # groups by tenths
    seen[number, copies.frame["decile"].to_numpy()] = True
    again = np.count_nonzero(seen, axis=1)[number] >= RECURS_IN
    waits = copies.frame["waits"].to_numpy()
    rest = np.where(waits, np.where(copies.into, CODE["input"], CODE["output"]), CODE["async"])
    rest = np.where(again, rest, CODE["once"])
    copies.role = np.where(copies.role == NONE, rest, copies.role).astype(np.int8)
