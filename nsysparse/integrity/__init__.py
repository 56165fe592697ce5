"""Whether a recording can be trusted: each check is one function that looks for one way in which it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nsysparse.integrity.check import Check, Hole, Status, Verdict
from nsysparse.integrity.clocks import check_clocks
from nsysparse.integrity.diagnostics import check_diagnostics, check_event_count
from nsysparse.integrity.export import check_export, check_file, check_texts
from nsysparse.integrity.graphs import check_graphs
from nsysparse.integrity.loss import (
    Sending,
    check_empty_ranges,
    check_id_jumps,
    check_missing_rows,
    check_tail,
    count_calls,
)
from nsysparse.joins.work import Work
from nsysparse.side_by_side import aside
from nsysparse.source import Trace

__all__ = ["Check", "Hole", "Status", "Verdict", "begin_checking", "check_recording"]


def check_recording(trace: Trace, work: Work) -> Verdict:
    """Run every check and draw the verdict."""
    return begin_checking(trace, work)()


def begin_checking(trace: Trace, work: Work) -> Callable[[], Verdict]:
    """Run the checks that ask the recording itself.

    Returns:
        A function that runs the others, which only compute, and draws the verdict.
    """
    of_trace = (
        check_file(trace),
        check_export(trace),
        check_texts(trace),
        check_diagnostics(trace, work),
        check_event_count(trace),
    )
    graphs = check_graphs(trace, work)

    def finish() -> Verdict:
        with aside(trace.shelf.at_once) as begin:
            jumping, clocks = begin(partial(check_id_jumps, work)), begin(partial(check_clocks, trace, work))
            sending = Sending.of(work)
            missing, tail = check_missing_rows(work, sending), check_tail(work, sending)
            held = count_calls(work, sending)
            jumps, timed = jumping(), clocks()
        return Verdict((*of_trace, timed, graphs, missing, jumps, check_empty_ranges(held, jumps.holes), tail))

    return finish
