"""Real programs for Nsight Systems: at least one a pattern that the rules name, and healthy controls.

    python record_patterns.py --list               names, the rule that must lead, nsys options
    python record_patterns.py NAME                 run one (under nsys profile, or plain)
    python record_patterns.py --record FOLDER [NAME ...]   record and export them all, or some ($NSYS, or nsys on PATH)
    python record_patterns.py --check FOLDER       analyze FOLDER/NAME.sqlite and hold the findings against what is
    expected

Each program runs for a few seconds on one GPU, and prints a line ``EXPECT NAME {...}`` with the bytes that its own
copies move, so that a recording can be checked against what the program asked for. Needs PyTorch; some need
transformers, CuPy or JAX and say so in their docstring. ``--check`` needs nsysparse.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEVICE = "cuda:0"
OPTIONS = "-t cuda,nvtx,osrt"
NSYS = os.environ.get("NSYS", "nsys")
Result = dict[str, int]


@dataclass(frozen=True)
class Load:
    """A program, the rule whose finding must lead, and further options of nsys."""

    run: Callable[[], Result]
    rule: str | None
    options: str


LOADS: dict[str, Load] = {}


def pattern(rule: str, options: str = "") -> Callable[[Callable[[], Result]], Callable[[], Result]]:
    """Register a program that shows a pattern."""

    def add(run: Callable[[], Result]) -> Callable[[], Result]:
        LOADS[run.__name__] = Load(run, rule, options)
        return run

    return add


def control(run: Callable[[], Result]) -> Callable[[], Result]:
    """Register a healthy program: nothing above information may be found."""
    LOADS[run.__name__] = Load(run, None, "")
    return run


@contextmanager
def span(name: str) -> Iterator[None]:
    """An NVTX range."""
    from torch.cuda import nvtx

    nvtx.range_push(name)
    try:
        yield
    finally:
        nvtx.range_pop()


def mlp(hidden: int, layers: int) -> Any:
    """A half-precision stack of linear layers on the device."""
    import torch

    torch.manual_seed(0)
    parts = [m for _ in range(layers) for m in (torch.nn.Linear(hidden, hidden, device=DEVICE), torch.nn.GELU())]
    return torch.nn.Sequential(*parts).half().eval()


def tiny_llama(layers: int = 8, hidden: int = 1024) -> Any:
    """A small Llama with random weights, on the device."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=4096,
    )
    return LlamaForCausalLM(config).to(DEVICE).to(torch.bfloat16).eval()


# --- 1: pageable copies before the work ---


@pattern("pageable_copies")
def pageable_images() -> Result:
    """A batch of images from NumPy, copied pageable and synchronously before each forward pass."""
    import numpy as np
    import torch

    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 7, 2, 3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(64, 128, 3, 2, 1),
        torch.nn.AdaptiveAvgPool2d(1),
    ).to(DEVICE)
    batch, moved = np.random.default_rng(0).standard_normal((64, 3, 224, 224), dtype=np.float32), 0
    with torch.inference_mode():
        for _ in range(150):
            with span("step"):
                with span("to_device"):
                    x = torch.from_numpy(batch).to(DEVICE)
                    moved += batch.nbytes
                with span("forward"):
                    y = net(x)
                with span("to_host"):
                    y.flatten(1).cpu()
    return {"h2d": moved, "d2h": 150 * 64 * 128 * 4}


@pattern("pageable_copies")
def pageable_tokens() -> Result:
    """Token ids and masks of a serving loop, each request copied pageable, on a thread of its own; no NVTX."""
    import torch

    net, moved = mlp(1024, 2), 0
    with torch.inference_mode():
        for request in range(1_500):
            ids = torch.full((256, 1024), request % 7, dtype=torch.float16)
            net(ids.to(DEVICE)).cpu()
            moved += ids.numel() * 2
    return {"h2d": moved, "d2h": moved}


# --- 2: state moved off or onto the device ---


@pattern("state_offload")
def kv_offloaded_cache() -> Result:
    """Transformers' own offloaded KV cache: evicted and reloaded layer by layer, each token."""
    import torch

    model = tiny_llama(layers=12)
    ids = torch.randint(0, 8192, (8, 1024), device=DEVICE)
    with torch.inference_mode():
        for request in range(3):
            with span(f"request:{request}"):
                model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=24,
                    min_new_tokens=24,
                    do_sample=False,
                    cache_implementation="offloaded",
                    pad_token_id=0,
                )
    return {}


@pattern("state_offload", "--cudabacktrace=memory --sample=process-tree")
def session_swap() -> Result:
    """A server of two sessions on one slot: the other's state is saved and its own restored before each request."""
    import torch

    net, size, moved = mlp(2048, 4), 32_000_000, 0
    slot = torch.zeros(size, dtype=torch.uint8, device=DEVICE)
    saved = {s: torch.zeros(size, dtype=torch.uint8) for s in ("a", "b")}
    x = torch.randn(16, 2048, device=DEVICE).half()
    with torch.inference_mode():
        for request in range(60):
            name, other = ("a", "b") if request % 2 else ("b", "a")
            with span("save_state"):
                saved[other] = slot.cpu()
            with span("restore_state"):
                slot.copy_(saved[name])
            for _ in range(20):
                x = net(x)
            moved += size
    torch.cuda.synchronize()
    return {"h2d": moved, "d2h": moved}


# --- 3: scalar read-back ---


@pattern("scalar_readback")
def losses_one_by_one() -> Result:
    """A training step that reads each sample's loss with .item(), one after the other, into a log."""
    import torch

    net = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, device=DEVICE, dtype=torch.bfloat16) for _ in range(8)])
    x, reads, log = torch.randn(1024, 4096, device=DEVICE).bfloat16(), 0, 0.0
    for _ in range(120):
        with span("train_step"):
            losses = net(x).float().square().mean(1)
            losses.mean().backward()
            with span("log"):
                for loss in losses[:96]:
                    log += loss.item()
                    reads += 1
            for p in net.parameters():
                p.grad = None
    return {"d2h": reads * 4}


@pattern("scalar_readback")
def clip_by_item() -> Result:
    """Gradient norms read one by one with .item(), at the end of long steps: many read-backs, and a small price."""
    import torch

    net = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, device=DEVICE) for _ in range(12)])
    x, reads = torch.randn(2048, 4096, device=DEVICE), 0
    for _ in range(25):
        with span("train_step"):
            net(x).square().mean().backward()
            with span("clip"):
                for p in net.parameters():
                    if p.grad.norm().item() > 1.0:
                        p.grad.mul_(0.5)
                    reads += 1
            for p in net.parameters():
                p.grad = None
    return {"d2h": reads * 4}


# --- 4: host synchronization ---


@pattern("host_sync")
def synchronize_each_layer() -> Result:
    """torch.cuda.synchronize() after each layer, as left behind by somebody who was timing."""
    import torch

    net = mlp(4096, 8)
    x = torch.randn(512, 4096, device=DEVICE).half()
    with torch.inference_mode():
        for _ in range(400):
            with span("step"):
                y = x
                for layer in net:
                    y = layer(y)
                    torch.cuda.synchronize()
    return {}


# --- 5: copy and compute in sequence ---


@pattern("serial_copies")
def pinned_in_sequence() -> Result:
    """Pinned, asynchronous copies in and out on the compute stream: nothing overlaps, nobody waits on the host."""
    import torch

    net, rows = mlp(4096, 3), 4096
    host = torch.randn(rows, 4096).half().pin_memory()
    back = torch.empty(rows, 4096).half().pin_memory()
    gate = [torch.cuda.Event() for _ in range(3)]
    moved = 0
    with torch.inference_mode():
        for step in range(400):
            x = host.to(DEVICE, non_blocking=True)
            y = net(x)
            back.copy_(y, non_blocking=True)
            moved += host.numel() * 2
            gate[step % 3].record()
            gate[(step + 1) % 3].synchronize()  # two steps behind
    torch.cuda.synchronize()
    return {"h2d": moved, "d2h": moved}


# --- 6: weights streamed in ---


@pattern("streamed_weights")
def weights_from_host() -> Result:
    """Layers of different sizes kept in pinned host memory and copied in before use, in every step."""
    import torch

    shapes = [(4096, 4096), (4096, 8192), (8192, 4096), (4096, 2048), (2048, 4096), (4096, 4096)]
    weights = [torch.randn(shape).half().mul_(0.01).pin_memory() for shape in shapes]
    x0, moved = torch.randn(64, 4096, device=DEVICE).half(), 0
    with torch.inference_mode():
        for _ in range(100):
            with span("step"):
                x = x0
                for weight in weights:
                    with span("stream_weights"):
                        w = weight.to(DEVICE, non_blocking=True)
                        moved += weight.numel() * 2
                    x = x @ w
                x.sum().item()
    return {"h2d": moved, "d2h": 100 * 2}


# --- 7: many small copies ---


@pattern("small_copies")
def forty_small_tensors() -> Result:
    """A batch of forty features, each a tensor of its own, copied one after the other."""
    import torch

    net, moved = mlp(1024, 2), 0
    x = torch.randn(16, 1024, device=DEVICE).half()
    features = [torch.full((128,), i, dtype=torch.int64) for i in range(40)]
    with torch.inference_mode():
        for _ in range(600):
            with span("step"):
                with span("features"):
                    on_device = [f.to(DEVICE) for f in features]
                    moved += sum(f.numel() * 8 for f in features)
                net(x + on_device[0][:1].half() * 0)
    torch.cuda.synchronize()
    return {"h2d": moved}


# --- 8: copies below the link's reach ---


@pattern("slow_copies")
def strided_columns() -> Result:
    """A narrow block of columns of a pinned table, copied row by row with cudaMemcpy2DAsync."""
    import torch

    cudart = ctypes.CDLL("libcudart.so.13" if torch.version.cuda.startswith("13") else "libcudart.so.12")
    rows, pitch, width, moved = 65_536, 4_096, 64, 0
    table = torch.zeros(rows * pitch, dtype=torch.uint8).pin_memory()
    block = torch.zeros(rows * width, dtype=torch.uint8, device=DEVICE)
    x = torch.randn(2048, 2048, device=DEVICE).half()
    copy = cudart.cudaMemcpy2DAsync
    copy.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_void_p,
        *[ctypes.c_size_t] * 3,
        ctypes.c_int,
        ctypes.c_void_p,
    ]
    stream = torch.cuda.current_stream().cuda_stream
    for step in range(500):
        status = copy(block.data_ptr(), width, table.data_ptr(), pitch, width, rows, 1, stream)
        assert status == 0, f"cudaMemcpy2DAsync returned {status}"
        moved += rows * width
        x = (x @ x).clamp_(-1, 1)
        if step % 4 == 3:
            torch.cuda.synchronize()
    return {"h2d": moved}


# --- 9: copies within and between devices ---


@pattern("device_copies")
def cache_cloned_each_token() -> Result:
    """A cache that is cloned each token instead of being written in place."""
    import torch

    net = mlp(2048, 2)
    cache, x, moved = (
        torch.zeros(512_000_000, dtype=torch.uint8, device=DEVICE),
        torch.randn(64, 2048, device=DEVICE).half(),
        0,
    )
    with torch.inference_mode():
        for token in range(800):
            cache = cache.clone()
            moved += cache.numel()
            x = net(x)
            if token % 8 == 7:
                torch.cuda.synchronize()
    return {"d2d": moved}


# --- 10: unified memory ---


@pattern("unified_memory", "--cuda-um-cpu-page-faults=true --cuda-um-gpu-page-faults=true")
def managed_to_and_fro() -> Result:
    """CuPy on managed memory (64 MB): the device scales it, the host reads it, again and again."""
    import cupy
    import numpy as np

    memory = cupy.cuda.malloc_managed(64_000_000)
    device = cupy.ndarray((16_000_000,), cupy.float32, memory)
    host = np.ctypeslib.as_array(ctypes.cast(memory.ptr, ctypes.POINTER(ctypes.c_float)), (16_000_000,))
    host[:] = 1
    total = 0.0
    for _ in range(60):
        device *= 1.0001
        cupy.cuda.Device().synchronize()
        total += float(host[::1024].sum())  # touches every page
        host[::1024] += 1e-6
    return {"sum": int(total)}


# --- 11: launch-bound ---


@pattern("launch_bound")
def eager_decode() -> Result:
    """Token by token through a small Llama in eager mode: hundreds of tiny kernels a token."""
    import torch

    model = tiny_llama(layers=12, hidden=512)
    ids = torch.randint(0, 8192, (1, 16), device=DEVICE)
    with torch.inference_mode():
        past, token = None, ids
        for _ in range(150):
            with span("token"):
                out = model(token, past_key_values=past, use_cache=True)
                past, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
    torch.cuda.synchronize()
    return {}


# --- 12: idle gaps ---


@pattern("idle_gaps", "--sample=process-tree")
def python_between_steps() -> Result:
    """Pure Python for some milliseconds before each short forward pass."""
    import torch

    net = mlp(4096, 4)
    x, words = torch.randn(256, 4096, device=DEVICE).half(), 0
    text = "the quick brown fox jumps over the lazy dog " * 3_000
    with torch.inference_mode():
        for _ in range(250):
            counts: dict[str, int] = {}
            for word in text.split():
                counts[word] = counts.get(word, 0) + 1
            words += len(counts)
            with span("forward"):
                net(x)
    torch.cuda.synchronize()
    return {"words": words}


class _Slow:
    """A data set whose items take a while."""

    def __len__(self) -> int:
        return 120 * 16

    def __getitem__(self, index: int) -> Any:
        import torch

        end = time.perf_counter() + 0.001
        while time.perf_counter() < end:
            pass
        return torch.full((4096,), float(index))


@pattern("idle_gaps")
def loader_too_slow() -> Result:
    """A DataLoader with one worker that cannot keep up."""
    import torch

    net, moved = mlp(4096, 4).float(), 0
    loader = torch.utils.data.DataLoader(_Slow(), batch_size=16, num_workers=1, pin_memory=True)  # type: ignore[arg-type]
    with torch.inference_mode():
        for x in loader:
            with span("batch"):
                net(x.to(DEVICE, non_blocking=True))
                moved += x.numel() * 4
    torch.cuda.synchronize()
    return {"h2d": moved}


# --- 13: busy but not full ---


@pattern("low_fill")
def four_blocks() -> Result:
    """A CuPy kernel of four blocks that runs all the time."""
    import cupy

    kernel = cupy.RawKernel(
        r"""extern "C" __global__ void walk(float *x, int n) {
            float a = x[threadIdx.x];
            for (int i = 0; i < n; ++i) a = a * 1.000001f + 0.5f;
            x[blockIdx.x * blockDim.x + threadIdx.x] = a;
        }""",
        "walk",
    )
    x = cupy.ones(4 * 128, cupy.float32)
    for step in range(400):
        kernel((4,), (128,), (x, 400_000))
        if step % 16 == 15:
            cupy.cuda.Device().synchronize()
    cupy.cuda.Device().synchronize()
    return {}


# --- 14: allocation churn ---


@pattern("allocation_churn")
def empty_cache_each_step() -> Result:
    """torch.cuda.empty_cache() in the loop: each step allocates from the driver again."""
    import torch

    x = torch.randn(2048, 2048, device=DEVICE).half()
    with torch.inference_mode():
        for _ in range(300):
            with span("step"):
                big = [torch.empty(64_000_000, dtype=torch.uint8, device=DEVICE) for _ in range(4)]
                y = x @ x
                del big, y
                torch.cuda.empty_cache()
    return {}


# --- 15: the recording ---


@pattern("recording")
def graphs_recorded_whole() -> Result:
    """A large CUDA graph, replayed: in nsys's default mode its kernels are hidden."""
    import torch

    net = mlp(4096, 16)
    x = torch.randn(1024, 4096, device=DEVICE).half()
    with torch.inference_mode():
        net(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            net(x)
        for _ in range(300):
            graph.replay()
    torch.cuda.synchronize()
    return {}


# --- healthy controls ---


@control
def healthy_training() -> Result:
    """Large matrices, pinned input one batch ahead on a side stream, the loss read every 20th step."""
    import torch

    net = torch.nn.Sequential(*[torch.nn.Linear(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(4)])
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, fused=True)
    host = [torch.randn(4096, 8192).bfloat16().pin_memory() for _ in range(2)]
    side, moved, reads = torch.cuda.Stream(), host[0].numel() * 2, 0
    following = host[0].to(DEVICE, non_blocking=True)
    for step in range(120):
        with span("train_step"):
            x = following
            x.record_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                following = host[step % 2].to(DEVICE, non_blocking=True)
                moved += host[0].numel() * 2
            loss = net(x).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.current_stream().wait_stream(side)
            if step % 20 == 19:
                loss.item()
                reads += 1
    torch.cuda.synchronize()
    return {"h2d": moved, "d2h": reads * 4}


@control
def healthy_graph() -> Result:
    """A CUDA graph of some milliseconds, replayed back to back, with pinned copies beside it."""
    import torch

    net = mlp(4096, 32)
    x = torch.randn(2048, 4096, device=DEVICE).half()
    host, side, moved = torch.randn(2048, 4096).half().pin_memory(), torch.cuda.Stream(), 0
    landing = torch.empty_like(x)
    with torch.inference_mode():
        net(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            net(x)
        for _ in range(300):
            with torch.cuda.stream(side):
                landing.copy_(host, non_blocking=True)
                moved += host.numel() * 2
            graph.replay()
    torch.cuda.synchronize()
    return {"h2d": moved}


@control
def healthy_pipeline() -> Result:
    """In, compute and out on three streams, two buffers each: everything overlaps."""
    import torch

    net, rows, moved = mlp(4096, 16), 4096, 0
    host = [torch.randn(rows, 4096).half().pin_memory() for _ in range(2)]
    back = [torch.empty(rows, 4096).half().pin_memory() for _ in range(2)]
    x, y = ([torch.empty(rows, 4096, device=DEVICE).half() for _ in range(2)] for _ in range(2))
    into, compute, out = (torch.cuda.Stream() for _ in range(3))
    loaded, used, done, fetched = ([torch.cuda.Event() for _ in range(2)] for _ in range(4))
    with torch.inference_mode():
        for step in range(250):
            i = step % 2
            with torch.cuda.stream(into):
                into.wait_event(used[i])
                x[i].copy_(host[i], non_blocking=True)
                loaded[i].record()
            with torch.cuda.stream(compute):
                compute.wait_event(loaded[i])
                compute.wait_event(fetched[i])
                y[i].copy_(net(x[i]))
                used[i].record()
                done[i].record()
            with torch.cuda.stream(out):
                out.wait_event(done[i])
                back[i].copy_(y[i], non_blocking=True)
                fetched[i].record()
            moved += host[i].numel() * 2
    torch.cuda.synchronize()
    return {"h2d": moved, "d2h": moved}


@control
def healthy_quiet_server() -> Result:
    """Twenty requests a second, each some milliseconds of graph with pinned copies: mostly idle, and nothing wrong."""
    import torch

    net = mlp(4096, 32)
    x = torch.randn(512, 4096, device=DEVICE).half()
    host, back = torch.randn(512, 4096).half().pin_memory(), torch.empty(512, 4096).half().pin_memory()
    done, moved = torch.cuda.Event(), 0
    with torch.inference_mode():
        net(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = net(x)
        for _ in range(80):
            with span("request"):
                x.copy_(host, non_blocking=True)
                graph.replay()
                back.copy_(y, non_blocking=True)
                done.record()
                done.synchronize()
                moved += host.numel() * 2
            time.sleep(0.05)
    return {"h2d": moved, "d2h": moved}


@control
def healthy_jax() -> Result:
    """JAX: a whole loop under one jit, on arrays that stay on the device."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def loop(x: Any, w: Any) -> Any:
        return jax.lax.fori_loop(0, 200, lambda _, a: jnp.tanh(a @ w), x)

    key = jax.random.key(0)
    x, w = jax.random.normal(key, (8192, 8192), jnp.bfloat16), jax.random.normal(key, (8192, 8192), jnp.bfloat16)
    loop(x, w).block_until_ready()
    for _ in range(5):
        x = loop(x, w)
    x.block_until_ready()
    return {}


@control
def healthy_threads() -> Result:
    """Two threads with streams of their own that keep the device full, pinned input beside the work."""
    import torch

    moved = [0, 0]

    def serve(number: int) -> None:
        stream, side = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.inference_mode():
            net = mlp(4096, 16)
            host = torch.randn(2048, 4096).half().pin_memory()
            x, landing = (torch.empty(2048, 4096, device=DEVICE).half() for _ in range(2))
            for step in range(150):
                with torch.cuda.stream(side):
                    landing.copy_(host, non_blocking=True)
                net(x)
                moved[number] += host.numel() * 2
                if step % 10 == 9:
                    stream.synchronize()

    threads = [threading.Thread(target=serve, args=(n,)) for n in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    torch.cuda.synchronize()
    return {"h2d": sum(moved)}


# --- running, recording, checking ---


def run(name: str) -> None:
    """Run one program and print what its own copies moved."""
    began = time.perf_counter()
    result = LOADS[name].run()
    print("EXPECT", name, json.dumps(result), f"{time.perf_counter() - began:.2f}s", flush=True)


def record(folder: Path, names: list[str]) -> int:
    """Record and export programs; one that fails does not stop the others."""
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    exports = []
    for name in names:
        target = folder / name
        options = [] if LOADS[name].options.startswith("-t ") else OPTIONS.split()
        profile = [NSYS, "profile", "-o", str(target), "-f", "true", *options, *LOADS[name].options.split()]
        done = subprocess.run(
            [*profile, sys.executable, sys.argv[0], name], capture_output=True, text=True, timeout=180, check=False
        )
        said = [line for line in done.stdout.splitlines() if line.startswith("EXPECT")]
        print(said[0] if said else f"FAILED {name}: {(done.stderr or done.stdout).strip()[-400:]}", flush=True)
        failed += not said
        if said:
            export = [NSYS, "export", "--type", "sqlite", "--include-blobs=true", "-f", "true"]
            command = [*export, "-o", f"{target}.sqlite", f"{target}.nsys-rep"]
            exports.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    for each in exports:
        each.wait()
    return failed


def check(folder: Path) -> int:
    """Hold the findings on recordings against what is expected of each program."""
    from nsysparse.analysis import analyze
    from nsysparse.findings import Failed, Severity
    from nsysparse.source import open_trace

    wrong = 0
    for name, load in LOADS.items():
        path = folder / f"{name}.sqlite"
        if not path.exists():
            print(f"-       {name}: not recorded")
            continue
        with open_trace(path) as trace:
            analysis = analyze(trace)
        above = [f for f in analysis.findings if f.severity > Severity.INFO]
        broken = [o for o in analysis.outcomes if isinstance(o, Failed)]
        if load.rule is None:
            good = not above
        elif load.rule == "recording":
            good = any(f.rule == "recording" for f in analysis.findings) and not above
        else:
            good = bool(above) and above[0].rule == load.rule
        good = good and not broken
        wrong += not good
        print(f"{'ok     ' if good else 'WRONG  '} {name}: expected {load.rule or 'nothing above information'}")
        for f in [*above, *broken]:
            print(f"          {getattr(f, 'severity', 'failed')!s}  {getattr(f, 'id', f)}  {getattr(f, 'title', '')}")
    return wrong


def main(arguments: list[str]) -> int:
    """The command line."""
    if arguments[:1] == ["--list"]:
        for name, load in LOADS.items():
            print(f"{name:26} {load.rule or '(healthy control)':20} {OPTIONS} {load.options}")
        return 0
    if arguments[:1] == ["--record"] and len(arguments) > 1:
        return record(Path(arguments[1]), arguments[2:] or list(LOADS))
    if arguments[:1] == ["--check"] and len(arguments) == 2:
        return check(Path(arguments[1]))
    if len(arguments) == 1 and arguments[0] in LOADS:
        run(arguments[0])
        return 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
