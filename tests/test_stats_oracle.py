"""Every file of NVIDIA's own reports of the real recordings is reproduced, byte for byte."""

import pytest
from independent import oracle_files
from traces import NAMES, trace_path

from nsysparse.outputs.tables import to_csv
from nsysparse.source import open_trace
from nsysparse.stats import find_reports, find_rules, make_table

RULES = {f"rule.{name}": rule for name, rule in find_rules().items() if name != "gpu_gaps"}
GAPS = {"rule.gpu_gaps_gap=1": find_rules()["gpu_gaps"].build({"gap": 1})}
REPORTS = find_reports() | RULES | GAPS
# Of these nsys's output is not in the archive; test_stats.py checks them against plain SQL.
UNSEEN = {"cuda_api_trace", "cuda_kern_exec_trace", "um_sum"}


@pytest.fixture(scope="module")
def trace():
    opened = {}

    def get(name):
        if name not in opened:
            for other in opened.values():
                other.close()
            opened.clear()
            opened[name] = open_trace(trace_path(name))
        return opened[name]

    yield get
    for last in opened.values():
        last.close()


def files():
    return oracle_files() or pytest.skip("NVIDIA's reports are not in this checkout")


def test_the_whole_archive_is_tested():
    assert set(files()) == {f"{t}/{r}.csv" for t in NAMES for r in REPORTS if r not in UNSEEN}


@pytest.mark.parametrize("report", sorted(set(REPORTS) - UNSEEN))
@pytest.mark.parametrize("name", NAMES)
def test_same_bytes(trace, name, report):
    assert to_csv(make_table(REPORTS[report], [trace(name)])) == files()[f"{name}/{report}.csv"].decode()
