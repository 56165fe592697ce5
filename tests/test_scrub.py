"""Scrubbed copies: nothing of what was planted is in the file, and the analysis is the same."""

import json
import random
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from export_builder import RELEASES, ExportBuilder, global_id
from export_scenario import standard_scenario
from independent import sql
from test_parquetdir import as_nsys_may, parquetdir
from traces import NAMES, trace_path

from nsysparse.analysis import analyze
from nsysparse.cli.scrub import command
from nsysparse.errors import OutputError, UsageError
from nsysparse.joins.work import load_work
from nsysparse.outputs.json import to_dict
from nsysparse.outputs.perfetto import write_perfetto
from nsysparse.scrub import CLASSES, Options, policy, scrub
from nsysparse.scrub.payloads import Layout, clean_payload
from nsysparse.scrub.texts import Cleaner
from nsysparse.source import open_trace
from nsysparse.stats import find_reports, make_table

PID, TID = 100, global_id(100, 100)
UUID = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"


def copy_of(path, target, **options):
    with open_trace(path) as trace:
        return scrub(trace, target, Options(**options))


def run(*arguments):
    result = CliRunner().invoke(command, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def analysis_of(path):
    with open_trace(path) as trace:
        made = to_dict(analyze(trace))
    made["trace"] = {k: v for k, v in made["trace"].items() if k not in {"name", "size_bytes"}}
    return made


# --- the analysis stays the same ---


@pytest.mark.parametrize("name", NAMES)
def test_the_analysis_of_a_copy_is_that_of_the_original(name, tmp_path):
    copy_of(trace_path(name), tmp_path / "copy.sqlite")
    assert analysis_of(tmp_path / "copy.sqlite") == analysis_of(trace_path(name))


@pytest.mark.parametrize("release", RELEASES)
def test_the_same_for_every_release(release, tmp_path):
    builder = ExportBuilder(release)
    standard_scenario(builder)
    path = builder.write(tmp_path / "t.sqlite")
    copy_of(path, tmp_path / "copy.sqlite")
    assert analysis_of(tmp_path / "copy.sqlite") == analysis_of(path)


@pytest.mark.parametrize("name", ["train_item", "threads", "llama_default"])
def test_event_rows_are_the_same_in_the_same_order(name, tmp_path):
    copy_of(trace_path(name), tmp_path / "copy.sqlite")
    tables = [r[0] for r in sql(tmp_path / "copy.sqlite", "SELECT name FROM sqlite_master WHERE type = 'table'")]
    events = [
        t for t in tables if t.startswith(("CUPTI", "CUDA", "OSRT", "SCHED", "COMPOSITE", "SAMPLING", "PROFILER"))
    ]
    assert len(events) > 5
    for table in events:
        query = f"SELECT * FROM {table} ORDER BY rowid"
        assert sql(tmp_path / "copy.sqlite", query) == sql(trace_path(name), query), table


def test_every_report_of_a_copy_is_the_same(tmp_path):
    path = trace_path("train_item")
    copy_of(path, tmp_path / "copy.sqlite")
    with open_trace(path) as one, open_trace(tmp_path / "copy.sqlite") as other:
        for name, report in find_reports().items():
            assert make_table(report, [one]).frame.equals(make_table(report, [other]).frame), name


# --- nothing of what was planted ---


def planted(path):
    """A recording with secrets wherever an export can hold one."""
    b = ExportBuilder("2025.3.1.90" if "2025.3.1.90" in RELEASES else RELEASES[-4])
    b.process(PID, "/usr/bin/python3 --token SECRET")
    b.process(999, "SECRETdaemon")
    b.thread(PID, PID, "worker of alicebob")
    b.thread(999, 999, "SECRETthread")
    b.gpu(0, "NVIDIA L4", 0, uuid=UUID)
    b.cuda_device(PID, 0, 0)
    b.launch(TID, (10, 20), (30, 40))
    b.push_pop("load /SECRET/alicebob/model.bin from 10.1.2.3", 0, 100, TID)
    b.push_pop("load /SECRET/carol/model.bin", 100, 200, TID, registered=True)
    b.push_pop("mail x@SECRET.example", 200, 300, TID)
    b.nvtx(34, "mark", 250, None, TID, jsonText='{"SECRET": 1}', binaryData="SECRET payload")
    b.callchain(1, [("main", "/SECRET/bin/server"), ("cudaLaunchKernel", "/SECRET/lib/libcudart.so.13")])
    b.diagnostic("Process was launched, see /SECRET/log for output of SECRET")
    b.diagnostic("Number of CUDA events collected: 2.")
    for key, value in {
        "TARGET_INFO_SYSTEM_ENV": {"name": "Hostname", "value": "alicebob", "globalVid": 1},
        "META_DATA_CAPTURE": {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": "TOKEN=SECRET"},
        "ProcessStreams": {"contentId": b.string("SECRET output"), "globalPid": 1, "filenameId": 0},
        "ANALYSIS_FILE": {"id": 1, "filename": "SECRET", "content": "SECRET", "globalPid": 1},
        "TARGET_INFO_NIC_INFO": {"name": "SECRET0", "stateName": "SECRET", "nicId": 1},
        "OSRT_FILE_ACCESS_DESCRIPTORS": {"filePath": "/SECRET", "fileAccessId": 1},
    }.items():
        b.row(key, **value)
    b.meta("EXPORT_USER", "SECRET")
    b.meta("EXPORT_PARAM_OUTPUT_FILE", "/SECRET/t.sqlite")
    b.capture_option("COMMAND", "SECRET")
    b.capture_option("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node")
    b.capture_option("COLLECT_CUDA_TRACE", "SECRET with spaces")
    b.string("SECRET that nothing refers to")
    b.write(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE VIEW mine AS SELECT 'SECRET'")
        db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN note TEXT DEFAULT 'SECRET'")
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET launchType = 'SECRET'")
        db.execute("CREATE INDEX SECRETindex ON CUPTI_ACTIVITY_KIND_KERNEL(start)")
    return path


def test_nothing_that_was_planted_is_in_the_copy(tmp_path):
    path = planted(tmp_path / "t.sqlite")
    removed = copy_of(path, tmp_path / "copy.sqlite")
    content = (tmp_path / "copy.sqlite").read_bytes()
    for secret in (b"SECRET", b"alicebob", b"carol", b"10.1.2.3", UUID.encode(), b"TOKEN"):
        assert secret in path.read_bytes()
        assert secret not in content, secret
    assert b"libcudart.so.13" in content
    assert b"Number of CUDA events collected: 2." in content
    assert {k for k, n in removed.items() if not n} == set()
    assert set(removed) == set(CLASSES)


def secrets_everywhere(path, seed):
    """Plant a secret of its own in every column of every table, as text, blob and in lists of arguments.

    Returns:
        Secret -> (table, column), and for the columns whose texts are meant to stay.
    """
    rng, planted_in = random.Random(seed), {}
    with closing(sqlite3.connect(path)) as db, db:
        tables = [t for (t,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            count = db.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
            for column in [r[1] for r in db.execute(f'PRAGMA table_info("{table}")')]:
                secret = f"sEcReT{rng.getrandbits(64):016x}"
                value = rng.choice([secret, secret.encode(), f"/home/{secret}/x", f"{secret}@host.example"])
                row = f'SELECT rowid FROM "{table}" LIMIT 1 OFFSET {rng.randrange(max(1, count))}'
                try:
                    done = db.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ({row})', (value,))
                except sqlite3.Error:  # an integer key takes no text
                    continue
                if done.rowcount:
                    planted_in[secret] = (table, column)
    return planted_in


@pytest.mark.parametrize("release", [*RELEASES[::3], RELEASES[-1]])
def test_a_secret_in_any_column_is_in_no_byte_of_the_copy(release, tmp_path):
    """Only columns that a rule names as names may keep a text; and of those no folder, address or argument."""
    kept_in_a_name = set()
    for seed in range(6):
        b = ExportBuilder(release)
        standard_scenario(b)
        path = b.write(tmp_path / f"{seed}.sqlite")
        where = secrets_everywhere(path, seed)
        assert len(where) > 40
        copy_of(path, tmp_path / f"copy{seed}.sqlite")
        content = (tmp_path / f"copy{seed}.sqlite").read_bytes()
        for secret, place in where.items():
            assert secret.encode() in path.read_bytes()
            if secret.encode() in content:
                kept_in_a_name.add(place)
                assert f"/home/{secret}".encode() not in content
                assert f"{secret}@host".encode() not in content
    assert {(t, c) for t, c in kept_in_a_name if not t.startswith("ENUM_")} <= MAY_STAY


# What the documentation says stays, because it is a name in the program, or a setting of fixed form.
MAY_STAY = {place for place, kind in policy.TEXTS.items() if kind in {policy.NVTX, policy.FUNCTION, policy.PLAIN}} | {
    (policy.PROCESSES, "name"), (policy.STRING_TABLE, "value")
} - {(table, "value") for table in policy.META_EXPORT}  # fmt: skip


def test_command_lines_become_the_programs_name(tmp_path):
    b = ExportBuilder("2022.4.1.21" if "2022.4.1.21" in RELEASES else RELEASES[5])
    standard_scenario(b)
    path = b.write(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE PROCESSES SET name = '/opt/venv/bin/python3 serve.py --token=SECRET --port 80'")
    removed = copy_of(path, tmp_path / "copy.sqlite")
    assert removed["arguments"] == 1
    assert set(sql(tmp_path / "copy.sqlite", "SELECT name FROM PROCESSES")) == {("python3",)}
    assert b"SECRET" not in (tmp_path / "copy.sqlite").read_bytes()
    assert analysis_of(tmp_path / "copy.sqlite") == analysis_of(path)
    with open_trace(path) as trace:
        write_perfetto(load_work(trace), trace, tmp_path / "t.pftrace")
    assert b"SECRET" not in (tmp_path / "t.pftrace").read_bytes()
    assert b"python3" in (tmp_path / "t.pftrace").read_bytes()


def test_a_parquetdir_becomes_a_sqlite_copy_with_the_same_analysis(tmp_path):
    path = planted(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET launchType = 1")
        db.execute("DROP VIEW mine")
    folder = parquetdir(path, as_nsys_may)
    before = {f.name: f.read_bytes() for f in folder.iterdir()}
    removed = copy_of(folder, tmp_path / "copy.sqlite")
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == before
    content = (tmp_path / "copy.sqlite").read_bytes()
    for secret in (b"SECRET", b"alicebob", b"carol", b"10.1.2.3", UUID.encode(), b"TOKEN"):
        assert secret not in content, secret
    assert {k for k, n in removed.items() if not n} == set()
    other = copy_of(path, tmp_path / "other.sqlite")
    assert {k: n for k, n in removed.items() if k != "texts"} == {k: n for k, n in other.items() if k != "texts"}
    assert analysis_of(tmp_path / "copy.sqlite")["devices"] == analysis_of(tmp_path / "other.sqlite")["devices"]


@pytest.mark.parametrize("name", ["eager_h2d", "threads"])
def test_the_copy_of_a_real_recording_as_parquet_has_its_analysis(name, tmp_path):
    shutil.copy(trace_path(name), tmp_path / f"{name}.sqlite")
    folder = parquetdir(tmp_path / f"{name}.sqlite", as_nsys_may, group=100_000)
    copy_of(folder, tmp_path / "copy.sqlite")
    ours, theirs = analysis_of(tmp_path / "copy.sqlite"), analysis_of(trace_path(name))
    assert ours["devices"] == theirs["devices"]
    assert ours["findings"] == theirs["findings"]


def test_names_that_differed_still_differ(tmp_path):
    copy_of(planted(tmp_path / "t.sqlite"), tmp_path / "copy.sqlite")
    with open_trace(tmp_path / "copy.sqlite") as trace:
        names = set(make_table(find_reports()["nvtx_sum"], [trace]).frame["Range"])
    assert names == {
        ":load [path a]/model.bin from [address a]", ":load [path b]/model.bin", ":mail [name a]"
    }  # fmt: skip


def test_the_summary_gives_counts_and_never_values(tmp_path):
    path = planted(tmp_path / "t.sqlite")
    text = run(path, "-o", tmp_path / "copy.sqlite")
    assert "SECRET" not in text
    assert "alicebob" not in text
    for name in CLASSES:
        assert re.search(rf"^ +[1-9]\d*  {name} ", text, re.M), name


def test_program_names_stay(tmp_path):
    copy_of(planted(tmp_path / "t.sqlite"), tmp_path / "copy.sqlite")
    assert sql(tmp_path / "copy.sqlite", "SELECT name FROM PROCESSES") == [("python3",)]
    names = sql(tmp_path / "copy.sqlite", "SELECT value FROM ThreadNames JOIN StringIds s ON s.id = nameId")
    assert re.fullmatch(r"worker of \[name [a-z]\]", names[0][0])
    assert sql(tmp_path / "copy.sqlite", "SELECT name, value FROM META_DATA_CAPTURE") == [
        ("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node")
    ]


# --- payloads ---


def test_payloads_of_python_stacks_lose_their_padding_and_keep_their_strings(tmp_path):
    path = trace_path("train_item")
    copy_of(path, tmp_path / "copy.sqlite")
    query = "SELECT binaryData FROM NVTX_EVENTS WHERE binaryData IS NOT NULL ORDER BY rowid"
    before, after = sql(path, query), sql(tmp_path / "copy.sqlite", query)
    assert len(before) == len(after) == 2499
    texts = dict(sql(tmp_path / "copy.sqlite", "SELECT id, value FROM StringIds"))
    original = dict(sql(path, "SELECT id, value FROM StringIds"))
    for (old,), (new,) in zip(before, after, strict=True):
        at = int.from_bytes(old[24:32], "little")
        n = int.from_bytes(old[at + 12 : at + 16], "little")
        assert len(new) == len(old)
        for frame in range(n):
            f = at + 16 + 24 * frame
            assert new[f : f + 20] == old[f : f + 20]  # function, file, line
            assert new[f + 20 : f + 24] == bytes(4)  # padding
            function, file = (int.from_bytes(old[f + 8 * i : f + 8 * i + 8], "little") for i in (0, 1))
            assert texts[function] == original[function]
            assert texts[file].split("/")[-1] == original[file].split("/")[-1]


def test_a_payload_that_is_no_python_stack_is_dropped():
    layout = Layout(((0, 8),), (8, 4), 16, 24, ((0, 8, True), (8, 8, True), (16, 4, False)))
    good = (1).to_bytes(8, "little") + b"".join(n.to_bytes(8, "little") for n in (7, 40, 32)) + bytes(8)
    good += (1).to_bytes(4, "little") + b"XXXX" + b"".join(n.to_bytes(8, "little") for n in (5, 6)) + b"\x03\0\0\0YYYY"
    clean, strings = clean_payload(good, {7: layout})
    assert strings == {5, 6}
    assert b"X" not in clean
    assert b"Y" not in clean
    assert clean_payload(good, {8: layout}) == (None, set())
    assert clean_payload(good[:20], {7: layout}) == (None, set())
    assert clean_payload(b"\xff" * 72, {7: layout}) == (None, set())
    cut = good[:16] + (4000).to_bytes(8, "little") + good[24:]
    assert clean_payload(cut, {7: layout}) == (None, set())


# --- failing closed ---


@pytest.mark.parametrize("choice", ["--drop", "--keep"])
def test_a_table_without_a_rule_stops_the_copy(tmp_path, choice):
    path = tmp_path / "t.sqlite"
    b = ExportBuilder(RELEASES[-1])
    standard_scenario(b)
    b.write(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE GENERIC_EVENTS (data TEXT)")
        db.execute("INSERT INTO GENERIC_EVENTS VALUES ('SECRET')")
    with pytest.raises(UsageError, match="no rule for this table: GENERIC_EVENTS"):
        run(path, "-o", tmp_path / "copy.sqlite")
    assert {p.name for p in tmp_path.iterdir()} == {"t.sqlite"}
    run(path, "-o", tmp_path / "copy.sqlite", choice, "GENERIC_EVENTS")
    assert (b"SECRET" in (tmp_path / "copy.sqlite").read_bytes()) == (choice == "--keep")


def test_classes_can_be_kept(tmp_path):
    path = planted(tmp_path / "t.sqlite")
    run(path, "-o", tmp_path / "copy.sqlite", "--keep", "paths", "--keep", "threads")
    content = (tmp_path / "copy.sqlite").read_bytes()
    assert b"/carol/model.bin" in content  # SECRET is the name of a user, too
    assert b"SECRETthread" in content
    assert b"SECRETdaemon" not in content
    with pytest.raises(UsageError, match="no table or class 'path'"):
        run(path, "-o", tmp_path / "c2.sqlite", "--keep", "path")


def test_the_original_and_other_files_are_safe(tmp_path):
    path = planted(tmp_path / "t.sqlite")
    before = path.read_bytes()
    with pytest.raises(OutputError, match="never changed"):
        run(path, "-o", path, "--force")
    (tmp_path / "other").write_text("x")
    with pytest.raises(OutputError, match="exists"):
        run(path, "-o", tmp_path / "other")
    assert path.read_bytes() == before


# --- hashes and windows ---


def test_hashes_hide_names_and_change_no_figure(tmp_path):
    path = trace_path("threads")
    copy_of(path, tmp_path / "copy.sqlite", hashed=("nvtx", "kernels"), key="k")
    content = (tmp_path / "copy.sqlite").read_bytes()
    for name in (b"forward", b"worker2", b"nvjet", b"vectorized_elementwise_kernel"):
        assert name in path.read_bytes()
        assert name not in content

    def figures(value):
        if isinstance(value, dict):
            return {k: figures(v) for k, v in value.items()}
        if isinstance(value, list):
            return [figures(v) for v in value]
        return None if isinstance(value, str) else value

    one, other = (json.dumps(figures(analysis_of(p)["devices"])) for p in (path, tmp_path / "copy.sqlite"))
    assert sorted(one) == sorted(other)  # rows of equal figures may change places with their names
    copy_of(path, tmp_path / "again.sqlite", hashed=("nvtx", "kernels"), key="k")
    assert (tmp_path / "again.sqlite").read_bytes() == content
    copy_of(path, tmp_path / "another.sqlite", hashed=("nvtx",))
    assert b"forward" not in (tmp_path / "another.sqlite").read_bytes()


def test_hashes_keep_numbers_so_that_names_alike_stay_alike():
    cleaner = Cleaner((), ("nvtx",), b"k")
    first, second = cleaner.text("nvtx", "request:1"), cleaner.text("nvtx", "request:22")
    assert first.split(":")[0] == second.split(":")[0]
    assert (first.split(":")[1], second.split(":")[1]) == ("1", "22")
    assert cleaner.text("nvtx", "answer:1").split(":")[0] != first.split(":")[0]
    assert cleaner.text("kernels", "gemm") == "gemm"


def test_a_window_keeps_what_overlaps_it_and_the_calls_behind_it(tmp_path):
    path = trace_path("pinned_overlap")
    run(path, "-o", tmp_path / "copy.sqlite", "--window", "4.9s..5s")
    low, high = 4_900_000_000, 5_000_000_000
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "OSRT_API"):
        query = f'SELECT start, "end" FROM {table} WHERE start < {high} AND "end" > {low} ORDER BY rowid'
        assert sql(tmp_path / "copy.sqlite", f'SELECT start, "end" FROM {table} ORDER BY rowid') == sql(path, query)
    orphans = (
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId NOT IN"
        " (SELECT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME)"
    )
    assert sql(tmp_path / "copy.sqlite", orphans) == [(0,)]
    assert analysis_of(tmp_path / "copy.sqlite")["devices"]


def test_texts_that_are_no_utf8_and_texts_with_nul_stay_as_they_are(tmp_path):
    b = ExportBuilder(RELEASES[-1])
    b.launch(TID, (10, 20), (30, 40))
    b.push_pop("with\x00nul", 0, 100, TID, registered=True)
    path = b.write(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE NVTX_EVENTS SET text = CAST(x'61ff62' AS TEXT)")
    copy_of(path, tmp_path / "copy.sqlite")
    assert analysis_of(tmp_path / "copy.sqlite") == analysis_of(path)
    query = "SELECT hex(CAST(text AS BLOB)) FROM NVTX_EVENTS"
    assert sql(tmp_path / "copy.sqlite", query) == [("61FF62",)]
    assert (b"with\x00nul",) in [
        (v,) for (v,) in sql(tmp_path / "copy.sqlite", "SELECT CAST(value AS BLOB) FROM StringIds")
    ]


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/home/al/x/model.bin", "[path a]/model.bin"),
        ("open '/a/b/c'", "open '[path a]/c'"),
        ("C:\\Users\\al\\x.dll", "C:[path a]/x.dll"),
        ("/opt/al/lib/site-packages/torch/nn/m.py", "[path a]/site-packages/torch/nn/m.py"),
        ("request/decode/step", "request/decode/step"),
        ("req 0/0", "req 0/0"),
        ("at::native::<unnamed>::f(int)", "at::native::<unnamed>::f(int)"),
        (UUID, "[uuid a]"),
        ("host al-server up", "host [name a] up"),
        ("al-servers", "al-servers"),
    ],
)
def test_what_is_taken_out_of_a_text(text, clean):
    assert Cleaner(["al-server"]).text("nvtx", text) == clean


def test_the_documentation_names_every_class():
    text = (Path(__file__).parent.parent / "docs" / "scrub.md").read_text("utf-8")
    assert [name for name in CLASSES if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", ["state_checkpoint", "train_item", "llama_default"])
def test_call_stacks_of_a_copy_are_those_of_the_original(name, tmp_path):
    from nsysparse.cli.flamegraph import command as draw

    copy_of(trace_path(name), tmp_path / "copy.sqlite")
    folded = []
    for i, path in enumerate((trace_path(name), tmp_path / "copy.sqlite")):
        target = tmp_path / f"{i}.folded"
        for weight in ("busy", "blocked"):
            arguments = [str(path), "--format", "folded", "--weight", weight, "-o", str(target), "--force"]
            done = CliRunner().invoke(draw, arguments)
            assert done.exception is None or done.exit_code == 0
            folded.append(target.read_text())
    assert folded[0]
    assert folded[:2] == folded[2:]
