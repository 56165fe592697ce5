"""The verdict: two or three sentences with the numbers that matter, made of measured figures only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from nsysparse.accounting.copies import HOST_KINDS
from nsysparse.accounting.device import DeviceAccount
from nsysparse.findings import Finding, Severity
from nsysparse.integrity import Status, Verdict
from nsysparse.joins.work import Work
from nsysparse.units import count, duration, percent, size

LOADING_WORTH_SAYING = 0.05  # of the wall
OPAQUE = 0.5  # of the busy time, inside graphs recorded whole, from which the verdict speaks of what is left
COPIES_HEALTHY = 0.01  # of the window, in which a kernel or a feeding thread waited for a copy
SUSPECTS = {"scalar_readback"}  # what everybody suspects: worth a word even where its price is small
ABOUT_COPIES = {
    *("pageable_copies", "state_offload", "scalar_readback", "serial_copies", "streamed_weights", "small_copies"),
    *("slow_copies", "device_copies", "unified_memory"),
}


def state_verdict(
    accounts: list[DeviceAccount], work: Work, integrity: Verdict, findings: Sequence[Finding] = ()
) -> list[str]:
    """What an engineer reads first.

    Args:
        accounts: The devices that are reported on.
        work: The whole recording.
        integrity: Whether it can be trusted.
        findings: What the rules found, most to win first.
    """
    sentences = []
    if not accounts:
        sentences.append(_nothing(work))
    for account in sorted(accounts, key=lambda a: (-a.figures()["busy_ns"], a.number))[:2]:
        sentences.append(_where_time_went(account))
        mine = [f for f in findings if f.device == account.number and f.rule != "recording"]
        if any(f.severity > Severity.INFO for f in mine):
            said = _found(account, mine)
        else:
            said = [_copies(account) or (f"{mine[0].title}." if mine else None), _idle(account)]
        sentences.extend(s for s in (_opaque(account), *said, *what_leads(account)) if s)
    if len(accounts) > 2:
        sentences.append(f"{count(len(accounts) - 2)} more devices are accounted for below.")
    if integrity.status is Status.INCOMPLETE and accounts:
        sentences.insert(0, integrity.summary)  # whoever reads one sentence must read this one
    elif integrity.status is not Status.OK:
        sentences.append(integrity.summary)
    return sentences


def _nothing(work: Work) -> str:
    if recorded := work.calls.recorded.calls:
        return (
            f"No GPU operation was recorded, though {count(recorded)} CUDA API calls were:"
            " there is nothing to account for on the GPU."
        )
    return "No CUDA activity was recorded: there is nothing to account for on the GPU."


def _where_time_went(account: DeviceAccount) -> str:
    f = account.figures()
    kinds = [
        f"{name} {percent(f[f'{kind}_ratio'])}"
        for kind, name in (
            ("kernels", "kernels"),
            ("copies", "copies"),
            ("graphs", "whole graphs"),
            ("migrations", "unified-memory migrations"),
        )
        if f[f"{kind}_ns"] or kind in {"kernels", "copies"}
    ]
    return (
        f"{account.device['label']} was busy {percent(f['busy_ratio'])} of {duration(account.window.length_ns)}"
        f" ({account.window.basis}): {', '.join(kinds)}; idle {percent(f['idle_ratio'])}."
    )


def _found(account: DeviceAccount, findings: list[Finding]) -> list[str | None]:
    """What there is most to win, what comes next, and whether copies are part of it."""
    top = findings[0]
    first = top.detail.split(". ", 1)[0].rstrip(".")
    following = [f for f in findings[1:] if f.severity > Severity.INFO or f.rule in SUSPECTS][:1]
    then = f" Then: {_lower(following[0].title)}." if following else ""
    copies = [f for f in findings if f.rule in ABOUT_COPIES and f.severity > Severity.INFO]
    return [f"Most to win: {_lower(top.title)}. {first}.{then}", None if copies else _healthy_copies(account)]


def _lower(title: str) -> str:
    """A title inside a sentence: abbreviations and names keep their capitals."""
    return title[0].lower() + title[1:] if title[1:2].islower() else title


def _healthy_copies(account: DeviceAccount) -> str | None:
    """Copies that nobody waits for, where there are any; None where that cannot be said."""
    f = account.figures()
    if not f["copies_ns"] or f["held_up_ratio"] + f["host_blocked_in_copies_ratio"] > COPIES_HEALTHY:
        return None
    return (
        f"Copies are healthy: {percent(f['copies_ratio'])} of the window; a submitted kernel waited for one in"
        f" {percent(f['held_up_ratio'])} of it, a feeding thread in {percent(f['host_blocked_in_copies_ratio'])}."
    )


def biggest_host_copies(account: DeviceAccount) -> dict[str, Any] | None:
    """The sender whose copies between host and device cost the most; loading a model does not count.

    By exposed time; copies on the way to the device only from after the loading phase.
    """
    copies = account.copies.filter(pl.col("counted") & pl.col("kind_name").is_in(list(HOST_KINDS)))
    if account.loading is not None:
        copies = copies.filter((pl.col("kind") != 1) | (pl.col("end_ns") > account.loading.end_ns))
    if not copies.height:
        return None
    by = ["kind_name", "src", "dst", "path"]
    groups = copies.group_by(by).agg(
        pl.col("copy_count").sum().alias("count"),
        pl.col("bytes").sum(),
        pl.col("exposed_ns").sum(),
        pl.col("in_call_ns").sum(),
        pl.col("waits").any(),
    )
    return groups.sort("exposed_ns", "bytes", *by, descending=[True, True, *([False] * len(by))]).row(0, named=True)


def _copies(account: DeviceAccount) -> str | None:
    top = biggest_host_copies(account)
    if top is None:
        return None
    requests = account.requests.count if account.requests else 0
    each = f", {size(top['bytes'] / requests)} a request" if requests else ""
    path = account_path(account, top["path"])
    sender = f", sent from {path}" if path else ""
    share = percent(top["exposed_ns"] / account.window.length_ns)
    what = "copy" if top["count"] == 1 else "copies"
    held = f" and {duration(top['in_call_ns'])} of the host inside the copy calls" if top["in_call_ns"] else ""
    return (
        f"{count(top['count'])} {top['kind_name']} {what} ({top['src']} to {top['dst']}) moved {size(top['bytes'])}"
        f"{each}{sender}: {share} of the window with no kernel beside them{held}."
    )


def account_path(account: DeviceAccount, path: object) -> str | None:
    """Text of an NVTX path of this account's tables, None for path 0."""
    if not path:
        return None
    row = account.paths.filter(pl.col("path") == path)
    return str(row["text"][0]) if row.height else None


def _idle(account: DeviceAccount) -> str | None:
    table = account.tables["idle_by_activity"]
    if not table.height or account.figures()["idle_ratio"] < 0.1:
        return None
    parts = [f"{percent(r['idle_ratio'])} {r['activity']}" for r in table.head(3).to_dicts()]
    waited = account.figures()["idle_while_host_blocked_ratio"]
    return (
        f"While the GPU was idle its host thread was in: {', '.join(parts)} (shares of the window);"
        f" for {percent(waited)} of the window the host was blocked and the GPU idle."
    )


def _opaque(account: DeviceAccount) -> str | None:
    """That most of what the device did is hidden, where whole graphs hide it."""
    f = account.figures()
    if not f["graphs_ns"] or f["graphs_ns"] < OPAQUE * f["busy_ns"]:
        return None
    return (
        f"Whole CUDA graphs hide {percent(f['graphs_ns'] / f['busy_ns'])} of the time in which it was busy: no rule"
        " could look at their kernels and copies, so that nothing found here does not mean that nothing is wrong."
        " Record with --cuda-graph-trace=node."
    )


def what_leads(account: DeviceAccount) -> list[str]:
    """What of the window comes before the program's work, a sentence each: loading a model, start-up."""
    return [s for s in (_loading(account), _startup(account)) if s]


def _startup(account: DeviceAccount) -> str | None:
    """That the window begins with start-up, of which the findings' shares are free."""
    startup = account.startup
    loaded = account.loading.end_ns if account.loading else 0
    if startup is None or startup.window_ratio < LOADING_WORTH_SAYING or startup.end_ns <= loaded:
        return None
    return (
        f"The first {percent(startup.window_ratio)} of the window is start-up, with {percent(startup.operations_ratio)}"
        " of its operations; findings count what follows, and"
        f" --window {startup.end_ns / 1e9:.3f}s.. leaves it out of the other figures too."
    )


def _loading(account: DeviceAccount) -> str | None:
    loading = account.loading
    if loading is None or loading.wall_ratio < LOADING_WORTH_SAYING or account.window.start_ns >= loading.end_ns:
        return None
    return (
        f"The first {percent(loading.wall_ratio)} of the recording loads a model ({size(loading.bytes)} to the device,"
        f" {percent(loading.kernels_ratio)} of the kernels): loading is not serving, and"
        f" --window {loading.end_ns / 1e9:.3f}s.. looks past it."
    )
