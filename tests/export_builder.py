"""Builds small nsys-shaped SQLite exports of any release for tests."""

# The methods' order is that of the columns; tests write many rows and read better with positions.

from __future__ import annotations

import json
import lzma
import random
import re
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Dim3 = tuple[int, int, int]
Span = tuple[int, int]  # start, end
Frame = tuple[str, str]  # symbol, module

SCHEMAS: dict[str, dict[str, Any]] = json.loads(
    lzma.decompress((Path(__file__).parent / "fixtures" / "schemas.json.xz").read_bytes())
)
RELEASES = tuple(SCHEMAS)

# copyKind
HTOD, DTOH, DTOD, PTOP = 1, 2, 8, 10
# srcKind, dstKind, memKind
PAGEABLE, PINNED, DEVICE, UNKNOWN_MEMORY = 0, 1, 2, 7
# NVTX eventType
CATEGORY, MARK, PUSH_POP, START_END, DOMAIN = 33, 34, 59, 60, 75
# eventClass
RUNTIME, DRIVER, OSRT, BACKTRACE, GRAPH_NODE = 0, 1, 27, 67, 77

VM = 1 << 48
REGISTERED_AT = -2_000_000_000  # domains and categories can lie before the recording's start
PREFIX = "CUPTI_ACTIVITY_KIND_"
# A sample without such rows says nothing about the release, so these may be added to any release.
EVENT_TABLES = re.compile(r"(CUPTI_ACTIVITY_KIND|NVTX|CUDA|OSRT|SCHED|COMPOSITE|SAMPLING)_\w+")
# Gone from later releases, which therefore never get them.
RETIRED = {"EXPORT_META_DATA", "TARGET_INFO_CUDA_GPU", "TARGET_INFO_CUDA_NULL_STREAM", "UnwindMethodType"}
ALWAYS_KEPT = re.compile(r"ENUM_\w+|StringIds|(EXPORT_)?META_DATA\w*|UnwindMethodType")
# Symbol prefix and labels by number; without a prefix the label is the symbol.
ENUMS: dict[str, tuple[str, dict[int, str]]] = {
    "ENUM_CUDA_MEMCPY_OPER": ("CUDA_MEMCPY_KIND_", dict(enumerate([
        "Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host", "Array-to-Array",
        "Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host", "Peer-to-Peer",
        "Unified Host-to-Device", "Unified Device-to-Host", "Unified Device-to-Device",
    ]))),
    "ENUM_CUDA_MEM_KIND": ("CUDA_MEMOPR_MEMORY_KIND_", dict(enumerate([
        "Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown",
    ]))),
    "ENUM_NSYS_EVENT_TYPE": ("", {
        CATEGORY: "NvtxCategory", MARK: "NvtxMark", PUSH_POP: "NvtxPushPopRange",
        START_END: "NvtxStartEndRange", DOMAIN: "NvtxDomainCreate",
    }),
    "ENUM_NSYS_EVENT_CLASS": ("TRACE_PROCESS_EVENT_", {
        RUNTIME: "CUDA runtime", DRIVER: "CUDA driver", OSRT: "OSRT runtime", BACKTRACE: "CUDA backtrace",
        GRAPH_NODE: "CUDA graph node creation",
    }),
}  # fmt: skip


def version(release: str) -> tuple[int, ...]:
    """Sortable; the one release without a number comes first."""
    return tuple(int(part) for part in release.split(".")) if release[0].isdigit() else (0,)


def global_id(pid: int, tid: int = 0) -> int:
    return VM | pid << 24 | tid


def _create_table(table: str, columns: list[list[str]]) -> str:
    keys = sorted((c[-1], c[0]) for c in columns if c[-1].startswith("pk"))
    single = len(keys) == 1
    body = [
        f'"{name}" {kind}{" NOT NULL" if "not null" in rest else ""}'
        f"{' PRIMARY KEY' if single and keys[0][1] == name else ''}"
        for name, kind, *rest in columns
    ]
    if len(keys) > 1:
        body.append(f"PRIMARY KEY ({', '.join(name for _, name in keys)})")
    return f'CREATE TABLE "{table}" ({", ".join(body)})'


def _pid(tid: int) -> int:
    return tid >> 24 & 0xFFFFFF


def _event_class(api: str) -> int:
    return DRIVER if re.match("cu[A-Z]", api) else RUNTIME


class ExportBuilder:
    """Rows of one export, kept in memory (`rows`, free to be edited) until `write`."""

    def __init__(self, release: str) -> None:
        self.release = release
        self.tables: dict[str, list[list[str]]] = dict(SCHEMAS[release]["tables"])
        self.rows: dict[str, list[Row]] = defaultdict(list)
        self._strings: dict[str, int] = {}
        self._correlations: dict[int, int] = defaultdict(int)
        self._gpus: dict[int, Row] = {}
        self._range_id = 0
        schema = SCHEMAS[release]["schema"]
        self.meta("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems")
        self.meta("EXPORT_PRODUCT_VERSION", release)
        if schema:
            self.meta("EXPORT_SCHEMA_VERSION", schema)
            for part, number in zip(("MAJOR", "MINOR", "MICRO"), schema.split("."), strict=True):
                self.meta(f"EXPORT_SCHEMA_VERSION_{part}", number)
        self.meta("EXPORT_PARAM_OUTPUT_FILE", "trace.sqlite")
        clock = {"utcTime": "2026-11-29T15:31:12", "localTime": "2026-11-29T15:31:12"}
        self.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_795_966_272_000_000_000, **clock)
        for table, (prefix, labels) in ENUMS.items():
            for number, label in labels.items():
                short = re.sub(r"(\w)\w*-to-(\w)\w*", r"\1TO\2", label).replace("Unified ", "UVM_")
                short = {"OSRT runtime": "OS runtime", "CUDA backtrace": "CUDABACKTRACE"}.get(short, short)
                name = prefix + short.replace(" ", "_").upper() if prefix else label
                self.row(table, id=number, name=name, label=label)

    # --- tables ---

    def columns(self, table: str) -> list[list[str]] | None:
        """The release's columns, the nearest release's where its sample lacks the table, else None."""
        if table in self.tables:
            return self.tables[table]
        here = RELEASES.index(self.release)
        having = [i for i, release in enumerate(RELEASES) if table in SCHEMAS[release]["tables"]]
        known = having and (EVENT_TABLES.fullmatch(table) or having[0] < here)
        if not known or table in RETIRED or table.startswith("ENUM_"):
            return None
        nearest = RELEASES[min(having, key=lambda i: abs(i - here))]
        return list(SCHEMAS[nearest]["tables"][table])

    def row(self, table: str, **values: Any) -> bool:
        """Insert one row; columns the release lacks are ignored, required ones default to 0 or ''."""
        columns = self.columns(table)
        if columns is None:
            return False
        self.tables[table] = columns
        row = {name: values.get(name) for name, *_ in columns}
        for name, kind, *constraints in columns:
            if row[name] is None and "not null" in constraints:
                row[name] = "" if kind == "TEXT" else 0
        self.rows[table].append(row)
        return True

    def write(self, path: str | Path, *, lazy: bool = True, shuffle: int | None = None) -> Path:
        """Write the file; `lazy` leaves out empty tables, `shuffle` is the seed of a random row order."""
        path = Path(path)
        path.unlink(missing_ok=True)
        rows = {table: list(self.rows[table]) for table in self.tables}
        rows["StringIds"] += [{"id": i, "value": text} for text, i in self._strings.items()]
        if "ANALYSIS_DETAILS" in self.tables and not rows["ANALYSIS_DETAILS"]:
            last = max((row.get("end") or 0 for some in rows.values() for row in some), default=0)
            clock = 603_000_000  # start and stop are of another clock than the events
            details = {"globalVid": VM, "duration": last, "startTime": clock, "stopTime": clock + last}
            rows["ANALYSIS_DETAILS"] = [details]
        db = sqlite3.connect(path)
        db.executescript("PRAGMA page_size=4096; PRAGMA journal_mode=DELETE; PRAGMA synchronous=OFF;")
        for table, columns in self.tables.items():
            if rows[table] or not lazy or ALWAYS_KEPT.fullmatch(table):
                db.execute(_create_table(table, columns))
                names = [column[0] for column in columns]
                if shuffle is not None:
                    random.Random(shuffle).shuffle(rows[table])
                db.executemany(
                    f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(names))})',
                    [[row.get(name) for name in names] for row in rows[table]],
                )
        db.commit()
        db.close()
        return path

    # --- names and machines ---

    def string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def meta(self, key: str, value: str) -> None:
        if version(self.release) < (2024, 5):
            key = key.replace("OUTPUT", "OUTUPT")
        table = "META_DATA_EXPORT" if "META_DATA_EXPORT" in self.tables else "EXPORT_META_DATA"
        self.row(table, name=key, value=value)

    def capture_option(self, name: str, value: str) -> None:
        if name.startswith("CUDA_GRAPH_TRACE_OPTIONS") and version(self.release) < (2025, 6):
            name = f"PROCESS_0:{name}"
        self.row("META_DATA_CAPTURE", name=name, value=value)

    def process(self, pid: int, name: str) -> int:
        self.row("PROCESSES", globalPid=global_id(pid), pid=pid, name=name)
        return global_id(pid)

    def thread(self, pid: int, tid: int, name: str | None = None) -> int:
        if name is not None:
            self.row("ThreadNames", nameId=self.string(name), priority=20, globalTid=global_id(pid, tid))
        return global_id(pid, tid)

    def gpu(self, gpu_id: int, name: str, cu_device: int | None, sm_count: int = 132, **more: Any) -> None:
        limits = {
            "maxWarpsPerSm": 64, "maxBlocksPerSm": 32, "maxRegistersPerSm": 65536, "maxShmemPerSm": 233472,
            "maxRegistersPerBlock": 65536, "maxShmemPerBlock": 49152, "maxShmemPerBlockOptin": 232448,
            "maxThreadsPerBlock": 1024, "threadsPerWarp": 32, "computeMajor": 9, "computeMinor": 0,
            "totalMemory": 150109880320, "memoryBandwidth": 4814304000000, "clockRate": 1980000000,
        }  # fmt: skip
        bus = f"0000:00:{6 + gpu_id:02x}.0"
        facts = {"uuid": f"00000000-0000-0000-0000-{gpu_id:012d}", "busLocation": bus, **limits, **more}
        self._gpus[gpu_id] = {"name": name, "smCount": sm_count, **facts}
        ids = {"vmId": VM, "id": gpu_id, "deviceId": gpu_id, "pwGpuId": gpu_id, "cuDevice": cu_device}
        self.row("TARGET_INFO_GPU", **ids, **self._gpus[gpu_id], isDiscrete=1)

    def cuda_device(self, pid: int, cuda_id: int, gpu_id: int) -> None:
        """CUDA ordinal of a process, with its context (ordinal + 1) and null stream (7, 15, ...)."""
        gpu = self._gpus[gpu_id]
        more = {"numMultiprocessors": gpu["smCount"], "uuid": gpu["uuid"]}
        self.row("TARGET_INFO_CUDA_DEVICE", gpuId=gpu_id, cudaId=cuda_id, pid=pid, **more)
        # releases before 2021.5 spell the same facts their own way
        old = {
            "pciBusId": "busLocation", "globalMemoryBandwidth": "memoryBandwidth", "name": "name",
            "globalMemorySize": "totalMemory", "numThreadsPerWarp": "threadsPerWarp",
            "coreClockRate": "clockRate", "numMultiprocessors": "smCount",
            "computeCapabilityMajor": "computeMajor", "computeCapabilityMinor": "computeMinor",
            "maxWarpsPerMultiprocessor": "maxWarpsPerSm", "maxBlocksPerMultiprocessor": "maxBlocksPerSm",
            "maxThreadsPerBlock": "maxThreadsPerBlock", "maxRegistersPerBlock": "maxRegistersPerBlock",
            "maxSharedMemoryPerBlock": "maxShmemPerBlock",
            "maxSharedMemoryPerMultiprocessor": "maxShmemPerSm",
            "maxRegistersPerMultiprocessor": "maxRegistersPerSm",
        }  # fmt: skip
        facts = {name: gpu[fact] for name, fact in old.items()}
        self.row("TARGET_INFO_CUDA_GPU", vmId=1, pid=pid, deviceId=cuda_id, **facts)
        null = {"vmId": 1, "processId": pid, "deviceId": cuda_id, "contextId": cuda_id + 1}
        self.row("TARGET_INFO_CUDA_CONTEXT_INFO", nullStreamId=7 + 8 * cuda_id, **null)
        self.row("TARGET_INFO_CUDA_NULL_STREAM", streamId=7 + 8 * cuda_id, **null)
        self.stream(pid, cuda_id, 7 + 8 * cuda_id, flag=3)

    def stream(self, pid: int, cuda_id: int, stream_id: int, flag: int = 2) -> None:
        ids = {"streamId": stream_id, "processId": pid, "contextId": cuda_id + 1}
        self.row("TARGET_INFO_CUDA_STREAM", vmId=1, flag=flag, **ids)

    # --- CUDA ---

    def api(
        self, name: str, start: int, end: int, tid: int, correlation: int | None = None,
        event_class: int = RUNTIME, return_value: int = 0, callchain: int | None = None,
    ) -> int:  # fmt: skip
        """API row; without `correlation` it gets the next id of its process, which is returned."""
        pid = _pid(tid)
        if correlation is None:
            correlation = self._correlations[pid] + 1
        self._correlations[pid] = max(self._correlations[pid], correlation)
        self.row(
            PREFIX + "RUNTIME", start=start, end=end, eventClass=event_class, globalTid=tid,
            correlationId=correlation, nameId=self.string(name), returnValue=return_value,
            callchainId=callchain,
        )  # fmt: skip
        return correlation

    def _gpu_row(
        self, kind: str, start: int, end: int, device: int, stream: int, correlation: int, pid: int,
        **more: Any,
    ) -> None:  # fmt: skip
        context = {"deviceId": device, "contextId": device + 1, "streamId": stream, "greenContextId": 0}
        row = {**context, "correlationId": correlation, "globalPid": global_id(pid), **more}
        self.row(PREFIX + kind, start=start, end=end, **row)

    def kernel(
        self, start: int, end: int, device: int, stream: int, correlation: int, pid: int, name: str = "gemm",
        grid: Dim3 = (132, 1, 1), block: Dim3 = (128, 1, 1), registers: int = 32, static_shared: int = 0,
        dynamic_shared: int = 0, graph_node: int | None = None, demangled: str | None = None, **more: Any,
    ) -> None:  # fmt: skip
        self._gpu_row(
            "KERNEL", start, end, device, stream, correlation, pid,
            shortName=self.string(name),
            demangledName=self.string(demangled or f"void {name}<float>(float *)"),
            mangledName=self.string(f"_Z{len(name)}{name}Pf"), launchType=1, registersPerThread=registers,
            **dict(zip(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), grid + block, strict=True)),
            staticSharedMemory=static_shared, dynamicSharedMemory=dynamic_shared, graphNodeId=graph_node,
            gridId=len(self.rows[PREFIX + "KERNEL"]) + 1, **more,
        )  # fmt: skip

    def copy(
        self, start: int, end: int, nbytes: int, kind: int, src: int, dst: int, device: int, stream: int,
        correlation: int, pid: int, src_device: int | None = None, dst_device: int | None = None, **more: Any,
    ) -> None:  # fmt: skip
        """Memory copy; `src` and `dst` are memory kinds, the devices are set for peer copies only."""
        for side, peer in (("src", src_device), ("dst", dst_device)):
            if peer is not None:
                more = {f"{side}DeviceId": peer, f"{side}ContextId": peer + 1, **more}
        more = {"bytes": nbytes, "copyKind": kind, "srcKind": src, "dstKind": dst, **more}
        self._gpu_row("MEMCPY", start, end, device, stream, correlation, pid, **more)

    def memset(
        self, start: int, end: int, nbytes: int, device: int, stream: int, correlation: int, pid: int,
        value: int = 0, mem_kind: int = DEVICE, **more: Any,
    ) -> None:  # fmt: skip
        more = {"bytes": nbytes, "value": value, "memKind": mem_kind, **more}
        self._gpu_row("MEMSET", start, end, device, stream, correlation, pid, **more)

    def graph_trace(
        self, start: int, end: int, device: int, stream: int, correlation: int, pid: int,
        graph: int = 1, graph_exec: int = 2,
    ) -> None:  # fmt: skip
        ids = {"graphId": graph, "graphExecId": graph_exec}
        self._gpu_row("GRAPH_TRACE", start, end, device, stream, correlation, pid, **ids)

    def sync(
        self, start: int, end: int, device: int, stream: int, correlation: int, pid: int,
        sync_type: int = 2,
    ) -> None:  # fmt: skip
        """Synchronization record; as nsys does, it names device 0 whatever the context's device is."""
        more = {"deviceId": 0, "contextId": device + 1, "syncType": sync_type}
        self._gpu_row("SYNCHRONIZATION", start, end, device, stream, correlation, pid, **more)

    def launch(
        self, tid: int, call: Span, span: Span, name: str = "gemm", device: int = 0,
        stream: int = 7, api: str = "cudaLaunchKernel_v7000", **kernel: Any,
    ) -> int:  # fmt: skip
        """Call and its kernel; `call` and `span` are (start, end) on the host and on the GPU."""
        correlation = self.api(api, *call, tid, event_class=_event_class(api))
        self.kernel(*span, device, stream, correlation, _pid(tid), name, **kernel)
        return correlation

    def memcpy(
        self, tid: int, call: Span, span: Span, nbytes: int, kind: int, src: int, dst: int, device: int = 0,
        stream: int = 7, api: str = "cudaMemcpyAsync_v3020", **copy: Any,
    ) -> int:  # fmt: skip
        correlation = self.api(api, *call, tid, event_class=_event_class(api))
        self.copy(*span, nbytes, kind, src, dst, device, stream, correlation, _pid(tid), **copy)
        return correlation

    def synchronize(
        self, tid: int, call: Span, api: str = "cudaStreamSynchronize_v3020", device: int = 0,
        stream: int = 7,
    ) -> int:  # fmt: skip
        correlation = self.api(api, *call, tid, event_class=_event_class(api))
        self.sync(*call, device, stream, correlation, _pid(tid))
        return correlation

    # --- NVTX ---

    def nvtx(
        self, event_type: int, name: str | None, start: int, end: int | None, tid: int | None,
        domain: int = 0, registered: bool = False, category: int | None = None, **more: Any,
    ) -> None:  # fmt: skip
        """Any NVTX row; a registered name is a string id in `textId`, another is in `text`."""
        if name is not None:
            more = {**({"textId": self.string(name)} if registered else {"text": name}), **more}
        row = {"globalTid": tid, "domainId": domain, "category": category, **more}
        self.row("NVTX_EVENTS", start=start, end=end, eventType=event_type, **row)

    def push_pop(self, name: str | None, start: int, end: int | None, tid: int, **more: Any) -> None:
        """Range of one thread, unfinished where `end` is None; `more`: domain, registered, category."""
        self.nvtx(PUSH_POP, name, start, end, tid, **more)

    def start_end(
        self, name: str | None, start: int, end: int | None, tid: int, end_tid: int | None = None, **more: Any
    ) -> None:
        self._range_id += 1
        self.nvtx(START_END, name, start, end, tid, endGlobalTid=end_tid, rangeId=self._range_id, **more)

    def mark(self, name: str, start: int, tid: int, **more: Any) -> None:
        self.nvtx(MARK, name, start, None, tid, **more)

    def domain(self, domain_id: int, name: str, start: int = REGISTERED_AT, tid: int | None = None) -> None:
        self.nvtx(DOMAIN, name, start, None, tid, domain_id)

    def category(
        self, category_id: int, name: str, domain: int = 0, start: int = REGISTERED_AT, tid: int | None = None
    ) -> None:
        self.nvtx(CATEGORY, name, start, None, tid, domain, category=category_id)

    # --- everything else ---

    def diagnostic(self, text: str, timestamp: int = 0, severity: int = 1, source: int = 3) -> None:
        row = {"text": text, "severity": severity, "source": source}
        self.row("DIAGNOSTIC_EVENT", timestamp=timestamp, timestampType=2, **row)

    def overhead(self, name: str, start: int, end: int, tid: int) -> None:
        self.row("PROFILER_OVERHEAD", start=start, end=end, globalTid=tid, nameId=self.string(name))

    def osrt(self, name: str, start: int, end: int, tid: int, callchain: int = 0) -> None:
        more = {"nameId": self.string(name), "eventClass": OSRT, "nestingLevel": 0, "callchainId": callchain}
        self.row("OSRT_API", start=start, end=end, globalTid=tid, **more)

    def callchain(self, chain_id: int, frames: Sequence[Frame], table: str = "CUDA_CALLCHAINS") -> int:
        """Stack of (symbol, module), leaf first; `0x...` symbols are marked unresolved."""
        for depth, (symbol, module) in enumerate(frames):
            ids = {"symbol": self.string(symbol), "module": self.string(module)}
            self.row(table, id=chain_id, stackDepth=depth, unresolved=int(symbol.startswith("0x")), **ids)
        return chain_id

    def sample(self, start: int, tid: int, frames: Sequence[Frame]) -> int:
        sample_id = len(self.rows["COMPOSITE_EVENTS"]) + 1
        self.row("COMPOSITE_EVENTS", id=sample_id, start=start, cpu=0, globalTid=tid, cpuCycles=1)
        return self.callchain(sample_id, frames, "SAMPLING_CALLCHAINS")
