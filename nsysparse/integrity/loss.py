"""Silent loss: rows that are not there, told by what is.

Three signs, each seen in real recordings without any diagnostic: work calls without a GPU row, a jump in a process's
correlation ids, and NVTX ranges of one name that hold no call while their siblings hold the same number each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse import units
from nsysparse.accounting.grouping import number_rows
from nsysparse.integrity.check import Check, Hole, Status
from nsysparse.intervals import Intervals
from nsysparse.joins.calls import WORK, Calls
from nsysparse.joins.order import by_start, count_codes, rows_by
from nsysparse.joins.work import GPU_TABLES, Work
from nsysparse.lazy import cached_property
from nsysparse.side_by_side import side_by_side, worth_at_once

JUMP_SUSPECT = 2_049  # largest seen in public exports of unknown completeness
JUMP_CERTAIN = 8_192  # calls that nsys skips explain no gap of this size
EMPTY_RUN = 3  # neighbouring ranges without a call, where the ids jump at the same time
EMPTY_RUN_ALONE = 10  # the same, and as many siblings with calls, where no other sign supports it
SIBLINGS_ALIKE = 0.9  # share of the other ranges that must hold the same number of calls
TAIL_RATIO = 0.05  # of the recording, between the last GPU operation and the last call that sent work
MISSING_RATIO = 0.01  # of work calls without a GPU row, from which the recording is called incomplete
NO_OP_NS = 1_000  # a copy or memset that returns sooner had nothing to do: sending one takes longer
BESIDE = 2  # calls in a row without a GPU row, between calls that have theirs, that no lost buffer explains
FEW = 1 << 20  # numbers up to which each is counted in its place, and nothing is sorted
THREADS_AT_ONCE = 2  # whose calls are looked for


@dataclass(frozen=True)
class Sending:
    """The calls that launch, copy or fill, and did not fail.

    Attributes:
        calls: Which of all calls they are.
        captured: Which of them were made while their thread was capturing into a graph: they have no GPU row and lost
            none.
    """

    calls: npt.NDArray[np.bool_]
    captured: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, work: Work) -> Sending:
        """Find them once for every check that asks for them."""
        sends = work.calls.doing(*WORK) & ~work.calls["failed"]
        calls = sends.fill_null(False).to_numpy()
        return cls(calls, calls & _while_capturing(work))

    @cached_property
    def number(self) -> int:
        """How many there are."""
        return int(np.count_nonzero(self.calls))


def _while_capturing(work: Work) -> npt.NDArray[np.bool_]:
    """The calls that begin while their thread is capturing."""
    inside = np.zeros(work.calls.height, np.bool_)
    does = pl.col("does")
    marks = work.calls.where(work.calls.doing("begin capture", "end capture")).sort("start_ns")
    forever = np.iinfo(np.int64).max
    for (thread,), part in marks.group_by("thread", maintain_order=True):
        begin = part.filter(does == "begin capture")["start_ns"].to_numpy()
        end = part.filter(does == "end capture")["end_ns"].to_numpy()
        at = np.searchsorted(end, begin)
        until = np.where(at < end.size, np.append(end, forever)[at], forever)
        mine = work.calls.rows_of(int(thread))
        inside[mine] = Intervals.union_of(begin, until).contains(work.calls.start[mine])
    return inside


def check_missing_rows(work: Work, sending: Sending) -> Check:
    """Calls that launch or copy, and have no GPU row."""
    title = "Calls with their GPU rows"
    if not sending.number:
        return Check("missing_rows", title, Status.NOT_APPLICABLE, "No call that sends GPU work was recorded.", {})
    missing = sending.calls.copy()
    for name in GPU_TABLES:
        missing[getattr(work, name)["call"].drop_nulls().to_numpy()] = False
    without = int(np.count_nonzero(missing))
    missing &= ~sending.captured
    sent = work.calls.at(np.flatnonzero(missing))
    empty, unseen = _empty(sent), _never_seen(work, sending, sent)
    lost = sent.filter(~pl.col("call").is_in(pl.concat([empty, unseen])["call"].implode()))
    evidence: dict[str, object] = {
        "work_calls": sending.number,
        "without_row": without,
        "captured_into_graphs": without - sent.height,
        "nothing_to_do": empty.height,
        "never_recorded": unseen.height,
        "lost": lost.height,
    }
    if not lost.height:
        text = f"All {units.count(sending.number)} calls that send work have their GPU rows"
        known = (
            (without - sent.height, "were captured into graphs"),
            (empty.height, "had nothing to do"),
            (unseen.height, f"are of a kind that the profiler never gave a row here: {_named(unseen)}"),
        )
        but = "; ".join(f"{units.count(n)} {what}" for n, what in known if n)
        return Check("missing_rows", title, Status.OK, f"{text}{f' ({but})' if but else ''}.", evidence)
    text = f"{units.count(lost.height)} of {units.count(sending.number)} calls that send work have no GPU row"
    text += f" ({_named(lost)})."
    certain = lost.height > MISSING_RATIO * sending.number
    first, last = lost["start_ns"].min(), lost["end_ns"].max()
    assert isinstance(first, int)
    assert isinstance(last, int)
    hole = Hole(first, last, None, f"GPU rows of {units.count(lost.height)} calls", "missing_rows")
    status = Status.INCOMPLETE if certain else Status.SUSPECT
    return Check("missing_rows", title, status, text, evidence | {"from_ns": first, "to_ns": last}, (hole,))


def _named(calls: pl.DataFrame) -> str:
    by_name = calls.group_by("name").len().sort("len", "name", descending=[True, False]).head(3)
    return ", ".join(f"{units.count(n)} {name}" for name, n in by_name.iter_rows())


def _empty(calls: pl.DataFrame) -> pl.DataFrame:
    """Copies and memsets that returned so soon that they cannot have sent anything: of no bytes, or onto themselves."""
    light = pl.any_horizontal(pl.col("does") == d for d in ("copy", "memset"))
    return calls.filter(light & (pl.col("end_ns") - pl.col("start_ns") < NO_OP_NS))


def _never_seen(work: Work, sending: Sending, without: pl.DataFrame) -> pl.DataFrame:
    """Calls of names that have no GPU row anywhere, each beside calls that have theirs: not recorded, and not lost.

    The profiler loses whole buffers: neighbours of every kind at once. Some copies it does not see at all, such as the
    tiny driver-API copies to the host in XLA's autotuning.
    """
    if not without.height:
        return without
    name, gone = work.calls["name"].to_physical().to_numpy(), without["name"].to_physical().to_numpy()
    calls, lacking = np.bincount(name[sending.calls]), np.bincount(gone)
    never = lacking == calls[: lacking.size]
    never[gone[_in_long_runs(work, sending, without)]] = False
    return without.filter(pl.Series(never[gone]))


def _in_long_runs(work: Work, sending: Sending, without: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Which calls without a GPU row have more than BESIDE of them in a row on their thread, or nothing else there."""
    long = np.zeros(without.height, np.bool_)
    for thread, rows in rows_by(without["thread"]):
        mine = work.calls.rows_of(thread)
        sent = np.flatnonzero(sending.calls[mine]) + mine.start
        at = np.searchsorted(sent, without["call"].to_numpy()[rows])
        run = np.cumsum(np.diff(at, prepend=-1) != 1)
        long[rows] = (np.bincount(run)[run] > BESIDE) | (at.size == sent.size)
    return long


def check_id_jumps(work: Work) -> Check:
    """Jumps in a process's correlation ids between neighbouring calls."""
    title = "Correlation ids"
    largest, found = _jumps(work.calls)
    if largest is None:
        return Check("id_jumps", title, Status.NOT_APPLICABLE, "Too few calls to look for jumps.", {})
    evidence: dict[str, object] = {"largest_jump": largest, "jumps": found.height}
    if not found.height:
        text = f"Correlation ids have no jump larger than {units.count(largest)}."
        return Check("id_jumps", title, Status.OK, text, evidence)
    holes = tuple(
        Hole(
            min(r["before_ns"], r["start_ns"]),
            max(r["before_ns"], r["start_ns"]),
            r["process"],
            f"{units.count(r['jump'] - 1)} correlation ids",
            "id_jumps",
        )
        for r in found.head(20).to_dicts()
    )
    worst = holes[0]
    text = (
        f"Correlation ids jump by {units.count(largest)} between neighbouring calls, from"
        f" {units.duration(worst.start_ns)} to {units.duration(worst.end_ns)}."
    )
    status = Status.INCOMPLETE if largest > JUMP_CERTAIN else Status.SUSPECT
    return Check("id_jumps", title, status, text, evidence, holes)


def _jumps(calls: Calls) -> tuple[int | None, pl.DataFrame]:
    """The largest jump between neighbouring ids of a process, and the jumps above JUMP_SUSPECT.

    Returns:
        Largest jump (None: fewer than two ids), and ``jump``, ``before_ns``, ``start_ns``, ``process``; largest first.
    """
    largest, parts = None, []
    used = calls.frame.select("correlation", "start_ns", "end_ns")
    for process, rows in calls.by_process().items():
        part = used[rows]
        ids = np.sort(part["correlation"].drop_nulls().to_numpy())
        ids = ids[np.searchsorted(ids, ids.dtype.type(0), side="right") :]  # a plain 0 would widen all of them
        steps = np.diff(ids)
        if not steps.size:
            continue
        largest = max(largest or 0, int(steps.max()))
        at = np.flatnonzero(steps > JUMP_SUSPECT)
        if at.size:
            jumps = pl.DataFrame({"before": ids[at], "after": ids[at + 1]})
            wanted = pl.col("correlation").is_in(pl.concat([jumps["before"], jumps["after"]]).implode())
            edges = part.filter(wanted).unique("correlation", keep="first")
            before = edges.select(before="correlation", before_ns="end_ns")
            jumps = jumps.join(before, on="before").join(edges, left_on="after", right_on="correlation")
            parts.append(
                jumps.select(
                    (pl.col("after") - pl.col("before")).alias("jump"),
                    "before_ns",
                    "start_ns",
                    process=pl.lit(process),
                )
            )
    columns = ("jump", "before_ns", "start_ns", "process")
    found = pl.concat(parts) if parts else pl.DataFrame(schema=dict.fromkeys(columns, pl.Int64))
    return largest, found.sort("jump", "start_ns", descending=[True, False])


def count_calls(work: Work, sending: Sending) -> pl.DataFrame:
    """The finished push/pop ranges, with the number of ``calls`` that begin in each and send work."""
    every = work.ranges.frame
    meant = every["push_pop"] & every["finished"]
    ranges = every.select(_OF_RANGES) if meant.all() else every.select(_OF_RANGES).filter(meant)
    return ranges.with_columns(calls=pl.Series(_calls_inside(ranges, work, sending)))


def check_empty_ranges(ranges: pl.DataFrame, jumps: tuple[Hole, ...]) -> Check:
    """Runs of NVTX ranges without a call, where their siblings hold the same number each.

    Args:
        ranges: What :func:`count_calls` returns.
        jumps: Where correlation ids jump.
    """
    title = "NVTX ranges with their calls"
    if not ranges.height:
        return Check("empty_ranges", title, Status.NOT_APPLICABLE, "No finished NVTX range was recorded.", {})
    runs = _believable(_suspicious_runs(ranges), jumps)
    if not runs.height:
        return Check("empty_ranges", title, Status.OK, "No run of NVTX ranges lacks the calls its siblings hold.", {})
    worst = (
        runs.sort("start_ns", "ranges", descending=[False, True]).sort("missing", descending=True).row(0, named=True)
    )
    sure = bool(worst["sure"])
    text = (
        f"{units.count(worst['ranges'])} of {units.count(worst['all'])} ranges '{worst['label']}' hold no CUDA call,"
        f" their siblings {units.count(worst['typical'])} each: about {units.count(worst['missing'])} calls are missing"
        f" from {units.duration(worst['start_ns'])} to {units.duration(worst['end_ns'])}."
    )
    holes = tuple(
        Hole(
            r["start_ns"],
            r["end_ns"],
            r["process"],
            f"about {units.count(r['missing'])} calls",
            "empty_ranges",
        )
        for r in runs.sort("missing", "start_ns", descending=[True, False]).head(20).to_dicts()
    )
    # Alone it could be a program that skips work; with a jump of the ids at the same time it is loss.
    status = Status.INCOMPLETE if sure else Status.SUSPECT
    keys = ("label", "ranges", "all", "typical", "missing", "start_ns", "end_ns")
    return Check("empty_ranges", title, status, text, {k: worst[k] for k in keys} | {"confirmed": sure}, holes)


def _believable(runs: pl.DataFrame, jumps: tuple[Hole, ...]) -> pl.DataFrame:
    """The runs that a jump of the ids supports (``sure``), and those long enough to stand alone."""
    start, end = pl.col("start_ns"), pl.col("end_ns")
    overlaps = [(start < h.end_ns) & (end > h.start_ns) for h in jumps]
    alone = (pl.col("ranges") >= EMPTY_RUN_ALONE) & (pl.col("held") >= EMPTY_RUN_ALONE)
    sure = pl.any_horizontal(overlaps) if overlaps else pl.lit(False)
    return runs.with_columns(sure=sure).filter(pl.col("sure") | alone)


Numbers = npt.NDArray[np.int64]
_OF_RANGES = ("thread", "path", "start_ns", "end_ns", "label", "process")


def _calls_inside(ranges: pl.DataFrame, work: Work, sending: Sending) -> npt.NDArray[np.int32]:
    """Calls that start inside each range on its thread; a binary search a thread, some threads at a time."""
    counts = np.zeros(ranges.height, np.int32)
    begins, ends = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()

    def count(of_thread: tuple[int, slice | Numbers]) -> None:
        thread, rows = of_thread
        mine = work.calls.rows_of(thread)
        starts = work.calls.start[mine][sending.calls[mine]]
        if starts.size:
            low = np.searchsorted(starts, begins[rows], side="left")
            counts[rows] = np.searchsorted(starts, ends[rows], side="right") - low

    by_thread = list(rows_by(ranges["thread"]))
    side_by_side(count, by_thread, worth_at_once(len(by_thread), ranges.height, THREADS_AT_ONCE))
    return counts


def _suspicious_runs(ranges: pl.DataFrame) -> pl.DataFrame:
    """Runs of empty ranges.

    Args:
        ranges: The ranges, with the number of their ``calls``.

    Returns:
        ``label``, ``process``, ``ranges``, ``all``, ``held``, ``typical``, ``missing``, ``start_ns``, ``end_ns``.
    """
    group, rows, figures = _mixed(ranges)
    found = np.flatnonzero(np.bincount(group[rows], minlength=figures.height))
    place = np.zeros(figures.height, np.min_scalar_type(found.size))
    place[found] = np.arange(found.size)
    order, _ = by_start(place[group[rows]], found.size, ranges["start_ns"].to_numpy()[rows])
    rows = rows if order is None else rows[order]
    empty = np.flatnonzero(ranges["calls"].to_numpy()[rows] == 0)
    apart = np.diff(empty, prepend=-2) > 1
    apart[1:] |= np.diff(group[rows[empty]]) != 0
    rows, begin = rows[empty], np.flatnonzero(apart)
    length, end = np.diff(begin, append=rows.size), np.maximum.reduceat(ranges["end_ns"].to_numpy()[rows], begin)
    long = length >= EMPTY_RUN
    first = rows[begin[long]]
    return (
        ranges.select(pl.col("label").cast(pl.String), "process", "start_ns")[first]
        .hstack(figures[group[first]])
        .with_columns(ranges=pl.Series(length[long]), end_ns=pl.Series(end[long]))
        .with_columns(missing=pl.col("ranges") * pl.col("typical"))
        .sort("missing", "start_ns", "label", descending=[True, False, False])
    )


def _mixed(ranges: pl.DataFrame) -> tuple[Numbers, Numbers, pl.DataFrame]:
    """The ranges of those paths of a thread of which EMPTY_RUN or more hold no call and the others are alike.

    Returns:
        Number of each range's thread and path; rows of the ranges meant; for each number ``all`` (its ranges), ``held``
        (those with calls) and ``typical`` (calls that most of these hold).
    """
    group, first = number_rows(ranges, ["thread", "path"])
    calls = ranges["calls"].to_numpy()
    every, empty = np.bincount(group), np.bincount(group[calls == 0], minlength=first.size)
    held = every - empty
    rows = np.flatnonzero(((empty >= EMPTY_RUN) & (held > 0))[group])  # mostly none
    holding = rows[calls[rows] > 0]
    typical, most = _typical(group[holding], calls[holding], first.size)
    alike = most / np.maximum(held, 1) >= SIBLINGS_ALIKE
    return group, rows[alike[group[rows]]], pl.DataFrame({"all": every, "held": held, "typical": typical})


def _typical(group: Numbers, calls: npt.NDArray[np.int32], n: int) -> tuple[Numbers, Numbers]:
    """The number of calls that most ranges of each group hold, of equally many the smallest, and how many do."""
    base = int(calls.max(initial=0)) + 1
    code = group * base + calls
    if n * base <= FEW:
        numbers = count_codes(code, n * base)
        key = np.flatnonzero(numbers)  # by group, then by number of calls
        count = numbers[key]
    else:
        key, count = np.unique(code, return_counts=True)
    typical, most = np.zeros(n, np.int64), np.zeros(n, np.int64)
    np.maximum.at(most, key // base, count)
    usual = np.flatnonzero(count == most[key // base])[::-1]
    typical[key[usual] // base] = key[usual] % base  # the smallest comes last
    return typical, most


def check_tail(work: Work, sending: Sending) -> Check:
    """Whether the GPU's last operation lies long before the last call that sent work."""
    title = "End of the recording"
    begun = work.calls["start_ns"].filter(pl.Series(sending.calls & ~sending.captured))
    operations = [frame for name in GPU_TABLES if (frame := getattr(work, name)).height]
    if not begun.len() or not operations:
        return Check("tail", title, Status.NOT_APPLICABLE, "No GPU work to compare with its calls.", {})
    first, last_op = min(f["start_ns"].min() for f in operations), max(f["end_ns"].max() for f in operations)
    last_call = begun.max()
    assert isinstance(first, int)
    assert isinstance(last_op, int)
    assert isinstance(last_call, int)
    behind = last_call - last_op
    evidence: dict[str, object] = {"last_operation_ns": last_op, "last_work_call_ns": last_call}
    if behind > TAIL_RATIO * max(last_call - first, 1):
        text = f"The last GPU operation ends {units.duration(behind)} before the last call that sent work."
        hole = Hole(last_op, last_call, None, "all GPU operations", "tail")
        return Check("tail", title, Status.INCOMPLETE, text, evidence, (hole,))
    return Check("tail", title, Status.OK, "GPU operations go on to the last call that sent work.", evidence)
