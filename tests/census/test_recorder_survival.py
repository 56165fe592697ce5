"""What the recorder must survive, each case by its name. The records come from the fake CUPTI."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nsysparse.census import dump, run, windows

from .fake import RECORDER, Fake, build_fake, only

ONE = "K 0 100 200 1 0 16 1 1 1 32 1 1 0 0 k\nC 0 1 1 3 1000 300 400 2 0 1\nS 0 50 500 600 3 0\n"
INTERVAL_S, SLACK_S = 0.5, 0.4  # two busy cores may run these tests


def truth_of(path: Path) -> tuple[int, int, int]:
    """Kernels, copies and copied bytes that reached a buffer, from memory that outlives the program."""
    kernels, copies, copy_bytes, _, _ = struct.unpack("5Q", path.read_bytes())
    return kernels, copies, copy_bytes


def kernels_in(out: Path) -> int:
    return sum(c.kernels or 0 for c in windows.count(dump.read(out)))


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def has_lines(out: Path, n: int) -> Callable[[], bool]:
    return lambda: sum(p.read_bytes().count(b"\n") for p in out.glob("census-*")) >= n


def assert_at_most_one_interval_lost(out: Path, truth: Path, ended_ns: int) -> None:
    process = only(out)
    kernels, _, _ = truth_of(truth)
    assert not process.finished
    assert ended_ns - process.end_ns <= (INTERVAL_S + SLACK_S) * 1e9
    assert kernels - (INTERVAL_S + SLACK_S) * 1000 <= kernels_in(out) <= kernels


def test_exit_loses_nothing(fake: Fake, out: Path, tmp_path: Path) -> None:
    fake.run(
        out,
        "steady 300 0\nsleep 100\nexit 3\n",
        "steady 300 0\n",
        status=3,
        FAKE_TRUTH=str(tmp_path / "truth"),
    )
    (c,) = windows.count(dump.read(out))
    assert c.copies is not None
    sums = next(iter(c.copies.values()))
    assert (c.kernels, sums.count, sums.bytes) == truth_of(tmp_path / "truth")
    assert only(out).finished


@pytest.mark.parametrize("how", ["_exit 5", "raise 15", "raise 9"])
def test_os_exit_sigterm_and_sigkill_lose_at_most_one_interval(fake: Fake, out: Path, tmp_path: Path, how: str) -> None:
    status = 5 if how == "_exit 5" else -int(how.split()[1])
    truth = tmp_path / "truth"
    fake.run(out, f"steady 1300 1000\n{how}\n", status=status, FAKE_TRUTH=str(truth),
             NSYSPARSE_CENSUS_INTERVAL=str(INTERVAL_S))  # fmt: skip
    assert_at_most_one_interval_lost(out, truth, time.time_ns())


def test_sigkill_from_outside_at_any_moment(fake: Fake, out: Path, tmp_path: Path) -> None:
    truth = tmp_path / "truth"
    process = fake.start(
        out, ["steady 100000 1000\n"], FAKE_TRUTH=str(truth), NSYSPARSE_CENSUS_INTERVAL=str(INTERVAL_S)
    )
    wait_for(has_lines(out, 4))
    time.sleep(random.random() * INTERVAL_S)
    process.kill()
    process.communicate()
    assert_at_most_one_interval_lost(out, truth, time.time_ns())


@pytest.mark.parametrize("how", ["fork", "fork_exit"])
def test_fork_without_exec_leaves_the_parent_alone(fake: Fake, out: Path, how: str) -> None:
    began = time.monotonic()
    assert fake.run(out, f"{ONE}{how}\n{ONE}{how}\n") == ""
    assert kernels_in(out) == 2
    assert only(out).finished
    assert sum(ref.final for ref in only(out).totals) == 1, "the child wrote nothing"
    assert time.monotonic() - began < 2.5, "the child did not wait for a helper thread that it does not have"


def test_children_forked_before_the_first_cuda_call_record_themselves(fake: Fake, out: Path, tmp_path: Path) -> None:
    script = tmp_path / "child"
    script.write_text(ONE * 2)
    fake.run(out, f"fork_run {script}\nfork_run {script}\n{ONE}")
    census = dump.read(out)
    assert len({p.pid for p in census.processes}) == 3
    assert all(p.finished for p in census.processes)
    assert sorted(c.kernels or 0 for c in windows.count(census)) == [1, 2, 2]


def test_exec_starts_a_file_of_its_own_under_the_same_pid(fake: Fake, out: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.write_text(ONE * 3)
    fake.run(out, f"{ONE}sleep 200\nexec {second}\n")
    first, last = dump.read(out).processes
    assert first.pid == last.pid
    assert first.start_ns < last.start_ns
    assert (first.finished, last.finished) == (False, True)
    assert [c.kernels for c in windows.count(dump.read(out))] == [1, 3]


def test_several_processes_share_a_folder(fake: Fake, out: Path) -> None:
    running = [fake.start(out, [ONE * (i + 1) + "sleep 100\n"]) for i in range(8)]
    for process in running:
        assert process.wait(timeout=30) == 0
        process.communicate()
    assert len(dump.read(out).processes) == 8
    assert sorted(c.kernels or 0 for c in windows.count(dump.read(out))) == list(range(1, 9))


def test_threads_created_before_the_first_cuda_call(fake: Fake, out: Path) -> None:
    fake.run(out, "sleep 100\n", *["steady 500 0\n"] * 12)
    assert kernels_in(out) == 6000


def test_a_program_without_cuda_work_leaves_a_header_and_zeros(fake: Fake, out: Path) -> None:
    fake.run(out, "init\n")
    assert only(out).finished
    assert windows.count(dump.read(out)) == []


def test_no_cuda_call_at_all_leaves_nothing(fake: Fake, out: Path) -> None:
    fake.run(out, "sleep 1\n")
    assert list(out.iterdir()) == []


def _limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))


def test_file_size_limit_stops_writing_and_says_so_once(fake: Fake, out: Path, tmp_path: Path) -> None:
    out.mkdir()
    script = tmp_path / "script"
    script.write_text("steady 600 1000\nexit 4\n")
    done = subprocess.run([fake.folder / "host", script], env=fake.environment(out), preexec_fn=_limit_files,
                          capture_output=True, text=True, timeout=30, check=False)  # fmt: skip
    assert done.returncode == 4, "SIGXFSZ did not reach the program"
    assert done.stderr.count("nsysparse census: cannot write, recording stopped") == 1
    assert len(done.stderr.splitlines()) == 1
    assert kernels_in(out) > 0, "what was written before can be read"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", folder], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("cannot mount a small disk here (needs root)")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_full_disk_stops_writing_and_says_so_once(fake: Fake, small_disk: Path, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("steady 1500 1000\nexit 4\n")
    env = fake.environment(small_disk, NSYSPARSE_CENSUS_INTERVAL="0.02")
    done = subprocess.run(
        [fake.folder / "host", script], env=env, timeout=30, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert done.stderr.count("No space left on device") == 1
    assert len(done.stderr.splitlines()) == 1
    assert kernels_in(small_disk) > 0


def test_folder_removed_under_a_running_program(fake: Fake, out: Path) -> None:
    process = fake.start(out, ["steady 700 1000\nexit 6\n"])
    wait_for(has_lines(out, 3))
    shutil.rmtree(out)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 6
    assert said.count("the census file is gone, recording stopped") == 1
    assert len(said.splitlines()) == 1
    assert not out.exists()


def test_folder_that_never_was(fake: Fake, out: Path) -> None:
    said = fake.run(out, ONE, NSYSPARSE_CENSUS_DIR="/nonexistent/folder")
    assert said.count("cannot create a file in the census folder") == 1


def test_cupti_in_use_by_another_tool_stays_out(fake: Fake, out: Path) -> None:
    said = fake.run(out, ONE, FAKE_BUSY="1")
    assert said == "nsysparse census: CUPTI is in use by another tool, nothing is recorded\n"
    assert only(out).notes == ["CUPTI is in use by another tool, nothing is recorded"]
    assert only(out).header["kinds"] == {
        "kernels": None, "copies": None, "peer_copies": None, "memsets": None, "graphs": False,
    }  # fmt: skip
    assert windows.count(dump.read(out)) == []


@pytest.mark.parametrize(
    ("missing", "kind", "field"),
    [("10", "kernels", "kernels"), ("1", "copies", "copies"), ("2", "memsets", "memsets")],
)
def test_a_missing_record_kind_is_null(fake: Fake, out: Path, missing: str, kind: str, field: str) -> None:
    fake.run(out, ONE, FAKE_MISSING=missing)
    (c,) = windows.count(dump.read(out))
    assert getattr(c, field) is None
    assert c.busy_ns is None
    assert only(out).header["kinds"][kind] is True or only(out).header["kinds"][kind] is None
    assert only(out).header["kinds"][kind] is None
    assert sum(getattr(c, f) is None for f in ("kernels", "copies", "memsets")) == 1


def test_a_cupti_that_knows_none_of_the_kinds(fake: Fake, out: Path) -> None:
    said = fake.run(out, ONE, FAKE_MISSING="1,2,10,22")
    assert "knows none of the record kinds" in said


def test_a_cupti_that_lacks_functions(tmp_path: Path, out: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    old = build_fake(folder, fake_flags=["-DFAKE_LACKS_DROPPED"])
    assert old.run(out, ONE) == ""
    (c,) = windows.count(dump.read(out))
    assert (c.kernels, c.dropped) == (1, None)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"FAKE_VERSION": "17"}, "older than CUDA 11.8"),
        ({"NSYSPARSE_CENSUS_CUPTI": "/nonexistent/libcupti.so"}, "CUPTI was not found"),
    ],
)
def test_no_usable_cupti_stays_out(fake: Fake, out: Path, extra: dict[str, str], said: str) -> None:
    assert said in fake.run(out, ONE, **extra)
    assert said in only(out).notes[0]


def test_a_cupti_older_than_the_driver_is_noted(fake: Fake, out: Path) -> None:
    fake.run(out, ONE, FAKE_VERSION="22")
    assert only(out).notes == ["CUPTI is older than the driver: records can be missing without a sign"]
    assert kernels_in(out) == 1


def test_a_cupti_that_tells_its_version_late(fake: Fake, out: Path) -> None:
    assert fake.run(out, ONE, FAKE_LATE_VERSION="1") == ""
    assert only(out).header["cupti"] == 130001
    assert kernels_in(out) == 1


def test_more_threads_than_buffers_are_refused_and_counted(tmp_path: Path, out: Path) -> None:
    folder = tmp_path / "few"
    folder.mkdir()
    source = folder / "recorder.c"
    source.write_text(RECORDER.read_text().replace("BUFFERS = 512", "BUFFERS = 64"))
    few = build_fake(folder, recorder=source)
    few.run(out, "sleep 400\n", *["steady 1 0\nhold 1\nsleep 600\n"] * 100, FAKE_TRUTH=str(tmp_path / "truth"))
    process = only(out)
    assert process.read(process.totals[-1])["refused_buffers"] > 0
    assert kernels_in(out) == truth_of(tmp_path / "truth")[0]


def test_a_buffer_with_an_unfinished_record_is_counted_at_the_end(fake: Fake, out: Path) -> None:
    fake.run(out, f"{ONE}hold 1\nsleep 200\n")
    process = only(out)
    counts = [sum(d["kernels"]["count"] for d in line["devices"]) for line in process.lines()]
    assert counts[-1] == 1
    assert set(counts[:-1]) <= {0}


def test_on_and_off_under_load(fake: Fake, out: Path, tmp_path: Path) -> None:
    truth = tmp_path / "truth"
    load = "steady 1500 1000\n"
    process = fake.start(out, [load] * 4, FAKE_TRUTH=str(truth))
    wait_for(has_lines(out, 3))
    states = []
    while process.poll() is None:
        on = len(states) % 2 == 1
        run.switch(out, on=on)
        states.append(on)
        time.sleep(0.11)
    assert process.wait() == 0
    assert process.communicate()[1] == ""
    lines = list(only(out).lines())
    assert {line["why"] for line in lines} >= {"on", "off", "exit"}
    kernels = truth_of(truth)[0]
    assert kernels_in(out) == kernels
    assert kernels < 0.9 * 6000, "it was off for a part of the load"
    (c,) = windows.count(dump.read(out))
    assert c.coverage_ratio is not None
    assert 0.2 < c.coverage_ratio < 0.9


def test_starting_switched_off(fake: Fake, out: Path) -> None:
    out.mkdir()
    run.switch(out, on=False)
    fake.run(out, f"{ONE}sleep 200\n")
    last = only(out).read(only(out).totals[-1])
    assert (last["on"], last["covered_ns"], last["devices"]) == (False, 0, [])


def test_duty_cycle_says_what_it_covers(fake: Fake, out: Path) -> None:
    fake.run(out, "steady 1600 1000\n", NSYSPARSE_CENSUS_ON="0.1", NSYSPARSE_CENSUS_EVERY="0.4")
    (c,) = windows.count(dump.read(out))
    assert c.coverage_ratio is not None
    assert 0.15 < c.coverage_ratio < 0.45
    assert 0.1 < (c.kernels or 0) / 1600 < 0.5
    assert only(out).header["duty"] == {"on_ns": 100_000_000, "every_ns": 400_000_000}


def test_a_mark_gets_a_line_at_once(fake: Fake, out: Path) -> None:
    process = fake.start(out, ["steady 600 1000\n"], NSYSPARSE_CENSUS_INTERVAL="30")
    wait_for(has_lines(out, 1))
    time.sleep(0.1)
    mark = dump.write_mark(out, "now")
    assert dump.await_mark(out, mark, 5.0) == (1, 1)
    assert process.wait() == 0
    process.communicate()
    assert [line["why"] for line in only(out).lines()] == ["mark", "exit"]


def test_quiet_programs_write_little(fake: Fake, out: Path) -> None:
    fake.run(out, f"{ONE}sleep 600\n{ONE}", NSYSPARSE_CENSUS_INTERVAL="0.02")
    lines = list(only(out).lines())
    assert len(lines) <= 4
    assert any(line["same_until_unix_ns"] for line in lines)


def test_stderr_that_is_closed(fake: Fake, out: Path, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(ONE)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([fake.folder / "host", script], stderr=writer, timeout=30, check=False,
                          env=fake.environment(out, NSYSPARSE_CENSUS_DIR="/nonexistent"))  # fmt: skip
    os.close(writer)
    assert done.returncode == 0, "SIGPIPE did not reach the program"


@pytest.mark.slow
def test_a_hundred_mixed_runs_with_random_kills(fake: Fake, tmp_path: Path) -> None:
    rng = random.Random(7)
    ends = ["", "exit 2\n", "_exit 2\n", "raise 15\n", "fork\n", f"{ONE}fork_exit\n{ONE}"]
    for i in range(100):
        out, truth = tmp_path / str(i), tmp_path / f"truth-{i}"
        scripts = [f"steady {rng.randrange(1, 60)} 500\n{rng.choice(ends)}"]
        scripts += [f"steady {rng.randrange(1, 4000)} 0\n" for _ in range(rng.randrange(4))]
        process = fake.start(out, scripts, FAKE_TRUTH=str(truth), NSYSPARSE_CENSUS_INTERVAL="0.02")
        if rng.random() < 0.6:
            time.sleep(rng.random() * 0.06)
            process.send_signal(rng.choice([signal.SIGKILL, signal.SIGTERM]))
        _, said = process.communicate(timeout=20)
        assert process.returncode in (0, 2, -9, -15), (process.returncode, said)
        assert said == ""
        if not list(out.glob("census-*")) or all(p.stat().st_size == 0 for p in out.glob("census-*")):
            continue  # killed before its first line
        whole = dump.read(out)
        assert all(p.bad_lines == 0 for p in whole.processes)
        if truth.exists() and truth.stat().st_size:
            assert kernels_in(out) <= truth_of(truth)[0]
            if whole.processes[0].finished and process.returncode == 0:
                assert kernels_in(out) == truth_of(truth)[0]
