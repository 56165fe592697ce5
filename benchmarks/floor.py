"""The floor under every reader: ``floor.py TRACE [--threads N] [--check]``.

Decodes, in C and straight from the pages, the integer columns of the tables that an analysis reads, and prints seconds
as JSON. How many times as long a whole analysis takes on the same file in the same run is the figure to watch.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import resource
import shutil
import sqlite3
import struct
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from nsysparse import schema

SOURCE = Path(__file__).parent / "floor.c"
TABLES = (schema.API, schema.KERNELS, schema.COPIES, schema.MEMSETS, schema.NVTX)
U8, I32, U32, I64, POINTER = ctypes.c_uint8, ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_void_p


def compile_floor(folder: Path) -> ctypes.CDLL:
    """Compile and load the C part.

    Raises:
        SystemExit: There is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SystemExit("no C compiler: the floor needs one")
    target = folder / "floor.so"
    subprocess.run([compiler, "-O3", "-shared", "-fPIC", str(SOURCE), "-o", str(target)], check=True)
    library = ctypes.CDLL(str(target))
    library.list_leaves.restype = I64
    library.list_leaves.argtypes = [POINTER, U32, U32, POINTER, I64, I64]
    library.count_rows.argtypes = [POINTER, U32, POINTER, I64, POINTER]
    library.decode.argtypes = [POINTER, U32, POINTER, I64, POINTER, I32, POINTER, POINTER, I64]
    return library


def wanted_columns(path: Path) -> dict[str, tuple[int, list[str], list[int]]]:
    """Root page, names and numbers of the integer columns of each table that an analysis reads."""
    found = {}
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    roots = dict(connection.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'table'"))
    for table in TABLES:
        source = table.source(roots)
        if source is None:
            continue
        present = [str(r[1]) for r in connection.execute(f'PRAGMA table_info("{source}")')]
        kinds = {c.name: c.kind for c in table.columns}
        names = {column for name, column in table.resolve(source, present).items() if kinds[name] == "int"}
        ordered = sorted(names, key=present.index)
        found[source] = (int(roots[source]), ordered, [present.index(n) for n in ordered])
    connection.close()
    return found


class Floor:
    """A file mapped into memory, and the compiled loop over its pages."""

    def __init__(self, path: Path, library: ctypes.CDLL, threads: int) -> None:
        self._library, self._threads = library, threads
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self._bytes = np.frombuffer(self._map, np.uint8)
        size = struct.unpack(">H", self._map[16:18])[0]
        self._page = 65_536 if size == 1 else size
        if self._map[20]:
            raise SystemExit("pages with reserved bytes are not supported by the floor")

    def decode(self, root: int, numbers: list[int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Values and validity of some columns of the table at a root page."""
        base, page = self._bytes.ctypes.data, self._page
        leaves = np.empty(self._bytes.size // page, np.uint32)
        n = self._library.list_leaves(base, page, root, leaves.ctypes.data, leaves.size, 0)
        leaves = leaves[:n].copy()
        rows = np.empty(n, np.int64)
        self._library.count_rows(base, page, leaves.ctypes.data, n, rows.ctypes.data)
        first = np.concatenate(([0], np.cumsum(rows)))
        values = [np.empty(first[-1], np.int64) for _ in numbers]
        known = [np.empty(first[-1], np.uint8) for _ in numbers]
        wanted = np.array(numbers, np.int32)
        outputs = (POINTER * len(numbers))(*[v.ctypes.data for v in values])
        masks = (POINTER * len(numbers))(*[k.ctypes.data for k in known])

        def part(low: int, high: int) -> None:
            at, row = leaves.ctypes.data + 4 * low, int(first[low])
            self._library.decode(base, page, at, high - low, wanted.ctypes.data, len(numbers), outputs, masks, row)

        cuts = np.linspace(0, n, 4 * self._threads + 1).astype(int).tolist()
        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(part, cuts[:-1], cuts[1:]))
        return values, known


def measure(path: Path, threads: int, check: bool) -> dict[str, object]:
    """Decode everything once; seconds and rows, and with ``check`` whether SQLite sees the same sums."""
    with tempfile.TemporaryDirectory() as folder:
        library = compile_floor(Path(folder))
    wanted = wanted_columns(path)
    floor = Floor(path, library, threads)
    tables, wall, cpu = {}, 0.0, 0.0
    for table, (root, names, numbers) in wanted.items():
        began, began_cpu = time.perf_counter(), time.process_time()
        values, known = floor.decode(root, numbers)
        wall += time.perf_counter() - began
        cpu += time.process_time() - began_cpu
        tables[table] = {"rows": int(values[0].size), "columns": len(numbers)}
        if check:
            tables[table]["equal"] = _sums(path, table, names) == [
                (int(k.sum()), int(v[k.view(bool)].sum())) for v, k in zip(values, known, strict=True)
            ]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"wall_s": wall, "cpu_s": cpu, "threads": threads, "peak_bytes": peak, "tables": tables}


def _sums(path: Path, table: str, names: list[str]) -> list[tuple[int, int]]:
    """Number of values and their sum (in 64 bits, as NumPy adds) of each column, as SQLite sees them."""
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    result = []
    for name in names:
        values = np.fromiter(
            (v for (v,) in connection.execute(f'SELECT "{name}" FROM "{table}" WHERE "{name}" NOT NULL')), np.int64
        )
        result.append((values.size, int(values.sum())))
    connection.close()
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--threads", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--check", action="store_true", help="compare with what SQLite reads")
    given = parser.parse_args()
    print(json.dumps(measure(given.trace, given.threads, given.check)))


if __name__ == "__main__":
    main()
