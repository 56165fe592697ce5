"""Why the two sides can differ. A cause counts only where its own sign is found in the trace or in the census."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb

from nsysparse import units
from nsysparse.census.dump import Census
from nsysparse.census.windows import DeviceCount, Window
from nsysparse.crosscheck.sides import Item, Side, Tallies
from nsysparse.integrity import Status, Verdict
from nsysparse.joins.work import Work

TRACE, CENSUS = "trace", "census"
WORK_PARTS = frozenset({"kernels", "copies", "memsets", "busy"})
ALL_PARTS = WORK_PARTS | {"graph launches"}
GRAPH_MODE = "graph mode"
LOSS_SIGNS = ("diagnostics", "event_count", "missing_rows", "id_jumps", "empty_ranges", "tail")
FULL_COVERAGE = 0.99  # recording begins within the first call, so that a window never lacks more than this
SUBSETS = 2_000  # sets of processes to try


@dataclass(frozen=True)
class Cause:
    """One reason to differ.

    Attributes:
        name: What it is called in the rows that it explains.
        text: The sign that was found, one sentence.
        short: The side that has less by it: ``trace`` or ``census``.
        parts: The parts that it can touch.
    """

    name: str
    text: str
    short: str
    parts: frozenset[str] = ALL_PARTS


def causes_in_trace(work: Work, integrity: Verdict, census: Census) -> Iterator[Cause]:
    """What makes the trace hold less than was asked of the GPU."""
    node_mode = any(p.header.get("graph_mode") == "node" for p in census.processes)
    if work.graphs.height and node_mode:
        text = f"The trace holds {units.count(work.graphs.height)} runs of CUDA graphs as one row each"
        yield Cause(GRAPH_MODE, f"{text}, without the kernels and copies in them.", TRACE, WORK_PARTS)
    for check in integrity.checks:
        found = check.status in (Status.INCOMPLETE, Status.SUSPECT)
        if found and check.id == "export":
            yield Cause("filtered export", check.summary, TRACE)
        elif found and check.id in LOSS_SIGNS:
            yield Cause("loss in the trace", check.summary, TRACE)


def causes_in_census(census: Census, counts: list[DeviceCount], window: Window | None, work: Work) -> Iterator[Cause]:
    """What makes the census hold less."""
    inside_graphs = any(
        bool(f["graph_node"].is_not_null().any()) for f in (work.kernels, work.copies, work.memsets) if f.height
    )
    if inside_graphs and any(p.header.get("graph_mode") == "graph" for p in census.processes):
        text = "The census counted CUDA graphs as a whole, the trace what ran inside them."
        yield Cause("graph mode of the census", text, CENSUS, WORK_PARTS)
    dropped = {c.process: c.dropped for c in counts if c.dropped}
    if dropped:
        text = f"CUPTI dropped {units.count(sum(dropped.values()))} records of the census."
        yield Cause("dropped records", text, CENSUS)
    covered = [c.coverage_ratio for c in counts if c.coverage_ratio is not None]
    if covered and min(covered) < FULL_COVERAGE:
        yield Cause("census switched off", f"It was on for {units.percent(min(covered))} of its window.", CENSUS)
    unfinished = sum(not p.finished for p in census.processes)
    if unfinished and (window is None or window.end_ns is None):
        text = f"{units.count(unfinished)} processes of the census have no final line: killed, or still running."
        yield Cause("unfinished census", text, CENSUS)
    damaged = sum(p.bad_lines for p in census.processes)
    if damaged:
        yield Cause("damaged census", f"{units.count(damaged)} of its lines could not be read.", CENSUS)


def process_set(trace: Side, census: Side) -> tuple[Cause, tuple[str, ...]] | None:
    """Processes that only one side recorded: found when leaving them out makes every count and byte equal.

    Returns:
        The cause, and the processes to leave out; None when the sides hold as many processes, or no set of them
        makes the rest equal.
    """
    more, less, short = (
        (census, trace, TRACE) if len(census.processes) > len(trace.processes) else (trace, census, CENSUS)
    )
    extra = len(more.processes) - len(less.processes)
    if extra == 0 or not less.processes or comb(len(more.processes), extra) > SUBSETS:
        return None
    unknown = {*trace.unknown, *census.unknown, "busy", "migrations"}
    wanted = _counted(less.sums(), unknown)
    for left_out in combinations(sorted(more.processes), extra):
        if _counted(more.sums(left_out), unknown) == wanted:
            other = CENSUS if short == TRACE else TRACE
            names = ", ".join(name.partition("-")[0] for name in left_out)
            text = f"Without process {names}, which only the {other} holds, all counts and bytes are equal."
            return Cause("different processes", text, short, ALL_PARTS | {"busy"}), left_out
    return None


def _counted(tallies: Tallies, unknown: set[str]) -> dict[Item, tuple[int | None, int | None]]:
    return {i: (t.count, t.bytes) for i, t in tallies.items() if i.part not in unknown and t.count}


def drops_unknown(counts: list[DeviceCount]) -> bool:
    """Whether CUPTI could not say what it dropped."""
    return any(c.dropped is None for c in counts)


def hidden_a_run(difference: int, work: Work) -> str:
    """``, 4 in each of 100 runs`` where a difference is a whole number a run of a graph, else empty."""
    runs = work.graphs.height
    whole = runs > 0 and difference > 0 and difference % runs == 0
    return f", {units.count(difference // runs)} in each of {units.count(runs)} runs" if whole else ""
