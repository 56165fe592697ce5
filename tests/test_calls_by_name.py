"""CUDA calls by name, and rows of calls that cannot be placed."""

import csv
import io
import re
from collections import Counter

import pytest
from export_builder import RELEASES, ExportBuilder, global_id
from independent import oracle_files, sql
from traces import trace_path

from nsysparse.integrity import check_recording
from nsysparse.joins.work import load_work
from nsysparse.queries import load_queries, run_query
from nsysparse.source import open_trace


def theirs_of(name):
    files = oracle_files() or pytest.skip("NVIDIA's reports are not in this checkout")
    return files[f"{name}/cuda_api_sum.csv"].decode()


@pytest.mark.parametrize("name", ["train_item", "llama_default", "eager_h2d", "threads"])
def test_calls_by_name_are_nsyss_without_the_second_row_of_a_call(name):
    """Held against nsys's own table: a backtrace's row counts there as another call of the same function."""
    path = trace_path(name)
    with open_trace(path) as trace:
        ours = run_query(trace, load_queries()["api/by_name"], {"top": 100_000})
    counts = Counter()
    for function, count in ours.select("name", "count").iter_rows():
        counts[re.sub(r"_v.{4}$", "", function)] += count
    theirs = Counter()
    for row in csv.DictReader(io.StringIO(theirs_of(name))):
        theirs[row["Name"]] += int(row["Num Calls"])
    twice = Counter(dict(sql(path, """SELECT s.value, count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME a JOIN StringIds s
        ON s.id = a.nameId WHERE eventClass = 67 AND EXISTS (SELECT 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME b
        WHERE b.correlationId = a.correlationId AND b.eventClass <> 67) GROUP BY 1""")))  # fmt: skip
    twice = Counter({re.sub(r"_v.{4}$", "", function): n for function, n in twice.items()})
    assert counts == theirs - twice
    assert sum(twice.values()) == sum(theirs.values()) - sum(counts.values())


def test_a_call_that_only_has_a_backtraces_row_counts(tmp_path):
    b = ExportBuilder(RELEASES[-1])
    for start, event_class, correlation in ((10, 0, 1), (9, 67, 1), (30, 67, 2), (50, 67, 0), (70, 0, 0)):
        b.api("cudaMemcpy", start, start + 5, global_id(7, 7), correlation=correlation, event_class=event_class)
    with open_trace(b.write(tmp_path / "t.sqlite")) as trace:
        (row,) = run_query(trace, load_queries()["api/by_name"]).to_dicts()
    assert row["count"] == 4  # the row of class 67 that has a partner is the same call


def test_calls_without_a_thread_are_told(tmp_path):
    b = ExportBuilder(RELEASES[-1])
    tid = global_id(7, 7)
    b.launch(tid, (100, 200), (300, 400))
    b.launch(tid, (500, 600), (700, 800))
    b.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][0]["globalTid"] = None
    with open_trace(b.write(tmp_path / "t.sqlite")) as trace:
        work = load_work(trace)
        (check,) = [c for c in check_recording(trace, work).checks if c.id == "clocks"]
    assert work.calls.height == 1
    assert work.kernels["call"].to_list() == [None, 0]
    assert check.evidence["unplaced_calls"] == 1
    assert check.status.value == "suspect"
    assert check.summary.startswith("1 calls have no start or no thread and are in no figure")
