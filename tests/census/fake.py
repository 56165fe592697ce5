"""Builds the recorder against the fake CUPTI, runs scripts under it, and counts the same scripts by brute force."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nsysparse.census import dump, windows

HERE = Path(__file__).parent / "fake_cupti"
RECORDER = Path(__file__).parents[2] / "nsysparse" / "census" / "recorder.c"
COPY_KINDS = ("unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
MEMORY_KINDS = ("unknown", "pageable", "pinned", "device", "array", "managed", "device_static", "managed_static")
WARNINGS = ["-std=c11", "-g", "-Wall", "-Wextra", "-Wshadow", "-Werror"]


@dataclass(frozen=True)
class Fake:
    """A built set: fake CUPTI, program, recorder."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def environment(self, out: Path, **extra: str) -> dict[str, str]:
        base = {k: v for k, v in os.environ.items() if not k.startswith(("NSYSPARSE_", "FAKE_", "CUDA_INJ"))}
        return base | self.env | {
            "CUDA_INJECTION64_PATH": str(self.folder / "recorder.so"),
            "NSYSPARSE_CENSUS_CUPTI": str(self.folder / "libcupti.so.13"),
            "NSYSPARSE_CENSUS_DIR": str(out),
            "NSYSPARSE_CENSUS_INTERVAL": "0.05",
        } | extra  # fmt: skip

    def start(self, out: Path, scripts: Sequence[str], **extra: str) -> subprocess.Popen[str]:
        out.mkdir(parents=True, exist_ok=True)
        work = out.parent / f"scripts-{out.name}"
        work.mkdir(exist_ok=True)
        paths = []
        for i, text in enumerate(scripts):
            path = work / f"script-{len(list(work.iterdir()))}-{i}"
            path.write_text(text)
            paths.append(str(path))
        return subprocess.Popen(
            [str(self.folder / "host"), *paths], env=self.environment(out, **extra),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, out: Path, *scripts: str, status: int = 0, **extra: str) -> str:
        """Run to the end; return what it said on stderr."""
        process = self.start(out, scripts, **extra)
        _, said = process.communicate(timeout=60)
        assert process.returncode == status, (process.returncode, said)
        return said


def build_fake(folder: Path, *flags: str, fake_flags: Sequence[str] = (), env: dict[str, str] | None = None) -> Fake:
    """Compile everything with extra flags, as -fsanitize=address."""
    cc = shutil.which("gcc") or shutil.which("cc")
    assert cc
    shared = ["-fPIC", "-shared", "-fvisibility=hidden"]
    jobs = [
        [*shared, str(HERE / "fake.c"), *fake_flags, "-o", str(folder / "libcupti.so.13"), "-pthread", "-ldl"],
        [str(HERE / "host.c"), "-o", str(folder / "host"), str(folder / "libcupti.so.13"),
         f"-Wl,-rpath,{folder}", "-pthread"],
        [*shared, str(RECORDER), "-o", str(folder / "recorder.so"), "-pthread", "-ldl"],
    ]  # fmt: skip
    for job in jobs:
        subprocess.run([cc, *WARNINGS, "-O1", *flags, *job], check=True, capture_output=True, text=True)
    return Fake(folder, env or {})


def only(out: Path) -> dump.Process:
    """The one process of a census."""
    census = dump.read(out)
    assert len(census.processes) == 1, [p.path.name for p in census.processes]
    return census.processes[0]


def union_ns(spans: list[tuple[int, int]]) -> int:
    total, end = 0, 0
    for a, b in sorted(spans):
        total += max(0, b - max(a, end))
        end = max(end, b)
    return total


def brute_force(scripts: Sequence[str]) -> dict[int, dict[str, object]]:
    """What the scripts' records add up to, per device, computed the slow and simple way."""
    spans: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    sums: dict[int, Counter[str]] = defaultdict(Counter)
    copies: dict[int, dict[tuple[object, ...], list[object]]] = defaultdict(dict)
    launches: dict[int, set[int]] = defaultdict(set)
    for line in "\n".join(scripts).split("\n"):
        kind, *words = line.split(" ") if line else ("",)
        n = [int(w) for w in words[:14] if w.isdigit()]
        if kind == "K":
            start, end, correlation, graph = n[1:5]
        elif kind == "C":
            start, end, correlation, graph = n[5:9]
        elif kind == "P":
            start, end, correlation, graph = n[5], n[6], n[9], n[10]
        elif kind == "S":
            start, end, correlation, graph = n[2:6]
        else:
            continue
        name = {"K": "kernels", "C": "copies", "P": "copies", "S": "memsets"}[kind]
        length = end - start if start and end >= start else 0
        sums[n[0]][name] += 1
        sums[n[0]][f"{name}_ns"] += length
        if length:
            for group in ("busy", name):
                spans[n[0], group].append((start, end))
        if graph:
            launches[n[0]].add(correlation)
        if kind == "S":
            sums[n[0]]["memset_bytes"] += n[1]
        if name == "copies":
            outbound = n[0] == n[7] if kind == "P" else None
            peer = (n[8] if outbound else n[7]) if kind == "P" else None
            key = (COPY_KINDS[n[1]], MEMORY_KINDS[n[2]], MEMORY_KINDS[n[3]], peer, outbound)
            entry = copies[n[0]].setdefault(key, [0, 0, 0, Counter()])
            entry[0] += 1  # type: ignore[operator]
            entry[1] += n[4]  # type: ignore[operator]
            entry[2] += length  # type: ignore[operator]
            entry[3][max(0, n[4].bit_length() - 1)] += 1  # type: ignore[index]
    return {
        device: {
            "kernels": total["kernels"], "kernel_ns": total["kernels_ns"], "memsets": total["memsets"],
            "memset_bytes": total["memset_bytes"], "graph_launches": len(launches[device]),
            "kernel_busy": union_ns(spans[device, "kernels"]), "copy_busy": union_ns(spans[device, "copies"]),
            "busy": union_ns(spans[device, "busy"]),
            "copies": {k: (a, b, c, dict(h)) for k, (a, b, c, h) in copies[device].items()},  # type: ignore[call-overload]
        }
        for device, total in sums.items()
    }  # fmt: skip


def counted(out: Path) -> dict[int, dict[str, object]]:
    """The same figures, as the recorder wrote them and the reader reads them."""
    return {
        c.device: {
            "kernels": c.kernels, "kernel_ns": c.kernel_time_ns, "memsets": c.memsets,
            "memset_bytes": c.memset_bytes, "graph_launches": c.graph_launches,
            "kernel_busy": c.kernel_busy_ns, "copy_busy": c.copy_busy_ns, "busy": c.busy_ns,
            "copies": {
                (k.kind, k.src, k.dst, k.peer, k.outbound): (v.count, v.bytes, v.time_ns, v.sizes)
                for k, v in (c.copies or {}).items()
            },
        }
        for c in windows.count(dump.read(out))
    }  # fmt: skip
