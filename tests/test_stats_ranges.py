"""Unfinished, crossing and equal ranges in the reports: what nsys 2025.3.1 prints of them, and brute force."""

import csv
import io

import numpy as np
import polars as pl
import pytest
from export_builder import MARK, PUSH_POP, START_END, ExportBuilder, global_id

from nsysparse.outputs.tables import to_csv
from nsysparse.source import open_trace
from nsysparse.stats import find_reports, make_table
from nsysparse.stats.cut import cut_trace
from nsysparse.stats.tree import with_tree

RELEASE = "2025.3.2.0"
REPORTS = find_reports()
T = global_id(100, 100)
V = T + 1


def printed(path, report):
    """The lines of the report's CSV, without the header."""
    with open_trace(path) as trace:
        return to_csv(make_table(REPORTS[report], [trace], top=0)).splitlines()[1:]


def cells(path, report, *columns):
    with open_trace(path) as trace:
        rows = csv.DictReader(io.StringIO(to_csv(make_table(REPORTS[report], [trace], top=0))))
        return [tuple(row[c] for c in columns) for row in rows]


# --- ends of unfinished ranges ---


def four_kernels(path, ranges):
    b = ExportBuilder(RELEASE)
    for kind, name, start, end, *end_thread in ranges:
        b.nvtx(kind, name, start, end, T, endGlobalTid=end_thread[0] if end_thread else None)
    for thread, call, kernel, name in ((T, 30, 80, "k1"), (T, 120, 180, "k2"), (V, 240, 300, "k3"), (T, 0, 50, "k4")):
        b.launch(thread, (call, call + 5 if call else 1), (kernel, kernel + 10 if call else 51), name)
    return b.write(path)


OPEN = (PUSH_POP, "u", 20, None)
CASES = {
    "no range has an end": ((START_END, "o", 10, None), OPEN),
    "one of the other style has": (OPEN, (PUSH_POP, "w", 200, None), (START_END, "m", 10, 99, V)),
    "the last start is later": ((START_END, "p", 10, 9_000, T), (START_END, "o", 10, None, T), OPEN),
    "an event that is no range ends last": ((MARK, "k", 10, 9_000), OPEN, (PUSH_POP, "x", 5, 99)),
}
NSYS_SUM = {
    "no range has an end": [",,1,,,,,0.0,StartEnd,:o", ",,1,,,,,0.0,PushPop,:u"],
    "one of the other style has": [
        "66.9,180,1,180.0,180.0,180,180,0.0,PushPop,:u",
        "33.1,89,1,89.0,89.0,89,89,0.0,StartEnd,:m",
        "0.0,0,1,0.0,0.0,0,0,0.0,PushPop,:w",
    ],
    "the last start is later": [
        "33.3,8990,1,8990.0,8990.0,8990,8990,0.0,StartEnd,:o",
        "33.3,8990,1,8990.0,8990.0,8990,8990,0.0,StartEnd,:p",
        "33.3,8980,1,8980.0,8980.0,8980,8980,0.0,PushPop,:u",
    ],
    "an event that is no range ends last": [
        "99.0,8980,1,8980.0,8980.0,8980,8980,0.0,PushPop,:u",
        "1.0,94,1,94.0,94.0,94,94,0.0,PushPop,:x",
    ],
}
NSYS_TRACE = {
    "no range has an end": ["20,,,0,,:u,100,100,0,0,2,,:2,:u"],
    "one of the other style has": ["20,,,0,,:u,100,100,0,0,1,,:1,:u", "200,,,0,,:w,100,100,0,0,2,,:2,:w"],
    "the last start is later": ["20,,,0,,:u,100,100,0,0,3,,:3,:u"],
    "an event that is no range ends last": [
        "5,99,94,79,15,:x,100,100,0,1,3,,:3,:x",
        "20,99,79,0,79,:u,100,100,1,0,2,3,:3:2,--:u",
    ],
}
NSYS_PROJECTED = {
    "no range has an end": [],
    "one of the other style has": [":u,80,110,20,180,PushPop,100,100,2,0,0,1,,:1"],
    "the last start is later": [":u,80,110,20,8980,PushPop,100,100,2,0,0,3,,:3"],
    "an event that is no range ends last": [
        ":u,80,10,20,79,PushPop,100,100,1,1,0,2,3,:3:2",
        ":x,80,10,5,94,PushPop,100,100,1,0,1,3,,:3",
    ],
}
NSYS_KERNELS = {
    "no range has an end": [("", "k1"), ("", "k2"), ("", "k4"), ("", "k3")],
    "one of the other style has": [("", "k4"), ("", "k3"), (":u", "k1"), (":u", "k2")],
    "the last start is later": [("", "k4"), ("", "k3"), (":u", "k1"), (":u", "k2")],
    "an event that is no range ends last": [("", "k2"), ("", "k4"), ("", "k3"), (":u", "k1"), (":x", "k1")],
}


@pytest.mark.parametrize("case", CASES)
def test_an_unfinished_range_ends_where_nsys_ends_it(case, tmp_path):
    path = four_kernels(tmp_path / "t.sqlite", CASES[case])
    assert printed(path, "nvtx_sum") == NSYS_SUM[case]
    for name, style in (("nvtx_pushpop_sum", "PushPop"), ("nvtx_startend_sum", "StartEnd")):
        mine = [line for line in NSYS_SUM[case] if f",{style}," in line]
        got = [line.split(",") for line in printed(path, name)]
        assert [(r[1], r[-1]) for r in got] == [(m.split(",")[1], m.split(",")[-1]) for m in mine]
    assert printed(path, "nvtx_pushpop_trace") == NSYS_TRACE[case]
    assert printed(path, "nvtx_gpu_proj_trace") == NSYS_PROJECTED[case]
    kernels = cells(path, "nvtx_kern_sum", "NVTX Range", "Kernel Name")
    assert [(r, k.removeprefix("void ").split("<")[0]) for r, k in kernels] == NSYS_KERNELS[case]


def test_kernels_outside_of_all_ranges_are_listed_where_nvtx_was_recorded_at_all(tmp_path):
    marked = four_kernels(tmp_path / "marked.sqlite", [(MARK, "k", 10, None)])
    assert {r for (r,) in cells(marked, "nvtx_kern_sum", "NVTX Range")} == {""}
    assert len(printed(marked, "nvtx_kern_sum")) == 4
    assert printed(four_kernels(tmp_path / "none.sqlite", []), "nvtx_kern_sum") == []


@pytest.mark.parametrize("end_thread", [0, T, V])
def test_a_range_with_an_end_thread_is_not_looked_into(end_thread, tmp_path):
    ranges = [(START_END, "moved", 10, 9_000, end_thread), (START_END, "stays", 10, 9_000)]
    path = four_kernels(tmp_path / "t.sqlite", ranges)
    assert cells(path, "nvtx_gpu_proj_trace", "Name") == [(":stays",)]
    assert {r for (r,) in cells(path, "nvtx_kern_sum", "NVTX Range")} == {"", ":stays"}


def test_an_unfinished_range_is_in_the_windows_that_it_reaches(tmp_path):
    path = four_kernels(tmp_path / "t.sqlite", [(PUSH_POP, "u", 150, None), (PUSH_POP, "late", 400, 500)])
    with open_trace(path) as trace:
        for window, names in (("0ns..100ns", []), ("160ns..200ns", [":u"]), ("450ns..490ns", [":u", ":late"])):
            table = make_table(REPORTS["nvtx_pushpop_trace"], [cut_trace(trace, asked=window)]).frame
            assert table["Name"].to_list() == names
            assert table.filter(pl.col("Name") == ":u")["End (ns)"].to_list() == [500] * (":u" in names)


# --- the tree ---


@pytest.fixture
def tangle(tmp_path):
    """Crossing, equal, empty and unfinished ranges, with a kernel in most of them."""
    b = ExportBuilder(RELEASE)
    listed = (
        *(("late", 80, 5000), ("A", 100, 1000), ("B", 500, 1500), ("C", 600, 900), ("D", 600, 900), ("E", 600, 900)),
        *(("F", 700, 700), ("G", 700, 700), ("H", 905, 950), ("X", 2000, 2100), ("Y", 2050, 2150), ("Z", 2060, 2090)),
        *(("aa", 2800, 2850), ("aa", 2850, 2900), ("bb", 2800, 2900), ("N", 2910, 2935), ("L", 2050, 2150)),
        *(("U1", 4000, None), ("i1", 4100, 4200), ("U2", 6000, None), ("i2", 4990, 4999), ("U3", 6000, None)),
    )
    for name, start, end in listed:
        b.push_pop(name, start, end, T)
    b.nvtx(MARK, "mark", 9000, None, T)
    for i, (thread, other) in enumerate(((T, None), (T, 0), (T, V), (T, T), (None, None))):
        b.nvtx(START_END, f"s{i}", 70 + i, 4500 + i, thread, endGlobalTid=other)
        b.nvtx(PUSH_POP, f"p{i}", 60 + i, 4600 + i, thread, endGlobalTid=other)
        b.nvtx(START_END, f"so{i}", 50 + i, None, thread, endGlobalTid=other)
        b.nvtx(PUSH_POP, f"po{i}", 40 + i, None, thread, endGlobalTid=other)
    b.nvtx(PUSH_POP, None, 30, 4700, T)
    b.nvtx(70, "t70", 31, 4701, T)
    b.nvtx(71, "t71", 32, 4702, T)
    b.push_pop("V1", 300, None, V)
    b.push_pop("V2", 310, 400, V)
    for i, at in enumerate((110, 610, 700, 905, 2065, 2905, 2912, 3050, 4110, 4300, 6010)):
        b.launch(T, (at, at + 5), (at + 50, at + 60), f"k{i}")
    b.launch(V, (320, 325), (400, 410))
    b.launch(V, (5005, 5009), (6000, 6001), "kv")
    return b.write(tmp_path / "t.sqlite")


# name, level, children, id, parent, as nsys prints them
NSYS_TREE = """\
: 0 4 44 -|:t70 0 0 45 -|:po0 0 1 27 -|:po1 1 1 31 27|:po2 2 1 35 31|:po3 3 2 39 35|:po4 0 0 43 -|:p0 1 5 25 44
:p1 1 0 29 44|:p2 1 0 33 44|:p3 1 0 37 44|:p4 0 0 41 -|:late 4 0 1 39|:A 2 1 2 25|:V1 0 1 47 -|:V2 1 0 48 47
:B 2 0 3 25|:H 3 0 9 2|:X 2 1 10 25|:Z 3 0 12 10|:aa 3 0 13 15|:bb 2 2 15 25|:aa 3 0 14 15|:N 2 0 16 25
:U1 4 2 18 39|:i1 5 0 19 18|:i2 5 0 21 18"""
NSYS_PROJECTED_TREE = """\
:late 2 0 1 26|:A 3 1 2 24|:B 3 0 3 24|:C - 2 4 -|:D - 1 5 -|:E - 0 6 -|:H 4 0 9 2|:X 3 1 10 24|:Y - 1 11 -
:Z 4 0 12 10|:N 3 0 16 24|:L - 1 17 -|:U1 2 1 18 26|:i1 3 0 19 18|:s0 2 4 24 25|:p0 1 1 25 44|:so0 1 2 26 27
:po0 0 1 27 -|: 0 1 44 -|:t70 0 0 45 -|:t71 0 0 46 -|:V1 0 1 47 -|:V2 1 0 48 47"""


@pytest.mark.parametrize(
    ("report", "want"), [("nvtx_pushpop_trace", NSYS_TREE), ("nvtx_gpu_proj_trace", NSYS_PROJECTED_TREE)]
)
def test_the_parent_is_the_shortest_range_around(tangle, report, want):
    got = cells(tangle, report, "Name", "Lvl", "NumChild", "RangeId", "ParentId")
    assert [" ".join(cell or "-" for cell in row) for row in got] == want.replace("\n", "|").split("|")


def test_times_and_stacks_of_tangled_ranges(tangle):
    lines = printed(tangle, "nvtx_pushpop_trace")
    assert lines[0] == "30,4700,4670,18160,-13490,:,100,100,0,4,44,,:44,:"
    assert "43,6000,5957,6920,-963,:po3,100,100,3,2,39,35,:27:31:35:39,------:po3" in lines
    assert "44,6000,5956,0,5956,:po4,,,0,0,43,,:43,:po4" in lines
    lines = printed(tangle, "nvtx_gpu_proj_sum")
    assert lines[0] == ":V1,PushPop,5601,5700,1,5601.0,5601.0,5601,5601,0.0,2,2.0,0.0,1.0"
    assert lines[1] == ":,PushPop,4200,4670,1,4200.0,4200.0,4200,4200,0.0,10,10.0,0.0,1.0"
    assert ":C,PushPop,100,300,1,100.0,100.0,100,100,0.0,2,2.0,,2.0" in lines
    # Equal totals go by name, whichever average is longer; all of NVTX's events close the open ones here.
    names = [name for (name,) in cells(tangle, "nvtx_sum", "Range")]
    assert names[names.index(":L") :][:6] == [":L", ":X", ":Y", ":aa", ":bb", ":i1"]
    assert "1.7,3000,1,3000.0,3000.0,3000,3000,0.0,PushPop,:U2" in printed(tangle, "nvtx_sum")


def tree_by_definition(ranges):
    """Parents, levels and stacks by comparing every range with every other."""
    parents = {}
    for r in ranges:
        around = [
            (o["duration"], o["id"]) for o in ranges
            if o["id"] != r["id"] and o["thread"] == r["thread"] is not None
            and o["start_ns"] <= r["start_ns"] and o["end_ns"] >= r["end_ns"]
        ]  # fmt: skip
        parents[r["id"]] = min(around)[1] if around else None
    found = {}
    for i, parent in parents.items():
        chain = [i]
        while (up := parents[chain[-1]]) is not None and up not in chain:
            chain.append(up)
        reached = parents[chain[-1]] is None
        found[i] = (
            parent if reached else None,
            len(chain) - 1 if reached else None,
            "".join(f":{c}" for c in reversed(chain)) if reached else None,
            sum(p == i for p in parents.values()),
            sum(r["duration"] for r in ranges if parents[r["id"]] == i),
        )
    return found


@pytest.mark.parametrize("span", [12, 60, 1_000])
@pytest.mark.parametrize("seed", range(8))
def test_the_tree_by_brute_force(seed, span):
    rng = np.random.default_rng([seed, span])
    n = 150
    start = rng.integers(0, span, n)
    length = np.where(rng.random(n) < 0.7, rng.integers(0, max(span // 20, 2), n), rng.integers(0, span, n))
    thread = [None if rng.random() < 0.05 else T + int(rng.integers(3)) for _ in range(n)]
    ranges = pl.DataFrame({"id": np.arange(n) * 2 + 1, "thread": thread, "start_ns": start, "end_ns": start + length})
    ranges = ranges.with_columns(duration=pl.col("end_ns") - pl.col("start_ns"))
    got = with_tree(ranges).select("id", "parent", "level", "stack", "children", "children_ns").rows()
    assert {row[0]: row[1:] for row in got} == tree_by_definition(ranges.to_dicts())


def test_ranges_that_only_touch():
    starts, ends = [0, 5, 5, 5, 20], [5, 10, 5, 7, 20]
    ranges = pl.DataFrame({"id": [1, 2, 3, 4, 5], "thread": [T] * 5, "start_ns": starts, "end_ns": ends})
    ranges = ranges.with_columns(duration=pl.col("end_ns") - pl.col("start_ns"))
    assert with_tree(ranges)["parent"].to_list() == [None, None, 4, 2, None]
