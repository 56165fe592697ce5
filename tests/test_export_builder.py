"""The exports that tests build, and the standard scenario that fills them."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from export_builder import (
    DEVICE,
    DTOD,
    DTOH,
    PINNED,
    PTOP,
    RELEASES,
    SCHEMAS,
    ExportBuilder,
    Row,
    version,
)
from export_scenario import (
    AUTOGRAD,
    GPU_OF,
    KINDS,
    PAGEABLE_IN,
    PAGEABLE_OUT,
    PINNED_IN,
    PINNED_OUT,
    US,
    A,
    standard_scenario,
)


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def recording(release: str, tmp_path: Path) -> Iterator[tuple[sqlite3.Connection, Row]]:
    builder = ExportBuilder(release)
    truth = standard_scenario(builder)
    with closing(sqlite3.connect(builder.write(tmp_path / "trace.sqlite"))) as db:
        yield db, truth


def table_names(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def table_columns(db: sqlite3.Connection, table: str) -> list[list[str]]:
    return [
        [name, kind, *["not null"] * required, *[f"pk{key}"] * bool(key)]
        for _, name, kind, required, _, key in db.execute(f'PRAGMA table_info("{table}")')
    ]


def one(db: sqlite3.Connection, sql: str) -> Any:
    return db.execute(sql).fetchone()[0]


@pytest.mark.parametrize("lazy", [True, False])
def test_every_table_has_exactly_the_columns_of_its_release(release: str, lazy: bool, tmp_path: Path) -> None:
    expected = SCHEMAS[release]["tables"]
    builder = ExportBuilder(release)
    standard_scenario(builder)
    with closing(sqlite3.connect(builder.write(tmp_path / "trace.sqlite", lazy=lazy))) as db:
        written = table_names(db)
        assert {table: table_columns(db, table) for table in expected.keys() & written} == {
            table: expected[table] for table in expected.keys() & written
        }
        empty = {table for table in written if not one(db, f'SELECT COUNT(*) FROM "{table}"')}
        assert written >= (expected.keys() if not lazy else set())
        assert not lazy or all(re.match("ENUM_|META_DATA|UnwindMethodType", table) for table in empty)
        assert {t for t in written if t.startswith("ENUM_")} == {t for t in expected if t.startswith("ENUM_")}


def test_file_looks_like_an_export(recording: tuple[sqlite3.Connection, Row]) -> None:
    db, _ = recording
    pragmas = [one(db, f"PRAGMA {name}") for name in ("page_size", "journal_mode", "encoding")]
    assert pragmas == [4096, "delete", "UTF-8"]
    assert one(db, "SELECT COUNT(*) FROM sqlite_master WHERE type != 'table' AND sql IS NOT NULL") == 0
    assert one(db, "PRAGMA integrity_check") == "ok"


def test_counts_and_bytes(recording: tuple[sqlite3.Connection, Row]) -> None:
    db, truth = recording
    tables = ("KERNEL", "MEMSET", "RUNTIME", "SYNCHRONIZATION")
    rows = [one(db, f"SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_{table}") for table in tables]
    assert rows == [truth[key] for key in ("kernels", "memsets", "api_rows", "syncs")]
    # counted by hand: 8 forward, 2 backward, 3 in the graph, 1 on the second device, 3 steps
    assert (truth["kernels"], truth["memsets"], truth["syncs"]) == (8 + 2 + 3 + 1 + 3, 4, 4 + 1 + 3)
    assert one(db, "SELECT SUM(bytes) FROM CUPTI_ACTIVITY_KIND_MEMSET") == truth["memset_bytes"] == 16_384
    copies = db.execute(
        "SELECT copyKind, srcKind, dstKind, COUNT(*), SUM(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY GROUP BY 1, 2, 3"
    )
    assert {tuple(row[:3]): tuple(row[3:]) for row in copies} == truth["copies"]
    assert truth["copies"] == {
        PAGEABLE_IN: (5, 54_000_006),
        PINNED_IN: (4 + 3, 8_900_000),
        PAGEABLE_OUT: (4, 16),
        PINNED_OUT: (2 + 3, 1_300_000),
        (DTOD, DEVICE, DEVICE): (1, 65_536),
        (PTOP, DEVICE, DEVICE): (1, 8_000_000),
    }
    assert one(db, "SELECT COUNT(*) FROM OSRT_API") == truth["osrt"]


def test_calls_join_by_process(recording: tuple[sqlite3.Connection, Row]) -> None:
    db, truth = recording
    runtime = "CUPTI_ACTIVITY_KIND_RUNTIME"
    calls = one(db, f"SELECT COUNT(*) FROM (SELECT DISTINCT globalTid >> 24, correlationId FROM {runtime})")
    assert calls == truth["calls"] < truth["api_rows"]
    assert one(db, f"SELECT COUNT(DISTINCT correlationId) FROM {runtime}") < calls  # both processes use them
    joined = one(
        db,
        f"SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN {runtime} r"
        " ON r.correlationId = k.correlationId AND r.globalTid >> 24 = k.globalPid >> 24",
    )
    assert joined == truth["kernels"]
    shared = db.execute(
        "SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE graphNodeId IS NOT NULL GROUP BY correlationId"
    )
    assert shared.fetchall() == [(3,)]


def test_nvtx_paths(recording: tuple[sqlite3.Connection, Row]) -> None:
    db, truth = recording
    kinds = "SELECT COUNT(*) FROM NVTX_EVENTS WHERE eventType"
    assert one(db, f"{kinds} = 59") == truth["push_pop"]
    assert one(db, f"{kinds} = 60") == truth["start_end"]
    assert one(db, f'{kinds} IN (59, 60) AND "end" IS NULL') == truth["unfinished"]
    assert one(db, f'{kinds} IN (33, 75) AND start < 0 AND "end" IS NULL') == 2
    enclosing = """
        WITH c AS (SELECT MIN(start) AS first, MAX("end") AS last FROM CUPTI_ACTIVITY_KIND_RUNTIME
                   WHERE globalTid = :tid AND correlationId = :correlation)
        SELECT COALESCE(s.value, n.text)
        FROM c JOIN NVTX_EVENTS n ON n.start <= c.first AND c.last <= n."end"
        LEFT JOIN StringIds s ON s.id = n.textId
        WHERE n.eventType = 59 AND n.globalTid = :tid AND n.domainId <= :domain
        ORDER BY n.start"""
    for op in truth["operations"]:
        call = {"tid": op["tid"], "correlation": op["correlation"]}
        for key, domain in (("path", 0), ("path_all_domains", 1)):
            names = db.execute(enclosing, {**call, "domain": domain})
            assert tuple(name for (name,) in names) == op[key]
    backward = [op for op in truth["operations"] if op["in_time_path"]]
    assert [op["tid"] for op in backward] == [AUTOGRAD] * 2


def test_device_times(recording: tuple[sqlite3.Connection, Row]) -> None:
    db, truth = recording
    ticks: defaultdict[tuple[int, int], defaultdict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for kind, table in zip(KINDS, ("KERNEL", "MEMCPY", "MEMSET"), strict=True):
        for gpid, device, start, end in db.execute(
            f'SELECT globalPid, deviceId, start, "end" FROM CUPTI_ACTIVITY_KIND_{table}'
        ):
            ticks[gpid >> 24 & 0xFFFFFF, device][kind].update(range(start // US, end // US))
    assert ticks.keys() == truth["devices"].keys()
    for key, kinds in ticks.items():
        times = truth["devices"][key]
        assert times["busy_ns"] == US * len(set().union(*kinds.values()))
        assert times["kernel_ns"] == US * len(kinds["kernel"])
        assert times["exposed_copy_ns"] == US * len(kinds["copy"] - kinds["kernel"])
        assert times["overlapped_copy_ns"] == US * len(kinds["copy"] & kinds["kernel"])
    shared = [truth["devices"][key]["busy_ns"] for key, gpu in GPU_OF.items() if gpu == 0]
    assert truth["devices"][A, 0]["overlapped_copy_ns"] == 20 * US
    assert max(shared) < truth["gpus"][0]["busy_ns"] < sum(shared)


def test_names(recording: tuple[sqlite3.Connection, Row], release: str) -> None:
    db, truth = recording
    threads = db.execute("SELECT globalTid, value FROM ThreadNames JOIN StringIds ON id = nameId")
    assert dict(threads.fetchall()) == truth["threads"]
    names = table_names(db)
    assert ("PROCESSES" in names) == (release != "before 2021.5")
    assert ("TARGET_INFO_CUDA_DEVICE" in names) == (version(release) >= (2025, 1))
    if "TARGET_INFO_CUDA_DEVICE" in names:
        mapped = db.execute("SELECT pid, cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE")
        assert {(pid, ordinal): gpu for pid, ordinal, gpu in mapped} == GPU_OF


def test_meta_table_and_its_misspelt_keys(recording: tuple[sqlite3.Connection, Row], release: str) -> None:
    db, _ = recording
    found = table_names(db) & {"EXPORT_META_DATA", "META_DATA_EXPORT"}
    number = version(release)
    expected = {"META_DATA_EXPORT" if number >= (2023, 3) else "EXPORT_META_DATA"}
    assert found == (expected if number >= (2021, 5) else set())
    for table in found:
        meta = dict(db.execute(f"SELECT name, value FROM {table}").fetchall())
        assert meta["EXPORT_SCHEMA_VERSION"] == SCHEMAS[release]["schema"]
        assert f"EXPORT_PARAM_{'OUTPUT' if number >= (2024, 5) else 'OUTUPT'}_FILE" in meta


def test_empty_export_opens(release: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(ExportBuilder(release).write(tmp_path / "trace.sqlite"))) as db:
        assert "StringIds" in table_names(db)
        assert not any(name.startswith("CUPTI") for name in table_names(db))


def test_row_order_may_be_shuffled_and_same_seed_gives_same_bytes(tmp_path: Path) -> None:
    builder = ExportBuilder(RELEASES[-1])
    standard_scenario(builder)
    files = [
        builder.write(tmp_path / f"{number}.sqlite", shuffle=seed).read_bytes()
        for number, seed in enumerate((None, 1, 1))
    ]
    assert files[0] != files[1] == files[2]


def test_rows_beside_the_scenario(release: str, tmp_path: Path) -> None:
    """What the scenario does not use: graph-mode spans, stacks, samples, a missing number."""
    b = ExportBuilder(release)
    tid = b.thread(1, 1, "main")
    chain = b.callchain(0, [("cudaLaunchKernel", "libcudart.so"), ("0x7f00", "app")])
    correlation = b.api("cudaGraphLaunch", 10, 20, tid, event_class=67, callchain=chain)
    b.graph_trace(15, 40, 0, 7, correlation, 1)
    b.sample(12, tid, [("step", "app")])
    b.copy(50, 60, 8, DTOH, DEVICE, PINNED, 0, 7, correlation, 1, copyCount=None)
    with closing(sqlite3.connect(b.write(tmp_path / "trace.sqlite"))) as db:
        stack = db.execute(
            "SELECT value, unresolved FROM CUDA_CALLCHAINS JOIN StringIds s ON s.id = symbol ORDER BY stackDepth"
        )
        assert stack.fetchall() == [("cudaLaunchKernel", 0), ("0x7f00", 1)]
        assert one(db, 'SELECT "end" FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE') == 40
        assert one(db, "SELECT COUNT(*) FROM SAMPLING_CALLCHAINS JOIN COMPOSITE_EVENTS USING (id)") == 1
