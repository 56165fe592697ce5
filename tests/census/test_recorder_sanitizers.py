"""The recorder, the fake CUPTI and the program together under the compiler's sanitizers."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from nsysparse.census import dump, run

from .fake import RECORDER, Fake, brute_force, build_fake, counted

OPTIONS = {
    "address": {"ASAN_OPTIONS": "abort_on_error=0:detect_leaks=0:exitcode=77"},
    "undefined": {"UBSAN_OPTIONS": "halt_on_error=1:exitcode=77:print_stacktrace=1"},
    "thread": {"TSAN_OPTIONS": "halt_on_error=1:exitcode=77:die_after_fork=0:report_thread_leaks=0"},
}


def _works(name: str, folder: Path) -> bool:
    program = folder / "probe"
    cc = shutil.which("gcc") or shutil.which("cc") or "cc"
    (folder / "probe.c").write_text("int main(void) { return 0; }\n")
    built = subprocess.run(
        [cc, f"-fsanitize={name}", folder / "probe.c", "-o", program], capture_output=True, check=False
    )
    return built.returncode == 0 and subprocess.run([program], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module", params=list(OPTIONS))
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Fake:
    folder = tmp_path_factory.mktemp(request.param)
    if not _works(request.param, folder):
        pytest.skip(f"this machine's compiler lacks -fsanitize={request.param}")
    flags = [f"-fsanitize={request.param}", "-fno-omit-frame-pointer"]
    flags += ["-fno-sanitize-recover=all"] if request.param == "undefined" else []
    source = folder / "recorder.c"  # with unions that are full after a part of the records
    source.write_text(RECORDER.read_text().replace("MAX_SPANS = 1 << 18", "MAX_SPANS = 1 << 13"))
    return build_fake(folder, *flags, env=OPTIONS[request.param], recorder=source)


def _mixed(seed: int) -> str:
    lines = []
    for i in range(3000):
        a = 1 + (i * 7919 + seed * 104729) % 50_000
        lines.append(
            (f"K {i % 2} {a} {a + i % 90} {2 * i + i % 2 + 1} 0 16 1 1 1 32 1 1 0 {i % 3} k {i % 70} \"\\",
             f"C {i % 2} {i % 10} {i % 8} 3 {i * i} {a} {a + 40} {2 * i + i % 2 + 1} 0 1",
             f"P {i % 2} 10 3 3 {i} {a} {a + 9} {i % 2} {1 - i % 2} {2 * i + i % 2 + 1} 0",
             f"S {i % 2} {i} {a} {a + 5} {2 * i + i % 2 + 1} 0")[i % 4]
        )  # fmt: skip
    return "\n".join(lines)


def test_totals_from_many_threads(sanitized: Fake, out: Path) -> None:
    scripts = [_mixed(seed) for seed in range(4)]
    assert sanitized.run(out, *scripts) == ""
    expected = brute_force(scripts)
    for device, found in counted(out).items():
        # Threads share correlation ids here, so a graph launch is not one thread's: leave that figure out.
        assert {k: v for k, v in found.items() if k != "graph_launches"} == {
            k: v for k, v in expected[device].items() if k != "graph_launches"
        }


def test_switching_and_marks_under_load(sanitized: Fake, out: Path) -> None:
    process = sanitized.start(out, ["steady 700 1000\n"] * 3)
    while not list(out.glob("census-*")):
        time.sleep(0.01)
    for i in range(4):
        run.switch(out, on=i % 2 == 1)
        dump.write_mark(out, f"mark {i}")
        time.sleep(0.1)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def test_the_union_with_its_tables_full(sanitized: Fake, out: Path) -> None:
    lines = [
        f"K 0 {10 * (i ^ 64) + 1} {10 * (i ^ 64) + 5} {i + 1} 0 16 1 1 1 32 1 1 0 0 k{i % 9}" for i in range(12_000)
    ]
    lines += [f"K 0 0 0 1 0 16 1 1 1 32 1 1 0 0 {'name' * (i // 20)}{i}" for i in range(3500)]
    assert sanitized.run(out, "\n".join(lines)) == ""
    assert counted(out)[0]["kernel_busy"] == 4 * 12_000


@pytest.mark.parametrize("ending", ["", "exit 1\n", "_exit 1\n", "fork\n", "fork_exit\n"])
def test_endings(sanitized: Fake, out: Path, ending: str) -> None:
    script = f"steady 200 500\n{ending}steady 10 0\n"
    assert sanitized.run(out, script, "steady 100 500\n", status=1 if "xit 1" in ending else 0) == ""


@pytest.mark.parametrize(
    "extra", [{"FAKE_BUSY": "1"}, {"FAKE_MISSING": "10"}, {"NSYSPARSE_CENSUS_DIR": "/nonexistent"}]
)
def test_staying_out(sanitized: Fake, out: Path, extra: dict[str, str]) -> None:
    said = sanitized.run(out, "steady 200 500\n", **extra)
    assert "Sanitizer" not in said
    assert "runtime error" not in said
