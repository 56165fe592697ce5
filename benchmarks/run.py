"""Whole commands as processes on generated recordings: ``run.py [KERNELS...]``.

For every size and shape the recording is generated once and kept. In each round the floor is measured and then every
command, so that a ratio compares what ran side by side; a report of ``nsys stats`` runs just after ours of that name.
Printed are medians; all runs are kept as JSON under out/bench/ for compare.py. A peer that fails, prints nothing or
takes too long is shown as failed and does not fail the benchmark. This file imports nothing large: a child's peak
memory is never below its parent's.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OUT = HERE.parent / "out" / "bench"
SHAPES = ("default", "flat", "deep", "unfinished", "equal", "names", "many")
LIBRARIES = ("polars", "pyarrow", "numpy", "adbc-driver-sqlite")
STATS = (  # of nsys's reports those that read and join in different ways
    *("cuda_gpu_kern_sum", "cuda_gpu_kern_gb_sum", "cuda_api_sum", "cuda_api_trace", "cuda_gpu_mem_time_sum"),
    *("cuda_gpu_trace", "cuda_kern_exec_sum", "nvtx_sum", "nvtx_pushpop_trace", "nvtx_gpu_proj_sum", "nvtx_kern_sum"),
)
STAGES = (
    "starting",
    "opening",
    "reading",
    "joining",
    "checking",
    "accounting",
    "weighing",
    "running",
    "rendering",
    "writing",
)
LIMIT_S = 3_600
TITLE = 34  # columns of a command's name
PEERS = ("nsys", "nsys-ai")
PEER_LIMIT_S = 600  # some of their reports take hours where ranges lie deep


@dataclass(frozen=True)
class Run:
    """One process: wall and CPU seconds, peak memory, exit status, bytes printed, why it failed, time of its stages.

    ``peak_bytes`` counts the pages of mapped files, which the system takes back when it needs them; ``own_bytes``
    (Linux, seen 20 times a second) does not. ``status`` is 1 for a peer that had nothing to print, whatever it says.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    own_bytes: int
    status: int
    printed_bytes: int = 0
    said: str = ""
    stages: dict[str, Any] = field(default_factory=dict)


def run(command: list[str], limit_s: float = LIMIT_S, folder: Path | None = None) -> Run:
    """Run a process in a folder to its end, or for so many seconds, and take its measures from the kernel."""
    with tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            cwd=folder,
        )
        watch = _Watch(process.pid, began + limit_s)
        watch.start()
        try:
            printed = _drain(process)
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            _kill(process.pid)
            process.wait()
            raise
        finally:
            watch.ended.set()
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        said = errors.read().decode("utf-8", "replace").strip()
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    cpu = used.ru_utime + used.ru_stime
    if watch.late:
        said = f"ended after {limit_s:g} s"
    stages = _stages(said, wall, cpu) if process.returncode == 0 else {}
    said = "" if process.returncode == 0 else said[-500:]
    return Run(wall, cpu, peak, watch.own_bytes, process.returncode, printed, said, stages)


def run_peer(command: list[str], limit_s: float, folder: Path) -> Run:
    """Run a peer; one that had nothing to print measured nothing, though nsys then ends with status 0."""
    done = run(command, limit_s, folder)
    if done.status != 0 or done.printed_bytes:
        return done
    return replace(done, status=1, said=f"printed nothing{_why_nothing(command)}")


def _why_nothing(command: list[str]) -> str:
    """What nsys says of a report that it skips, which it does at once, when it may say it."""
    loud = [part for part in command if part != "--quiet"]
    try:
        done = subprocess.run(
            loud,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=10,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    lines = f"{done.stderr}\n{done.stdout}".splitlines()
    return next((f": {line}" for line in lines if line.startswith(("ERROR", "SKIPPED"))), "")


def _drain(process: subprocess.Popen[bytes]) -> int:
    """Read what a process prints, and count it."""
    assert process.stdout is not None
    printed = 0
    with process.stdout as pipe:
        while part := os.read(pipe.fileno(), 1 << 20):
            printed += len(part)
    return printed


def _kill(process: int) -> None:
    """End a process and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


class _Watch(threading.Thread):
    """Keep the largest size of a process without its files, and end it when its time is over."""

    def __init__(self, process: int, deadline: float) -> None:
        super().__init__(daemon=True)
        self.process, self.deadline = process, deadline
        self.ended, self.late, self.own_bytes = threading.Event(), False, 0

    def run(self) -> None:
        """Look 20 times a second."""
        while not self.ended.wait(0.05):
            self.own_bytes = max(self.own_bytes, _own_bytes(self.process))
            if time.perf_counter() > self.deadline:
                self.late = True
                _kill(self.process)
                return


def _own_bytes(process: int) -> int:
    """Size of a process without its files; 0 where that is not known."""
    try:
        lines = Path(f"/proc/{process}/status").read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):  # it ended, or this is no Linux
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def _stages(said: str, wall: float, cpu: float) -> dict[str, Any]:
    """The stages that --profile printed; what is left of the whole is the start: interpreter and imports."""
    for line in said.splitlines():
        if line.startswith('{"stages"'):
            stages: dict[str, Any] = json.loads(line)["stages"]
            whole = {"wall_s": wall, "cpu_s": cpu}
            rest = {k: round(max(0.0, v - sum(s[k] for s in stages.values())), 4) for k, v in whole.items()}
            return {"starting": rest, **stages}
    return {}


def commands(trace: Path, folder: Path, wanted: list[str], number: int) -> Iterator[tuple[str, list[str]]]:
    """Name and command line of everything that can be measured here, in one round."""
    sys.path.insert(0, str(HERE.parent))
    from nsysparse.cli import COMMANDS

    program, name = [sys.executable, "-m", "nsysparse"], str(trace)
    copy = folder / f"copy-{number}.sqlite"
    analyze = [*program, "analyze", name, "-o", str(folder / "report.html"), "--force", "--profile"]
    cache = ["--cache", str(folder / f"cache-{number}")]
    found = {
        "info": [*program, "info", name],
        "analyze": analyze,
        "analyze, filling the cache": [*analyze, *cache],
        "analyze, from the cache": [*analyze, *cache],
        "analyze, within 2 GiB": [*analyze, "--memory-limit", "2GiB"],
    }
    nsys = shutil.which("nsys")
    for report in STATS if "stats" in COMMANDS else ():
        found[f"stats {report}"] = [*program, "stats", name, report, "--format", "csv"]
        if nsys:
            found[f"nsys stats {report}"] = [nsys, "stats", "--format", "csv", "--quiet", "--report", report, name]
    if "flamegraph" in COMMANDS:
        page = str(folder / "flame.html")
        found["flamegraph"] = [*program, "flamegraph", name, "-o", page, "--force"]
    if "export" in COMMANDS:
        found["export parquet"] = [
            *program,
            "export",
            name,
            "--format",
            "parquet",
            "-o",
            str(folder / f"tables-{number}"),
        ]
    if peer_analysis := shutil.which("nsys-ai"):
        found["nsys-ai diagnose"] = [peer_analysis, "diagnose", str(copy)]  # it writes indexes into what it reads
    for title, command in found.items():
        if not wanted or any(title == w or title.startswith((f"{w} ", f"{w},")) for w in wanted):
            if str(copy) in command:
                shutil.copyfile(trace, copy)
            yield title, command


def generated(kernels: int, shape: str, out: Path) -> Path:
    """The recording of a size and shape; made if it is not there, or the generator changed."""
    sources = b"".join((HERE / f).read_bytes() for f in ("generate.py", "model.py", "export.py"))
    folder = out / "traces"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{shape}-{kernels}-{hashlib.sha256(sources).hexdigest()[:8]}.sqlite"
    if not path.exists():
        print(f"generating {path.name}", file=sys.stderr)
        made = run([sys.executable, str(HERE / "generate.py"), str(kernels), str(path), "--shape", shape])
        if made.status != 0:
            raise SystemExit(f"cannot generate {path.name}: {made.said}")
    return path


def measure_floor(trace: Path) -> dict[str, Any] | None:
    """The floor on a recording, None where there is no C compiler."""
    command = [sys.executable, str(HERE / "floor.py"), str(trace)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def is_peer(title: str) -> bool:
    """Whether a command is someone else's program."""
    return title.split(maxsplit=1)[0] in PEERS


def measure(trace: Path, wanted: list[str], rounds: int, out: Path, peer_limit_s: float) -> list[dict[str, Any]]:
    """All runs of all commands on one recording; a peer that failed is not run again."""
    results: dict[str, list[dict[str, Any]]] = {}
    measure_floor(trace)  # brings the file into the page cache
    with tempfile.TemporaryDirectory(dir=out, prefix="work-") as folder:
        for number in range(rounds):
            floor = measure_floor(trace)
            for title, command in commands(trace, Path(folder), wanted, number):
                peer, before = is_peer(title), results.setdefault(title, [])
                if peer and any(r["status"] != 0 for r in before):
                    continue
                done = run_peer(command, peer_limit_s, Path(folder)) if peer else run(command)
                before.append({**vars(done), "floor": floor})
                state = f"{done.wall_s:.2f} s" if done.status == 0 else f"failed: {done.said}"
                print(f"  {title}: {state}", file=sys.stderr)
    return [{"command": title, "runs": runs, **summarize(runs)} for title, runs in results.items()]


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the runs that succeeded; None where there is none."""
    good = [r for r in runs if r["status"] == 0]

    def middle(values: list[float]) -> float | None:
        return statistics.median(values) if values else None

    stages = {s: middle([r["stages"][s]["cpu_s"] for r in good if s in r["stages"]]) for s in STAGES}
    return {
        "failed": len(runs) - len(good),
        "wall_s": middle([r["wall_s"] for r in good]),
        "cpu_s": middle([r["cpu_s"] for r in good]),
        "peak_bytes": middle([r["peak_bytes"] for r in good]),
        "own_bytes": middle([r["own_bytes"] for r in good]),
        "floor_ratio": middle([r["wall_s"] / r["floor"]["wall_s"] for r in good if r["floor"]]),
        "floor_cpu_ratio": middle([r["cpu_s"] / r["floor"]["cpu_s"] for r in good if r["floor"]]),
        "stages_cpu_s": {s: v for s, v in stages.items() if v is not None},
    }


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    versions = {name: importlib.metadata.version(name) for name in ("nsysparse", *LIBRARIES)}
    commit = subprocess.run(
        ["git", "-C", str(HERE), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    facts = {"cores": os.cpu_count(), "system": platform.system(), "processor": platform.machine()}
    here = {**facts, "python": platform.python_version(), "versions": versions, "commit": commit.stdout.strip()}
    return {**here, "peers": {name: _version(path) for name in PEERS if (path := shutil.which(name))}}


def _version(program: str) -> str:
    """What a program says of its version."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "n/a"
    return said.strip() or "n/a"


def show(row: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Print the table of one recording."""
    print(f"\n{row['kernels']:,} kernels, shape {row['shape']}, {row['size_bytes'] / 1e9:.3f} GB")
    units = f"{'wall s':>9}{'CPU s':>9}{'peak GB':>9}{'own GB':>8}{'x floor':>9}{'CPU x':>9}{'s/M kernels':>13}"
    print(f"  {'command':<{TITLE}}{units}")
    for r in results:
        if r["wall_s"] is None:
            print(f"  {r['command']:<{TITLE}}{'failed':>9}  {_reason(r['runs'])}")
            continue
        ratios = [f"{v:.1f}" if v is not None else "n/a" for v in (r["floor_ratio"], r["floor_cpu_ratio"])]
        print(
            f"  {r['command']:<{TITLE}}{r['wall_s']:>9.2f}{r['cpu_s']:>9.2f}{r['peak_bytes'] / 1e9:>9.3f}"
            f"{r['own_bytes'] / 1e9:>8.3f}{ratios[0]:>9}{ratios[1]:>9}{r['wall_s'] * 1e6 / row['kernels']:>13.2f}"
        )
        if r["stages_cpu_s"]:
            print("    CPU s by stage: " + ", ".join(f"{s} {v:.2f}" for s, v in r["stages_cpu_s"].items()))
    show_pairs(results)


def show_pairs(results: list[dict[str, Any]]) -> None:
    """Print the reports that nsys made as well, each beside ours."""
    found = pairs(results)
    if found:
        units = f"{'wall s':>9}{'nsys':>9}{'times':>8}{'CPU s':>9}{'nsys':>9}{'peak GB':>9}{'nsys':>9}"
        print(f"\n  {'nsysparse beside nsys':<{TITLE}}{units}")
    for ours, peer, times in found:
        seconds = f"{ours['wall_s']:>9.2f}{peer['wall_s']:>9.2f}{times:>8.1f}{ours['cpu_s']:>9.2f}{peer['cpu_s']:>9.2f}"
        peaks = f"{ours['peak_bytes'] / 1e9:>9.3f}{peer['peak_bytes'] / 1e9:>9.3f}"
        print(f"  {ours['command']:<{TITLE}}{seconds}{peaks}")


def pairs(results: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any], float]]:
    """Our command, the peer's of that name, and how many times as long it took: the median of the rounds."""
    by_title = {r["command"]: r for r in results}
    found = []
    for title, ours in by_title.items():
        peer = by_title.get(f"nsys {title}")
        rounds = list(zip(ours["runs"], peer["runs"], strict=False)) if peer else []
        times = [p["wall_s"] / o["wall_s"] for o, p in rounds if o["status"] == p["status"] == 0]
        if peer and times:
            found.append((ours, peer, statistics.median(times)))
    return found


def _reason(runs: list[dict[str, Any]]) -> str:
    """Why a command failed, in a line: the first that it said, or the last of a traceback."""
    lines = [line for run in runs for line in run["said"].splitlines() if line.strip()] or ["no reason given"]
    return (lines[-1] if lines[0].startswith("Traceback") else lines[0])[:120]


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", nargs="*", type=lambda text: int(float(text)), default=[20_000])
    parser.add_argument("--shape", action="append", choices=SHAPES, help="repeatable; default: default")
    parser.add_argument("--command", action="append", default=[], help="only this command; repeatable")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--peer-limit", type=float, default=PEER_LIMIT_S, help="seconds for a peer's command [%(default)s]"
    )
    parser.add_argument("--folder", type=Path, default=OUT, help="for recordings and results [default: out/bench]")
    parser.add_argument("--keep", type=Path, help="the file of results [default: TIME.json in the folder]")
    given = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every run compiles the modules of a fresh installation again
    out = given.folder.resolve()  # peers run in a folder of their own
    out.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.timezone.utc)
    kept: dict[str, Any] = {"time": now.isoformat(timespec="seconds"), "machine": machine(), "recordings": []}
    target = given.keep or out / f"{now:%Y%m%d-%H%M%S}.json"
    for shape in given.shape or ["default"]:
        for kernels in given.kernels or [20_000]:
            trace = generated(kernels, shape, out)
            row: dict[str, Any] = {"kernels": kernels, "shape": shape, "size_bytes": trace.stat().st_size}
            row["commands"] = measure(trace, given.command, given.rounds, out, given.peer_limit)
            kept["recordings"].append(row)
            target.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
            show(row, row["commands"])
    print(f"\nWrote {target}")
    if any(c["failed"] and not is_peer(c["command"]) for r in kept["recordings"] for c in r["commands"]):
        raise SystemExit("some commands failed")


if __name__ == "__main__":
    main()
