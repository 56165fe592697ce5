"""Stacks: numbering, names, the calibrated offset, Python payloads, folding, and who gets which stack."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import struct
from contextlib import closing

import numpy as np
import polars as pl
import pytest
from export_builder import DEVICE, DTOH, PAGEABLE, ExportBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from independent import sql
from stack_cases import (
    NATIVE,
    PID,
    PYTHON,
    SCHEMA_ID,
    THREAD,
    US,
    copy_with_stack,
    describe_payloads,
    payload,
    python_stack,
    shares_of,
    stacks_of,
)
from traces import trace_path

from nsysparse.joins.work import load_work
from nsysparse.source import open_trace
from nsysparse.stacks.attribution import attribute_stacks, measure_stacks
from nsysparse.stacks.chains import Chains, Lists, chains_of, distinct_lists, joined, number_chains
from nsysparse.stacks.folding import fold
from nsysparse.stacks.frames import KEY, LARGEST_GUESSED, FrameNumbers
from nsysparse.stacks.load import UNREADABLE, load_stacks
from nsysparse.stacks.names import short_file, short_name


def opened(builder: ExportBuilder, tmp_path, **options):
    return open_trace(builder.write(tmp_path / "trace.sqlite", **options))


OSRT_STACKS = "OSRT_CALLCHAINS"


def chain_id(i):
    return 5 + i


def labels(stacks, lists, row):
    return stacks.frames["label"].gather(lists.value[lists.start[row] : lists.start[row + 1]]).to_list()


# --- names ---


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("cudaMemcpyAsync", "cudaMemcpyAsync"),
        ("server_slot::prompt_save(server_prompt_cache&) const", "server_slot::prompt_save"),
        ("void at::native::gpu_kernel<f<int, g<1>>>(at::TensorIteratorBase&, f<x> const&)", "at::native::gpu_kernel"),
        ("at::(anonymous namespace)::wrapper_CUDA_sqrt(at::Tensor const&)", "at::wrapper_CUDA_sqrt"),
        ("a::b(int)::{lambda(server_slot&)#5}::operator()(server_slot&) const", "a::b::{lambda#5}::operator()"),
        ("_object* torch::TypeError_to_NotImplemented_<&f>(_object*)", "torch::TypeError_to_NotImplemented_"),
        ("std::ostream& std::operator<< <char>(std::ostream&, char)", "std::operator<<"),
        ("Foo::operator bool() const", "Foo::operator bool"),
        ("llama_io_write_host::~llama_io_write_host()", "llama_io_write_host::~llama_io_write_host"),
        ("core::ops::function::FnOnce::call_once::h0123456789abcdef", "core::ops::function::FnOnce::call_once"),
        ("f(int) [clone .constprop.0]", "f"),
        ("<T as core::Trait>::go", "<T as core::Trait>::go"),
        ("<<<", "<<<"),
    ],
)  # fmt: skip
def test_short_names(name, short):
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/home/someone/serve.py", "serve.py"),
        ("/venv/lib/python3.12/site-packages/torch/optim/adam.py", "torch/optim/adam.py"),
        ("/usr/lib/python3.12/json/decoder.py", "python/json/decoder.py"),
        ("C:\\Users\\someone\\serve.py", "serve.py"),
        ("<frozen runpy>", "<frozen runpy>"),
    ],
)
def test_files_lose_the_machines_folders(path, short):
    assert short_file(path) == short


# --- numbering ---


@pytest.mark.parametrize("seed", range(20))
def test_equal_chains_are_one_stack(seed):
    rng = random.Random(seed)
    chains = {
        rng.randrange(10**6): [rng.randrange(3) for _ in range(rng.randrange(1, 6))] for _ in range(rng.randrange(40))
    }
    rows = [(c, depth, frame) for c, frames in chains.items() for depth, frame in enumerate(frames)]
    rng.shuffle(rows)
    chain, depth, frame = (np.array([r[i] for r in rows], dtype=np.int64) for i in range(3))
    ids, found = chains_of(chain, depth, frame.astype(np.int32))
    stack, stacks = number_chains(found)
    assert ids.tolist() == sorted(chains)
    lists = stacks.to_lists()
    assert [lists[s] for s in stack] == [chains[c][::-1] for c in sorted(chains)]
    assert len({tuple(x) for x in lists}) == len(lists)


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), max_size=12),
    st.lists(st.integers(1, 9), min_size=1, max_size=9),
)
def test_chains_cut_anywhere_are_the_same_chains(frames, cuts):
    rows = np.array([(c * 3, d, f) for c, fs in enumerate(frames) for d, f in enumerate(fs)], np.int64).reshape(-1, 3)
    chains = Chains()
    while rows.size:
        cut = cuts[len(rows) % len(cuts)]
        piece, rows = rows[:cut], rows[cut:]
        assert chains.add(piece[:, 0], piece[:, 1].astype(np.int32), piece[:, 2].astype(np.int32))
    ids, found = chains.finish()
    assert ids.tolist() == [c * 3 for c in range(len(frames))]
    assert found.to_lists() == frames


@pytest.mark.parametrize("rows", [[(1, 0), (0, 0)], [(1, 1), (1, 0)], [(1, 0), (1, 1), (0, 2)]])
@pytest.mark.parametrize("apart", [False, True])
def test_chains_out_of_order_are_refused(rows, apart):
    chains = Chains()
    pieces = [[r] for r in rows] if apart else [rows]
    columns = [np.array(p).T for p in pieces]
    taken = [chains.add(c, d.astype(np.int32), c.astype(np.int32)) for c, d in columns]
    assert not all(taken)


REFERENCES = st.one_of(st.none(), st.integers(0, 3), st.sampled_from([-5, LARGEST_GUESSED + 1, 2**62]))
MARK = st.sampled_from([None, 0, 1, 7])


@given(st.lists(st.lists(st.tuples(REFERENCES, REFERENCES, MARK, MARK, MARK), max_size=12), max_size=4))
@settings(max_examples=200, deadline=None)
def test_frames_are_numbered_by_all_that_tells_them_apart(pieces):
    numbers, known = FrameNumbers(), []
    for piece in pieces:
        code = numbers.of(pl.DataFrame(piece, schema=dict.fromkeys(KEY, pl.Int64), orient="row")).tolist()
        for row, number in zip(piece, code, strict=True):
            frame = (*row[:2], *(bool(m) for m in row[2:]))
            if frame not in known:
                known.append(frame)
            assert number == known.index(frame)
    assert numbers.keys.rows() == known


def test_different_lists_whose_hashes_meet_are_told_apart(monkeypatch):
    from nsysparse.stacks import chains as module

    real = module._hashes
    monkeypatch.setattr(
        module, "_hashes", lambda lists, seed: real(lists, seed) & np.uint64(1 if seed == 1 else 2**64 - 1)
    )
    lists = Lists.of_lengths([1, 1, 1, 2, 1], np.array([5, 6, 7, 5, 6, 5]))
    number, first = distinct_lists(lists)
    assert number.tolist() == [0, 1, 2, 3, 0]
    assert first.tolist() == [0, 1, 2, 3]


def test_pieces_of_any_size_give_the_same_numbers(monkeypatch):
    from nsysparse.stacks import chains as module

    rng = np.random.default_rng(1)
    lists = Lists.of_lengths(rng.integers(0, 5, 300), np.empty(0, np.int64))
    lists = Lists(lists.start, rng.integers(0, 2, int(lists.start[-1])))
    expected = [n.tolist() for n in distinct_lists(lists)]
    monkeypatch.setattr(module, "PIECE", 7)
    assert [n.tolist() for n in distinct_lists(lists)] == expected
    assert len(set(map(tuple, lists.to_lists()))) == len(expected[1])


def test_lists_join_row_by_row():
    first = Lists.of_lengths([2, 0, 1], np.array([1, 2, 3]))
    second = Lists.singles(np.array([-1, 9, 8]))
    assert joined([first, second]).to_lists() == [[1, 2], [9], [3, 8]]
    marked = np.array([False, True, True])
    assert first.first(marked, -1).tolist() == [1, -1, 0]
    assert first.last(marked, -1).tolist() == [1, -1, 0]
    assert first.any(marked).tolist() == [True, False, True]
    assert first.take(np.array([2, -1, 0])).to_lists() == [[3], [], [1, 2]]


LISTS = st.lists(st.lists(st.integers(0, 3), max_size=9), min_size=1, max_size=20)


@given(LISTS, st.randoms(use_true_random=False), st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_lists_do_in_pieces_of_any_size_what_python_lists_do(plain, rng, piece):
    lists = Lists.of_lengths([len(x) for x in plain], np.array([v for x in plain for v in x], np.int32))
    other = [[rng.randrange(9) for _ in range(rng.randrange(4))] for _ in plain]
    others = Lists.of_lengths([len(x) for x in other], np.array([v for x in other for v in x], np.int32))
    rows = [rng.randrange(-1, len(plain)) for _ in range(rng.randrange(40))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nsysparse.stacks.chains.PIECE", piece)
        assert lists.take(np.array(rows, np.int64)).to_lists() == [plain[r] if r >= 0 else [] for r in rows]
        assert lists.where(lists.value > 1).to_lists() == [[v for v in x if v > 1] for x in plain]
        assert lists.any(lists.value == 3).tolist() == [3 in x for x in plain]
        codes = np.arange(4, dtype=np.int32) * 7
        assert lists.coded(codes).to_lists() == [[7 * v for v in x] for x in plain]
        assert lists.used(5).tolist() == [any(v in x for x in plain) for v in range(5)]
        assert lists.repeats().tolist() == [i > 0 and x == plain[i - 1] for i, x in enumerate(plain)]
        assert joined([lists, others, lists]).to_lists() == [x + y + x for x, y in zip(plain, other, strict=True)]


# --- native stacks ---


@pytest.mark.parametrize(("release", "offset"), [("2022.2.1.31", 1), ("2025.3.2.0", 0)])
def test_offset_of_chains_is_calibrated(release, offset, tmp_path):
    with opened(copy_with_stack(release, offset), tmp_path) as trace:
        stacks, work = load_stacks(trace), load_work(trace)
    assert (stacks.calibration.offset, stacks.calibration.rows, stacks.calibration.matched) == (offset, 3, 3)
    found = work.calls.whole().join(attribute_stacks(work, stacks), on="call").sort("start_ns")
    assert found["native_by"].to_list() == ["call"] * 3
    names = [stacks.frames["label"][int(a)] for a in fold(stacks).api[found["native"].to_numpy()]]
    assert names == ["cudaMemcpyAsync", "cudaStreamSynchronize", "cudaMemcpyAsync"]


@pytest.mark.parametrize("offset", [0, 1])
def test_stacks_of_os_runtime_calls_have_an_offset_of_their_own(offset, tmp_path):
    b = copy_with_stack("2025.3.2.0", 0)
    for i, name in enumerate(("read", "poll", "futex")):
        b.osrt(name, 100 * i, 100 * i + 50, THREAD, callchain=chain_id(i))
        b.callchain(
            chain_id(i) + offset, [(name, "/usr/lib/libc.so.6"), (f"caller_of_{name}", "/a/program")], OSRT_STACKS
        )
    b.osrt("write", 400, 401, THREAD)
    with closing(opened(b, tmp_path)) as trace:
        stacks = load_stacks(trace)
    found = {c: functions(stacks, s)[0] for c, s in stacks.osrt.iter_rows()}
    assert found == {chain_id(i): f"caller_of_{n}" for i, n in enumerate(("read", "poll", "futex"))}


def test_wrong_offset_would_name_the_wrong_call(tmp_path):
    """The fixture can tell: read with the other release's offset, calls get their neighbours' stacks."""
    with opened(copy_with_stack("2022.2.1.31", 1), tmp_path) as trace:
        stacks = load_stacks(trace)
        shifted = stacks.calls.with_columns(pl.col("chain") + 1)
        work = load_work(trace)
    chain = work.calls.frame.sort("start_ns")["callchain"]
    at = dict(zip(shifted["chain"].to_list(), shifted["stack"].to_list(), strict=True))
    names = [stacks.frames["label"][int(fold(stacks).api[at[c]])] for c in chain.to_list() if c in at]
    assert names == ["cudaMemcpyAsync", "cudaStreamSynchronize"]  # of the second call and the third


@pytest.mark.parametrize("name", ["train_item", "state_checkpoint", "llama_default", "llama_nosave"])
def test_offset_of_real_recordings(name):
    rows, matched = sql(
        trace_path(name),
        """SELECT count(*), sum(EXISTS (SELECT 1 FROM CUDA_CALLCHAINS c JOIN StringIds t ON t.id = c.symbol
        WHERE c.id = r.callchainId AND t.value = s.value))
        FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = r.nameId WHERE r.callchainId IS NOT NULL""",
    )[0]
    calibration = stacks_of(name).calibration
    assert (calibration.offset, calibration.rows, calibration.matched) == (0, rows, matched)
    assert matched > 0.85 * rows


@pytest.mark.parametrize("name", ["train_item", "state_checkpoint", "llama_default"])
@pytest.mark.parametrize("table", ["CUDA_CALLCHAINS", "SAMPLING_CALLCHAINS", "OSRT_CALLCHAINS"])
def test_no_frame_is_lost(name, table):
    """Every chain of the export, frame by frame, against plain SQL."""
    stacks = stacks_of(name)
    texts = (
        f"""SELECT c.id, s.value FROM {table} c JOIN StringIds s ON s.id = c.symbol ORDER BY c.id, c.stackDepth DESC"""
    )
    expected: dict[int, list[str]] = {}
    for chain, symbol in sql(trace_path(name), texts):
        expected.setdefault(chain, []).append(symbol)
    if table == "SAMPLING_CALLCHAINS":
        times = dict(sql(trace_path(name), "SELECT id, start FROM COMPOSITE_EVENTS"))
        expected = {(times[c], tuple(f)): f for c, f in expected.items()}
        rows = stacks.samples.select("time_ns", "stack").iter_rows()
        found = {(t, tuple(functions(stacks, s))): functions(stacks, s) for t, s in rows}
    else:
        source = stacks.calls if table == "CUDA_CALLCHAINS" else stacks.osrt
        found = {chain: functions(stacks, stack) for chain, stack in source.iter_rows()}
    assert found == expected


def functions(stacks, stack):
    lists = stacks.stacks
    return stacks.frames["function"].gather(lists.value[lists.start[stack] : lists.start[stack + 1]]).to_list()


def test_canonical_frame():
    stacks = stacks_of("train_item")
    frame = stacks.frame()
    assert frame.columns == ["stack", "depth", "function", "place", "line", "kind"]
    assert frame.height == stacks.stacks.value.size
    assert set(frame["kind"].unique()) == {"native", "pseudo", "python"}
    one = frame.filter(pl.col("stack") == stacks.python["stack"][-1])
    assert one.filter(pl.col("depth") == 0).height == 1
    assert not frame["place"].str.contains("^/").any()


# --- Python stacks ---


def python_of(trace):
    stacks = load_stacks(trace)
    return stacks, [functions(stacks, s) for s in stacks.python["stack"].to_list()]


def test_payload_is_read_by_its_schema(tmp_path):
    b = copy_with_stack("2025.3.2.0", 0)
    describe_payloads(b)
    python_stack(b, 1_000 * US - 200)
    with opened(b, tmp_path) as trace:
        stacks, found = python_of(trace)
    assert found == [["<module>", "save"]]
    assert stacks.python["by"].to_list() == ["backtrace"]
    assert stacks.frames.filter(pl.col("kind") == "python")["line"].to_list() == [31, 178]


def test_a_layout_with_other_places_and_types_is_read_too(tmp_path):
    """Nothing of the layout is taken for granted: fields in another order, of other sizes."""
    import struct

    b = copy_with_stack("2025.3.2.0", 0)
    b.domain(4, "Python Periodic Sampling", tid=THREAD)
    b.row("NVTX_PAYLOAD_SCHEMAS", domainId=4, schemaId=77, type=1, payloadSize=20)
    entries = [(99, 0, None, 4, "Frames count", None, 0), (99, 1, 48, 77, "Frames", 0, 2)]
    entries += [
        (77, 0, None, 3, "Line", None, 0),
        (77, 1, None, 80, "File", None, 4),
        (77, 2, None, 80, "Function", None, 12),
    ]
    for schema, index, flags, kind, label, detail, offset in entries:
        b.row(
            "NVTX_PAYLOAD_SCHEMA_ENTRIES",
            **{"domainId": 4, "schemaId": schema, "idx": index, "flags": flags, "type": kind},
            **{"name": label, "arrayOrUnionDetail": detail, "offset": offset},
        )
    frame = struct.pack("<h2xQQ", 12, b.string("f.py"), b.string("f"))
    body = struct.pack("<H", 1) + frame
    blob = struct.pack("<QQQQ", 1, 99, len(body), 32) + body
    python_stack(b, 1_000 * US, domain=4, binaryData=blob)
    with opened(b, tmp_path) as trace:
        stacks, found = python_of(trace)
    assert found == [["f"]]
    assert stacks.python["by"].to_list() == ["sampling"]
    assert stacks.frames.filter(pl.col("kind") == "python").row(0)[:3] == ("f", "f.py", 12)


def test_broken_payloads_are_counted_and_left_out(tmp_path):
    b = copy_with_stack("2025.3.2.0", 0)
    describe_payloads(b)
    good = payload([(b.string("f"), b.string("f.py"), 1)])
    broken = [b"", b"\x01", good[:40], good[:-1], good[:8] + b"\xff" * 24 + good[32:], payload([], SCHEMA_ID)]
    broken += [good[:24] + b"\xff\xff\xff\xff\xff\xff\xff\x7f" + good[32:], good[:44] + b"\xff\xff\xff\x7f" + good[48:]]
    broken += [payload([(1, 1, 1)], SCHEMA_ID + 100), None]
    for i, blob in enumerate(broken):
        python_stack(b, 100 + i, binaryData=blob)
    python_stack(b, 500, binaryData=good)
    with opened(b, tmp_path) as trace:
        stacks, found = python_of(trace)
    assert found == [["f"]]
    assert stacks.undecoded == len(broken)


def test_json_instead_of_blobs(tmp_path):
    b = copy_with_stack("2025.3.2.0", 0)
    describe_payloads(b)
    text = '{"Thread state":"Holding GIL","Frames count":1,"Frames":[{"Function":"g","File":"/a/g.py","Line":7}]}'
    python_stack(b, 100, binaryData=None, jsonText=text)
    python_stack(b, 200, binaryData=None, jsonTextId=b.string(text.replace('"g"', '"h"')))
    python_stack(b, 300, binaryData=None, jsonText="{}")
    with opened(b, tmp_path) as trace:
        stacks, found = python_of(trace)
    assert found == [["g"], ["h"]]
    assert stacks.undecoded == 1


@pytest.mark.parametrize(
    "broken", ['{"Frames":[', '{"Frames":[3]}', '{"Frames":[{"Function":7}]}', '{"Frames":[{"Line":"x"}]}']
)
def test_one_broken_json_text_does_not_take_the_others_along(broken, tmp_path):
    b = copy_with_stack("2025.3.2.0", 0)
    describe_payloads(b)
    python_stack(b, 100, binaryData=None, jsonText=broken)
    python_stack(b, 200, binaryData=None, jsonText='{"Frames":[{"Function":"g","File":"/a/g.py","Line":7}]}')
    with opened(b, tmp_path) as trace:
        stacks, found = python_of(trace)
    assert found[-1] == ["g"]
    assert len(found) + stacks.undecoded == 2
    assert stacks.recorded()[UNREADABLE] == stacks.undecoded


@pytest.mark.parametrize("name", ["train_item", "state_checkpoint"])
def test_a_real_recordings_payloads_read_the_same_as_json(name, tmp_path):
    """The blobs of a recording, unpacked here by hand and written as JSON, give the same stacks."""
    copy = tmp_path / "json.sqlite"
    shutil.copy(trace_path(name), copy)
    copy.chmod(0o600)
    with closing(sqlite3.connect(copy)) as database:
        strings = dict(database.execute("SELECT id, value FROM StringIds"))
        for row, blob in database.execute("SELECT rowid, binaryData FROM NVTX_EVENTS WHERE binaryData IS NOT NULL"):
            parts, _, size, at = struct.unpack_from("<QQQQ", blob)
            assert (parts, at + size <= len(blob)) == (1, True)
            (count,) = struct.unpack_from("<I", blob, at + 12)
            frames = [struct.unpack_from("<QQi", blob, at + 16 + 24 * i) for i in range(count)]
            text = json.dumps(
                {"Frames": [{"Function": strings[f], "File": strings[p], "Line": n} for f, p, n in frames]}
            )
            database.execute("UPDATE NVTX_EVENTS SET binaryData = NULL, jsonText = ? WHERE rowid = ?", (text, row))
        database.commit()
    ours, theirs = stacks_of(name), None
    with closing(open_trace(copy)) as trace:
        theirs = load_stacks(trace)
    assert ours.python.height > 500
    assert theirs.python.equals(ours.python)
    assert theirs.frame().equals(ours.frame())


def test_python_frames_take_the_interpreters_place(tmp_path):
    b = copy_with_stack("2025.3.2.0", 0)
    describe_payloads(b)
    python_stack(b, 1_000 * US - 200)
    with opened(b, tmp_path) as trace:
        stacks, work = load_stacks(trace), load_work(trace)
    found = attribute_stacks(work, stacks)
    drawn = fold(stacks).merged(found["native"].to_numpy(), found["python"].to_numpy())
    native = ["torch::autograd::THPVariable_cpu", "at::native::copy_kernel_cuda"]
    assert labels(stacks, drawn, 0) == ["<module> (serve.py:178)", "save (serve.py:31)", *native]
    assert labels(stacks, drawn, 1) == ["(Python interpreter)", *native]
    whole = fold(stacks, keep_noise=True)
    assert len(labels(stacks, whole.whole, int(found["native"][0]))) == len(NATIVE)


def test_a_python_stack_is_its_next_calls_and_nobody_elses(tmp_path):
    b = copy_with_stack("2025.3.2.0", 0)
    describe_payloads(b)
    python_stack(b, 1_000 * US - 300, [("old", "f.py", 1)])  # its call was not recorded: a later one came
    python_stack(b, 1_000 * US - 200, [("new", "f.py", 2)])
    python_stack(b, 2_000 * US - 200, [("other", "f.py", 3)], tid=THREAD + 1)
    with opened(b, tmp_path) as trace:
        stacks, work = load_stacks(trace), load_work(trace)
    found = attribute_stacks(work, stacks)
    assert found.filter(pl.col("python_by") != "none").select("call", "python_by").rows() == [(0, "call")]
    assert functions(stacks, found["python"][0]) == ["new"]


def test_samples_inside_a_call_where_nothing_else_was_recorded(tmp_path):
    b = ExportBuilder("2025.3.2.0")
    b.gpu(0, "NVIDIA H200", 0)
    b.cuda_device(PID, 0, 0)
    for at in (1_000 * US, 2_000 * US, 3_000 * US):
        span = (at + 20 * US, at + 80 * US)
        b.memcpy(THREAD, (at, at + 100 * US), span, 8, DTOH, DEVICE, PAGEABLE)
    inside = [("0x1", "libcuda.so.1"), ("cudaMemcpyAsync", "libcudart.so"), ("save(int)", "app")]
    b.sample(1_050 * US, THREAD, [("elsewhere", "app")])  # no CUDA call on it: not taken
    b.sample(1_060 * US, THREAD, inside)
    b.sample(2_050 * US, THREAD + 1, inside)  # another thread
    b.sample(2_150 * US, THREAD, inside)  # after the call
    with opened(b, tmp_path) as trace:
        stacks, work = load_stacks(trace), load_work(trace)
    found = attribute_stacks(work, stacks)
    assert found.select("call", "native_by").rows() == [(0, "sample")]
    assert functions(stacks, found["native"][0]) == ["save(int)", "cudaMemcpyAsync", "0x1"]
    coverage = measure_stacks(work, found).filter((pl.col("kind") == "copies") & (pl.col("stack") == "native"))
    assert coverage.row(0) == ("copies", "native", 0, 1, 3, pytest.approx(1 / 3), pytest.approx(1 / 3))


def test_python_stacks_of_a_real_training_run(analysis_of):
    """All 60 read-backs: leaf train_item, workloads.py line 84, under <module> line 178."""
    stacks, work = stacks_of("train_item"), analysis_of("train_item", "whole").work
    assert (
        stacks.python.height
        == sql(trace_path("train_item"), "SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 34")[0][0]
    )
    reads = work.copies.filter(pl.col("bytes") == 4).join(attribute_stacks(work, stacks), on="call")
    assert (reads.height, reads["python_by"].unique().to_list()) == (60, ["call"])
    (stack,) = reads["python"].unique().to_list()
    frame = stacks.frame().filter(pl.col("stack") == stack).sort("depth")
    assert frame.rows() == [
        (stack, 0, "train_item", "workloads.py", 84, "python"),
        (stack, 1, "<module>", "workloads.py", 178, "python"),
    ]
    drawn = fold(stacks).merged(reads["native"].to_numpy(), reads["python"].to_numpy())
    for row in range(60):
        assert labels(stacks, drawn, row)[:5] == [
            "<module> (workloads.py:178)",
            "train_item (workloads.py:84)",
            "torch::autograd::THPVariable_item",
            "at::native::item",
            "at::native::_local_scalar_dense_cuda",
        ]
    assert {stacks.frames["label"][int(a)] for a in fold(stacks).api[reads["native"].to_numpy()]} == {"cudaMemcpyAsync"}


# --- what samples say ---


def test_shares_of_samples_equal_plain_sql():
    """How many samples of each thread have a copy or synchronize function on the stack, counted in SQL."""
    for name in ("train_item", "state_checkpoint", "llama_default"):
        on_stack = {
            what: dict(
                sql(
                    trace_path(name),
                    f"""SELECT globalTid, count(DISTINCT e.id)
                    FROM COMPOSITE_EVENTS e JOIN SAMPLING_CALLCHAINS c USING (id)
                    JOIN StringIds s ON s.id = c.symbol WHERE {test} GROUP BY 1""",
                )
            )
            for what, test in {
                "copy_on_stack": "s.value GLOB 'cudaMemcpy*' OR s.value GLOB 'cuMemcpy*'",
                "sync_on_stack": "s.value GLOB 'cuda*Synchronize' OR s.value GLOB 'cu[SCE]*Synchronize'",
            }.items()
        }
        samples = dict(sql(trace_path(name), "SELECT globalTid, count(*) FROM COMPOSITE_EVENTS GROUP BY 1"))
        inside = dict(
            sql(
                trace_path(name),
                """SELECT e.globalTid, count(DISTINCT e.id) FROM COMPOSITE_EVENTS e JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
                ON r.globalTid = e.globalTid AND e.start >= r.start AND e.start < r."end"
                JOIN StringIds s ON s.id = r.nameId WHERE s.value GLOB 'cudaMemcpy*' AND r.eventClass = 0 GROUP BY 1""",
            )
        )
        table = shares_of(name)
        assert table["samples"].sum() > 0
        for row in table.iter_rows(named=True):
            thread = row["thread"]
            assert row["samples"] == samples[thread]
            assert row["inside_copy"] == inside.get(thread, 0)
            for what, counts in on_stack.items():
                assert row[what] == counts.get(thread, 0), (name, what)


def test_nothing_recorded_is_nothing_and_no_error(tmp_path):
    b = ExportBuilder("2025.3.2.0")
    b.launch(THREAD, (10 * US, 20 * US), (30 * US, 40 * US))
    with opened(b, tmp_path) as trace:
        stacks, work = load_stacks(trace), load_work(trace)
    assert set(stacks.recorded().values()) == {0}
    found = attribute_stacks(work, stacks)
    assert found.is_empty()
    assert measure_stacks(work, found)["operations_ratio"].to_list() == [0.0, 0.0, 0.0]


def test_rows_read_in_pieces_and_out_of_order_give_the_same(tmp_path, monkeypatch):
    b = copy_with_stack("2025.3.2.0", 0, chains=40)
    describe_payloads(b)
    python_stack(b, 1_000 * US - 200, PYTHON)
    with closing(open_trace(b.write(tmp_path / "a.sqlite"))) as trace:
        whole = load_stacks(trace)
    real = type(trace).chunks
    monkeypatch.setattr(type(trace), "chunks", lambda self, name, rows=None: real(self, name, rows=7))
    found = [whole]
    for name, order in (("b", {"shuffle": 3}), ("c", {})):
        with closing(open_trace(b.write(tmp_path / f"{name}.sqlite", **order))) as trace:
            found.append(load_stacks(trace))
    named = [{c: functions(s, x) for c, x in s.calls.iter_rows()} for s in found]
    assert named[0] == named[1] == named[2]
    assert len(named[0]) == 40
