"""Silent loss: rows that are not there, told by what is.

Three signs, each seen in real recordings without any diagnostic: work calls without a GPU row, a jump in a process's
correlation ids, and NVTX ranges of one name that hold no call while their siblings hold the same number each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse import units
from nsysparse.integrity.check import Check, Hole, Status
from nsysparse.intervals import Intervals
from nsysparse.joins.calls import WORK
from nsysparse.joins.work import Work

JUMP_SUSPECT = 2_049  # largest seen in public exports of unknown completeness
JUMP_CERTAIN = 8_192  # calls that nsys skips explain no gap of this size
EMPTY_RUN = 3  # neighbouring ranges without a call, where the ids jump at the same time
EMPTY_RUN_ALONE = 10  # the same, and as many siblings with calls, where no other sign supports it
SIBLINGS_ALIKE = 0.9  # share of the other ranges that must hold the same number of calls
TAIL_RATIO = 0.05  # of the recording, between the last GPU operation and the last call that sent work
MISSING_RATIO = 0.01  # of work calls without a GPU row, from which the recording is called incomplete
NO_OP_NS = 1_000  # a copy or memset that returns sooner had nothing to do: sending one takes longer
BESIDE = 2  # calls in a row without a GPU row, between calls that have theirs, that no lost buffer explains


def _work_calls(work: Work) -> pl.DataFrame:
    return work.calls.filter(pl.any_horizontal(pl.col("does") == w for w in WORK) & ~pl.col("failed"))


def _captured(work: Work, calls: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Calls made while their thread was capturing into a graph: they have no GPU row and lost none."""
    inside = np.zeros(calls.height, np.bool_)
    does = pl.col("does")
    marks = work.calls.filter((does == "begin capture") | (does == "end capture")).sort("start_ns")
    forever = np.iinfo(np.int64).max
    for (thread,), part in marks.group_by("thread", maintain_order=True):
        begin = part.filter(does == "begin capture")["start_ns"].to_numpy()
        end = part.filter(does == "end capture")["end_ns"].to_numpy()
        at = np.searchsorted(end, begin)
        until = np.where(at < end.size, np.append(end, forever)[at], forever)
        here = np.flatnonzero((calls["thread"] == thread).to_numpy())
        union = Intervals.union_of(begin, until)
        inside[here] = union.contains(calls["start_ns"].to_numpy()[here])
    return inside


def check_missing_rows(work: Work) -> Check:
    """Calls that launch or copy, and have no GPU row."""
    title = "Calls with their GPU rows"
    calls = _work_calls(work)
    if not calls.height:
        return Check("missing_rows", title, Status.NOT_APPLICABLE, "No call that sends GPU work was recorded.", {})
    used = np.zeros(work.calls.height, np.bool_)
    used[work.all()["call"].drop_nulls().to_numpy()] = True
    without = calls.filter(~used[calls["call"].to_numpy()])
    sent = without.filter(~_captured(work, without))
    empty, unseen = _empty(sent), _never_seen(calls, sent)
    lost = sent.filter(~pl.col("call").is_in(pl.concat([empty, unseen])["call"].implode()))
    evidence: dict[str, object] = {
        "work_calls": calls.height,
        "without_row": without.height,
        "captured_into_graphs": without.height - sent.height,
        "nothing_to_do": empty.height,
        "never_recorded": unseen.height,
        "lost": lost.height,
    }
    if not lost.height:
        text = f"All {units.count(calls.height)} calls that send work have their GPU rows"
        known = (
            (without.height - sent.height, "were captured into graphs"),
            (empty.height, "had nothing to do"),
            (unseen.height, f"are of a kind that the profiler never gave a row here: {_named(unseen)}"),
        )
        but = "; ".join(f"{units.count(n)} {what}" for n, what in known if n)
        return Check("missing_rows", title, Status.OK, f"{text}{f' ({but})' if but else ''}.", evidence)
    text = f"{units.count(lost.height)} of {units.count(calls.height)} calls that send work have no GPU row"
    text += f" ({_named(lost)})."
    certain = lost.height > MISSING_RATIO * calls.height
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


def _never_seen(calls: pl.DataFrame, without: pl.DataFrame) -> pl.DataFrame:
    """Calls of names that have no GPU row anywhere, each beside calls that have theirs: not recorded, and not lost.

    The profiler loses whole buffers: neighbours of every kind at once. Some copies it does not see at all, such as the
    tiny driver-API copies to the host in XLA's autotuning.
    """
    missing = pl.col("call").is_in(without["call"].implode())
    marked = calls.sort("thread", "start_ns").select("call", "thread", "name", missing=missing)
    run = (pl.col("missing") != pl.col("missing").shift(1)).fill_null(True).over("thread").cum_sum()
    alone = pl.col("missing").all().over("thread")
    marked = marked.with_columns(run=run).with_columns(long=alone | (pl.len().over("thread", "run") > BESIDE))
    names = (
        marked.group_by("name").agg(pl.col("missing").all(), pl.col("long").any()).filter("missing", ~pl.col("long"))
    )
    return without.filter(pl.col("name").is_in(names["name"].implode()))


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


def _jumps(calls: pl.DataFrame) -> tuple[int | None, pl.DataFrame]:
    """The largest jump between neighbouring ids of a process, and the jumps above JUMP_SUSPECT.

    Returns:
        Largest jump (None: fewer than two ids), and ``jump``, ``before_ns``, ``start_ns``, ``process``; largest first.
    """
    largest, parts = None, []
    used = calls.select("process", "correlation", "start_ns", "end_ns").filter(pl.col("correlation") > 0)
    for (process,), part in used.group_by("process", maintain_order=True):
        ids = np.sort(part["correlation"].to_numpy())
        steps = np.diff(ids)
        if not steps.size:
            continue
        largest = max(largest or 0, int(steps.max()))
        at = np.flatnonzero(steps > JUMP_SUSPECT)
        if at.size:
            edges = part.unique("correlation", keep="first")
            jumps = pl.DataFrame({"before": ids[at], "after": ids[at + 1]})
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


def check_empty_ranges(work: Work, jumps: tuple[Hole, ...]) -> Check:
    """Runs of NVTX ranges without a call, where their siblings hold the same number each."""
    title = "NVTX ranges with their calls"
    ranges = work.ranges.frame.filter(pl.col("push_pop") & pl.col("finished"))
    if not ranges.height:
        return Check("empty_ranges", title, Status.NOT_APPLICABLE, "No finished NVTX range was recorded.", {})
    counts = _calls_inside(ranges, _work_calls(work))
    runs = _believable(_suspicious_runs(ranges.with_columns(calls=pl.Series(counts))), jumps)
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


def _calls_inside(ranges: pl.DataFrame, calls: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Calls that start inside each range on its thread; a binary search a thread."""
    counts = np.zeros(ranges.height, np.int64)
    on = ranges["thread"].to_numpy()
    order = np.argsort(on, kind="stable")
    threads, first = np.unique(on[order], return_index=True)
    mine = calls.select("thread", "start_ns").filter(pl.col("thread").is_in(threads.tolist()))
    by_thread = mine.sort("start_ns").partition_by("thread", as_dict=True)
    begins, ends = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    for thread, here in zip(threads.tolist(), np.split(order, first[1:]), strict=True):
        if (thread,) in by_thread:
            starts = by_thread[(thread,)]["start_ns"].to_numpy()
            low = np.searchsorted(starts, begins[here], side="left")
            counts[here] = np.searchsorted(starts, ends[here], side="right") - low
    return counts


def _suspicious_runs(ranges: pl.DataFrame) -> pl.DataFrame:
    """Runs of empty ranges.

    Returns:
        ``label``, ``process``, ``ranges``, ``all``, ``held``, ``typical``, ``missing``, ``start_ns``, ``end_ns``.
    """
    group = ["thread", "path"]
    held = pl.col("calls") > 0
    slim = ranges.select(*group, "start_ns", "end_ns", "calls").with_row_index("row")
    # Most groups are ruled out by their sums; only what is left is put in order.
    mixed = (
        slim.group_by(group)
        .agg(
            pl.len().alias("all"),
            (~held).sum().alias("empty"),
            held.sum().alias("held"),
            pl.col("calls").filter(held).mode().min().alias("typical"),
        )
        .filter((pl.col("empty") >= EMPTY_RUN) & (pl.col("held") > 0))
    )
    slim = slim.join(mixed.select(*group, "all", "held", "typical"), on=group)
    alike = slim.group_by(group).agg((pl.col("calls") == pl.col("typical")).sum() / pl.col("held").first())
    alike = alike.filter(pl.col("calls") >= SIBLINGS_ALIKE)
    ordered = (
        slim.join(alike.select(group), on=group, how="semi")
        .sort(*group, "start_ns", "row")
        .with_columns(run=(held != held.shift(1)).fill_null(True).over(group).cum_sum().over(group))
    )
    runs = (
        ordered.filter(~held)
        .group_by(*group, "run")
        .agg(
            pl.col("row", "all", "held", "typical").first(),
            pl.len().cast(pl.Int64).alias("ranges"),
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
        )
        .filter(pl.col("ranges") >= EMPTY_RUN)
    )
    return (
        runs.with_columns(
            ranges["label"].gather(runs["row"]).cast(pl.String),
            ranges["process"].gather(runs["row"]),
            missing=pl.col("ranges") * pl.col("typical"),
        )
        .drop("row")
        .sort("missing", "start_ns", "label", descending=[True, False, False])
    )


def check_tail(work: Work) -> Check:
    """Whether the GPU's last operation lies long before the last call that sent work."""
    title = "End of the recording"
    calls, ops = _work_calls(work), work.all()
    calls = calls.filter(~_captured(work, calls))
    if not calls.height or not ops.height:
        return Check("tail", title, Status.NOT_APPLICABLE, "No GPU work to compare with its calls.", {})
    first, last_op, last_call = ops["start_ns"].min(), ops["end_ns"].max(), calls["start_ns"].max()
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
