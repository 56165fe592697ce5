"""How much of the GPU's work could be attributed: by number of operations, and by their time."""

from __future__ import annotations

import polars as pl

from nsysparse.joins.ranges import BY_THREAD, IN_TIME
from nsysparse.joins.work import Work

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
    mapped = work.devices.filter("mapped")["device"]
    parts = [
        frame.select("device", "start_ns", "end_ns", "call", pl.col("path_by").cast(pl.String), "callchain")
        for frame in (work.kernels, work.copies, work.memsets, work.graphs)
    ]
    ops = pl.concat(parts)
    tests = {
        "call": pl.col("call").is_not_null(),
        "nvtx": pl.col("path_by") == BY_THREAD,
        "nvtx_in_time": pl.col("path_by") == IN_TIME,
        "stack": pl.col("callchain").is_not_null(),
        "device": pl.col("device").is_in(mapped.implode()),
    }
    took = pl.col("end_ns") - pl.col("start_ns")
    total, time = ops.height, ops.select(took.sum()).item() or 0
    rows = []
    for measure, test in tests.items():
        n, covered = ops.select(test.sum(), took.filter(test).sum()).row(0)
        rows.append(
            (
                measure,
                MEASURES[measure],
                n or 0,
                total,
                n / total if total else None,
                covered / time if time else None,
            )
        )
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
