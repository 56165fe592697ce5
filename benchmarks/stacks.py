"""How long 5 million CPU samples of 200,000 distinct stacks take, and how much memory.

    python benchmarks/stacks.py make /tmp/samples.sqlite        # some 3 GB, a few minutes
    python benchmarks/stacks.py run /tmp/samples.sqlite

``make`` writes an export with the tables that a flame graph needs; ``run`` folds and renders it in a process of its own
and prints seconds and the peak of resident memory.
"""

from __future__ import annotations

import argparse
import resource
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SYMBOLS, MODULES, THREADS, KERNELS = 20_000, 200, 16, 100_000
PROCESS = (1 << 48) | (4242 << 24)
PERIOD_NS = 1_000_000
STRINGS = {"module": SYMBOLS, "api": SYMBOLS + MODULES, "kernel": SYMBOLS + MODULES + 2}
TABLES = """
    CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, busLocation TEXT, smCount INTEGER);
    CREATE TABLE ThreadNames (nameId INTEGER, priority INTEGER, globalTid INTEGER);
    CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, "end" INTEGER NOT NULL, eventClass INTEGER,
        globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER, callchainId INTEGER);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, "end" INTEGER NOT NULL, deviceId INTEGER NOT NULL,
        contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
        shortName INTEGER NOT NULL);
    CREATE TABLE COMPOSITE_EVENTS (id INTEGER PRIMARY KEY, start INTEGER NOT NULL, cpu INTEGER, threadState INTEGER,
        globalTid INTEGER, cpuCycles INTEGER NOT NULL);
    CREATE TABLE SAMPLING_CALLCHAINS (id INTEGER NOT NULL, symbol INTEGER NOT NULL, module INTEGER NOT NULL,
        kernelMode INTEGER, thumbCode INTEGER, unresolved INTEGER, specialEntry INTEGER, originalIP INTEGER,
        unwindMethod INTEGER, stackDepth INTEGER NOT NULL);
"""


def make(target: Path, samples: int, stacks: int, seed: int = 1) -> None:
    """Write the export: stacks are random walks in a call tree, so that they share their beginnings as real ones do."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(8, 25, stacks)
    depth = int(lengths.max())
    # A call from symbol s at depth d goes to one of six symbols; the sixth of a stack's calls is the commonest.
    walk = np.zeros((stacks, depth), np.int64)
    for level in range(1, depth):
        choice = np.minimum(rng.geometric(0.35, stacks), 6)
        walk[:, level] = (walk[:, level - 1] * 7 + choice * 2_654_435_761 + level * 97) % SYMBOLS
    distinct = len({tuple(w[:n]) for w, n in zip(walk.tolist(), lengths.tolist(), strict=True)})
    chosen = np.concatenate((np.arange(stacks), np.minimum(rng.zipf(1.3, samples - stacks), stacks) - 1))
    rng.shuffle(chosen)
    database = sqlite3.connect(target)
    database.executescript(f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {TABLES}")
    fill_small(database, samples)
    times = np.sort(rng.integers(0, samples * PERIOD_NS // THREADS, samples))
    threads = PROCESS + 1 + rng.integers(0, THREADS, samples)
    rows = zip(range(1, samples + 1), times.tolist(), threads.tolist(), strict=True)
    database.executemany("INSERT INTO COMPOSITE_EVENTS VALUES (?, ?, 0, 0, ?, 1)", rows)
    database.executemany(
        "INSERT INTO SAMPLING_CALLCHAINS VALUES (?, ?, ?, 0, 0, 0, 0, ?, 7, ?)", chain_rows(walk, lengths, chosen)
    )
    database.commit()
    total = database.execute("SELECT max(rowid) FROM SAMPLING_CALLCHAINS").fetchone()[0]
    database.close()
    size = target.stat().st_size / 1e9
    print(f"{target}: {samples:,} samples, {distinct:,} distinct stacks, {total:,} frames, {size:.1f} GB")


def chain_rows(walk: np.ndarray, lengths: np.ndarray, chosen: np.ndarray) -> Iterator[tuple[int, ...]]:
    """Rows of the samples' stacks, leaf first."""
    for low in range(0, chosen.size, 100_000):
        part = chosen[low : low + 100_000]
        length = lengths[part]
        owner = np.repeat(np.arange(part.size), length)
        depth = np.arange(owner.size) - np.repeat(np.cumsum(length) - length, length)
        symbol = walk[part[owner], length[owner] - 1 - depth]
        module = STRINGS["module"] + symbol % MODULES
        columns = (owner + low + 1, symbol, module, symbol * 16 + 0x400000, depth)
        yield from zip(*(c.tolist() for c in columns), strict=True)


def fill_small(database: sqlite3.Connection, samples: int) -> None:
    """Names, and kernels all along the recording."""
    names = [f"void ns{i % 300}::Class{i % 4000}<int, float>::function_{i}(int, float const&)" for i in range(SYMBOLS)]
    names += [f"/usr/lib/libmodule{i}.so.{i % 7}" for i in range(MODULES)]
    names += ["cudaLaunchKernel_v7000", "main", "gemm"]
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
    database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', '0000:00:00.0', 132)")
    database.execute("INSERT INTO PROCESSES VALUES (?, 4242, 'server')", (PROCESS,))
    step = samples * PERIOD_NS // THREADS // KERNELS
    calls, kernels = [], []
    for i in range(KERNELS):
        at, thread = i * step + 1, PROCESS + 1 + i % THREADS
        calls.append((at, at + step // 10, 0, thread, i + 1, STRINGS["api"], 0, None))
        kernels.append((at + step // 8, at + step // 2, 0, 1, 7, i + 1, PROCESS, STRINGS["kernel"], STRINGS["kernel"]))
    database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, ?, ?)", calls)
    database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", kernels)


def run(trace: Path) -> None:
    """Fold and render; print the time of each stage and the peak of memory."""
    from nsysparse.analysis import analyze
    from nsysparse.flamegraph.folded import to_folded
    from nsysparse.report.flamegraph import render_page
    from nsysparse.source import open_trace

    began = last = time.perf_counter()
    used = time.process_time()

    def stage(what: str) -> None:
        nonlocal last, used
        now, cpu = time.perf_counter(), time.process_time()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"{what:<28} {now - last:7.1f} s, {cpu - used:6.1f} s of CPU, peak {peak:5.2f} GB", flush=True)
        last, used = now, cpu

    with open_trace(trace) as opened, tempfile.TemporaryDirectory() as folder:
        analysis = analyze(opened)
        found = analysis.call_paths
        assert found is not None
        assert analysis.stacks is not None
        stage("analyze")
        print(f"{len(analysis.stacks.stacks):,} distinct stacks, {len(found.flame.paths):,} call paths")
        folded = Path(folder) / "x.folded"
        folded.write_text(to_folded(found.flame, "cpu_samples"))
        stage(f"folded, {folded.stat().st_size / 1e6:,.0f} MB")
        page = Path(folder) / "x.html"
        page.write_text(render_page(found.flame, found.tables["sampled_threads"]))
        stage(f"page, {page.stat().st_size / 1e6:,.0f} MB")
    print(f"{'in all':<28} {time.perf_counter() - began:7.1f} s")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "run"])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--samples", type=int, default=5_000_000)
    parser.add_argument("--stacks", type=int, default=200_000)
    given = parser.parse_args()
    if given.what == "make":
        if given.trace.exists():
            sys.exit(f"{given.trace} exists")
        make(given.trace, given.samples, given.stacks)
    else:
        run(given.trace)


if __name__ == "__main__":
    main()
