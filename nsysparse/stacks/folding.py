"""What of a stack is drawn: noise folded away, and Python frames in the interpreter's place.

Folding leaves out the profiler's own frames, a framework's dispatch, the program's start, and whatever lies beyond the
CUDA call (the driver's inside, where the profiler hooks in). Neighbouring frames without a name in one module become
one. The data keeps every frame; :meth:`nsysparse.stacks.load.Stacks.frame` shows them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysparse.stacks import names
from nsysparse.stacks.chains import Index, Lists, joined
from nsysparse.stacks.load import Stacks


@dataclass(frozen=True)
class Folded:
    """Stacks as they are drawn; elements are frames (rows of ``Stacks.frames``), root first.

    Attributes:
        whole: Every stack without its CUDA call.
        outside: The part before the first frame of an interpreter.
        inside: The part after the last frame of an interpreter; all of it where there is none.
        api: The frame of the CUDA call, -1 where a stack has none.
    """

    whole: Lists
    outside: Lists
    inside: Lists
    api: Index

    def merged(self, native: Index, python: Index) -> Lists:
        """Native and Python stacks of the same calls as one.

        Where both exist the Python frames take the place of the interpreter's, from its first to its last. What lies
        between two frames of the interpreter (an extension that calls back into Python) cannot be placed among the
        Python frames and is left out.

        Args:
            native: Stack of each call, -1 for none.
            python: Python stack of each call, -1 for none.
        """
        both = (native >= 0) & (python >= 0)
        alone = np.where(both, -1, native)
        with_python = np.where(both, native, -1)
        return joined(
            [
                self.whole.take(alone),
                self.outside.take(with_python),
                self.whole.take(python),
                self.inside.take(with_python),
            ]
        )


def fold(stacks: Stacks, keep_noise: bool = False) -> Folded:
    """Fold every stack.

    Args:
        stacks: The stacks.
        keep_noise: Draw every frame.
    """
    lists, frames = stacks.stacks, stacks.frames
    role = {r: lists.each((frames["role"] == r).to_numpy()) for r in (names.API, names.INTERPRETER)}
    place = lists.place()
    api_at = lists.first(role[names.API], -1)
    api = np.where(api_at >= 0, _at(lists, lists.start[:-1] + api_at), -1)
    kept = np.ones(lists.value.size, np.bool_) if keep_noise else _worth_drawing(stacks, api_at)
    begin = lists.first(role[names.INTERPRETER], -1)
    end = lists.last(role[names.INTERPRETER], -1)
    outside = kept & (place < np.repeat(begin, lists.length))
    inside = kept & (place > np.repeat(end, lists.length))
    return Folded(lists.where(kept), lists.where(outside), lists.where(inside), api)


def _at(lists: Lists, where: Index) -> Index:
    """Elements at some places; whatever where the place is outside."""
    if not lists.value.size:
        return np.full(where.size, -1, np.int64)
    return lists.value[np.clip(where, 0, lists.value.size - 1)].astype(np.int64)


def _worth_drawing(stacks: Stacks, api_at: Index) -> npt.NDArray[np.bool_]:
    lists, frames = stacks.stacks, stacks.frames
    noise = frames["role"].is_in([names.PROFILER, names.DISPATCH]).to_numpy()
    start = lists.each((frames["role"] == names.START).to_numpy())
    noisy = lists.each(noise)
    place = lists.place()
    reached = lists.first(~start & ~noisy, lists.length)
    beyond = np.where(api_at >= 0, api_at, lists.length)
    kept = ~noisy & (place >= np.repeat(reached, lists.length)) & (place < np.repeat(beyond, lists.length))
    return kept & ~_repeats(lists, kept, frames)


def _repeats(lists: Lists, kept: npt.NDArray[np.bool_], frames: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Frames without a name of their own that follow one of the same label."""
    nameless = frames["label"].str.ends_with(" (unresolved)") | (frames["role"] == names.INTERPRETER)
    code = frames["label"].rank("dense").cast(pl.Int64).fill_null(0)
    label = np.where(nameless.fill_null(False).to_numpy(), code.to_numpy(), -1 - np.arange(frames.height))
    at = np.flatnonzero(kept)
    mine, owner = label[lists.value[at]], lists.owner()[at]
    again = np.zeros(at.size, np.bool_)
    again[1:] = (mine[1:] == mine[:-1]) & (owner[1:] == owner[:-1])
    result = np.zeros(kept.size, np.bool_)
    result[at[again]] = True
    return result
