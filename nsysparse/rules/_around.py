"""Silent host time around bursts of copies, and whether it belongs to them.

Between a copy call and the thread's next CUDA call a trace shows nothing: the thread may be allocating and filling the
buffer that the copy goes to, or doing something else altogether. It is taken to belong to the copies only if something
says so, in this order:

* an NVTX range that holds these copies and launches nothing: the time inside that range;
* CPU samples in the silence: most of those that can be named lie in functions that only these copies' call stacks have;
* comparison: next to most of these bursts the thread is silent for several times as long as it usually is after a
  synchronization, and OS runtime calls were recorded, so that waiting for work is not taken for work.

By samples and by comparison only what exceeds the usual silence is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.accounting.busy import union_by_thread
from nsysparse.intervals import Intervals
from nsysparse.rules._price import Waits
from nsysparse.rules._scene import Scene

Bools = npt.NDArray[np.bool_]
NAMED_SAMPLES = 5  # samples that must be named before they count as a sign
OWN_SHARE = 0.8  # share of them that must lie in the copies' own functions
OTHER_SILENCES = 20  # other silences that make a comparison
EXCESS = 4  # times the thread's usual silence


@dataclass(frozen=True)
class Around:
    """Silent time that belongs to some copies.

    Attributes:
        by_thread: Thread to its instants.
        sign: ``nvtx``, ``samples`` or ``comparison``.
        silent_ns: All silence next to these copies, whether or not it belongs to them.
        usual_ns: The threads' median silence elsewhere; None when it was not needed.
        samples: CPU samples in the silence: all, named, and named in the copies' own functions.
    """

    by_thread: dict[int, Intervals]
    sign: str
    silent_ns: int
    usual_ns: int | None
    samples: tuple[int, int, int] | None = None

    def evidence(self) -> dict[str, Any]:
        """The figures, for a finding."""
        found: dict[str, Any] = {
            "sign": self.sign,
            "silent_ns": self.silent_ns,
            "usual_silence_ns": self.usual_ns,
        }
        if self.samples:
            found |= dict(zip(("samples", "samples_named", "samples_own"), self.samples, strict=True))
        return found


def around_copies(scene: Scene, copies: pl.DataFrame, waits: Waits) -> Around | None:
    """The silent time around some copies that can be said to belong to them, None when nothing says so."""
    by_range = around_in_ranges(scene, copies, waits)
    if by_range is not None:
        return by_range
    silences, usual = _silences(scene, waits)
    if not silences:
        return None
    total = sum(s.length for s in silences.values())
    trimmed = {t: _less(s, usual) for t, s in silences.items()}
    samples = _samples(scene, copies, silences)
    if samples and samples[1] >= NAMED_SAMPLES and samples[2] >= OWN_SHARE * samples[1]:
        return Around(trimmed, "samples", total, usual, samples)
    if usual is None or not scene.recording.osrt.height:
        return None
    lengths = np.concatenate([s.end - s.start for s in silences.values()])
    long = int((lengths >= EXCESS * max(usual, 1)).sum())
    if long >= copies["burst"].n_unique() / 2:
        return Around(trimmed, "comparison", total, usual, samples)
    return None


def around_in_ranges(scene: Scene, copies: pl.DataFrame, waits: Waits) -> Around | None:
    """Time inside the NVTX ranges of the copies, where nothing is launched under these ranges' path."""
    launches = np.zeros(scene.account.paths.height, np.bool_)
    for frame in (scene.account.ran, scene.work.graphs):
        launches[frame["path"].to_numpy()] = True
    path, inside = copies["path"].to_numpy(), copies["range"].to_numpy() >= 0
    chosen = copies["range"].to_numpy()[(path > 0) & inside & ~launches[path]]
    if chosen.size < copies.height * OWN_SHARE:
        return None
    ranges = scene.work.ranges.frame.select("thread", "start_ns", "end_ns", "finished")[np.unique(chosen)]
    ranges = ranges.filter("finished")
    found = {thread: union for thread, union in union_by_thread(ranges).items() if thread in waits.spans}
    silent = sum((r - waits.spans[t]).length for t, r in found.items())
    return Around(found, "nvtx", silent, None) if found else None


def _silences(scene: Scene, waits: Waits) -> tuple[dict[int, Intervals], int | None]:
    """Silences next to these calls, without waiting in OS runtime calls, and the threads' median silence elsewhere."""
    marks, pause = scene.marks, scene.marks.pauses()
    thread, synced, mine = marks.thread, np.zeros(pause.size, np.bool_), np.zeros(pause.size, np.bool_)
    synced[marks.syncs] = True
    mine[waits.rows] = True

    def before(marked: Bools) -> Bools:
        """Whether the call before each, on the same thread, is marked; turns are by thread."""
        found = np.zeros_like(marked)
        found[1:] = marked[:-1] & (thread[1:] == thread[:-1])
        return found

    def silences(chosen: Bools) -> pl.DataFrame:
        rows = np.flatnonzero(silent & chosen)
        start, took = marks.start_ns[rows], pause[rows]
        return pl.DataFrame({"thread": thread[rows], "start_ns": start, "pause_ns": took, "from_ns": start - took})

    # A synchronization just before the first copy of a burst is part of it: it waits for what the copy needs.
    mine[:-1] |= synced[:-1] & mine[1:] & (thread[1:] == thread[:-1])
    silent = (pause > 0) & np.isin(thread, list(waits.spans))
    next_to = mine | before(mine)
    near, other = silences(next_to), silences(~next_to & before(synced))
    usual = _median(scene, other)
    window = scene.account.window
    found = {}
    for (name,), part in near.group_by("thread", maintain_order=True):
        union = Intervals.union_of(part["from_ns"], part["start_ns"]).clip(window.start_ns, window.end_ns)
        found[int(name)] = union - scene.recording.os_waits(int(name))
    return found, usual


def _median(scene: Scene, pauses: pl.DataFrame) -> int | None:
    """Median silence without waiting in OS runtime calls; None of too few."""
    if pauses.height < OTHER_SILENCES:
        return None
    lengths = []
    for (thread,), part in pauses.group_by("thread", maintain_order=True):
        waits = scene.recording.os_waits(int(thread)).covered(part["from_ns"], part["start_ns"])
        lengths.append(part["pause_ns"].to_numpy() - waits)
    return round(float(np.median(np.concatenate(lengths))))


def _less(silences: Intervals, usual: int | None) -> Intervals:
    """Each silence without its last ``usual`` ns."""
    return Intervals.union_of(silences.start, silences.end - (usual or 0))


def _samples(scene: Scene, copies: pl.DataFrame, silences: dict[int, Intervals]) -> tuple[int, int, int] | None:
    """CPU samples in the silences: all, those that call stacks can name, those in the copies' own functions."""
    recording = scene.recording
    if not recording.samples.height:
        return None
    inside = recording.samples_in(silences)
    traced = scene.turns_of(recording.call_stacks.by_call["call"])
    mine = traced["call"].filter(traced["thread"].is_in(list(silences)))
    ours = copies["call"].drop_nulls().unique()
    foreign = set(recording.call_stacks.own_functions(mine.filter(~mine.is_in(ours.implode()))))
    own = set(recording.call_stacks.own_functions(ours)) - foreign
    frames = recording.call_stacks.functions(inside["stack"])
    named = frames.filter(pl.col("function").is_in(own | foreign))["stack"].unique()
    hit = frames.filter(pl.col("function").is_in(own))["stack"].unique()
    counts = [int(inside["stack"].is_in(stacks.implode()).sum()) for stacks in (named, hit)]
    return inside.height, counts[0], counts[1]
