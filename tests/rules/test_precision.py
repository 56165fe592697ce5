"""Whole programs: in a sick one the right finding leads, in a healthy one nothing is above information."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nsysparse.findings import Failed, Severity
from rules.program import DEVICE, DTOD, DTOH, HTOD, MS, PAGEABLE, PINNED, US, Program, serve

SICK: dict[str, tuple[str, Callable[[Program], object]]] = {}
HEALTHY: dict[str, Callable[[Program], object]] = {}


def sick(rule: str) -> Callable[[Callable[[Program], object]], Callable[[Program], object]]:
    def add(run: Callable[[Program], object]) -> Callable[[Program], object]:
        SICK[run.__name__] = (rule, run)
        return run

    return add


def healthy(run: Callable[[Program], object]) -> Callable[[Program], object]:
    HEALTHY[run.__name__] = run
    return run


def throttle(p: Program, behind: int = 2) -> None:
    """Wait for a kernel some steps back, as an event does."""
    if len(p.kernels) > behind:
        start = p.now
        p.think(max(p.kernels[-1 - behind][1] - start, US))
        p.b.synchronize(p.tid, (start, p.now), "cudaEventSynchronize_v3020")


# --- sick ---


@sick("pageable_copies")
def images_before_each_step(p: Program) -> None:
    def step(_: int) -> None:
        p.copy(38_535_168, HTOD, PAGEABLE, DEVICE, 6 * MS)
        for _ in range(20):
            p.launch(100 * US)
        p.copy(32_768, DTOH, DEVICE, PAGEABLE, 5 * US)
        p.sync()

    serve(p, 100, step)


@sick("pageable_copies")
def large_images_without_ranges(p: Program) -> None:
    """154 MB a step: as large as a table, but nothing says that it is one."""
    for _ in range(60):
        p.copy(154_140_672, HTOD, PAGEABLE, DEVICE, 20 * MS)
        for _ in range(20):
            p.launch(500 * US)
    p.sync()


@sick("state_offload")
def saved_with_plenty_of_compute(p: Program) -> None:
    def step(_: int) -> None:
        for _ in range(200):
            p.launch(100 * US)
        with p.range("save_kv"):
            for _ in range(32):
                p.copy(2_000_000, DTOH, DEVICE, PAGEABLE, 300 * US)

    serve(p, 40, step)


@sick("scalar_readback")
def many_items_a_step(p: Program) -> None:
    def step(_: int) -> None:
        for _ in range(10):
            p.launch(300 * US)
        for _ in range(60):
            p.copy(4, DTOH, DEVICE, PAGEABLE, 2 * US, call=12 * US)
            p.sync()

    serve(p, 60, step, "train_step")


@sick("host_sync")
def synchronized_after_each_layer(p: Program) -> None:
    def step(_: int) -> None:
        for _ in range(16):
            p.launch(40 * US)
            p.sync("cudaDeviceSynchronize_v3020", None)
            p.think(20 * US)

    serve(p, 150, step)


@sick("serial_copies")
def pinned_in_sequence(p: Program) -> None:
    for _ in range(200):
        p.copy(33_554_432, HTOD, PINNED, DEVICE, 650 * US)
        p.launch(600 * US)
        p.copy(33_554_432, DTOH, DEVICE, PINNED, 640 * US)
        throttle(p)
    p.sync()


@sick("streamed_weights")
def layers_from_the_host(p: Program) -> None:
    def step(_: int) -> None:
        for nbytes in (33_554_432, 67_108_864, 67_108_864, 16_777_216, 16_777_216, 33_554_432):
            p.copy(nbytes, HTOD, PINNED, DEVICE, nbytes // 50_000 * US)
            p.launch(20 * US)
        p.copy(4, DTOH, DEVICE, PAGEABLE, US)
        p.sync()

    serve(p, 60, step)


@sick("small_copies")
def forty_features(p: Program) -> None:
    def step(_: int) -> None:
        for _ in range(40):
            p.copy(1_024, HTOD, PAGEABLE, DEVICE, US, call=8 * US)
            p.sync()
            p.think(5 * US)
        for _ in range(4):
            p.launch(20 * US)

    serve(p, 300, step)


@sick("slow_copies")
def strided(p: Program) -> None:
    for n in range(300):
        p.copy(4_194_304, HTOD, PINNED, DEVICE, 2 * MS)
        p.launch(200 * US)
        if n % 4 == 3:
            p.sync()
    p.sync()


@sick("device_copies")
def cloned_cache(p: Program) -> None:
    for n in range(400):
        p.copy(512_000_000, DTOD, DEVICE, DEVICE, 250 * US)
        p.launch(200 * US)
        if n % 8 == 7:
            p.sync()


@sick("launch_bound")
def eager_decode(p: Program) -> None:
    def step(_: int) -> None:
        for _ in range(100):
            p.launch(4 * US)
            p.think(15 * US)
        p.copy(8, DTOH, DEVICE, PAGEABLE, US, call=10 * US)
        p.sync()

    serve(p, 100, step, "token")


@sick("idle_gaps")
def host_work_between_steps(p: Program) -> None:
    p.b.osrt("fopen", p.now, p.now + 30 * US, p.tid)
    for _ in range(200):
        p.think(4 * MS)
        with p.range("forward"):
            for _ in range(4):
                p.launch(100 * US)


@sick("low_fill")
def few_blocks(p: Program) -> None:
    for _ in range(300):
        p.launch(MS, grid=(4, 1, 1))
        throttle(p, 8)
    p.sync()


@sick("allocation_churn")
def pool_given_back_each_step(p: Program) -> None:
    def step(_: int) -> None:
        for _ in range(4):
            p.allocate(150 * US)
        p.launch(400 * US)
        p.sync()
        for _ in range(4):
            p.allocate(100 * US, "cudaFree_v3020")

    serve(p, 200, step)


# --- healthy ---


@healthy
def training(p: Program) -> None:
    """Input one batch ahead on a side stream, the loss read every 20th step, the device always busy."""

    def step(number: int) -> None:
        p.copy(67_108_864, HTOD, PINNED, DEVICE, 1_300 * US, stream=13)
        for _ in range(20):
            p.launch(450 * US)
        if number % 20 == 19:
            p.copy(4, DTOH, DEVICE, PAGEABLE, US)
            p.sync()
            p.think(60 * US)
        throttle(p, 40)

    serve(p, 120, step, "train_step")


@healthy
def training_that_reads_each_loss(p: Program) -> None:
    """A step of 20 ms that ends in .item(): what it costs is the launch of the next one."""

    def step(_: int) -> None:
        for _ in range(40):
            p.launch(500 * US)
        p.copy(4, DTOH, DEVICE, PAGEABLE, US)
        p.sync()
        p.think(50 * US)

    serve(p, 60, step, "train_step")


@healthy
def pipeline(p: Program) -> None:
    """In, compute and out on three streams."""
    for _ in range(200):
        p.copy(33_554_432, HTOD, PINNED, DEVICE, 650 * US, stream=13)
        p.launch(3 * MS)
        p.copy(33_554_432, DTOH, DEVICE, PINNED, 640 * US, stream=14)
        throttle(p)
    p.sync(stream=None)


@healthy
def decoding(p: Program) -> None:
    """One graph of 8 ms a token, whose number is fetched and needed for the next."""

    def step(_: int) -> None:
        for _ in range(80):
            p.launch(100 * US, call=US)
        p.copy(64, DTOH, DEVICE, PINNED, 2 * US)
        p.sync()
        p.think(30 * US)

    serve(p, 100, step, "token")


@healthy
def server_with_few_requests(p: Program) -> None:
    """Most of the time nothing is asked of it."""
    for _ in range(60):
        with p.range("request"):
            p.copy(4_194_304, HTOD, PINNED, DEVICE, 80 * US)
            for _ in range(32):
                p.launch(150 * US, call=US)
            p.copy(4_194_304, DTOH, DEVICE, PINNED, 80 * US)
            p.sync("cudaEventSynchronize_v3020")
        p.sleep(45 * MS, "clock_nanosleep")


@healthy
def two_threads(p: Program) -> None:
    """Each has a stream, together they keep the device busy; each waits for its own now and then."""
    for number in (1, 2):
        with p.on(p.thread(number)):
            for n in range(150):
                p.copy(16_777_216, HTOD, PINNED, DEVICE, 350 * US, stream=20 + number)
                p.launch(2 * MS, stream=10 + number)
                if n % 10 == 9:
                    p.sync(stream=10 + number)
    p.now = max(p.clock.values())


@healthy
def whole_graphs(p: Program) -> None:
    """The default mode: kernels and copies hidden, the device busy."""
    for _ in range(100):
        correlation = p.b.api("cudaGraphLaunch_v10000", p.now, p.now + 8 * US, p.tid)
        start = max(p.now + 10 * US, p.ready.get((0, 7), 0) + 3 * US)
        p.ready[0, 7] = start + 5 * MS
        p.b.graph_trace(start, start + 5 * MS, 0, 7, correlation, 4242)
        p.think(4 * MS)


@healthy
def a_model_is_loaded_and_then_served(p: Program) -> None:
    p.load(5_000_000_000)
    p.allocate(20 * MS)
    p.think(400 * MS)
    for _ in range(30):
        p.allocate(200 * US)
        p.copy(1_000_000, HTOD, PAGEABLE, DEVICE, 100 * US)
        p.launch(50 * US)
    for _ in range(300):
        p.launch(2 * MS)
        throttle(p, 4)
    p.sync()


@healthy
def short_and_busy(p: Program) -> None:
    """Twenty milliseconds, with one hiccup."""
    for n in range(40):
        p.launch(500 * US)
        if n == 20:
            p.sync()
            p.think(4 * MS)
    p.sync()


@pytest.mark.parametrize("name", SICK)
def test_the_right_finding_leads(name: str, tmp_path: Path) -> None:
    rule, run = SICK[name]
    p = Program()
    run(p)
    analysis = p.analyze(tmp_path)
    assert not [o for o in analysis.outcomes if isinstance(o, Failed)]
    top = analysis.findings[0]
    assert (top.rule, top.severity > Severity.INFO) == (rule, True), [(f.id, f.title) for f in analysis.findings]


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_wrong(name: str, tmp_path: Path) -> None:
    p = Program()
    HEALTHY[name](p)
    for window in (None, "whole"):
        analysis = p.analyze(tmp_path, window=window)
        assert not [o for o in analysis.outcomes if isinstance(o, Failed)]
        assert [(f.id, f.title) for f in analysis.findings if f.severity > Severity.INFO] == []
