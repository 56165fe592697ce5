"""Runs one load in one mode of recording, pairs the runs, and sums up what a census counted.

Only the standard library is used here; the recorder's builder and reader come from the checkout.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from nsysparse.census import build, dump, run  # noqa: E402


class Bench:
    """Where things are, and how a command is run in one mode."""

    def __init__(self, out: Path, work: Path, deadline: float) -> None:
        self.out, self.work, self.deadline = out, work, deadline
        self.recorder = build.build(folder=work).library
        self.floor, self.native = work / "floor.so", work / "census_launch"
        self.count = 0

    def left(self) -> float:
        """Seconds left of this call's time."""
        return self.deadline - time.monotonic()

    def folder(self, name: str, *, keep: bool = False) -> Path:
        """A new folder for one run's census; of those kept the dumps come back."""
        self.count += 1
        folder = self.work / ("dumps" if keep else "scratch") / f"{self.count:04d}-{name}"
        folder.mkdir(parents=True)
        return folder

    def environment(self, mode: str, folder: Path, **extra: str) -> dict[str, str]:
        """The variables of a mode: none, floor*, census, copies, graphs, off, duty."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_INJECTION", "NSYSPARSE_CENSUS"))} | extra
        floors = {
            "floor": "10,1,22,2",
            "floor_copies": "1,22",
            "floor_none": "",
            "floor_graphs": "10,1,22,2,51",
        }
        if mode in floors:
            return env | {"CUDA_INJECTION64_PATH": str(self.floor), "FLOOR_KINDS": floors[mode]}
        if mode == "none":
            return env
        options: dict[str, Any] = {
            "census": {}, "copies": {"kinds": ("copies",)},
            "graphs": {"kinds": ("kernels", "copies", "memsets", "graphs")},
            "off": {"on_s": 0.3, "every_s": 1000.0}, "duty": {"on_s": 1.0, "every_s": 6.0},
        }[mode]  # fmt: skip
        return env | run.variables(run.Settings(folder, **options), self.recorder)

    def save(self, part: str, data: Any) -> None:
        """Write a part's result."""
        (self.out / f"{part}.json").write_text(json.dumps(data, indent=1) + "\n")


def totals(folder: Path) -> dict[str, int | None]:
    """Sum the last totals lines of a folder."""
    sums: Counter[str] = Counter()
    unknown = set()
    for process in dump.read(folder).processes:
        last = process.read(process.totals[-1]) if process.totals else {"devices": [], "dropped": 0}
        sums["processes"] += 1
        sums["records"] += last.get("records") or 0
        if last["dropped"] is None:
            unknown.add("dropped")
        sums["dropped"] += last["dropped"] or 0
        for device in last["devices"]:
            for part, name in (("kernels", "kernels"), ("memsets", "memsets")):
                if device[part] is None:
                    unknown.add(name)
                sums[name] += (device[part] or {}).get("count", 0)
                sums[f"{part}_time_ns"] += (device[part] or {}).get("time_ns", 0)
            sums["memset_bytes"] += (device["memsets"] or {}).get("bytes", 0)
            sums["graph_launches"] += (device["graphs"] or {}).get("launches", 0)
            sums["kernel_busy_ns"] += (device["kernels"] or {}).get("busy_ns", 0)
            sums["busy_ns"] += device["busy_ns"] or 0
            for copy in (device["copies"] or {}).get("by", []):
                sums[copy["kind"]] += copy["count"]
                sums[copy["kind"] + "_bytes"] += copy["bytes"]
    return {name: None if name in unknown else n for name, n in sums.items()}


def spawn(command: list[str], env: dict[str, str], limit_s: float) -> tuple[int, str, str]:
    """Run to the end or kill it: exit status, stdout, stderr."""
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=max(1.0, limit_s))
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return 124, out, err
    return process.returncode, out, err


def summary(rows: list[dict[str, Any]], modes: list[str], unit: float = 1e9) -> dict[str, Any]:
    """Paired by repeat: throughput ratios to mode none, and time added to an operation (1/unit seconds)."""
    by: dict[tuple[int, str], float] = {(r["repeat"], r["mode"]): r["rate"] for r in rows if r.get("rate")}
    result = {}
    for mode in modes:
        pairs = [(by[k, "none"], by[k, mode]) for k in {k for k, _ in by} if (k, "none") in by and (k, mode) in by]
        if not pairs:
            continue
        ratios = sorted(b / a for a, b in pairs)
        added = sorted(unit / b - unit / a for a, b in pairs)
        result[mode] = {
            "pairs": len(pairs), "median_ratio": statistics.median(ratios), "ratios": [ratios[0], ratios[-1]],
            "quartiles": statistics.quantiles(ratios, n=4) if len(ratios) > 3 else None,
            "added_per_operation": statistics.median(added), "added_range": [added[0], added[-1]],
            "median_rate": statistics.median(b for _, b in pairs),
        }  # fmt: skip
    return result


def show(name: str, table: dict[str, Any], unit: str) -> None:
    """Print a summary."""
    for mode, row in table.items():
        low, high = row["ratios"]
        print(f"{name:26} {mode:14} ratio {row['median_ratio']:.4f} [{low:.4f}..{high:.4f}] n={row['pairs']}"
              f"  added {row['added_per_operation']:.1f} {unit}", flush=True)  # fmt: skip


def repeat_modes(bench: Bench, modes: list[str], repeats: int, until: float, once: Any) -> list[dict[str, Any]]:
    """Run all modes once a repeat, in an order that turns, until the repeats or the time are up.

    Args:
        bench: Where things are.
        modes: What is compared.
        repeats: How often at most.
        until: When to stop, on the monotonic clock.
        once: Runs the load in a mode.
    """
    rows: list[dict[str, Any]] = []
    modes = [mode for mode in modes if bench.floor.exists() or not mode.startswith("floor")]
    began = time.monotonic()
    for repeat in range(repeats):
        took = (time.monotonic() - began) / repeat if repeat else 0.0
        if time.monotonic() + took > min(until, bench.deadline):
            break
        for mode in modes if repeat % 2 == 0 else modes[::-1]:
            rows.append({"repeat": repeat, "mode": mode, **once(mode)})
    return rows


def native_once(bench: Bench, load: str, seconds: float, extra: str = "") -> Any:
    """A function that runs a native load once in a mode."""

    def once(mode: str) -> dict[str, Any]:
        folder = bench.folder(f"{load}-{mode}")
        command = [str(bench.native), load, str(seconds), *([extra] if extra else [])]
        status, out, err = spawn(command, bench.environment(mode, folder, WARM_S="0.8"), seconds + 20)
        try:
            row = json.loads(out.splitlines()[-1])
        except (IndexError, ValueError):
            return {"status": status, "stderr": err[-300:]}
        row["rate"] = row["count"] / row["seconds"]
        return {**row, "stderr": err[-300:]} if err else row

    return once


def forked_once(bench: Bench, load: str, seconds: float) -> Any:
    """A function that runs a torch load in a child forked after `import torch`: no import time per run."""
    import census_loads
    import torch  # noqa: F401  # imported here, before any CUDA call, for the children

    def once(mode: str) -> dict[str, Any]:
        folder = bench.folder(f"{load}-{mode}")
        environment = bench.environment(mode, folder)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.environ.update(environment)
                answer = census_loads.run_load(load, seconds, 1.2)
                os.write(write, json.dumps(answer).encode())
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        os.close(write)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
        signal.alarm(int(seconds + 60))
        text = os.read(read, 65536)
        os.close(read)
        os.waitpid(child, 0)
        signal.alarm(0)
        row = json.loads(text) if text else {"failed": True}
        if mode not in ("none",) and not mode.startswith("floor") and any(folder.iterdir()):
            found = totals(folder)
            row["kernels"], row["records"] = found.get("kernels"), found.get("records")
        return row

    return once
