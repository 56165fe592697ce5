"""Clock sanity: rows without usable times, and effects before their causes."""

from __future__ import annotations

from nsysparse import units
from nsysparse.integrity.check import Check, Status
from nsysparse.joins.work import Work
from nsysparse.source import Trace


def check_clocks(trace: Trace, work: Work) -> Check:
    """Whether ends follow starts, no time is zero or missing, and no operation before the call that sent it."""
    unplaced = trace.left_out.get("api", 0)
    reversed_calls = int(work.calls["reversed"].sum())
    early = {
        name: int((frame["start_ns"] < work.calls["start_ns"].gather(frame["call"])).sum() or 0)
        for name in ("kernels", "copies", "memsets", "graphs")
        if (frame := getattr(work, name)).height
    }
    untimed = {row["table"]: row["rows"] for row in work.untimed.to_dicts()}
    evidence: dict[str, object] = {
        "untimed": untimed,
        "reversed_calls": reversed_calls,
        "before_their_call": early,
        "unplaced_calls": unplaced,
    }
    said = []
    if untimed:
        listed = ", ".join(f"{units.count(n)} of {table}" for table, n in untimed.items())
        lost = int(work.untimed["bytes"].sum())
        size = f" ({units.size(lost)})" if lost else ""
        said.append(f"rows without usable times are in no figure: {listed}{size}")
    if unplaced:
        said.append(
            f"{units.count(unplaced)} calls have no start or no thread and are in no figure; what they sent counts, but"
            " not to them"
        )
    if reversed_calls:
        said.append(f"{units.count(reversed_calls)} calls end before they start and count as instants")
    if any(early.values()):
        said.append(f"{units.count(sum(early.values()))} operations start before their own call: a clock is off")
    if not said:
        return Check("clocks", "Clocks", Status.OK, "No time is zero or reversed, nothing precedes its call.", evidence)
    text = "; ".join(said)
    return Check("clocks", "Clocks", Status.SUSPECT, f"{text[0].upper()}{text[1:]}.", evidence)
