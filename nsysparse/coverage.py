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
    mapped = work.devices.filter("mapped")["device"]
    tests = {
        "call": pl.col("call").is_not_null(),
        "nvtx": pl.col("path_by") == BY_THREAD,
        "nvtx_in_time": pl.col("path_by") == IN_TIME,
        "stack": pl.col("callchain").is_not_null(),
        "device": pl.col("device").is_in(mapped.implode()),
    }
    took = pl.col("end_ns") - pl.col("start_ns")
    numbers = {m: test.sum().cast(pl.Int64) for m, test in tests.items()}
    lengths = {f"{m}_ns": took.filter(test).sum() for m, test in tests.items()}
    sums = [
        getattr(work, name).select(pl.len().cast(pl.Int64).alias("all"), all_ns=took.sum(), **numbers, **lengths)
        for name in GPU_TABLES
    ]
    added = pl.concat(sums).sum().row(0, named=True)
    total, time = added["all"], added["all_ns"]
    rows = []
    for measure in tests:
        n, covered = added[measure], added[f"{measure}_ns"]
        rows.append(
            (
                measure,
                MEASURES[measure],
                n,
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
