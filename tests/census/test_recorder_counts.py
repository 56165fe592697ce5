"""The recorder's totals against a brute-force count of the same records."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsysparse.census import dump, windows

from .fake import Fake, brute_force, counted, only

NAMES = st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=("Cs",)), min_size=1, max_size=40)
TIMES = st.tuples(st.integers(1, 5000), st.integers(0, 300)).map(lambda t: (t[0], t[0] + t[1]))


@st.composite
def records(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from("KKCPS"))
    device, (start, end) = draw(st.integers(0, 2)), draw(st.one_of(TIMES, st.just((0, 0))))
    correlation = draw(st.integers(1, 40))
    graph, n_bytes = (
        draw(st.sampled_from([0, 0, 7])),
        draw(st.one_of(st.integers(0, 5), st.integers(0, 2**40))),
    )
    if kind == "K":
        name = draw(NAMES).strip() or "k"
        return f"K {device} {start} {end} {correlation} {graph} 32 1 2 3 64 1 1 0 0 {name}"
    memory = f"{draw(st.integers(0, 7))} {draw(st.integers(0, 7))}"
    if kind == "C":
        return f"C {device} {draw(st.integers(0, 9))} {memory} {n_bytes} {start} {end} {correlation} {graph} 1"
    if kind == "P":
        other = (device + 1) % 3
        a, b = draw(st.sampled_from([(device, other), (other, device)]))
        return f"P {device} 10 {memory} {n_bytes} {start} {end} {a} {b} {correlation} {graph}"
    return f"S {device} {n_bytes} {start} {end} {correlation} {graph}"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scripts=st.lists(st.lists(records(), max_size=60).map("\n".join), min_size=1, max_size=3))
def test_totals_equal_a_brute_force_count(fake: Fake, tmp_path: Path, scripts: list[str]) -> None:
    out = tmp_path / "census"
    shutil.rmtree(out, ignore_errors=True)
    # One correlation id means one launch, of one device: keep the scripts' ids apart by device.
    apart = [_own_correlations(script) for script in scripts]
    assert fake.run(out, "init\n" + apart[0], *apart[1:]) == ""
    assert counted(out) == brute_force(apart)
    assert only(out).finished


def _own_correlations(script: str) -> str:
    lines = []
    for line in script.split("\n"):
        words = line.split(" ", 14)
        at = {"K": 4, "C": 8, "P": 10, "S": 5}.get(words[0])
        if at is not None:
            words[at] = str(int(words[at]) * 3 + int(words[1]))
        lines.append(" ".join(words))
    return "\n".join(lines)


def test_busy_is_exact_for_many_interleaved_streams(fake: Fake, out: Path) -> None:
    rng = random.Random(1)
    scripts = []
    for thread in range(4):
        t, lines = 1000 + thread, []
        for i in range(20000):
            t += rng.randrange(1, 200)
            end = t + rng.randrange(0, 400)
            lines.append(
                f"K 0 {t} {end} {i + 1} 0 16 1 1 1 32 1 1 0 0 kernel_{i % 50}" if i % 3 else
                f"C 0 {1 + i % 2} 1 3 {i} {t} {end} {i + 1} 0 1"
            )  # fmt: skip
        scripts.append("\n".join(lines))
    fake.run(out, *scripts)
    assert counted(out) == brute_force(scripts)


def test_what_comes_too_late_for_the_union_is_bounded_and_said(fake: Fake, out: Path) -> None:
    """500,000 intervals with gaps, then one far in the past: the union has let go of it."""
    lines = [f"K 0 {10 * i + 1000} {10 * i + 1004} {i + 1} 0 16 1 1 1 32 1 1 0 0 k" for i in range(500_000)]
    late = ["K 0 1000 1007 9 0 16 1 1 1 32 1 1 0 0 k"]
    fake.run(out, "\n".join(lines + late))
    (c,) = windows.count(dump.read(out))
    assert c.kernels == 500_001
    assert c.kernel_busy_ns == 2_000_000
    assert c.busy_late_ns == 7
    assert c.kernel_busy_ns <= 2_000_003 <= c.kernel_busy_ns + c.busy_late_ns


def test_full_tables_count_into_other(fake: Fake, out: Path) -> None:
    kernels = [f"K 0 {i * 10 + 1} {i * 10 + 6} {i + 1} 0 16 1 1 1 32 1 1 0 0 kernel number {i}" for i in range(4000)]
    classes = [(k, a, b) for k in range(2) for a in range(8) for b in range(8)]
    copies = [f"C 0 {k} {a} {b} 100 {90_000 + i} {90_001 + i} 1 0 1" for i, (k, a, b) in enumerate(classes)]
    fake.run(out, "\n".join(kernels + copies))
    (c,) = windows.count(dump.read(out))
    assert c.kernels == 4000
    assert c.copies is not None
    assert sum(v.count for v in c.copies.values()) == 128
    assert sum(v.bytes for v in c.copies.values()) == 12800
    assert c.copies[windows.CopyClass("other", "unknown", "unknown")].count == 64
    names = only(out).kernels
    assert names is not None
    assert len(names["top"]) == 64
    assert names["names"] == 3072
    parts = (sum(k["count"] for k in names["top"]), names["rest"]["count"], names["untracked"]["count"])
    assert sum(parts) == 4000


def test_records_of_devices_beyond_the_table_are_counted_apart(fake: Fake, out: Path) -> None:
    fake.run(out, "K 40 1 2 1 0 16 1 1 1 32 1 1 0 0 k\nS 4000000000 5 1 2 3 0\nK 0 1 2 2 0 16 1 1 1 32 1 1 0 0 k")
    process = only(out)
    last = process.read(process.totals[-1])
    assert last["unplaced_records"] == 2
    assert [d["device"] for d in last["devices"]] == [0]


def test_kernel_shapes_and_names(fake: Fake, out: Path) -> None:
    hostile = 'void k<"x\\y", \x01\x7f \U0001f600>'
    fake.run(out, "\n".join([
        f"K 0 10 20 1 0 40 7 8 9 128 2 1 256 1024 {hostile}",
        f"K 0 30 35 2 0 40 1 1 1 128 2 1 256 1024 {hostile}",
        "K 0 40 41 3 0 16 1 1 1 32 1 1 0 0 " + "long" * 300,
        "K 0 50 51 4 0 16 1 1 1 32 1 1 0 0 " + "long" * 301,
    ]))  # fmt: skip
    top = only(out).kernels["top"]  # type: ignore[index]
    assert top[0]["name"] == hostile
    assert (top[0]["count"], top[0]["time_ns"], top[0]["longest_ns"]) == (2, 15, 10)
    assert (top[0]["grid"], top[0]["block"], top[0]["registers"]) == ([7, 8, 9], [128, 2, 1], 40)
    assert (top[0]["static_shared_bytes"], top[0]["dynamic_shared_bytes"]) == (256, 1024)
    assert top[0]["shape_varies"] is True
    cut = [k for k in top if k["name_cut"]]
    assert len(cut) == 2, "two names with the same first 511 bytes stay two kernels"
    assert len({k["name_hash"] for k in cut}) == 2


def test_invalid_utf8_in_a_name_does_not_break_the_line(fake: Fake, out: Path) -> None:
    out.mkdir()
    script = out.parent / "script"
    script.write_bytes(b"K 0 1 2 1 0 16 1 1 1 32 1 1 0 0 a\xff\xc0\xaf\xed\xa0\x80\xe2\x82b\n")
    import subprocess

    subprocess.run([fake.folder / "host", script], env=fake.environment(out), check=True, timeout=30)
    for line in only(out).path.read_bytes().splitlines():
        json.loads(line)
    name = only(out).kernels["top"][0]["name"]  # type: ignore[index]
    assert name.startswith("a\N{REPLACEMENT CHARACTER}")
    assert name.endswith("b")


def test_graph_kind_counts_whole_graphs(fake: Fake, out: Path) -> None:
    fake.run(out, "G 0 100 200 1 5\nG 0 150 300 2 5\nK 0 290 310 3 0 16 1 1 1 32 1 1 0 0 k",
             NSYSPARSE_CENSUS_KINDS="kernels,copies,memsets,graphs")  # fmt: skip
    (c,) = windows.count(dump.read(out))
    assert (c.graph_launches, c.kernels, c.busy_ns) == (2, 1, 210)
    assert only(out).header["graph_mode"] == "graph"


def test_copies_alone(fake: Fake, out: Path) -> None:
    fake.run(out, "K 0 1 2 1 0 16 1 1 1 32 1 1 0 0 k\nC 0 1 1 3 50 3 4 2 0 1", NSYSPARSE_CENSUS_KINDS="copies")
    (c,) = windows.count(dump.read(out))
    assert c.copies is not None
    assert sum(v.bytes for v in c.copies.values()) == 50
    assert (c.kernels, c.memsets, c.busy_ns, c.graph_launches) == (None, None, None, None)


def test_header_names_devices_and_limits_and_no_arguments(fake: Fake, out: Path) -> None:
    fake.run(out, "K 0 1 2 1 0 16 1 1 1 32 1 1 0 0 k", FAKE_DEVICES="2", SECRET_TOKEN="hunter2")
    process = only(out)
    assert process.program == "host"
    assert [d["ordinal"] for d in process.header["devices"]] == [0, 1]
    device = process.header["devices"][1]
    assert device["name"] == 'Fake "GPU" 1'
    assert device["uuid"] == "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f"
    assert device["pci"] == "0000:01:00.0"
    assert (device["memory_bytes"], device["multiprocessors"]) == (8 << 30, 132)
    assert device["reserved_shared_per_block_bytes"] is None, "a limit that the driver does not know is null"
    text = process.path.read_text()
    assert "script-" not in text
    assert "hunter2" not in text


def test_dropped_is_a_number_or_null(fake: Fake, tmp_path: Path) -> None:
    script = "K 0 1 2 1 0 16 1 1 1 32 1 1 0 0 k"
    for name, extra, expected in [
        ("a", {}, 0),
        ("b", {"FAKE_DROPPED": "7"}, 7),
        ("c", {"FAKE_NO_DROPPED": "1"}, None),
    ]:
        fake.run(tmp_path / name, script, **extra)
        (c,) = windows.count(dump.read(tmp_path / name))
        assert c.dropped == expected
