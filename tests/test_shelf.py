"""Tables kept in memory and in mapped files are the same, and nothing of them stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nsysparse.shelf
from nsysparse.analysis import analyze
from nsysparse.errors import UsageError
from nsysparse.joins.work import load_work
from nsysparse.memory import ARENAS, free_bytes, parse_size, shelf_for
from nsysparse.outputs.json import to_json
from nsysparse.shelf import MappedShelf, Shelf
from nsysparse.source import open_trace
from tests.traces import trace_path

ENUM = pl.Enum(["launch", "copy", "other"])
VALUES = {
    pl.Int8: st.integers(-128, 127),
    pl.Int32: st.integers(-(2**31), 2**31 - 1),
    pl.Int64: st.integers(-(2**63), 2**63 - 1),
}


@st.composite
def tables(draw):
    """Pieces of one table whose integer column is of another type in each."""
    pieces = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(list(VALUES)))
        rows = draw(st.lists(st.one_of(st.none(), VALUES[kind]), max_size=6))
        n = len(rows)

        def column(values, n=n):
            return draw(st.lists(st.one_of(st.none(), values), min_size=n, max_size=n))

        pieces.append(
            pl.DataFrame(
                {
                    "number": pl.Series(rows, dtype=kind),
                    "name": pl.Series(column(st.sampled_from(["a", "b", ""])), dtype=pl.Categorical),
                    "does": pl.Series(column(st.sampled_from(ENUM.categories.to_list())), dtype=ENUM),
                    "yes": pl.Series(column(st.booleans()), dtype=pl.Boolean),
                    "text": pl.Series(column(st.text(max_size=3)), dtype=pl.String),
                }
            )
        )
    return pieces


@settings(max_examples=100, deadline=None)
@given(pieces=tables(), seed=st.integers(0, 99))
def test_mapped_tables_equal_those_in_memory(pieces, seed):
    shelf = MappedShelf()
    try:
        mapped, plain = shelf.keep(iter(pieces)), Shelf().keep(iter(pieces))
        assert mapped.schema == plain.schema
        assert mapped.equals(plain)
        order = np.random.default_rng(seed).permutation(plain.height)
        assert shelf.reorder(mapped, order).equals(Shelf().reorder(plain, order))
        assert shelf.put(mapped).equals(plain)
    finally:
        shelf.close()


def test_what_is_mapped_outlives_its_folder_and_leaves_nothing():
    shelf = MappedShelf()
    folder = Path(shelf._folder.name)
    table = shelf.keep([pl.DataFrame({"a": range(10)})])
    times = shelf.put_array(np.arange(5))
    assert len(list(folder.iterdir())) == 2
    shelf.close()
    assert not folder.exists()
    assert table["a"].to_list() == list(range(10))
    assert times.tolist() == list(range(5))


NAMES = ["llama_default", "train_item", "threads", "p2p", "graph_replay_graph", "pinned_overlap_lossy"]


@pytest.mark.parametrize("name", NAMES)
def test_an_analysis_under_a_limit_is_the_same_to_the_byte(name, monkeypatch):
    path = trace_path(name)
    with open_trace(path) as trace:
        whole = to_json(analyze(trace))
    monkeypatch.setattr(nsysparse.shelf, "PIECE_ROWS", 1_000)
    monkeypatch.setattr("nsysparse.joins.work.PIECE_ROWS", 1_000)
    monkeypatch.setattr("nsysparse.joins.order.PIECE_ROWS", 1_000)
    with open_trace(path) as trace:  # in pieces on several threads, in memory
        assert to_json(analyze(trace)) == whole
    with open_trace(path, memory_limit=1) as trace:
        assert isinstance(trace.shelf, MappedShelf)
        assert to_json(analyze(trace)) == whole


def test_through_pieces_and_the_cache_too(tmp_path, monkeypatch):
    path = trace_path("train_item")
    with open_trace(path) as trace:
        whole = to_json(analyze(trace))
    monkeypatch.setattr("nsysparse.source.trace.Trace.chunks.__defaults__", (700,))
    for _ in range(2):
        with open_trace(path, cache=tmp_path / "cache") as trace:
            assert to_json(analyze(trace)) == whole


def test_large_columns_are_mapped_not_copied():
    with open_trace(trace_path("llama_default"), memory_limit=1) as trace:
        work = load_work(trace)
        for frame, columns in (
            (work.calls.frame, ("start_ns", "correlation")),
            (work.kernels, ("start_ns", "call")),
        ):
            for column in columns:
                values = frame[column].to_numpy(allow_copy=False)
                assert any(m in _mapped_addresses() for m in [_page_of(values)]), column


def _page_of(values):
    return values.__array_interface__["data"][0] // os.sysconf("SC_PAGESIZE")


def _mapped_addresses():
    pages = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "nsysparse-" in line:
            low, high = (int(x, 16) for x in line.split()[0].split("-"))
            pages |= set(range(low // os.sysconf("SC_PAGESIZE"), high // os.sysconf("SC_PAGESIZE")))
    return pages


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_folder(how, tmp_path):
    path = trace_path("llama_default")
    command = [sys.executable, "-m", "nsysparse", "analyze", path, "-o", tmp_path / "x.html", "--memory-limit", "1MB"]
    process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not list(tmp_path.glob("nsysparse-*/*")) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(how)
    process.wait(60)
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2 << 30), ("2G", 2 << 30), ("2gb", 2 * 10**9), ("500MB", 5 * 10**8), ("1.5K", 1536), ("7", 7), ("7B", 7)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1G", "0", "2 bananas", "1e9", "2PiB"])
def test_no_sizes(text):
    with pytest.raises(UsageError):
        parse_size(text)


def test_what_fits_stays_in_memory():
    assert type(shelf_for("sqlite", 10**6, 10**9)) is Shelf
    large = shelf_for("sqlite", 10**9, 10**9)
    assert isinstance(large, MappedShelf)
    large.close()
    free = free_bytes()
    assert free is None or 0 < free < 2**50
    assert tempfile.gettempdir()


@pytest.mark.skipif(sys.platform != "linux", reason="the C library of Linux")
def test_threads_of_a_command_share_what_others_freed():
    """Many threads that each take and free memory: the C library makes no more than ARENAS of them a store."""
    code = (
        "import ctypes, re, sys, threading\n"
        "from nsysparse.memory import share_freed\n"
        "if sys.argv[1:]: share_freed()\n"
        "ready = threading.Barrier(8)\n"
        "def work():\n"
        "    held = [bytearray(100_000) for _ in range(20)]\n"
        "    ready.wait()\n"
        "threads = [threading.Thread(target=work) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "ctypes.CDLL(None).malloc_stats()\n"
    )
    found = []
    for arguments in ([], ["shared"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        found.append(done.stderr.count("Arena "))
    assert found[1] <= ARENAS < found[0]
