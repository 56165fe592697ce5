"""More healthy controls, for more_patterns.py: nothing above information may be found in them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from record_patterns import DEVICE, LOADS, Load, Result, mlp, span


def control(options: str = "") -> Callable[[Callable[[], Result]], Callable[[], Result]]:
    """Register a healthy program with nsys options of its own."""

    def add(run: Callable[[], Result]) -> Callable[[], Result]:
        LOADS[run.__name__] = Load(run, None, options)
        return run

    return add


class _Images:
    """A data set whose items cost next to nothing."""

    def __len__(self) -> int:
        return 80 * 64

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.full((4096,), float(index % 7))


@control()
def healthy_prefetch() -> Result:
    """A loader with workers and pinned memory that keeps up; the next batch is copied on a side stream meanwhile."""
    import torch

    net, moved = mlp(8192, 12).bfloat16(), 0
    grow = torch.randn(4096, 8192, device=DEVICE).bfloat16()
    loader = torch.utils.data.DataLoader(
        _Images(),  # type: ignore[arg-type]
        batch_size=64,
        num_workers=4,
        pin_memory=True,
        prefetch_factor=4,
    )
    side, batches = torch.cuda.Stream(), iter(loader)

    def fetch() -> Any:
        nonlocal moved
        x = next(batches, None)
        if x is None:
            return None
        moved += x.numel() * 4
        with torch.cuda.stream(side):
            return x.to(DEVICE, non_blocking=True)

    with torch.inference_mode():
        following = fetch()
        while following is not None:
            torch.cuda.current_stream().wait_stream(side)
            x, following = following, fetch()
            net((x.bfloat16() @ grow).repeat(64, 1))
    torch.cuda.synchronize()
    return {"h2d": moved}


@control("--cuda-graph-trace=node")
def healthy_graph_decode() -> Result:
    """Decode steps as a CUDA graph, tokens left on the device and fetched into pinned memory every 32nd step."""
    import torch

    net, rows = mlp(4096, 12), 512
    x = torch.randn(rows, 4096, device=DEVICE).half()
    tokens, host, reads = torch.zeros(rows, dtype=torch.int64, device=DEVICE), torch.zeros(rows).long().pin_memory(), 0
    with torch.inference_mode():
        net(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tokens.copy_(net(x).argmax(-1))
        done = torch.cuda.Event()
        for step in range(800):
            graph.replay()
            if step % 32 == 31:
                if step > 32:
                    done.synchronize()  # the one before: never dry
                host.copy_(tokens, non_blocking=True)
                done.record()
                reads += 1
    torch.cuda.synchronize()
    return {"d2h": reads * rows * 8}


@control("--sample=process-tree")
def healthy_low_load() -> Result:
    """An inference server with a queue: a request every 30 ms, some milliseconds of work each; idle between."""
    import torch

    net, work, moved = mlp(8192, 6), queue.Queue(), [0]  # type: ignore[var-annotated]
    host, back = torch.randn(1024, 8192).half().pin_memory(), torch.empty(1024, 8192).half().pin_memory()

    def serve() -> None:
        done = torch.cuda.Event()
        with torch.inference_mode():
            while work.get() is not None:
                with span("request"):
                    back.copy_(net(host.to(DEVICE, non_blocking=True)), non_blocking=True)
                    done.record()
                    done.synchronize()
                    moved[0] += host.numel() * 2

    server = threading.Thread(target=serve)
    server.start()
    for _ in range(60):
        work.put(1)
        time.sleep(0.03)
    work.put(None)
    server.join()
    return {"h2d": moved[0], "d2h": moved[0]}


@control("-t cuda,osrt")
def healthy_low_load_bare() -> Result:
    """The same without NVTX: bursts of requests of 4 ms at irregular distances."""
    import torch

    net, moved = mlp(8192, 6), 0
    host, back = torch.randn(1024, 8192).half().pin_memory(), torch.empty(1024, 8192).half().pin_memory()
    done = torch.cuda.Event()
    with torch.inference_mode():
        for request in range(60):
            back.copy_(net(host.to(DEVICE, non_blocking=True)), non_blocking=True)
            done.record()
            done.synchronize()
            moved += host.numel() * 2
            time.sleep(0.01 + 0.02 * (request % 5 == 0))
    return {"h2d": moved, "d2h": moved}


@control()
def healthy_accumulation() -> Result:
    """Gradient accumulation over eight micro-batches; the loss is read every 50th step."""
    import torch

    net = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, device=DEVICE, dtype=torch.bfloat16) for _ in range(6)])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
    x, total, reads = torch.randn(4096, 4096, device=DEVICE).bfloat16(), 0.0, 0
    running = torch.zeros((), device=DEVICE)
    for step in range(150):
        with span("micro_batch"):
            loss = net(x).float().square().mean() / 8
            loss.backward()
            running += loss.detach()
        if step % 8 == 7:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step % 50 == 49:
            total += running.item()
            reads += 1
    torch.cuda.synchronize()
    return {"d2h": reads * 4}


@control()
def healthy_after_loading() -> Result:
    """A model of 2 GB loaded from pageable memory, then seconds of plain matrix work."""
    import torch

    moved, weights = 0, []
    for _ in range(16):
        host = torch.empty(8192, 8192, dtype=torch.bfloat16).fill_(1e-4)
        weights.append(host.to(DEVICE))
        moved += host.numel() * 2
    x = torch.randn(8192, 8192, device=DEVICE).bfloat16()
    with torch.inference_mode():
        for _ in range(60):
            for w in weights:
                x = x @ w
    torch.cuda.synchronize()
    return {"h2d": moved}


@control("-t cuda")
def healthy_bandwidth() -> Result:
    """CuPy: elementwise passes over gigabytes: bound by memory, but full."""
    import cupy

    a, b = cupy.ones(200_000_000, cupy.float32), cupy.ones(200_000_000, cupy.float32)
    for _ in range(700):
        cupy.multiply(a, 1.0001, out=b)
        cupy.add(a, b, out=a)
    cupy.cuda.Device().synchronize()
    return {}


@control()
def healthy_cupy_streams() -> Result:
    """CuPy: two streams that take turns, pinned buffers each; copies of one beside the kernels of the other."""
    import cupy

    copy, to_device = cupy.cuda.runtime.memcpyAsync, cupy.cuda.runtime.memcpyHostToDevice
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    pinned = [cupy.cuda.alloc_pinned_memory(16_777_216) for _ in range(2)]
    w, landing, moved = cupy.ones((4096, 4096), cupy.float32) * 1e-4, [], 0
    for _ in range(2):
        landing.append(cupy.empty((1024, 4096), cupy.float32))
    cupy.cuda.Device().synchronize()
    for step in range(400):
        i = step % 2
        with streams[i]:
            copy(landing[i].data.ptr, pinned[i].ptr, 16_777_216, to_device, streams[i].ptr)
            moved += 16_777_216
            y = landing[i] @ w
            y = y @ w
            y @ w
        if step % 40 == 39:
            streams[i].synchronize()
    cupy.cuda.Device().synchronize()
    return {"h2d": moved}


@control()
def healthy_jax_training() -> Result:
    """JAX: a jitted training step with donated state; the loss is fetched every 50th step.

    Nsight Systems 2025.3 lost the events of its command buffers, and the finding on the recording says so.
    """
    import jax
    import jax.numpy as jnp

    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = jnp.tanh(x @ w)
        return jnp.square(x.astype(jnp.float32)).mean()

    def step(ws: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(ws, x)
        return [w - 1e-4 * g for w, g in zip(ws, grads, strict=True)], value

    update = jax.jit(step, donate_argnums=0)
    key, total = jax.random.key(0), 0.0
    ws = [jax.random.normal(key, (8192, 8192), jnp.bfloat16) * 0.01 for _ in range(4)]
    x = jax.random.normal(key, (4096, 8192), jnp.bfloat16)
    for number in range(150):
        ws, value = update(ws, x)
        if number % 50 == 49:
            total += float(value)
    return {"d2h": 12}


@control("--cuda-um-cpu-page-faults=true --cuda-um-gpu-page-faults=true")
def healthy_managed() -> Result:
    """Managed memory, prefetched once, then used on the device alone."""
    import cupy

    memory = cupy.cuda.malloc_managed(512_000_000)
    x, stream = cupy.ndarray((128_000_000,), cupy.float32, memory), cupy.cuda.get_current_stream()
    cupy.cuda.runtime.memPrefetchAsync(memory.ptr, 512_000_000, 0, stream.ptr)
    x[:] = 1
    for _ in range(2_000):
        cupy.multiply(x, 1.00001, out=x)
    cupy.cuda.Device().synchronize()
    return {}


@control()
def healthy_background_saving() -> Result:
    """A second thread saves a snapshot to pinned memory on its own stream, while the first keeps the device full."""
    import torch

    net, stop, moved = mlp(8192, 8), threading.Event(), [0]
    x = torch.randn(4096, 8192, device=DEVICE).half()
    state = torch.zeros(256_000_000, dtype=torch.uint8, device=DEVICE)
    host = torch.zeros(256_000_000, dtype=torch.uint8).pin_memory()

    def save() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while not stop.wait(0.1):
                host.copy_(state, non_blocking=True)
                stream.synchronize()
                moved[0] += state.numel()

    saver = threading.Thread(target=save)
    saver.start()
    with torch.inference_mode():
        for step in range(250):
            with span("step"):
                net(x)
            if step % 25 == 24:
                torch.cuda.current_stream().synchronize()
    torch.cuda.synchronize()
    stop.set()
    saver.join()
    return {"d2h": moved[0]}


@control()
def healthy_small_labels() -> Result:
    """Labels of 2 KB, pageable, and one loss read a step of some 30 ms: habits, but they cost nothing."""
    import torch

    net = torch.nn.Sequential(*[torch.nn.Linear(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(4)])
    x, labels, moved = torch.randn(4096, 8192, device=DEVICE).bfloat16(), torch.zeros(256, dtype=torch.int64), 0
    for _ in range(60):
        with span("train_step"):
            y = labels.to(DEVICE)
            moved += labels.numel() * 8
            loss = net(x)[:256].float().gather(1, y[:, None]).mean() + net(x).float().square().mean()
            loss.backward()
            for p in net.parameters():
                p.grad = None
            loss.item()
    return {"h2d": moved, "d2h": 60 * 4}


@control("--cudabacktrace=all")
def healthy_long_steps() -> Result:
    """torch.cuda.synchronize() after each step of some 20 ms: it waits for work, and costs nothing."""
    import torch

    net = mlp(8192, 16)
    x = torch.randn(4096, 8192, device=DEVICE).half()
    with torch.inference_mode():
        for _ in range(80):
            with span("step"):
                net(x)
                torch.cuda.synchronize()
    return {}
