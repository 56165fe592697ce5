"""Builds the recorder against the fake CUPTI, runs scripts under it, and counts them by brute force."""

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
MEMORY_KINDS = (
    "unknown",
    "pageable",
    "pinned",
    "device",
    "array",
    "managed",
    "device_static",
    "managed_static",
)
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


def build_fake(
    folder: Path,
    *flags: str,
    fake_flags: Sequence[str] = (),
    env: dict[str, str] | None = None,
    recorder: Path = RECORDER,
) -> Fake:
    """Compile everything with extra flags, as -fsanitize=address."""
    cc = shutil.which("gcc") or shutil.which("cc")
    assert cc
    shared = ["-fPIC", "-shared", "-fvisibility=hidden"]
    jobs = [
        [*shared, str(HERE / "fake.c"), *fake_flags, "-o", f"{folder}/libcupti.so.13", "-pthread", "-ldl"],
        [str(HERE / "host.c"), "-o", str(folder / "host"), str(folder / "libcupti.so.13"),
         f"-Wl,-rpath,{folder}", "-pthread"],
        [*shared, str(recorder), "-o", str(folder / "recorder.so"), "-pthread", "-ldl"],
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


@dataclass
class Sums:
    """One device's operations, added up the slow and simple way."""

    counts: Counter[str] = field(default_factory=Counter)
    spans: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    copies: dict[tuple[object, ...], tuple[int, int, int, dict[int, int]]] = field(default_factory=dict)
    launches: set[int] = field(default_factory=set)

    def add(self, name: str, n_bytes: int, span: tuple[int, int], correlation: int, graph: int) -> int:
        length = span[1] - span[0] if span[0] and span[1] >= span[0] else 0
        self.counts.update({name: 1, f"{name}_ns": length, f"{name}_bytes": n_bytes})
        if length:
            self.spans["busy"].append(span)
            self.spans[name].append(span)
        if graph:
            self.launches.add(correlation)
        return length

    def add_copy(self, key: tuple[object, ...], n_bytes: int, length: int) -> None:
        count, total, time_ns, sizes = self.copies.get(key, (0, 0, 0, {}))
        size_bin = max(0, n_bytes.bit_length() - 1)
        sizes[size_bin] = sizes.get(size_bin, 0) + 1
        self.copies[key] = (count + 1, total + n_bytes, time_ns + length, sizes)

    def result(self) -> dict[str, object]:
        return {
            "kernels": self.counts["K"], "kernel_ns": self.counts["K_ns"], "memsets": self.counts["S"],
            "memset_bytes": self.counts["S_bytes"], "graph_launches": len(self.launches),
            "kernel_busy": union_ns(self.spans["K"]), "copy_busy": union_ns(self.spans["C"]),
            "busy": union_ns(self.spans["busy"]), "copies": self.copies,
        }  # fmt: skip


def brute_force(scripts: Sequence[str]) -> dict[int, dict[str, object]]:
    """What the scripts' records add up to, per device."""
    devices: dict[int, Sums] = defaultdict(Sums)
    for line in "\n".join(scripts).split("\n"):
        kind = line[:1]
        if kind not in ("K", "C", "P", "S"):
            continue
        n = [int(word) for word in line.split(" ")[1:12]]
        sums = devices[n[0]]
        if kind == "K":
            sums.add("K", 0, (n[1], n[2]), n[3], n[4])
        elif kind == "S":
            sums.add("S", n[1], (n[2], n[3]), n[4], n[5])
        else:
            peer = outbound = None
            if kind == "P":
                outbound = n[0] == n[7]
                peer = n[8] if outbound else n[7]
            ids = (n[9], n[10]) if kind == "P" else (n[7], n[8])
            length = sums.add("C", n[4], (n[5], n[6]), *ids)
            key = (COPY_KINDS[n[1]], MEMORY_KINDS[n[2]], MEMORY_KINDS[n[3]], peer, outbound)
            sums.add_copy(key, n[4], length)
    return {device: sums.result() for device, sums in devices.items()}


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
