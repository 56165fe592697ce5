"""Everything that is known of a recording's call paths, in one piece for the analysis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from nsysparse.accounting.device import DeviceAccount
from nsysparse.accounting.samples import share_samples
from nsysparse.flamegraph.flame import Flame, make_flame
from nsysparse.flamegraph.tables import table_copy_paths, table_waiting_paths
from nsysparse.joins.work import Work
from nsysparse.source import Trace
from nsysparse.stacks.attribution import Attributed


@dataclass(frozen=True)
class CallPaths:
    """Call paths of the devices' windows.

    Attributes:
        flame: The weighed paths.
        tables: ``copy_paths``, ``waiting_paths`` (see :mod:`nsysparse.flamegraph.tables`), ``sampled_threads`` (see
            :func:`nsysparse.accounting.samples.share_samples`) and ``stack_coverage`` (see
            :func:`nsysparse.stacks.attribution.measure_stacks`).
    """

    flame: Flame
    tables: dict[str, pl.DataFrame]


def read_call_path_tables(trace: Trace) -> None:
    """Read what :func:`weigh_call_paths` looks at beside the stacks, so that it may work on another thread."""
    for name in ("strings", "processes", "threads", "osrt"):
        trace.frame(name)


def weigh_call_paths(
    work: Work,
    accounts: Sequence[DeviceAccount],
    trace: Trace,
    stacks: Attributed,
    *,
    lines: bool = True,
    keep_noise: bool = False,
) -> CallPaths:
    """Weigh the call paths; see :func:`nsysparse.flamegraph.flame.make_flame`."""
    flame = make_flame(work, accounts, stacks, trace, lines=lines, keep_noise=keep_noise)
    return CallPaths(
        flame,
        {
            "copy_paths": table_copy_paths(flame),
            "waiting_paths": table_waiting_paths(flame),
            "sampled_threads": share_samples(work, stacks.stacks, trace, *flame.window),
            "stack_coverage": flame.coverage,
        },
    )
