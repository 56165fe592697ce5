"""What the profiler says of its own recording."""

from __future__ import annotations

import re

import polars as pl

from nsysparse import units
from nsysparse.integrity.check import Check, Status
from nsysparse.joins.work import Work
from nsysparse.source import Trace

# Messages that admit loss. Shown by class, never verbatim: a message can hold paths and names.
LOSS = {
    "not all CUDA events might have been collected": r"(?i)not all cuda events",
    "CUPTI events were dropped as incomplete": r"(?i)incomplete cupti events dropped",
    "a flush of CUPTI's buffers failed": r"(?i)activityflushall returned",
    "no CUDA events were collected": r"(?i)no cuda events collected",
    "CUDA profiling might not have been started correctly": r"(?i)cuda profiling might have not been started",
    "events were dropped": r"(?i)\b(events|samples|records)\b[^.]*\b(dropped|lost)\b",
}
COLLECTED = re.compile(r"Number of CUDA events collected:\s*([\d,]+)")


# Said of every child process without CUDA, such as the assembler of a just-in-time compiler: no loss there.
NO_CUDA = r"(?i)no cuda events collected|cuda profiling might have not been started"


def check_diagnostics(trace: Trace, work: Work) -> Check:
    """Diagnostics that admit loss."""
    if not trace.has("diagnostics"):
        return Check(
            "diagnostics",
            "Diagnostics",
            Status.UNKNOWN,
            "The export holds no diagnostics (before 2024.2).",
            {},
        )
    texts = _of_the_program(trace.frame("diagnostics"), work.processes)["text"]
    admitted: dict[str, int] = {}
    left = texts
    for meaning, pattern in LOSS.items():
        hit = left.str.contains(pattern).fill_null(False)
        # "Number of ... dropped: 0" admits nothing.
        real = left.filter(hit).str.contains(r":\s*0\.?\s*$").not_().sum()
        if real:
            admitted[meaning] = int(real)
        left = left.filter(~hit)
    if not admitted:
        return Check("diagnostics", "Diagnostics", Status.OK, "No diagnostic admits loss.", {"admitted": {}})
    said = "; ".join(admitted)
    return Check("diagnostics", "Diagnostics", Status.INCOMPLETE, f"The profiler says: {said}.", {"admitted": admitted})


def _of_the_program(messages: pl.DataFrame, cuda: pl.Series) -> pl.DataFrame:
    """The messages without those that only say that some other process of the program uses no CUDA."""
    if not cuda.len():
        return messages
    other = pl.col("process").is_not_null() & ~pl.col("process").is_in(cuda.implode())
    return messages.filter(~(other & pl.col("text").str.contains(NO_CUDA)).fill_null(False))


def check_event_count(trace: Trace) -> Check:
    """Hold "CUDA events collected: N" against the rows that are there."""
    title = "Event count"
    said = [
        int(match[1].replace(",", ""))
        for text in (trace.frame("diagnostics")["text"].to_list() if trace.has("diagnostics") else [])
        if (match := COLLECTED.search(text or ""))
    ]
    if not said:
        return Check(
            "event_count",
            title,
            Status.UNKNOWN,
            "The export does not say how many CUDA events were collected.",
            {},
        )
    rows = trace.api_events + sum(trace.row_count(t) for t in ("kernels", "copies", "memsets"))
    evidence: dict[str, object] = {"collected": sum(said), "rows": rows}
    numbers = f"{units.count(sum(said))} CUDA events collected, {units.count(rows)} rows"
    if rows == sum(said):
        return Check("event_count", title, Status.OK, f"{numbers}: equal.", evidence)
    if trace.has("graphs"):
        return Check(
            "event_count",
            title,
            Status.UNKNOWN,
            f"{numbers}: graph rows make the count inconclusive.",
            evidence,
        )
    if rows < sum(said):
        return Check(
            "event_count",
            title,
            Status.INCOMPLETE,
            f"{numbers}: {units.count(sum(said) - rows)} are missing.",
            evidence,
        )
    return Check("event_count", title, Status.SUSPECT, f"{numbers}: more rows than events.", evidence)
