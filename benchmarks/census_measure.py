"""Measure the census on a machine with an NVIDIA GPU; see census_device.sh for how it is called.

Every part is bounded in time, writes OUT/PART.json, and prints a short table.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from census_bench import (
    Bench,
    dump,
    forked_once,
    native_once,
    repeat_modes,
    show,
    spawn,
    summary,
    totals,
)

HERE = Path(__file__).resolve().parent

# Counts of a CUPTI census of a separate run, and what the programs ask for themselves:
# kernels, HtoD copies, HtoD bytes, DtoH copies, DtoH bytes, memsets, memset bytes, peer copies, peer bytes.
EXPECTED = {
    "eager_h2d": (1609, 208, 119_570_432, 200, 52_428_800, None, None, 0, 0),
    "pinned_overlap": (1609, 209, 119_832_576, 0, 0, None, None, 0, 0),
    "state_checkpoint": (2571, 8, 67_141_632, 16, 640_000_000, None, None, 0, 0),
    "train_item": (2771, 4, 33_574_912, 60, 240, 120, 7920, 0, 0),
    "threads": (1449, 168, 88_113_152, 160, 320, None, None, 0, 0),
    "loader": (657, 48, 77_627_392, 0, 0, 160, 81_920, 0, 0),
    "graph_replay": (420, 107, 21_897_216, 103, 13_500_416, None, None, 0, 0),
    "p2p": (1, 0, 0, 0, 0, None, None, 60, 480_000_000),
}
FIELDS = (
    "kernels",
    "HtoD",
    "HtoD_bytes",
    "DtoH",
    "DtoH_bytes",
    "memsets",
    "memset_bytes",
    "PtoP",
    "PtoP_bytes",
)


def part_loads(bench: Bench, workloads: str) -> None:
    """The deterministic loads: every count and byte beside the expected table."""
    result = []
    import_count = spawn([sys.executable, "-c", "import torch; print(torch.cuda.device_count())"], dict(os.environ), 60)
    for name, expected in EXPECTED.items():
        if bench.left() < 30 or (name == "p2p" and import_count[1].strip() in ("", "0", "1")):
            print(f"{name:18} not run")
            continue
        folder = bench.folder(name, keep=True)
        status, _, err = spawn([sys.executable, workloads, name], bench.environment("census", folder), 90)
        found = totals(folder) if any(folder.iterdir()) else {}
        rows = [(f, want, found.get(f, 0)) for f, want in zip(FIELDS, expected, strict=True) if want is not None]
        wrong = [row for row in rows if row[1] != row[2]]
        print(f"{name:18} status {status}  {'EQUAL' if not wrong else 'DIFFERS ' + str(wrong)}", flush=True)
        result.append({"load": name, "status": status, "differs": wrong, "found": found, "stderr": err[-500:]})
    bench.save("loads", result)


def part_programs(bench: Bench, workloads: str) -> None:
    """Programs attached without change: what was recorded of each."""
    loads = str(HERE / "census_loads.py")
    commands = {
        "dataloader": [workloads, "loader"], "transformers_offloaded_kv": [workloads, "kv_offload"],
        "jax": [loads, "program", "jax"], "cupy": [loads, "program", "cupy"],
        "triton": [loads, "program", "triton"],
        "torch_compile_cudagraphs": [loads, "program", "torch_compile"],
    }  # fmt: skip
    result = []
    for name, arguments in commands.items():
        if bench.left() < 20:
            print(f"{name:26} not run")
            continue
        folder = bench.folder(name, keep=True)
        env = bench.environment("census", folder, XLA_PYTHON_CLIENT_PREALLOCATE="false")
        status, _, err = spawn([sys.executable, *arguments], env, min(120, bench.left()))
        found = totals(folder) if any(folder.iterdir()) else {}
        said = [line for line in err.splitlines() if "census" in line.lower() or "cupti" in line.lower()]
        print(f"{name:26} status {status}  {found}  {said}", flush=True)
        result.append({"program": name, "status": status, "found": found, "said": said, "stderr": err[-800:]})
    bench.save("programs", result)


def part_extreme(bench: Bench, repeats: int) -> None:
    """Native launch-bound extremes: nanoseconds a launch, microseconds a graph launch, floor beside it."""
    modes = ["none", "floor", "census", "copies", "off"]
    result = {}
    loads = [  # load, argument, modes, operations a second, label, share of the time that is left
        ("launch", "", modes, 1e9, "ns/launch", 0.35),
        ("graph", "72", [*modes, "graphs", "floor_none"], 1e6, "us/replay of 72 kernels", 0.6),
        ("threads", "4", modes[:3], 1e9, "ns/launch (4 threads)", 0.5),
        ("copies", "", ["none", "floor", "census"], 1e9, "ns/byte", 1.0),
    ]
    for load, extra, chosen, unit, label, share in loads:
        until = time.monotonic() + bench.left() * share
        rows = repeat_modes(bench, chosen, repeats, until, native_once(bench, load, 1.0, extra))
        table = summary(rows, chosen, unit)
        show(load, table, label)
        result[load] = {"label": label, "summary": table, "rows": rows}
        bench.save("extreme", result)


def part_cost(bench: Bench, repeats: int, names: list[str]) -> None:
    """LLM-like decoding and copies: the price of the census where it matters, paired run by run."""
    result = {}
    names = names or ["decode_graph", "decode_eager", "decode_eager_host_bound", "copy_heavy"]
    for i, name in enumerate(names):
        until = time.monotonic() + bench.left() / (len(names) - i)
        modes = (
            ["none", "census", "floor", "copies", "graphs"]
            if name.startswith("decode")
            else ["none", "census", "copies"]
        )
        rows = repeat_modes(bench, modes, repeats, until, forked_once(bench, name, 3.0))
        table = summary(rows, modes, 1e6)
        show(name, table, "us/step")
        result[name] = {"summary": table, "rows": rows}
        bench.save("cost", result)


def part_duty(bench: Bench, repeats: int) -> None:
    """What 'off' costs, and a duty cycle, on decoding with graphs."""
    modes = ["none", "off", "duty"]
    rows = repeat_modes(bench, modes, repeats, bench.deadline, forked_once(bench, "decode_graph", 6.0))
    table = summary(rows, modes, 1e6)
    show("decode_graph", table, "us/step")
    bench.save("duty", {"summary": table, "rows": rows})


def part_idle(bench: Bench, repeats: int) -> None:
    """An idle server: CPU time and latency of a request every 200 ms."""
    modes = ["none", "census", "floor"]
    rows = repeat_modes(bench, modes, repeats, bench.deadline, native_once(bench, "idle", 6.0))
    for mode in modes:
        mine = [r for r in rows if r["mode"] == mode and "cpu_s" in r]
        if mine:
            cpu = statistics.median(r["cpu_s"] / r["seconds"] for r in mine)
            latency = statistics.median(r["median_latency_us"] for r in mine)
            print(
                f"idle {mode:8} CPU {100 * cpu:.3f}%  median latency {latency:.1f} us  n={len(mine)}",
                flush=True,
            )
    bench.save("idle", rows)


def part_lag(bench: Bench) -> None:
    """A GPU that is never idle, then SIGKILL: how far totals run behind, and what is lost."""
    result = []
    for us in (100, 1000, 20_000):
        folder = bench.folder(f"steady-{us}", keep=True)
        command, env = [str(bench.native), "steady", "60", str(us)], bench.environment("census", folder)
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        time.sleep(7.3)
        process.kill()
        killed_ns = time.time_ns()
        progress = [json.loads(line) for line in process.communicate()[0].splitlines() if line.endswith("}")]
        (recorded,) = dump.read(folder).processes
        lags = []
        for line in recorded.lines():
            before = [p["completed"] for p in progress if p["unix_ns"] <= line["unix_ns"]]
            counted = sum(d["kernels"]["count"] for d in line["devices"])
            lags.append((before[-1] if before else 0) - counted)
        lost = progress[-1]["completed"] - sum(
            d["kernels"]["count"] for d in recorded.read(recorded.totals[-1])["devices"]
        )
        row = {
            "kernel_us": us, "behind_kernels": lags, "behind_ms": [lag * us / 1000 for lag in lags],
            "lost_kernels_at_kill": lost, "lost_ms": lost * us / 1000,
            "last_line_before_kill_ms": (killed_ns - recorded.end_ns) / 1e6,
        }  # fmt: skip
        print(f"steady {us:6} us: behind by at most {max(row['behind_ms']):.0f} ms; lost at SIGKILL", end=" ")
        print(f"{row['lost_ms']:.0f} ms; last line {row['last_line_before_kill_ms']:.0f} ms before", flush=True)
        result.append(row)
    bench.save("lag", result)


def part_kills(bench: Bench, runs: int) -> None:
    """Mixed loads, random endings and kills: no crash, no hang, no lost line but the last."""
    rng = random.Random(11)
    rows = []
    for _ in range(runs):
        if bench.left() < 25:
            break
        folder, end = bench.folder("kills"), rng.choice(["return", "return", "exit", "_exit", "fork", "exec"])
        env = bench.environment("census", folder) | {"NSYSPARSE_CENSUS_INTERVAL": rng.choice(["0.05", "0.2", "1"])}
        if rng.random() < 0.3:
            env |= {"NSYSPARSE_CENSUS_ON": "0.1", "NSYSPARSE_CENSUS_EVERY": "0.25"}
        process = subprocess.Popen([str(bench.native), "mixed", f"{rng.uniform(0.2, 0.9):.2f}", end], env=env,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # fmt: skip
        sent, hung = 0, False
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0.1, 1.5))
            sent = rng.choice([signal.SIGKILL, signal.SIGTERM])
            process.send_signal(sent)
        try:
            _, err = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            hung = True
            process.kill()
            _, err = process.communicate()
        rows.append(_judge_run(folder, process.returncode, end=end, sent=int(sent), hung=hung, err=err))
    bad = [r for r in rows if r["bad"]]
    print(f"{len(rows)} runs, {sum(r['killed'] != 0 for r in rows)} killed; bad: {bad or 'none'}", flush=True)
    bench.save("kills", rows)


SWITCHING = {"without recorder": None, "recorder, never switched": False, "recorder, switched": True}


def part_switching(bench: Bench, runs: int) -> None:
    """The mixed load, six at once and without kills: whether switching off and on under load breaks the program."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SWITCHING}
    for _ in range(0, runs, 6):  # variants take turns, so that running out of time costs all of them alike
        for name, switched in SWITCHING.items():
            if bench.left() > 10:
                rows[name] += _switch_some(bench, 6, switched)
    for name, found in rows.items():
        bad = [r for r in found if r["bad"]]
        said = sorted({r["stderr"].strip().splitlines()[-1][-80:] for r in bad if r["stderr"].strip()})
        print(
            f"{name:26} bad {len(bad):3} of {len(found):3}  switched off {sum(r['offs'] for r in found)} times  {said}"
        )
    bench.save("switching", rows)


def _switch_some(bench: Bench, n: int, switched: bool | None) -> list[dict[str, Any]]:
    """Run the load n times at once."""
    started = []
    for _ in range(n):
        folder = bench.folder("switching")
        env = bench.environment("none" if switched is None else "census", folder)
        if switched is not None:
            env["NSYSPARSE_CENSUS_INTERVAL"] = "0.2"
        if switched:
            env |= {"NSYSPARSE_CENSUS_ON": "0.1", "NSYSPARSE_CENSUS_EVERY": "0.25"}
        command = [str(bench.native), "mixed", "0.7", "return"]
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        started.append((folder, process))
    rows = []
    for folder, process in started:
        try:
            _, err = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            err = process.communicate()[1] + "\nhang"
        lines: list[dict[str, Any]] = []
        with contextlib.suppress(dump.NsysparseError):  # nothing written: no recorder, or broken early
            lines = [line for p in dump.read(folder).processes for line in p.lines()]
        bad = (
            process.returncode != 0
            or bool(err.strip())
            or (switched is not None and not (lines and lines[-1]["final"]))
        )
        offs = sum(line["why"] == "off" for line in lines)
        rows.append({"status": process.returncode, "stderr": err[-400:], "offs": offs, "bad": bad})
    return rows


def _judge_run(folder: Path, status: int, *, end: str, sent: int, hung: bool, err: str) -> dict[str, Any]:
    fine = {"return": 0, "fork": 0, "exec": 0, "exit": 3, "_exit": 4}[end]
    files = [p for p in folder.glob("census-*") if p.stat().st_size]
    bad = ["hang"] if hung else []
    if status not in (fine, -sent if sent else fine):
        bad.append(f"exit status {status}")
    if err.strip():
        bad.append(f"stderr {err[-200:]}")
    damaged = finals = 0
    if files:
        census = dump.read(folder)
        damaged = sum(p.bad_lines for p in census.processes) + sum(p.cut for p in census.processes if not sent)
        finals = sum(p.finished for p in census.processes)
    if damaged:
        bad.append(f"{damaged} damaged lines")
    if end in ("return", "exit", "fork") and status == fine and finals != 1:
        bad.append("no final line")
    return {"end": end, "killed": sent, "status": status, "files": len(files), "finals": finals, "bad": bad}


def part_smi(bench: Bench, workloads: str) -> None:
    """nvidia-smi's utilization beside kernel-busy, copy-busy and busy of one long run."""
    folder = bench.folder("smi", keep=True)
    sampler = subprocess.Popen(
        ["nvidia-smi", "--query-gpu=timestamp,utilization.gpu,utilization.memory", "-lms", "200", "-i", "0",
         "--format=csv,noheader,nounits"], stdout=subprocess.PIPE, text=True)  # fmt: skip
    stamped: list[tuple[int, str]] = []
    env = bench.environment("census", folder) | {"NSYSPARSE_CENSUS_INTERVAL": "0.2"}
    process = subprocess.Popen([sys.executable, workloads, "busy_long"], env=env, stdout=subprocess.DEVNULL)
    assert sampler.stdout is not None
    while process.poll() is None and bench.left() > 10:
        stamped.append((time.time_ns(), sampler.stdout.readline().strip()))
    sampler.terminate()
    process.wait()
    lines = [line for p in dump.read(folder).processes for line in p.lines() if line["devices"]]
    # The steady part: from a quarter of the run on, past import and model set-up.
    first, last = lines[len(lines) // 4], lines[-2]
    wall = last["unix_ns"] - first["unix_ns"]
    a, b = first["devices"][0], last["devices"][0]
    inside = [s for t, s in stamped if first["unix_ns"] <= t <= last["unix_ns"] and s.count(",") == 2]
    samples = [[float(v) for v in s.split(",")[1:]] for s in inside]
    row = {
        "wall_s": wall / 1e9, "nvidia_smi_gpu": statistics.mean(s[0] for s in samples) / 100,
        "nvidia_smi_memory": statistics.mean(s[1] for s in samples) / 100, "samples": len(samples),
        "kernel_busy": (b["kernels"]["busy_ns"] - a["kernels"]["busy_ns"]) / wall,
        "copy_busy": (b["copies"]["busy_ns"] - a["copies"]["busy_ns"]) / wall,
        "busy": (b["busy_ns"] - a["busy_ns"]) / wall, "raw": inside,
    }  # fmt: skip
    print({k: v for k, v in row.items() if k != "raw"}, flush=True)
    bench.save("smi", row)


def parts(bench: Bench, workloads: str, given: str) -> dict[str, Callable[[], None]]:
    """The parts by name; ``given`` is the number of repeats or runs, or the names of loads."""
    n = int(given) if given.isdigit() else 0
    names = given.split(",") if given and not given.isdigit() else []
    return {
        "loads": lambda: part_loads(bench, workloads),
        "programs": lambda: part_programs(bench, workloads),
        "extreme": lambda: part_extreme(bench, n or 8),
        "cost": lambda: part_cost(bench, n or 8, names),
        "duty": lambda: part_duty(bench, n or 5),
        "idle": lambda: part_idle(bench, n or 3),
        "lag": lambda: part_lag(bench),
        "kills": lambda: part_kills(bench, n or 100),
        "switching": lambda: part_switching(bench, n or 30),
        "smi": lambda: part_smi(bench, workloads),
    }


def main() -> None:
    """Run the parts named on the command line: OUT WORK SECONDS WORKLOADS PART[:N[@SECONDS]] ..."""
    out, work, seconds, workloads = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    out.mkdir(parents=True, exist_ok=True)
    bench = Bench(out, work, time.monotonic() + seconds)
    last = bench.deadline
    for argument in sys.argv[5:]:
        text, _, limit = argument.partition("@")
        part, _, given = text.partition(":")
        bench.deadline = min(last, time.monotonic() + float(limit)) if limit else last
        print(f"== {part} ({bench.left():.0f} s)", flush=True)
        began = time.monotonic()
        try:
            parts(bench, workloads, given)[part]()
        except Exception as error:  # one part's failure must not cost the others their device time
            print(f"{part} FAILED: {type(error).__name__}: {error}", flush=True)
        print(f"== {part} took {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
