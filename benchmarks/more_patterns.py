"""A second variation of every pattern: other sizes, frameworks, threads and options than record_patterns.py.

    python more_patterns.py NAME | --list | --record FOLDER [NAME ...] | --check FOLDER

Needs PyTorch, CuPy and JAX; some need transformers and accelerate. Each docstring says what an expert would find.
"""

from __future__ import annotations

import os
import queue
import sys
import tempfile
import threading
import time
from typing import Any

import more_controls  # noqa: F401  registers the healthy ones
from record_patterns import DEVICE, Result, main, mlp, pattern, span, tiny_llama

BACKTRACES = "--cudabacktrace=all --sample=process-tree"


# --- 1: pageable copies before the work ---


@pattern("pageable_copies", BACKTRACES)
def cuda_each_batch() -> Result:
    """Features of 8 MB with .cuda() before each forward pass of about their length; no NVTX, stacks."""
    import torch

    net, moved = mlp(2048, 6), 0
    features = [torch.randn(2048, 2048).half() for _ in range(4)]
    with torch.inference_mode():
        for step in range(200):
            net(features[step % 4].cuda())
            moved += features[0].numel() * 2
    torch.cuda.synchronize()
    return {"h2d": moved}


@pattern("idle_gaps")
def asarray_each_step() -> Result:
    """CuPy: asarray of a NumPy block of 24 MB before each step: the host copies it into a pinned buffer of CuPy's."""
    import cupy
    import numpy as np

    block, w, moved = np.ones((1024, 6144), np.float32), cupy.ones((6144, 512), cupy.float32), 0
    for _ in range(150):
        y = cupy.asarray(block) @ w
        y.sum(axis=0).get()
        moved += block.nbytes
    return {"h2d": moved, "d2h": 150 * 512 * 4}


@pattern("idle_gaps")
def arrays_into_jit() -> Result:
    """JAX: NumPy arrays of 32 MB handed to a jitted function, each call: the host copies them to a buffer of XLA's."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    step = jax.jit(lambda a, w: jnp.tanh(a @ w).sum(axis=0))
    block, w = np.ones((2048, 4096), np.float32), jnp.ones((4096, 1024), jnp.float32)
    moved = 0
    for _ in range(100):
        step(block, w).block_until_ready()
        moved += block.nbytes
    return {"h2d": moved}


@pattern("pageable_copies", "-t cuda,nvtx")
def pageable_workers() -> Result:
    """Two serving threads, a stream each: 4 MB in pageable, forward, out pageable; NVTX a request."""
    import torch

    net, moved = mlp(2048, 4), [0, 0]

    def serve(number: int) -> None:
        stream, x = torch.cuda.Stream(), torch.randn(1024, 2048).half()
        with torch.cuda.stream(stream), torch.inference_mode():
            for _ in range(200):
                with span("serve"):
                    net(x.to(DEVICE)).cpu()
                    moved[number] += x.numel() * 2

    threads = [threading.Thread(target=serve, args=(n,)) for n in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return {"h2d": sum(moved), "d2h": sum(moved)}


# --- 2: state moved off or onto the device ---


@pattern("state_offload")
def swap_blocks() -> Result:
    """A paged KV cache swapped out to pinned memory and in again, layer by layer, at each request; then a wait."""
    import torch

    net, layers, size, moved = mlp(2048, 4), 16, 4_194_304, 0
    device = [torch.zeros(size, dtype=torch.uint8, device=DEVICE) for _ in range(2 * layers)]
    host = [torch.zeros(size, dtype=torch.uint8).pin_memory() for _ in range(2 * layers)]
    x = torch.randn(64, 2048, device=DEVICE).half()
    with torch.inference_mode():
        for _ in range(60):
            with span("request"):
                for d, h in zip(device, host, strict=True):
                    h.copy_(d, non_blocking=True)
                torch.cuda.synchronize()
                for d, h in zip(device, host, strict=True):
                    d.copy_(h, non_blocking=True)
                for _ in range(30):
                    x = net(x)
                torch.cuda.synchronize()
                moved += size * 2 * layers
    return {"h2d": moved, "d2h": moved}


@pattern("state_offload")
def checkpoint_in_training() -> Result:
    """All parameters copied to pageable memory every tenth step of a training loop, as torch.save would."""
    import torch

    net = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, device=DEVICE, dtype=torch.bfloat16) for _ in range(8)])
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-5)
    x, moved = torch.randn(4096, 4096, device=DEVICE).bfloat16(), 0
    for step in range(100):
        with span("train_step"):
            net(x).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step % 10 == 9:
                with span("checkpoint"):
                    saved = {k: v.cpu() for k, v in net.state_dict().items()}
                    moved += sum(v.numel() * v.element_size() for v in saved.values())
    torch.cuda.synchronize()
    return {"d2h": moved}


@pattern("state_offload", BACKTRACES)
def recurrent_state_saved() -> Result:
    """A recurrent state of 24 MB fetched by the serving thread after each request into fresh memory; no NVTX."""
    import cupy

    state, w = cupy.zeros(24_000_000, cupy.uint8), cupy.ones((2048, 2048), cupy.float32)
    x, moved, kept = cupy.ones((64, 2048), cupy.float32), 0, []
    for _ in range(80):
        for _ in range(40):
            x = cupy.tanh(x @ w)
        kept = [*kept[-3:], state.get()]
        moved += state.nbytes
    return {"d2h": moved}


# --- 3: scalar read-back ---


@pattern("launch_bound")
def while_not_done() -> Result:
    """``while not done.all()``: what everybody suspects, but the device has run dry before nearly every read."""
    import torch

    net = mlp(4096, 2)
    x = torch.randn(512, 4096, device=DEVICE).half()
    reads = 0
    with torch.inference_mode():
        for _ in range(40):
            left = torch.full((64,), 50, device=DEVICE)
            while True:
                x = net(x)
                left -= 1
                reads += 1
                if bool((left <= 0).all()):
                    break
    return {"d2h": reads}


@pattern("scalar_readback", "--cuda-graph-trace=node")
def token_by_item() -> Result:
    """A decode step as a CUDA graph of half a millisecond, its token read with .item() to look for the end."""
    import torch

    net = mlp(4096, 10)
    x = torch.randn(256, 4096, device=DEVICE).half()
    reads = 0
    with torch.inference_mode():
        net(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            token = net(x)[-1].argmax()
        for _ in range(20):
            with span("request"):
                for _ in range(60):
                    graph.replay()
                    reads += 1
                    if token.item() == -1:
                        break
    return {"d2h": reads * 8}


# --- 4: host synchronization ---


@pattern("host_sync")
def wait_for_each_kernel() -> Result:
    """CuPy: a kernel of about 60 us, then stream.synchronize(), thousands of times; no NVTX."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.ones(12_000_000, cupy.float32)
        scale = cupy.ElementwiseKernel("float32 a", "float32 b", "b = a * 1.000001f + 1e-9f", "scale")
        for _ in range(4_000):
            scale(x, x)
            stream.synchronize()
    return {}


# --- 5: copy and compute in sequence ---


@pattern("serial_copies")
def one_buffer() -> Result:
    """A copy stream that is there but never runs beside the work: one buffer, each waits for the other."""
    import torch

    net, rows, moved = mlp(4096, 4), 4096, 0
    host, x = torch.randn(rows, 4096).half().pin_memory(), torch.empty(rows, 4096, device=DEVICE).half()
    side, compute = torch.cuda.Stream(), torch.cuda.Stream()
    loaded, used = torch.cuda.Event(), torch.cuda.Event()
    with torch.inference_mode():
        for step in range(300):
            with torch.cuda.stream(side):
                side.wait_event(used)
                x.copy_(host, non_blocking=True)
                loaded.record()
            with torch.cuda.stream(compute):
                compute.wait_event(loaded)
                net(x)
                used.record()
            moved += host.numel() * 2
            if step % 50 == 49:
                compute.synchronize()
    torch.cuda.synchronize()
    return {"h2d": moved}


@pattern("serial_copies")
def results_in_sequence() -> Result:
    """CuPy, one stream: compute a block, fetch it into pinned memory, the next block; nothing overlaps."""
    import cupy
    import numpy as np

    rows, moved = 4096, 0
    stream = cupy.cuda.Stream(non_blocking=True)
    pinned = cupy.cuda.alloc_pinned_memory(rows * 4096 * 4)
    back = np.frombuffer(pinned, np.float32, rows * 4096).reshape(rows, 4096)
    with stream:
        x, w = cupy.ones((rows, 4096), cupy.float32), cupy.ones((4096, 4096), cupy.float32) * 1e-4
        for step in range(200):
            y = x @ w
            y.get(stream=stream, out=back, blocking=False)
            moved += back.nbytes
            if step % 25 == 24:
                stream.synchronize()
    stream.synchronize()
    return {"d2h": moved}


# --- 6: weights streamed in ---


@pattern("streamed_weights")
def accelerate_offload() -> Result:
    """Accelerate's cpu_offload of a Llama: each layer's weights are copied in for each forward pass."""
    import torch
    from accelerate import cpu_offload

    model = tiny_llama(layers=6, hidden=2048).to("cpu")
    cpu_offload(model, execution_device=torch.device(DEVICE))
    ids = torch.randint(0, 8192, (4, 128))
    with torch.inference_mode():
        for _ in range(25):
            model(ids.to(DEVICE), use_cache=False)
    torch.cuda.synchronize()
    return {}


@pattern("streamed_weights")
def table_each_step() -> Result:
    """An embedding table of 128 MB in pinned memory, copied in whole each step although a few rows are used."""
    import torch

    table, moved = torch.randn(500_000, 64).pin_memory(), 0
    net, rows = mlp(2048, 4), torch.randint(0, 500_000, (2048 * 32,), device=DEVICE)
    with torch.inference_mode():
        for _ in range(80):
            on_device = table.to(DEVICE, non_blocking=True)
            moved += table.numel() * 4
            net(on_device[rows].view(2048, 2048).half())
    torch.cuda.synchronize()
    return {"h2d": moved}


# --- 7: many small copies ---


@pattern("small_copies")
def scalars_one_by_one() -> Result:
    """Sampling parameters of 32 sequences, each a torch.tensor(..., device=cuda), before each step."""
    import torch

    net, moved = mlp(2048, 2), 0
    x = torch.randn(32, 2048, device=DEVICE).half()
    with torch.inference_mode():
        for step in range(300):
            with span("decode_step"):
                heat = [torch.tensor(0.5 + i / 100 + step * 1e-6, device=DEVICE) for i in range(32)]
                moved += 4 * 32
                net(x / torch.stack(heat)[:, None].half())
    torch.cuda.synchronize()
    return {"h2d": moved}


@pattern("small_copies")
def rows_one_by_one() -> Result:
    """CuPy: 48 results of 8 KB fetched one by one with get(), at the end of each step; no NVTX."""
    import cupy

    x, w = cupy.ones((48, 2048), cupy.float32), cupy.ones((2048, 2048), cupy.float32)
    moved = 0
    for _ in range(200):
        y = x @ w
        moved += sum(row.get().nbytes for row in y)
    return {"d2h": moved}


# --- 8: copies below the link's reach ---


@pattern("slow_copies")
def narrow_tiles() -> Result:
    """CuPy: narrow tiles of pinned matrices fetched with memcpy2DAsync, beside some large pinned copies."""
    import cupy

    rt, rows, pitch, width, moved = cupy.cuda.runtime, 131_072, 2_048, 32, 0
    host = cupy.cuda.alloc_pinned_memory(rows * pitch)
    tile, whole = cupy.zeros(rows * width, cupy.uint8), cupy.zeros(rows * pitch, cupy.uint8)
    x = cupy.ones((1024, 1024), cupy.float32)
    stream = cupy.cuda.get_current_stream()
    for step in range(250):
        rt.memcpy2DAsync(tile.data.ptr, width, host.ptr, pitch, width, rows, rt.memcpyHostToDevice, stream.ptr)
        moved += rows * width
        x = cupy.tanh(x @ x)
        if step % 50 == 49:
            rt.memcpyAsync(whole.data.ptr, host.ptr, whole.nbytes, rt.memcpyHostToDevice, stream.ptr)
            moved += whole.nbytes
            stream.synchronize()
    return {"h2d": moved}


# --- 9: copies within the device ---


@pattern("device_copies", "-t cuda")
def double_buffer_by_copy() -> Result:
    """CuPy: a stencil that copies its new state over the old one instead of swapping the two; nothing but CUDA."""
    import cupy

    old, new = cupy.ones(100_000_000, cupy.float32), cupy.empty(100_000_000, cupy.float32)
    step = cupy.ElementwiseKernel("float32 a", "float32 b", "b = a * 0.999f + 0.001f", "relax")
    moved = 0
    for number in range(600):
        step(old, new)
        old.data.copy_from_device_async(new.data, new.nbytes, cupy.cuda.get_current_stream())
        moved += new.nbytes
        if number % 20 == 19:
            cupy.cuda.get_current_stream().synchronize()
    return {"d2d": moved}


@pattern("device_copies")
def pipeline_over_peers() -> Result:
    """Two stages on two GPUs, 268 MB handed over a step on the stream that computes; needs two GPUs."""
    import torch

    first, second = mlp(4096, 6), mlp(4096, 6).to("cuda:1")
    x, moved = torch.randn(8192, 4096, device=DEVICE).half(), 0
    with torch.inference_mode():
        for step in range(200):
            with span("step"):
                handed = first(x).repeat(4, 1).to("cuda:1", non_blocking=True)
                second(handed[:8192])
                moved += handed.numel() * 2
                if step % 10 == 9:
                    torch.cuda.synchronize(1)
                    torch.cuda.synchronize(0)
    return {"p2p": moved}


# --- 10: unified memory ---


@pattern("unified_memory")
def host_fills_managed() -> Result:
    """The host writes 48 MB of managed memory before each kernel that reads it; page faults are not recorded."""
    import ctypes

    import cupy
    import numpy as np

    memory = cupy.cuda.malloc_managed(48_000_000)
    x = cupy.ndarray((12_000_000,), cupy.float32, memory)
    host = np.ctypeslib.as_array(ctypes.cast(memory.ptr, ctypes.POINTER(ctypes.c_float)), (12_000_000,))
    for step in range(50):
        host.fill(step)
        x.sum()
        cupy.cuda.Device().synchronize()
    return {}


# --- 11: launch-bound ---


@pattern("launch_bound")
def adam_parameter_by_parameter() -> Result:
    """Adam without foreach on two hundred small parameters: thousands of tiny kernels a step."""
    import torch

    net = torch.nn.Sequential(*[torch.nn.Linear(128, 128, device=DEVICE) for _ in range(100)])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, foreach=False, fused=False)
    x = torch.randn(64, 128, device=DEVICE)
    for _ in range(25):
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    return {}


@pattern("launch_bound")
def elementwise_chain() -> Result:
    """CuPy: chains of tiny elementwise kernels, launched from Python; no NVTX."""
    import cupy

    x = cupy.ones(4096, cupy.float32)
    for _ in range(5_000):
        x = x * 1.001 + 0.5
        x = cupy.sqrt(x)
    cupy.cuda.Device().synchronize()
    return {}


@pattern("launch_bound", BACKTRACES)
def generate_eager() -> Result:
    """Transformers' generate() at batch 1, eager: hundreds of kernels a token, of microseconds each."""
    import torch

    model = tiny_llama(layers=10, hidden=768)
    ids = torch.randint(0, 8192, (1, 32), device=DEVICE)
    with torch.inference_mode():
        for _ in range(3):
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=25,
                min_new_tokens=25,
                do_sample=False,
                pad_token_id=0,
            )
    return {}


# --- 12: idle gaps ---


@pattern("idle_gaps")
def numpy_between_steps() -> Result:
    """Some milliseconds of NumPy on the feeding thread before each forward pass; no samples."""
    import numpy as np
    import torch

    net = mlp(4096, 6)
    x, rng, total = torch.randn(1024, 4096, device=DEVICE).half(), np.random.default_rng(0), 0.0
    with torch.inference_mode():
        for _ in range(150):
            with span("augment"):
                total += float(np.sort(rng.standard_normal(120_000)).sum())
            with span("forward"):
                net(x)
    torch.cuda.synchronize()
    return {"total": int(total)}


@pattern("idle_gaps", "--sample=process-tree")
def queue_runs_dry() -> Result:
    """A producer thread that takes 8 ms a batch, a consumer that takes 2: the consumer waits at the queue."""
    import torch

    net, batches = mlp(4096, 16), queue.Queue(maxsize=2)  # type: ignore[var-annotated]
    pool = [torch.randn(1024, 4096).half().pin_memory() for _ in range(4)]

    def produce() -> None:
        for n in range(120):
            time.sleep(0.008)
            batches.put(pool[n % 4])
        batches.put(None)

    producer, moved = threading.Thread(target=produce), 0
    producer.start()
    with torch.inference_mode():
        while (batch := batches.get()) is not None:
            net(batch.to(DEVICE, non_blocking=True))
            moved += batch.numel() * 2
    producer.join()
    torch.cuda.synchronize()
    return {"h2d": moved}


@pattern("idle_gaps")
def reads_a_file_each_step() -> Result:
    """Each step's data is read from a file on the feeding thread first."""
    import torch

    net, size, moved = mlp(4096, 4), 16_000_000, 0
    landing = torch.empty(size, dtype=torch.uint8).pin_memory()
    with tempfile.NamedTemporaryFile() as file, torch.inference_mode():
        file.write(os.urandom(size))
        file.flush()
        descriptor = os.open(file.name, os.O_RDONLY)
        view = memoryview(landing.numpy())
        x = torch.randn(512, 4096, device=DEVICE).half()
        for _ in range(120):
            with span("read"):
                os.lseek(descriptor, 0, os.SEEK_SET)
                while os.readv(descriptor, [view[: size // 8]]) > 0:
                    pass
            with span("forward"):
                landing.to(DEVICE, non_blocking=True)
                net(x)
                moved += size
        os.close(descriptor)
    torch.cuda.synchronize()
    return {"h2d": moved}


# --- 13: busy but not full ---


@pattern("low_fill")
def two_long_rows() -> Result:
    """Cumsum along two rows of millions of entries: a few blocks keep the device busy."""
    import torch

    x = torch.rand(2, 4_000_000, device=DEVICE)
    for step in range(300):
        x = torch.cumsum(x, 1).mul_(1e-6)
        if step % 10 == 9:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return {}


@pattern("low_fill")
def small_batch_lstm() -> Result:
    """A kernel of 16 blocks of 64 threads that steps through a sequence, again and again."""
    import cupy

    kernel = cupy.RawKernel(
        r"""extern "C" __global__ void cell(float *h, const float *w, int steps) {
            float a = h[blockIdx.x * blockDim.x + threadIdx.x];
            for (int t = 0; t < steps; ++t) a = tanhf(a * w[t & 63] + 0.1f);
            h[blockIdx.x * blockDim.x + threadIdx.x] = a;
        }""",
        "cell",
    )
    h, w = cupy.ones(16 * 64, cupy.float32), cupy.ones(64, cupy.float32)
    for _ in range(150):
        kernel((16,), (64,), (h, w, 60_000))
    cupy.cuda.Device().synchronize()
    return {}


# --- 14: allocation churn ---


@pattern("allocation_churn")
def no_memory_pool() -> Result:
    """CuPy without its memory pool: each temporary is a cudaMalloc and a cudaFree; no NVTX."""
    import cupy

    cupy.cuda.set_allocator(None)
    x = cupy.ones((2048, 2048), cupy.float32)
    for _ in range(400):
        y = x @ x
        y = cupy.tanh(y) + x
        del y
    cupy.cuda.Device().synchronize()
    return {}


@pattern("allocation_churn")
def pinned_buffer_each_step() -> Result:
    """A pinned buffer allocated and freed in each step."""
    import cupy

    rt, x, moved = cupy.cuda.runtime, cupy.ones((2048, 2048), cupy.float32), 0
    landing, stream = cupy.empty(16_000_000, cupy.uint8), cupy.cuda.get_current_stream()
    for _ in range(150):
        pointer = rt.hostAlloc(16_000_000, 0)
        rt.memcpyAsync(landing.data.ptr, pointer, 16_000_000, rt.memcpyHostToDevice, stream.ptr)
        moved += 16_000_000
        x = cupy.tanh(x @ x)
        rt.freeHost(pointer)
    stream.synchronize()
    return {"h2d": moved}


# --- 15: the recording ---


@pattern("recording")
def half_in_graphs() -> Result:
    """Eager kernels and whole graphs in turn: most of the time cannot be told apart."""
    import torch

    net = mlp(4096, 8)
    x = torch.randn(1024, 4096, device=DEVICE).half()
    with torch.inference_mode():
        net(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(3):
                net(x)
        for _ in range(150):
            with span("step"):
                graph.replay()
                net(x)
    torch.cuda.synchronize()
    return {}


@pattern("recording")
def mostly_loading() -> Result:
    """A checkpoint of 4 GB loaded, then a handful of steps: the window is the loading."""
    import torch

    parts, moved = [], 0
    for _ in range(32):
        part = torch.empty(64_000_000, dtype=torch.float16)
        parts.append(part.to(DEVICE))
        moved += part.numel() * 2
    w = parts[0][: 4096 * 4096].view(4096, 4096)
    x: Any = torch.ones(1024, 4096, device=DEVICE).half()
    with torch.inference_mode():
        for _ in range(60):
            x = x @ w
    torch.cuda.synchronize()
    return {"h2d": moved}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
