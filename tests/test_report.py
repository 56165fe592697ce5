"""The report: its structure, its numbers, what it does with hostile text, and what it says when data is missing."""

from __future__ import annotations

import base64
import copy
import dataclasses
import hashlib
import json
import math
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import jinja2
import numpy as np
import polars as pl
import pytest
from independent import length, merged
from report_page import HOSTILE, Page, analysis_of_export, empty, hostile, standard
from traces import trace_path

from nsysparse import units
from nsysparse.analysis import analyze
from nsysparse.definitions import DEFINITIONS
from nsysparse.errors import NsysparseError
from nsysparse.findings import Failed, Finding, Quiet, Severity, Skipped
from nsysparse.outputs.json import _written, to_dict, to_json
from nsysparse.report import bundle, page, render_report
from nsysparse.report.sections import find_sections, read_head
from nsysparse.report.tables import by_name, table
from nsysparse.report.text import clipped, visible
from nsysparse.report.timeline import exclusive, partition
from nsysparse.source import open_trace

SECTIONS = [
    "verdict", "findings", "trust", "time", "timeline", "copies", "sampling", "senders", "callpaths", "requests",
    "kernels", "nvtx", "idle", "recorded", "definitions",
]  # fmt: skip
TRACES = ("state_checkpoint", "llama_default", "p2p", "pinned_overlap_lossy", "graph_replay_graph")
MAX_BYTES = 5_000_000
ROW_TERMS = {"overlapped"}  # linked from a row, not from a header


@pytest.fixture(scope="module")
def page_of(analysis_of):
    """``page_of(name)``: the analysis of a real recording, its report, and the report read back."""
    made = {}

    def make(name):
        if name not in made:
            analysis = analysis_of(name)
            html = render_report(analysis)
            made[name] = (analysis, html, Page(html))
        return made[name]

    return make


@pytest.mark.parametrize("name", TRACES)
def test_structure(page_of, name):
    analysis, html, read = page_of(name)
    assert not read.unclosed
    assert len(set(read.ids)) == len(read.ids)
    assert [i for i in read.ids if i in SECTIONS] == SECTIONS
    assert {link[1:] for link in read.links} <= set(read.ids), "a link that leads nowhere"
    for sentence in analysis.verdict:
        assert visible(sentence) in read.text
    for check in analysis.integrity.checks:
        assert check.title in read.text
        assert check.summary in read.text
    assert len(html.encode()) < 2_000_000


@pytest.mark.parametrize("name", TRACES)
def test_every_header_leads_to_its_definition(page_of, name):
    _, _, read = page_of(name)
    assert len(read.headers) > 8
    for caption, headers in read.headers.items():
        for title, link in headers:
            assert link.removeprefix("#def-") in DEFINITIONS or title == "Why", f"{caption}: {title}"
    assert {f"def-{key}" for key in DEFINITIONS} <= set(read.ids)
    assert {f"#def-{key}" for key in ROW_TERMS} <= set(read.links)


def test_every_definition_is_used():
    templates = page.data_folder("templates")
    source = "\n".join(f.read_text("utf-8") for f in templates.rglob("*.html"))
    assert [key for key in DEFINITIONS if f'"{key}"' not in source and key not in ROW_TERMS] == []


def exact(value, unit):
    """What a tooltip must say, written here without the report's own formatter."""
    if value is None:
        return "not known"
    if isinstance(value, str):
        return ""
    return (f"{value:,}" if isinstance(value, int) else f"{value:,.12g}") + unit


TABLES = {
    # caption: (table of the JSON, {header: (column, unit)}, whether the rows come in the JSON's order)
    "Copies by kind and memory": (
        "copies_by_kind",
        {
            "Count": ("count", ""),
            "Bytes": ("bytes", " B"),
            "Exposed": ("exposed_ns", " ns"),
            "Exposed, of the window": ("exposed_ratio", ""),
            "Time": ("time_ns", " ns"),
            "In the call": ("in_call_ns", " ns"),
            "Bandwidth, GPU": ("bandwidth", " B/s"),
            "Bandwidth, call": ("call_bandwidth", " B/s"),
            "Best copy": ("best_bandwidth", " B/s"),
            "Median size": ("median_bytes", " B"),
            "Largest": ("max_bytes", " B"),
        },
        True,
    ),
    "Copies by size": (
        "copy_sizes",
        {"Size, from": ("from_bytes", " B"), "Count": ("count", ""), "Bytes": ("bytes", " B")},
        True,
    ),
    "By part of the program": (
        "copies_by_sender",
        {
            "Count": ("count", ""),
            "Bytes": ("bytes", " B"),
            "Exposed": ("exposed_ns", " ns"),
            "In the call": ("in_call_ns", " ns"),
        },
        True,
    ),
    "By API call": ("copies_by_api", {"Count": ("count", ""), "Bytes": ("bytes", " B")}, True),
    "By thread": ("copies_by_thread", {"Count": ("count", ""), "Bytes": ("bytes", " B")}, True),
    "Threads that feed the device": (
        "threads",
        {
            "Operations sent": ("operations", ""),
            "Calls": ("calls", ""),
            "Host blocked": ("blocked_ns", " ns"),
            "In copy calls": ("copy_ns", " ns"),
            "Host blocked, of the window": ("blocked_ratio", ""),
        },
        True,
    ),
    "Kernels by name": (
        "kernels",
        {
            "Count": ("count", ""),
            "Time": ("time_ns", " ns"),
            "Of kernel time": ("time_ratio", ""),
            "Mean": ("mean_ns", " ns"),
            "Most": ("max_ns", " ns"),
            "SM fill, estimate": ("sm_fill", ""),
        },
        True,
    ),
    "What the host was doing while the device was idle": (
        "idle_by_activity",
        {"Idle time": ("idle_ns", " ns"), "Of the window": ("idle_ratio", "")},
        True,
    ),
    "Idle time by length of the gap": (
        "idle_by_length",
        {"Gaps": ("count", ""), "Idle time": ("idle_ns", " ns")},
        True,
    ),
    "The longest gaps": (
        "longest_gaps",
        {"From": ("start_ns", " ns"), "To": ("end_ns", " ns"), "Length": ("gap_ns", " ns")},
        True,
    ),
    "What each part of the program sent to the device": (
        "nvtx_paths",
        {
            "Kernels, total": ("total_kernels", ""),
            "Kernel time, own": ("kernel_ns", " ns"),
            "Bytes, total": ("total_copy_bytes", " B"),
            "Exposed, own": ("exposed_ns", " ns"),
        },
        False,
    ),
    "Per request": (
        "request_distribution",
        {"Sum": ("sum", "unit"), "p99": ("p99", "unit"), "Median": ("median", "unit")},
        True,
    ),
}


@pytest.mark.parametrize("name", TRACES)
def test_the_json_is_what_the_json_module_writes(page_of, name):
    analysis, _, _ = page_of(name)
    assert to_json(analysis) == json.dumps(to_dict(analysis), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def test_a_number_that_json_cannot_hold_is_null(page_of):
    analysis, _, _ = page_of("llama_default")
    device = analysis.devices[0]
    table = pl.DataFrame({"a": [1.5, math.nan, None, math.inf], "b": [1, 2, 3, 4]})
    changed = dataclasses.replace(analysis, devices=(dataclasses.replace(device, tables={"t": table}),))
    rows = json.loads(to_json(changed))["devices"][0]["tables"]["t"]["rows"]
    assert rows == [[1.5, 1], [None, 2], [None, 3], [None, 4]]


@pytest.mark.parametrize("name", TRACES)
def test_numbers_are_those_of_the_json(page_of, name):
    analysis, _, read = page_of(name)
    data = to_dict(analysis)
    compared = 0
    for number, device in enumerate(data["devices"]):
        for caption, (source, columns, ordered) in TABLES.items():
            table = device["tables"][source]
            if caption not in read.tables or not table["rows"]:
                continue
            units_of = {"time": " ns", "bytes": " B", "number": ""}
            rows = [dict(zip(table["columns"], r, strict=True)) for r in table["rows"]]
            expected = [
                {h: exact(r[c], units_of[r["unit"]] if u == "unit" else u) for h, (c, u) in columns.items()}
                for r in rows
            ]
            shown = [{h: row[h][1] for h in columns} for row in read.tables[caption][number]]
            compared += len(shown)
            if ordered:
                assert shown == expected[: len(shown)], caption
            else:
                assert all(row in expected for row in shown), caption
    assert compared > 5


@pytest.mark.parametrize("name", TRACES)
def test_where_the_time_went_is_the_json(page_of, name):
    analysis, _, read = page_of(name)
    names = {
        "Busy": "busy", "Kernels": "kernels", "Copies": "copies", "exposed": "copies_exposed", "Idle": "idle",
        "exposed and held up a kernel": "held_up", "overlapped by kernels": "copies_overlapped",
        "exposed while the host was blocked in copies": "host_blocked_in_copies",
        "idle while the host was blocked": "idle_while_host_blocked",
    }  # fmt: skip
    for number, device in enumerate(to_dict(analysis)["devices"]):
        rows = {r["What"][0]: r for r in read.tables["Busy and idle"][number]}
        for what, key in names.items():
            assert rows[what]["Time"][1] == f"{device['figures'][f'{key}_ns']:,} ns"
            assert rows[what]["Of the window"][1] == exact(device["figures"][f"{key}_ratio"], "")
        phases = {r["Phase"][0]: r for r in read.tables["The recording's phases"][number]}
        assert set(phases) == set(device["phases"])
        for phase, row in phases.items():
            assert row["Length"][1] == f"{device['phases'][phase]['window_ns']:,} ns"
            assert row["Idle, of the phase"][1] == exact(device["phases"][phase]["idle_ratio"], "")


def test_what_a_cut_table_says(analysis_of):
    analysis = analysis_of("llama_default")
    read = Page(render_report(analysis, top=3))
    kernels = analysis.devices[0].tables["kernels"].height
    assert kernels > 3
    assert read.cuts["Kernels by name"].strip() == f"3 of {kernels} shown, most time first"
    assert len(read.tables["Kernels by name"][0]) == 3
    gaps = analysis.devices[0].gaps.height
    assert read.cuts["The longest gaps"].strip() == f"3 of {gaps:,} shown, longest first"
    whole = Page(render_report(analysis, top=1_000))
    assert whole.cuts["Kernels by name"] == ""
    assert len(whole.tables["Kernels by name"][0]) == kernels


def test_same_input_same_bytes(analysis_of, tmp_path):
    first = render_report(analysis_of("p2p"))
    assert render_report(analysis_of("p2p")) == first
    program = (
        "import sys; from nsysparse.source import open_trace; from nsysparse.analysis import analyze;"
        "from nsysparse.report import render_report\n"
        "with open_trace(sys.argv[1]) as trace: html = render_report(analyze(trace))\n"
        "open(sys.argv[2], 'w', encoding='utf-8').write(html)"
    )
    out = tmp_path / "again.html"
    environment = {"PYTHONHASHSEED": "7", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TZ": "Asia/Kathmandu"}
    subprocess.run([sys.executable, "-c", program, str(trace_path("p2p")), str(out)], check=True, env=environment)
    assert out.read_text("utf-8") == first


def digest(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.mark.parametrize("name", TRACES)
def test_nothing_is_loaded_and_only_known_scripts_may_run(page_of, name):
    _, html, read = page_of(name)
    rules = dict(r.strip().split(" ", 1) for r in read.policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == [digest(s) for s in read.executed]
    assert rules["style-src"] == digest(read.style)
    assert set(rules) == {"default-src", "script-src", "style-src", "base-uri", "form-action"}
    loading = {"src", "srcset", "action", "data", "poster", "background", "formaction", "ping", "style"}
    for tag, attribute, value in read.attributes:
        assert attribute not in loading, f"<{tag} {attribute}>"
        assert not attribute.startswith("on"), f"<{tag} {attribute}>"
        assert attribute != "href" or value.startswith("#"), f"<{tag} href={value}>"
    assert "@import" not in read.style
    assert "url(" not in read.style
    assert html.index("Content-Security-Policy") < html.index("<style>")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    analysis = analysis_of_export(hostile(), tmp_path_factory.mktemp("hostile"))
    texts = {
        "rule": HOSTILE[0],
        "detail": HOSTILE[1],
        "remedy": HOSTILE[2],
        "title": HOSTILE[3],
        "confidence": HOSTILE[5],
    }
    finding = Finding(
        severity=Severity.HIGH,
        device=0,
        bound_ns=None,
        evidence={HOSTILE[0]: HOSTILE[3], "paths": list(HOSTILE)},
        **texts,
    )
    outcomes = (finding, Failed(HOSTILE[0], 0, HOSTILE[1]), Skipped(HOSTILE[3], None, HOSTILE[0]), Quiet(HOSTILE[5], 0))
    trace = analysis.trace | {"name": HOSTILE[3], "release": HOSTILE[0]}
    return dataclasses.replace(analysis, outcomes=outcomes, trace=trace)


def test_hostile_text_is_shown_and_does_nothing(attacked, analysis_of):
    html = render_report(attacked)
    read = Page(html)
    assert not read.unclosed
    usual = Page(render_report(analysis_of("state_checkpoint")))
    assert read.executed == usual.executed, "a script that is not the report's own"
    assert not [v for t, v, _ in read.attributes if t == "img" or v.startswith("on")]
    for text in HOSTILE:
        assert visible(text) in read.text, text
    assert "49" not in {cell[0] for rows in read.tables["By thread"] for row in rows for cell in row.values()}
    assert not set(html) & {chr(c) for c in (*range(0x20), 0x7F, 0x202E, 0x2066)} - {"\n", "\t"}
    names = [row["Kernel"][0] for row in read.tables["Kernels by name"][0]]
    assert any(visible(HOSTILE[6]) in n for n in names)


def test_chart_data_cannot_end_its_element():
    text = str(page._json({"a": "</script><!-- & \u2028"}))
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == {"a": "</script><!-- & \u2028"}


def test_visible():
    assert visible("plain") == "plain"
    assert visible("größer 🙂\n") == "größer 🙂\n"
    assert visible("a\u202eb\x00\x9f\ud800") == "a[U+202E]b[U+0000][U+009F]\ufffd"
    assert clipped("x" * 1_001) == "x" * 1_000 + "… (1,001 characters)"


REMOVABLE = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS",
    "OSRT_API",
    "PROFILER_OVERHEAD",
    "DIAGNOSTIC_EVENT",
    "ThreadNames",
    "PROCESSES",
    "TARGET_INFO_GPU",
    "TARGET_INFO_CUDA_DEVICE",
    "StringIds",
    "META_DATA_EXPORT",
    "TARGET_INFO_SESSION_START_TIME",
)


@pytest.mark.parametrize("missing", REMOVABLE)
def test_every_section_stands_without_a_table(tmp_path, missing):
    path = standard().write(tmp_path / "trace.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute(f'DROP TABLE "{missing}"')
        db.commit()
    with open_trace(path) as trace:
        analysis = analyze(trace)
    read = Page(render_report(analysis))
    assert not read.unclosed
    assert [i for i in read.ids if i in SECTIONS] == SECTIONS
    if missing == "NVTX_EVENTS":
        assert "not recorded: NVTX_EVENTS, record it with -t nvtx" in read.text
    if missing == "CUPTI_ACTIVITY_KIND_MEMCPY":
        assert "CUPTI_ACTIVITY_KIND_MEMCPY holds no memory copies" in read.text
        assert "Copies by kind and memory" not in read.tables


def test_an_export_with_nothing_in_it(tmp_path):
    read = Page(render_report(analysis_of_export(empty(), tmp_path)))
    assert [i for i in read.ids if i in SECTIONS] == SECTIONS
    for export_table, flag in (("CUPTI_ACTIVITY_KIND_KERNEL", "-t cuda"), ("NVTX_EVENTS", "-t nvtx")):
        assert f"not recorded: {export_table}, record it with {flag}" in read.text
    assert not read.executed, "no charts, so no script"
    assert "script-src 'none'" in read.policy
    assert "No CUDA activity was recorded" in read.text


def test_shares_over_a_hole_are_marked(page_of):
    _, _, whole = page_of("state_checkpoint")
    assert "†" not in whole.text
    analysis, _, read = page_of("pinned_overlap_lossy")
    shares = [row["Of the window"][0] for row in read.tables["Busy and idle"][0]]
    assert shares
    assert all(s.endswith("†") for s in shares)
    utilization = [row["Share"][0] for row in read.tables["Utilization, four ways"][0]]
    assert [u.endswith("†") for u in utilization] == [True, True, True, False]
    holes = read.tables["Holes in the recording"][0]
    assert [r["From"][1] for r in holes] == [f"{h.start_ns:,} ns" for h in analysis.integrity.holes]
    [hole] = read.charts[0]["datasets"]["holes"]
    assert hole["t"] * 1e6 == pytest.approx(analysis.devices[0].window.start_ns)  # ms of session time
    assert hole["u"] - hole["t"] == pytest.approx(analysis.devices[0].figures()["hole_ns"] / 1e6)


def test_a_share_without_a_hole_in_an_incomplete_recording_is_not_marked(analysis_of):
    analysis = analysis_of("pinned_overlap_lossy", "5.84s..5.87s")
    assert not analysis.devices[0].hole.length
    read = Page(render_report(analysis))
    assert "†" not in "".join(row["Of the window"][0] for row in read.tables["Busy and idle"][0])
    phases = {r["Phase"][0]: r["Busy, of the phase"][0] for r in read.tables["The recording's phases"][0]}
    assert phases["steady"].endswith("†")
    assert not phases["5.84s..5.87s"].endswith("†")


def test_findings_are_shown_with_their_evidence(analysis_of):
    found = Finding(
        "some-rule", Severity.HIGH, "medium", 0, "A title", "A detail.", "A remedy.", 1_234_567,
        {"moved_bytes": 5_000_000, "exposed_ratio": 0.25, "calls": 12, "waits": True},
        ((1_000_000_001, 1_000_000_500),),
    )  # fmt: skip
    rest = (Quiet("quiet-rule", 0), Skipped("skipped-rule", 0, "a reason"), Failed("failed-rule", 0, "an error"))
    read = Page(render_report(dataclasses.replace(analysis_of("p2p"), outcomes=(found, *rest))))
    for text in ("A title", "A detail.", "A remedy.", "1.235 ms", "5 MB", "25.0%", "yes", "1.000000001 s"):
        assert text in read.text
    rows = {r["Rule"][0]: (r["Outcome"][0], r["Why"][0]) for r in read.tables["What every rule said"][0]}
    assert rows == {
        "some-rule": ("fired", "A title"),
        "quiet-rule": ("quiet", ""),
        "skipped-rule": ("skipped", "a reason"),
        "failed-rule": ("failed", "an error"),
    }


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("lost_ns", 1_500, "1.5 us"),
        ("start_ns", 1_500, "0.000001500 s"),
        ("bytes", 2_000, "2 kB"),
        ("a_ratio", 0.5, "50.0%"),
        ("bandwidth", 5e9, "5 GB/s"),
        ("n", 1_234, "1,234"),
        ("on", False, "no"),
        ("x", None, "n/a"),
        ("l", ["a", 1], "a, 1"),
    ],
)
def test_evidence_is_formatted_by_its_name(name, value, text):
    assert by_name(name, value).text == text


def test_a_column_without_values_can_be_left_out_and_a_term_needs_a_definition():
    rows = [{"a": 1, "b": None, "c": 0}, {"a": 2, "b": None, "c": 0}]
    columns = [("a", "A", "count", "count"), ("b", "B", "size?", "bytes"), ("c", "C", "count?", "count")]
    assert [h.title for h in table(rows, "T", columns, top=5).heads] == ["A"]
    assert table(rows, "T", columns, top=1).cut == "1 of 2 shown"
    with pytest.raises(KeyError, match="no definition"):
        table(rows, "T", [("a", "A", "count", "no such term")], top=5)


def test_the_parts_of_the_window_are_disjoint_and_add_up(analysis_of):
    for name in ("llama_default", "p2p", "state_checkpoint"):
        for account in analysis_of(name).devices:
            low, high = account.window.start_ns, account.window.end_ns
            parts = exclusive(account)
            spans = [(s, e) for p in parts.values() for s, e in zip(p.start.tolist(), p.end.tolist(), strict=True)]
            assert length(merged(spans, low, high)) == sum(e - s for s, e in spans) == account.busy.everything.length
            lengths = partition(account, parts)
            assert sum(lengths.values()) == high - low
            assert lengths["idle"] == account.figures()["idle_ns"]
            assert lengths["kernels"] == account.figures()["kernels_ns"] + account.figures()["graphs_ns"]
            assert sum(lengths[k] for k in ("htod", "dtoh", "other")) == account.figures()["copies_exposed_ns"]


@pytest.mark.parametrize("name", TRACES)
def test_the_stack_never_exceeds_the_window_and_means_it(page_of, name):
    analysis, _, read = page_of(name)
    timelines = [c for c in read.charts if "bins" in c["datasets"]]
    assert len(timelines) == len(analysis.devices)
    for account, chart in zip(analysis.devices, timelines, strict=True):
        bins = chart["datasets"]["bins"]
        stack = np.sum(
            [np.array(bins[k]) for k in bins if k not in {"t", "u", "busy"} and not k.endswith(" rate")], axis=0
        )
        assert stack.max() <= 100.3
        width = np.array(bins["u"]) - np.array(bins["t"])
        busy = float((stack * width).sum() / width.sum()) / 100
        assert busy == pytest.approx(account.figures()["busy_ratio"], abs=0.002)


@pytest.mark.parametrize("name", TRACES)
def test_charts_are_valid_vega_lite(page_of, name):
    altair = pytest.importorskip("altair")
    for chart in page_of(name)[2].charts:
        spec = copy.deepcopy(chart)
        for data in spec.pop("usermeta")["columns"]:
            spec["datasets"][data] = pl.DataFrame(spec["datasets"][data], strict=False).head(3).to_dicts()
        kind = altair.VConcatChart if "vconcat" in spec else altair.Chart
        kind.from_dict(spec)


def test_many_devices_many_rows_and_long_names_stay_below_the_limit(tmp_path):
    builder = standard()
    from export_scenario import MAIN, A

    for device in range(2, 40):
        for i in range(60):
            t = 1_100_000_000 + device * 1_000_000 + i * 10_000
            name = f"kernel_{i}_" + "<&>" * 2_000
            builder.launch(MAIN, (t, t + 1_000), (t + 2_000, t + 3_000), f"k{i}", device, demangled=name)
            builder.memcpy(MAIN, (t + 4_000, t + 5_000), (t + 6_000, t + 9_000), 1 << (i % 30), 1, i % 2, 2, device)
    assert A
    analysis = analysis_of_export(builder, tmp_path)
    assert len(analysis.devices) >= 38
    html = render_report(analysis, top=100_000)
    assert len(html.encode()) < MAX_BYTES
    read = Page(html)
    assert len([c for c in read.charts if "bins" in c["datasets"]]) == 8
    assert "Charts are drawn for the 8 busiest devices" in read.text
    assert len(read.tables["Kernels by name"]) == len(analysis.devices)
    assert len(read.tables["All devices"][0]) == len(analysis.devices)
    assert "shown" in read.cuts["Kernels by name"]


def test_of_very_many_devices_the_busiest_have_sections_and_all_are_in_the_table(tmp_path, monkeypatch):
    builder = standard()
    from export_scenario import MAIN

    for device in range(2, 60):
        t = 1_100_000_000 + device * 1_000_000
        builder.launch(MAIN, (t, t + 1_000), (t + 2_000, t + 3_000 + device), "kernel", device)
    analysis = analysis_of_export(builder, tmp_path)
    html = render_report(analysis, top=20)
    read = Page(html)
    assert len(read.tables["All devices"][0]) == len(analysis.devices) > page.DETAILED
    assert len(read.tables["Kernels by name"]) <= page.DETAILED
    busy = sorted(analysis.devices, key=lambda a: a.busy.everything.length)
    assert f'id="time-device-{busy[-1].number}"' in html
    assert f'id="time-device-{busy[0].number}"' not in html
    assert f"The {page.DETAILED} busiest of {len(analysis.devices)} devices; all of them are in the table" in read.text
    monkeypatch.setattr(page, "LISTED", 50)
    read = Page(render_report(analysis, top=20))
    assert len(read.tables["The busiest devices"][0]) == 50
    assert f"50 of {len(analysis.devices)} shown" in read.cuts["The busiest devices"]
    assert "the 50 busiest are in the table" in read.text


# --- templates ---


@pytest.fixture
def templates(tmp_path, monkeypatch):
    """A copy of the templates that the report uses."""
    folder = tmp_path / "templates"
    shutil.copytree(page.data_folder("templates"), folder)
    monkeypatch.setattr(page, "data_folder", lambda kind: folder)
    return folder


def test_a_section_is_one_file(templates, analysis_of):
    section = "{# title: My section; order: 35; needs: #}\n<p>{{ devices | length }} devices here</p>\n"
    (templates / "sections" / "mine.html").write_text(section)
    read = Page(render_report(analysis_of("p2p")))
    assert read.ids.index("trust") < read.ids.index("mine") < read.ids.index("time")
    assert "2 devices here" in read.text
    assert "#mine" in read.links


def test_a_section_without_its_data_says_how_to_record_it(templates, analysis_of):
    (templates / "sections" / "mine.html").write_text(
        "{# title: Mine; order: 5; needs: osrt, kernels #}\n{{ nonsense }}"
    )
    recorded = [
        dataclasses.replace(r, rows=0, state="not recorded") if r.table == "OSRT_API" else r
        for r in analysis_of("p2p").recorded
    ]
    read = Page(render_report(dataclasses.replace(analysis_of("p2p"), recorded=tuple(recorded))))
    assert "not recorded: OSRT_API, record it with -t osrt" in read.text


def test_an_unknown_name_in_a_template_is_an_error(templates, analysis_of):
    (templates / "sections" / "mine.html").write_text("{# title: Mine; order: 5; needs: #}\n{{ devices[0].no_such }}")
    with pytest.raises(jinja2.UndefinedError):
        render_report(analysis_of("p2p"))


@pytest.mark.parametrize("source", ["<p>no head</p>", "{# order: 5; needs: #}", "{# title: T; order: x; needs: #}"])
def test_a_section_must_say_what_it_is(source):
    with pytest.raises(NsysparseError, match="does not say what it is"):
        read_head("mine", source)


def test_a_section_may_only_need_tables_that_exist():
    with pytest.raises(NsysparseError, match="no table"):
        read_head("mine", "{# title: T; order: 1; needs: kernel #}")
    assert read_head("mine", "{# title: T t; order: 1; needs: kernels or graphs, api #}").needs == (
        ("kernels", "graphs"),
        ("api",),
    )


def test_templates_hold_no_arithmetic():
    environment = jinja2.Environment()
    sums = (
        jinja2.nodes.Add,
        jinja2.nodes.Sub,
        jinja2.nodes.Mul,
        jinja2.nodes.Div,
        jinja2.nodes.FloorDiv,
        jinja2.nodes.Mod,
    )
    for file in page.data_folder("templates").rglob("*.html"):
        tree = environment.parse(file.read_text("utf-8"))
        assert not list(tree.find_all(sums)), file.name
        assert "| safe" not in file.read_text("utf-8")
        assert "|safe" not in file.read_text("utf-8")


def test_sections_come_in_their_order():
    found = find_sections(page.data_folder("templates"))
    with_census = [*SECTIONS[:3], "crosscheck", *SECTIONS[3:]]  # the section that needs a census
    assert [s.key for s in found] == with_census
    assert len({s.order for s in found}) == len(found)


# --- the chart library ---


@pytest.fixture
def bundler(monkeypatch, tmp_path):
    """Counts how often the library is bundled; the cache is a folder of the test's own."""
    import vl_convert

    calls = []
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda **_: calls.append(1) or "window.library = 'ünï';\r\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fresh = bundle.chart_library.__wrapped__
    return fresh, calls, tmp_path / "nsysparse"


def test_the_library_is_bundled_once_and_kept(bundler):
    fresh, calls, folder = bundler
    assert fresh() == fresh() == "window.library = 'ünï';"
    assert len(calls) == 1
    [kept] = folder.iterdir()
    kept.write_text(kept.read_text("utf-8").replace("library", "malware"), "utf-8")
    assert fresh() == "window.library = 'ünï';", "a changed copy must not be used"
    kept.write_bytes(b"\xff\xfe")
    assert fresh() == "window.library = 'ünï';"
    assert len(calls) == 3


def test_a_cache_that_cannot_be_written_is_no_error(bundler):
    fresh, calls, folder = bundler
    folder.write_text("a file where the folder should be")
    assert fresh() == fresh() == "window.library = 'ünï';"
    assert len(calls) == 2


def test_a_library_that_would_end_its_element_is_refused(bundler, monkeypatch):
    import vl_convert

    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda **_: "x = '</SCRIPT>'")
    with pytest.raises(NsysparseError):
        bundler[0]()


def test_the_real_library_is_small_enough():
    assert len(bundle.chart_library().encode()) < 1_500_000


# --- JSON ---


def a_single(rng):
    texts = ["", "]", ",", '"', "],\n [", "\u2028é", "\\"]
    numbers = [rng.randrange(-5, 10**18), rng.random() * 10.0 ** rng.randrange(-300, 300)]
    return rng.choice([None, True, False, *numbers, *texts])


def any_data(rng, depth):
    kind = rng.randrange(6) if depth else 0
    some = rng.choice([0, 1, 3, 70])
    if kind == 1:
        return {rng.choice("ab],[") + str(i): any_data(rng, depth - 1) for i in range(rng.randrange(4))}
    if kind == 2:
        return [a_single(rng) for _ in range(some)]
    if kind == 3:  # rows; of some tables there are empty ones
        least = int(rng.random() < 0.8)
        return [[a_single(rng) for _ in range(rng.randrange(least, 4))] for _ in range(some)]
    return [any_data(rng, depth - 1) for _ in range(rng.randrange(4))] if kind > 3 else a_single(rng)


@pytest.mark.parametrize("seed", range(10))
def test_json_is_what_the_standard_library_writes(seed):
    rng = random.Random(seed)
    for _ in range(200):
        data = any_data(rng, 4)
        assert _written(data) == json.dumps(data, ensure_ascii=False, indent=1)
    for wrong in (float("nan"), [float("inf")] * 100, [[1.0], [float("nan")]]):
        with pytest.raises(ValueError, match="JSON"):
            _written(wrong)


# --- compiled templates ---


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Names of the templates that Jinja compiled; kept code is in a folder of the test's own."""
    names = []
    compiling = jinja2.Environment.compile
    monkeypatch.setattr(
        jinja2.Environment,
        "compile",
        lambda self, source, name, *more: names.append(name) or compiling(self, source, name, *more),
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return names


def rendered(templates):
    return page.make_environment(templates).get_template("a.html").render(x="<")


def test_templates_are_compiled_once_and_kept(compiled, tmp_path):
    template = tmp_path / "a.html"
    template.write_text("one {{ x }}")
    assert rendered(tmp_path) == rendered(tmp_path) == "one &lt;"
    assert len(compiled) == 1
    template.write_text("two {{ x }}")
    assert rendered(tmp_path) == "two &lt;", "what was compiled from another source must not be used"
    assert len(compiled) == 2


@pytest.mark.parametrize("harm", ["changed", "cut", "writable by others"])
def test_kept_code_that_may_be_somebody_elses_is_not_run(compiled, tmp_path, harm):
    (tmp_path / "a.html").write_text("one {{ x }}")
    rendered(tmp_path)
    [kept] = [f for f in (tmp_path / "nsysparse").rglob("*") if f.is_file()]
    whole = kept.read_bytes()
    if harm == "changed":
        kept.write_bytes(whole.replace(b"one", b"0ne"))
    elif harm == "cut":
        kept.write_bytes(whole[:-5])
    else:
        kept.chmod(0o622)
    assert rendered(tmp_path) == "one &lt;"
    assert len(compiled) == 2


# --- units that the report added ---


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (5_651_284_414, "5.651284414 s"),
        (0, "0.000000000 s"),
        (-1, "-0.000000001 s"),
        (None, "n/a"),
        (float("nan"), "n/a"),
    ],
)
def test_instant(ns, text):
    assert units.instant(ns) == text


def test_paths_of_this_machine_are_not_in_the_page(page_of):
    for name in TRACES:
        assert str(Path(trace_path(name)).parent) not in page_of(name)[1]
