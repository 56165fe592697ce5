"""Whole commands as processes on generated recordings: ``run.py [KERNELS...]``.

For every size and shape the recording is generated once and kept. In each round the floor is measured and then every
command, so that a ratio compares what ran side by side. Printed are medians; all runs are kept as JSON under out/bench/
for compare.py. This file imports nothing large: a child's peak memory is never below its parent's.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
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
STAGES = ("starting", "opening", "reading", "joining", "checking", "accounting", "running", "rendering", "writing")
LIMIT_S = 3_600


@dataclass(frozen=True)
class Run:
    """One process: wall and CPU seconds, peak memory, exit status, what it said on stderr, time of its stages."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    status: int
    said: str = ""
    stages: dict[str, Any] = field(default_factory=dict)


def run(command: list[str]) -> Run:
    """Run a process to its end and take its measures from the kernel."""
    with tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        said = errors.read().decode("utf-8", "replace").strip()
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    cpu = used.ru_utime + used.ru_stime
    stages = _stages(said, wall, cpu) if process.returncode == 0 else {}
    return Run(wall, cpu, peak, process.returncode, "" if process.returncode == 0 else said[-500:], stages)


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
    analyze = [*program, "analyze", name, "-o", str(folder / "report.html"), "--force", "--profile"]
    cache = ["--cache", str(folder / f"cache-{number}")]
    found = {
        "info": [*program, "info", name],
        "analyze": analyze,
        "analyze, filling the cache": [*analyze, *cache],
        "analyze, from the cache": [*analyze, *cache],
    }
    if "stats" in COMMANDS:
        found |= {f"stats {report}": [*program, "stats", name, report, "--format", "csv"] for report in STATS}
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
    if nsys := shutil.which("nsys"):
        peer = [nsys, "stats", "--force-export=false", "--format", "csv", "--quiet"]
        found |= {f"nsys stats {r}": [*peer, "--report", r, name] for r in STATS}
    if peer_analysis := shutil.which("nsys-ai"):
        found["nsys-ai diagnose"] = [peer_analysis, "diagnose", name]
    for title, command in found.items():
        if not wanted or any(title == w or title.startswith((f"{w} ", f"{w},")) for w in wanted):
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


def measure(trace: Path, wanted: list[str], rounds: int, out: Path) -> list[dict[str, Any]]:
    """All runs of all commands on one recording."""
    results: dict[str, list[dict[str, Any]]] = {}
    measure_floor(trace)  # brings the file into the page cache
    with tempfile.TemporaryDirectory(dir=out, prefix="work-") as folder:
        for number in range(rounds):
            floor = measure_floor(trace)
            for title, command in commands(trace, Path(folder), wanted, number):
                done = run(command)
                results.setdefault(title, []).append({**vars(done), "floor": floor})
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
    return {**facts, "python": platform.python_version(), "versions": versions, "commit": commit.stdout.strip()}


def show(row: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Print the table of one recording."""
    print(f"\n{row['kernels']:,} kernels, shape {row['shape']}, {row['size_bytes'] / 1e9:.3f} GB")
    print(f"  {'command':<28}{'wall s':>9}{'CPU s':>9}{'peak GB':>9}{'x floor':>9}{'CPU x':>9}{'s/M kernels':>13}")
    for r in results:
        if r["wall_s"] is None:
            print(f"  {r['command']:<28}{'failed':>9}")
            continue
        ratios = [f"{v:.1f}" if v is not None else "n/a" for v in (r["floor_ratio"], r["floor_cpu_ratio"])]
        print(
            f"  {r['command']:<28}{r['wall_s']:>9.2f}{r['cpu_s']:>9.2f}{r['peak_bytes'] / 1e9:>9.3f}"
            f"{ratios[0]:>9}{ratios[1]:>9}{r['wall_s'] * 1e6 / row['kernels']:>13.2f}"
        )
        if r["stages_cpu_s"]:
            print("    CPU s by stage: " + ", ".join(f"{s} {v:.2f}" for s, v in r["stages_cpu_s"].items()))


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", nargs="*", type=lambda text: int(float(text)), default=[20_000])
    parser.add_argument("--shape", action="append", choices=SHAPES, help="repeatable; default: default")
    parser.add_argument("--command", action="append", default=[], help="only this command; repeatable")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=OUT, help="for recordings and results [default: out/bench]")
    parser.add_argument("--keep", type=Path, help="the file of results [default: TIME.json in the folder]")
    given = parser.parse_args()
    out = given.folder
    out.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.timezone.utc)
    kept: dict[str, Any] = {"time": now.isoformat(timespec="seconds"), "machine": machine(), "recordings": []}
    target = given.keep or out / f"{now:%Y%m%d-%H%M%S}.json"
    for shape in given.shape or ["default"]:
        for kernels in given.kernels or [20_000]:
            trace = generated(kernels, shape, out)
            row: dict[str, Any] = {"kernels": kernels, "shape": shape, "size_bytes": trace.stat().st_size}
            row["commands"] = measure(trace, given.command, given.rounds, out)
            kept["recordings"].append(row)
            target.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
            show(row, row["commands"])
    print(f"\nWrote {target}")
    if any(c["failed"] for r in kept["recordings"] for c in r["commands"]):
        raise SystemExit("some commands failed")


if __name__ == "__main__":
    main()
