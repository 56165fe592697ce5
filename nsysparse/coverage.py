"""How much of the GPU's work could be attributed: by number of operations, and by their time."""

from __future__ import annotations

import polars as pl

from nsysparse.joins.ranges import BY_THREAD, IN_TIME
from nsysparse.joins.work import GPU_TABLES, Work

MEASURES = {
    "call": "have the API call that sent them",
    "nvtx": "have an NVTX path on their own thread",
    "nvtx_in_time": "were placed in an NVTX range only by time (threads without NVTX, such as autograd's)",
    "stack": "have a recorded call stack",
    "device": "ran on a device that the export maps to a GPU",
}


def measure_coverage(work: Work) -> pl.DataFrame:
    """Coverage of the whole recording.

    Returns:
        ``measure`` (a key of MEASURES), ``meaning``, ``operations``, ``of_operations``, ``operations_ratio``,
        ``time_ratio`` (share of the sum of their durations); ratios are NULL when there is no operation.
    """
    mapped = work.devices.filter("mapped")["device"].implode()
    total, time = 0, 0
    covered = dict.fromkeys(MEASURES, (0, 0))
    for frame in (getattr(work, name) for name in GPU_TABLES):
        took, path_by = frame["end_ns"] - frame["start_ns"], frame["path_by"]
        total, time = total + frame.height, time + int(took.sum())
        holds = {
            "call": frame["call"].is_not_null(),
            "nvtx": path_by == BY_THREAD,
            "nvtx_in_time": path_by == IN_TIME,
            "stack": frame["callchain"].is_not_null(),
            "device": frame["device"].is_in(mapped),
        }
        for measure, of_these in holds.items():
            number, length = covered[measure]
            more, longer = _covered(of_these, took)
            covered[measure] = number + more, length + longer
    rows = []
    for measure, (n, length) in covered.items():
        of_all = (n / total if total else None, length / time if time else None)
        rows.append((measure, MEASURES[measure], n, total, *of_all))
    return pl.DataFrame(
        rows,
        orient="row",
        schema={
            "measure": pl.String,
            "meaning": pl.String,
            "operations": pl.Int64,
            "of_operations": pl.Int64,
            "operations_ratio": pl.Float64,
            "time_ratio": pl.Float64,
        },
    )


def _covered(holds: pl.Series, took: pl.Series) -> tuple[int, int]:
    """Of how many operations something holds, and their time; mostly of all or of none: then nothing is gathered."""
    number = int(holds.sum())
    if 0 < number < holds.len():
        took = took.filter(holds)
    return number, int(took.sum()) if number else 0
