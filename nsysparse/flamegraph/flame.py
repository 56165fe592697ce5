"""A recording as weighed paths of labels: process, thread, NVTX, Python, native code, API, device, operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from nsysparse import schema
from nsysparse.accounting.callpaths import KEY, NO_CALL, WEIGHTS, Weighed, Weight, weigh
from nsysparse.accounting.device import DeviceAccount
from nsysparse.accounting.host import thread_names
from nsysparse.flamegraph.tree import add_rows, path_order
from nsysparse.intervals import Times
from nsysparse.joins.calls import FUNCTIONS
from nsysparse.joins.ranges import Ranges
from nsysparse.joins.work import Work
from nsysparse.source import Trace
from nsysparse.stacks.attribution import Attributed, measure_stacks
from nsysparse.stacks.chains import Codes, Lists, distinct_lists, joined
from nsysparse.stacks.folding import Folded, fold
from nsysparse.stacks.load import OF_OS_CALLS, UNREADABLE, Stacks

LEVELS = ("process", "thread", "nvtx", "python", "native", "api", "device", "operation")
IN_TIME_LABEL = "(placed by time)"
_CALL_COLOURS = {"synchronize": "sync", "copy": "copy call", "memset": "memset", "allocate": "allocate"}


@dataclass(frozen=True)
class Flame:
    """What every format shows.

    Attributes:
        name: The recording's file.
        labels: The label's number is its row: ``text``, ``level`` (a number of LEVELS), ``colour``, ``detail``.
        paths: Distinct paths of labels, root first, none empty.
        values: Weights of each path (paths x weights), exact integers.
        weights: The columns; those of which there is nothing are left out.
        absent: Titles of the weights left out.
        window: Start and end, ns, of the earliest and the latest device's window.
        window_ns: Length of the devices' windows, added: what time weights are shares of.
        basis: Where the window comes from.
        requests: Requests in the window, where something says what they are.
        coverage: See :func:`nsysparse.stacks.attribution.measure_stacks`.
        stacks: How many stacks of each kind there are.
    """

    name: str
    labels: pl.DataFrame
    paths: Lists
    values: Times
    weights: tuple[Weight, ...]
    absent: tuple[str, ...]
    window: tuple[int, int]
    window_ns: int
    basis: str
    requests: int | None
    coverage: pl.DataFrame
    stacks: dict[str, int]

    @property
    def says_who_asked(self) -> bool:
        """Whether there are stacks of CUDA calls, samples or Python stacks; those of OS runtime calls do not say it."""
        return any(n for kind, n in self.stacks.items() if kind not in {OF_OS_CALLS, UNREADABLE})

    @property
    def unreadable(self) -> int:
        """Python stacks that the recording holds in a form that cannot be read."""
        return self.stacks.get(UNREADABLE, 0)

    def total(self, key: str) -> int:
        """Sum of one weight."""
        return int(self.values[:, self.column(key)].sum())

    def column(self, key: str) -> int:
        """Column of a weight."""
        return [w.key for w in self.weights].index(key)

    def without(self, levels: frozenset[str]) -> Flame:
        """The same with some levels left out; their frames' weight goes to the frame above."""
        shown = np.array([name not in levels for name in LEVELS])
        keep = self.paths.each(shown[self.labels["level"].to_numpy()])
        paths, values = merge_equal(self.paths.where(keep), self.values)
        return replace(self, paths=paths, values=values)


def merge_equal(paths: Lists, values: Times) -> tuple[Lists, Times]:
    """One row a distinct path, weights added."""
    number, first = distinct_lists(paths)
    summed = np.zeros((first.size, values.shape[1]), np.int64)
    add_rows(summed, number, values)
    return paths.take(first), summed


def make_flame(
    work: Work,
    accounts: Sequence[DeviceAccount],
    attributed: Attributed,
    trace: Trace,
    *,
    lines: bool = True,
    keep_noise: bool = False,
) -> Flame:
    """Weigh a recording's call paths.

    Args:
        work: The joined recording.
        accounts: The devices, each with its window.
        attributed: Its stacks, and the stack behind each call.
        trace: The recording, for names.
        lines: Keep calls from different lines of a Python function apart.
        keep_noise: Draw every frame of every stack.
    """
    stacks, behind = attributed.stacks, attributed.behind
    folded = fold(stacks, keep_noise)
    weighed = weigh(work, accounts, stacks, behind, folded, trace)
    weights, values = _there(weighed.rows)
    weighed = replace(weighed, rows=weighed.rows.select(KEY))
    labels, paths = _paths(work, accounts, trace, stacks, folded, weighed, lines)
    weighed = replace(weighed, rows=weighed.rows.clear())  # all of it is in paths and values
    some = np.flatnonzero(values.any(axis=1))
    labels, paths = _in_order(labels, paths.take(some))
    paths, values = _merged_in_order(paths, values[some])
    requests = [a.requests.count for a in accounts if a.requests]
    return Flame(
        trace.path.name,
        labels,
        paths,
        values,
        weights,
        tuple(w.title for w in WEIGHTS if w not in weights),
        weighed.window,
        weighed.window_ns,
        accounts[0].window.basis if accounts else "no GPU work",
        requests[0] if requests else None,
        pl.concat([measure_stacks(work, behind), weighed.os_coverage]),
        stacks.recorded(),
    )


def _there(rows: pl.DataFrame) -> tuple[tuple[Weight, ...], Times]:
    """The weights that the recording has any of, and each row's value of these."""
    sums = rows.select(pl.col([w.key for w in WEIGHTS]).sum()).row(0)
    weights = tuple(w for w, total in zip(WEIGHTS, sums, strict=True) if total > 0)
    values = np.zeros((rows.height, len(weights)), np.int64)
    for column, weight in enumerate(weights):
        values[:, column] = rows[weight.key].to_numpy()
    return weights, values


def _in_order(labels: pl.DataFrame, paths: Lists) -> tuple[pl.DataFrame, Lists]:
    """Number labels by level and text, whatever the order of the export's rows, and only those in use."""
    kept = labels.with_row_index("before").filter(pl.Series(paths.used(labels.height))).sort("level", "text")
    number = np.full(labels.height, -1, np.int32)  # there are more paths than labels
    number[kept["before"].to_numpy()] = np.arange(kept.height)
    return kept.drop("before"), paths.coded(number)


def _merged_in_order(paths: Lists, values: Times) -> tuple[Lists, Times]:
    """The same as :func:`merge_equal` in the order of :func:`path_order`, in which equal paths are neighbours."""
    order = path_order(paths)
    paths, values = paths.take(order), values[order]
    first = np.flatnonzero(~paths.repeats())
    if first.size == order.size:
        return paths, values
    return paths.take(first), np.add.reduceat(values, first, axis=0)


class _Labels:
    """Labels of all levels in one numbering; equal texts of a level are one label."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], int] = {}
        self._rows: list[tuple[str, int, str, str]] = []

    def of(self, level: str, texts: list[str], colours: list[str], details: list[str] | None = None) -> Codes:
        """Numbers of distinct labels; a loop over labels, not over rows."""
        number = LEVELS.index(level)
        codes = np.empty(len(texts), np.int32)
        for i, (text, colour) in enumerate(zip(texts, colours, strict=True)):
            code = self._known.get((number, text))
            if code is None:
                code = self._known[number, text] = len(self._rows)
                self._rows.append((text, number, colour, details[i] if details else ""))
            elif details and details[i] < self._rows[code][3]:  # of overloads the first by name is told
                self._rows[code] = (text, number, colour, details[i])
            codes[i] = code
        return codes

    def frame(self) -> pl.DataFrame:
        return pl.DataFrame(
            self._rows,
            orient="row",
            schema={"text": pl.String, "level": pl.Int64, "colour": pl.String, "detail": pl.String},
        )


def _paths(
    work: Work,
    accounts: Sequence[DeviceAccount],
    trace: Trace,
    stacks: Stacks,
    folded: Folded,
    weighed: Weighed,
    lines: bool,
) -> tuple[pl.DataFrame, Lists]:
    """Labels, and one path a row of the weighed rows."""
    labels, rows = _Labels(), weighed.rows
    processes, threads = _senders(labels, rows, trace)
    frame_code = _frame_labels(labels, stacks, lines)
    drawn = folded.merged(rows["native"].fill_null(-1).to_numpy(), rows["python"].fill_null(-1).to_numpy())
    drawn = drawn.coded(frame_code)
    devices: Codes = np.full(rows.height, -1, np.int32)
    if len(accounts) > 1:
        devices = _coded(rows["device"], _device_labels(labels, accounts))
    operation = rows.select("operation", "colour").unique(maintain_order=True).drop_nulls("operation")
    operations = dict(
        zip(
            operation["operation"].to_list(),
            labels.of("operation", operation["operation"].to_list(), operation["colour"].to_list()).tolist(),
            strict=True,
        )
    )
    parts = [
        Lists.singles(processes),
        Lists.singles(threads),
        _nvtx(labels, rows, work.ranges),
        _without_call(drawn, labels.frame(), rows["api"]),
        Lists.singles(_coded(rows["api"], _api_labels(labels, rows["api"]))),
        Lists.singles(devices),
        Lists.singles(_coded(rows["operation"], operations)),
    ]
    paths = joined(parts)
    return labels.frame(), paths


def _without_call(drawn: Lists, labels: pl.DataFrame, api: pl.Series) -> Lists:
    """Stacks without a last frame that is the call itself, as those of OS runtime calls have it: it is the API's."""
    if not drawn.value.size:
        return drawn
    ends = drawn.length > 0
    last = drawn.value[np.where(ends, drawn.start[1:] - 1, 0)]
    is_call = (labels["text"].gather(last) == api).fill_null(False).to_numpy() & ends
    keep = np.ones(drawn.value.size, np.bool_)
    keep[drawn.start[1:][is_call] - 1] = False
    return drawn.where(keep)


def _coded(values: pl.Series, codes: dict[int, int] | dict[str, int]) -> Codes:
    if not codes:
        return np.full(values.len(), -1, np.int32)
    found: Codes = values.replace_strict(codes, default=-1, return_dtype=pl.Int32).fill_null(-1).to_numpy()
    return found


def _senders(labels: _Labels, rows: pl.DataFrame, trace: Trace) -> tuple[Codes, Codes]:
    """Labels of processes and threads: names, numbered where one name stands for several."""
    known = trace.frame("processes").unique("process", keep="first", maintain_order=True)
    named = rows.select("process").unique().sort("process").join(known, on="process", how="left", maintain_order="left")
    process = named.select(schema.program_name(pl.col("name")).fill_null("(unnamed process)"))["name"]
    codes = labels.of("process", _numbered(process.to_list()), ["process"] * named.height)
    of_process = dict(zip(named["process"].to_list(), codes.tolist(), strict=True))
    sent = rows.select("process", "thread").unique().sort("process", "thread", nulls_last=True)
    names = thread_names(trace, sent["thread"]).select("thread", "name")
    sent = sent.join(names, on="thread", how="left", maintain_order="left").with_columns(
        pl.when(pl.col("thread").is_null()).then(pl.lit(NO_CALL)).otherwise("name").alias("name")
    )
    texts: dict[int | None, int] = {}
    for _, mine in sent.group_by("process", maintain_order=True):
        found = labels.of("thread", _numbered(mine["name"].to_list()), ["thread"] * mine.height)
        texts |= dict(zip(mine["thread"].to_list(), found.tolist(), strict=True))
    thread = _coded(rows["thread"], {t: c for t, c in texts.items() if t is not None})
    return _coded(rows["process"], of_process), np.where(rows["thread"].is_null(), texts.get(None, -1), thread)


def _numbered(names: list[str]) -> list[str]:
    """The second and later of equal names get a number."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return result


def _nvtx(labels: _Labels, rows: pl.DataFrame, ranges: Ranges) -> Lists:
    """Labels of each row's NVTX path; a loop over distinct paths."""
    paths = ranges.paths
    code = labels.of("nvtx", paths["label"].to_list(), ["nvtx"] * paths.height)
    parent = paths["parent"].to_list()
    used = rows["path"].unique().to_list()
    known: dict[int, list[int]] = {0: []}
    for path in used:
        chain, at = [], path
        while at != 0:
            chain.append(int(code[at]))
            at = parent[at]
        known[path] = chain[::-1]
    order = sorted(known)
    lists = Lists.of_lengths(
        [len(known[p]) for p in order], np.array([c for p in order for c in known[p]], dtype=np.int32)
    )
    path = np.searchsorted(np.array(order), rows["path"].to_numpy())
    marked = labels.of("nvtx", [IN_TIME_LABEL], ["nvtx"])[0]
    by_time = Lists.singles(np.where(rows["in_time"].fill_null(False).to_numpy(), marked, -1))
    return joined([by_time, lists.take(path)])


def _frame_labels(labels: _Labels, stacks: Stacks, lines: bool) -> Codes:
    """Label of each frame of the stacks."""
    frames = stacks.frames
    codes = np.full(frames.height, -1, np.int32)
    text = frames["label" if lines else "name"]
    detail = frames.select(text=pl.format("{}\n{}", "function", "place"))["text"]
    colour = frames["kind"].to_list()
    is_python = (frames["kind"] == "python").to_numpy()
    for level, mine in (("python", np.flatnonzero(is_python)), ("native", np.flatnonzero(~is_python))):
        texts, details = text.gather(mine).to_list(), detail.gather(mine).to_list()
        codes[mine] = labels.of(level, texts, [colour[i] for i in mine], details)
    return codes


def _api_labels(labels: _Labels, api: pl.Series) -> dict[str, int]:
    names = api.drop_nulls().unique().sort()
    colour = pl.Series(["call"] * names.len(), dtype=pl.String)
    for function, pattern in FUNCTIONS.items():
        colour = colour.zip_with(
            ~names.str.contains(pattern),
            pl.Series([_CALL_COLOURS.get(function, "call")] * names.len(), dtype=pl.String),
        )
    return dict(zip(names.to_list(), labels.of("api", names.to_list(), colour.to_list()).tolist(), strict=True))


def _device_labels(labels: _Labels, accounts: Sequence[DeviceAccount]) -> dict[int, int]:
    texts = [str(a.device["label"]) for a in accounts]
    codes = labels.of("device", texts, ["device"] * len(texts))
    return dict(zip([a.number for a in accounts], codes.tolist(), strict=True))
