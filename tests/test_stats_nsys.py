"""CUDA's reports of small exports, as nsys 2025.3.1 prints them: ties, rounding, priorities, unified memory, rules."""

import pytest
from export_builder import ExportBuilder, global_id

from nsysparse.outputs.tables import to_csv
from nsysparse.source import open_trace
from nsysparse.stats import find_reports, find_rules, make_table

RELEASE = "2025.3.2.0"
KNOWN = find_reports() | find_rules()
T = global_id(100, 100)
COPY, SET = "cudaMemcpy_v3020", "cudaMemset_v3020"


def printed(path, report):
    with open_trace(path) as trace:
        return to_csv(make_table(KNOWN[report], [trace], top=0)).splitlines()


@pytest.fixture
def builder():
    b = ExportBuilder(RELEASE)
    b.gpu(0, "H", 0)
    b.cuda_device(100, 0, 0)
    return b


def test_sizes_and_throughputs_are_rounded_as_nsys_rounds_them(builder, tmp_path):
    copies = ((62500, 1000), (187500, 1000), (168500, 7540), (312500, 0), (5918, 1036), (437500, 2 * 10**9))
    for i, (size, took) in enumerate(copies):
        builder.memcpy(T, (7000 + 10 * i, 7005 + 10 * i), (8000 + i, 8000 + i + took), size, 1, 0, 2)
    builder.launch(T, (7130, 7135), (8300, 8310), static_shared=62500, dynamic_shared=187500)
    path = builder.write(tmp_path / "t.sqlite")
    cells = [line.split(",") for line in printed(path, "cuda_gpu_trace")[1:]]
    # Halves that are exact go to the even digit; 0.1685 and 5712.3495 are just above the middle.
    assert [(c[12], c[13]) for c in cells] == [
        *(("0.062", "62500.000"), ("0.188", "187500.000"), ("0.169", "22347.312"), ("0.312", "")),
        *(("0.006", "5712.350"), ("0.438", "0.000"), ("", "")),
    ]
    assert cells[-1][10:12] == ["0.062", "0.188"]
    assert printed(path, "cuda_gpu_mem_size_sum")[1].split(",")[:6] == [
        "1.174",
        "6",
        "0.196",
        "0.178",
        "0.006",
        "0.438",
    ]


def test_the_throughput_is_bytes_times_whole_hertz(builder, tmp_path):
    rows = [(1 + 7919 * i, 801 + 13 * i) for i in range(3_000)]
    for i, (size, took) in enumerate(rows):
        builder.memcpy(T, (10 * i, 10 * i + 5), (10 * i, 10 * i + took), size, 1, 0, 2)
    lines = printed(builder.write(tmp_path / "t.sqlite"), "cuda_gpu_trace")[1:]
    want = [(f"{size / 1e6:.3f}", f"{size * (10**9 // took) / 1e6:.3f}") for size, took in rows]
    assert [tuple(line.split(",")[12:14]) for line in lines] == want


def test_a_call_has_the_names_and_priorities_of_its_thread(builder, tmp_path):
    for thread, start in ((T, 10), (T + 1, 20), (T + 2, 30), (T + 3, 40)):
        builder.api(COPY, start, start + 5, thread)
    names = ((T, "main", 20), (T, "again", 30), (T + 1, "v", None), (T + 1, "v2", 5), (T + 2, None, 0))
    for thread, name, priority in names:
        builder.row("ThreadNames", nameId=builder.string(name) if name else 9999, priority=priority, globalTid=thread)
    lines = printed(builder.write(tmp_path / "t.sqlite"), "cuda_api_trace")
    assert lines[0].endswith(",Tid,T-Pri,Thread Name")
    assert [",".join(line.split(",")[6:]) for line in lines[1:]] == [
        *("100,20,main", "100,30,again", "101,,v", "101,5,v2", "102,0,", "103,,"),
    ]


def names(path, report):
    return [line.split(",")[-1] for line in printed(path, report)[1:]]


def test_the_order_of_equal_totals(builder, tmp_path):
    for name, calls in (("cuB", ((1, 11),)), ("cuA", ((20, 25), (30, 35)))):
        for start, end in calls:
            builder.api(name, start, end, T)
            builder.osrt(f"os{name}", start, end, T)
    for i, (kernel, took) in enumerate((("a", 5), ("a", 5), ("b", 10), ("c", 10))):
        builder.launch(T, (100 + i, 101 + i), (1000 * i, 1000 * i + took), kernel, demangled=kernel)
    path = builder.write(tmp_path / "t.sqlite")
    assert names(path, "cuda_api_sum") == ["cuB", "cuA", "cudaLaunchKernel"]  # by the names' numbers in the export
    assert names(path, "osrt_sum") == ["oscuB", "oscuA"]
    assert names(path, "cuda_gpu_kern_sum") == ["b", "c", "a"]  # the longer average, then the name
    assert names(path, "cuda_gpu_sum") == ["a", "b", "c"]
    assert names(path, "cuda_api_gpu_sum")[:5] == ["a", "b", "c", "cuA", "cuB"]
    assert names(path, "cuda_gpu_kern_gb_sum") == ["b", "c", "a"]


def test_the_order_of_launches_with_equal_averages(builder, tmp_path):
    for i, (pid, tid, api, kernel) in enumerate((
        *((200, 200, "cudaLaunchKernel_v7000", "a"), (100, 101, "cudaLaunchKernel_v7000", "a")),
        *((100, 100, "cudaLaunchKernel_v7000", "b"), (100, 100, "cudaLaunchKernel_v7000", "a")),
        (100, 100, "cudaGraphLaunch_v10000", "z"),
    )):  # fmt: skip
        at = 100 * i
        builder.launch(global_id(pid, tid), (at, at + 5), (at + 20, at + 30), kernel, api=api, demangled=kernel)
    for pid, launches in ((300, 8), (50, 9)):  # 30.125 and 30.111 on average: both are 30.1
        for i in range(launches):
            at = 1000 + 100 * i
            builder.launch(global_id(pid, pid), (at, at + 5), (at + 20, at + 30 + (i == 0)), "e", demangled="e")
    lines = [line.split(",") for line in printed(builder.write(tmp_path / "t.sqlite"), "cuda_kern_exec_sum")[1:]]
    assert [(c[0], c[5]) for c in lines[:2]] == [("50", "30.1"), ("300", "30.1")]
    assert [(c[0], c[1], c[-2], c[-1]) for c in lines[2:]] == [
        ("100", "100", "cudaGraphLaunch_v10000", "z"),
        ("100", "100", "cudaLaunchKernel", "a"),
        ("100", "100", "cudaLaunchKernel", "b"),
        ("100", "101", "cudaLaunchKernel", "a"),
        ("200", "200", "cudaLaunchKernel", "a"),
    ]


def test_unified_memory_as_nsys_prints_it(builder, tmp_path):
    for i, (kind, size, address) in enumerate(((11, 4096, 4096), (11, 8192, 8192), (12, 1000, 4096))):
        builder.copy(8400 + i, 8500 + 2 * i, size, kind, 7, 7, 0, 0, 0, 100, virtualAddress=address)
    fault = {"globalPid": global_id(100)}
    builder.row("CUDA_UM_CPU_PAGE_FAULT_EVENTS", start=50, address=12288, **fault)
    for _ in range(2):
        builder.row("CUDA_UM_GPU_PAGE_FAULT_EVENTS", start=60, end=70, address=4096, numberOfPageFaults=3, **fault)
    path = builder.write(tmp_path / "t.sqlite")
    assert printed(path, "um_sum") == [
        "Virtual Address,HtoD Migration size (MB),DtoH Migration size (MB),CPU Page Faults, GPU Page Faults,"
        "Migration Throughput (MB/s)",
        "0x2000,0.008,,,,81108.910",
        "0x1000,0.004,0.001,,6,25227.723",
        "0x3000,,,1,,",
    ]
    assert printed(path, "um_total_sum") == [
        "Total HtoD Migration Size (MB),Total DtoH Migration Size (MB),Total CPU Page Faults,Total GPU PageFaults,"
        "Minimum Virtual Address,Maximum Virtual Address",
        "0.012,0.001,1,6,0x1000,0x3000",
    ]
    first = printed(path, "cuda_gpu_trace")[1]
    assert first == (
        "8400,100,0,,,,,,,,,,0.004,40960.000,Unknown,Unknown,H (0),1,,,[CUDA memcpy Unified Host-to-Device]"
    )


def test_synchronous_copies_are_the_runtimes_and_no_small_ones_to_the_device(builder, tmp_path):
    kinds = ((1, 0, 2), (1, 1, 2), (2, 2, 0), (2, 2, 1), (8, 2, 2), (9, 0, 1), (1, 4, 2))
    copies = [(size, *kind, COPY) for size in (62_500, 65_536) for kind in kinds]
    other = ("cuMemcpyHtoD_v2", "cudaMemcpyAsync_v3020", "cudaMemcpyToSymbol_v3020")
    for at, (size, kind, src, dst, api) in enumerate([*copies, *((10**6, 1, 0, 2, api) for api in other)], 1):
        builder.memcpy(
            T, (1000 * at, 1000 * at + 50), (1000 * at + 100, 1000 * at + 200), size, kind, src, dst, api=api
        )
    lines = printed(builder.write(tmp_path / "t.sqlite"), "cuda_memcpy_sync")
    starts = [int(line.split(",")[1]) // 1000 for line in lines[1:]]
    assert starts == [3, 4, 5, 6, *range(8, 15), 17]
    assert lines[1] == "100,3100,Device,Pageable,0.062,100,0,1,,7,cudaMemcpy_v3020"


def test_synchronous_fills_are_those_of_pinned_and_managed_memory(builder, tmp_path):
    for at, (kind, api) in enumerate([*((k, SET) for k in range(8)), (1, "cuMemsetD8_v2"), (1, "cudaMemsetAsync")]):
        call = builder.api(api, 1000 * at, 1000 * at + 50, T)
        builder.memset(1000 * at + 100, 1000 * at + 200, 1000, 0, 7, call, 100, mem_kind=kind)
    assert printed(builder.write(tmp_path / "t.sqlite"), "cuda_memset_sync") == [
        "Duration (ns),Start (ns),Memory Kind,Bytes (MB),PID,Device ID,Context ID,Green Context ID,Stream ID,API Name",
        "100,1100,Pinned,0.001,100,0,1,,7,cudaMemset_v3020",
        "100,4100,Managed,0.001,100,0,1,,7,cudaMemset_v3020",
    ]
