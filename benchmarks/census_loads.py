"""GPU loads for measuring the census: LLM-like decoding, copies, and programs that nobody here wrote.

``python census_loads.py run LOAD SECONDS`` runs one load and prints a line of JSON with its throughput;
``python census_loads.py program NAME`` runs a small unchanged use of another framework.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

DEVICE = "cuda:0"


class Decoder:
    """One decode step of a Llama-shaped model; every layer reads the same weights, too large for a cache."""

    def __init__(self, hidden: int, inner: int, layers: int, batch: int, context: int = 1024) -> None:
        import torch

        self.layers, self.heads = layers, hidden // 128

        def weight(rows: int, columns: int) -> Any:
            return torch.empty(rows, columns, device=DEVICE, dtype=torch.bfloat16).normal_(0, rows**-0.5)

        self.qkv, self.out = weight(hidden, 3 * hidden), weight(hidden, hidden)
        self.gate, self.up, self.down = weight(hidden, inner), weight(hidden, inner), weight(inner, hidden)
        self.head, self.embedding = weight(hidden, 32000), weight(32000, hidden)
        self.norm = torch.ones(hidden, device=DEVICE, dtype=torch.bfloat16)
        shape = (batch, self.heads, context, 128)
        self.k, self.v = (torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
        self.token = torch.zeros(batch, dtype=torch.long, device=DEVICE)

    def step(self) -> Any:
        """Token in, token out."""
        import torch
        from torch.nn import functional

        x = self.embedding[self.token]
        for _ in range(self.layers):
            h = functional.rms_norm(x, self.norm.shape, self.norm)
            q, _k, _v = (h @ self.qkv).chunk(3, dim=-1)
            q = q.view(len(x), self.heads, 1, 128)
            a = functional.scaled_dot_product_attention(q, self.k, self.v)
            x = x + a.reshape(len(x), -1) @ self.out
            h = functional.rms_norm(x, self.norm.shape, self.norm)
            x = x + (functional.silu(h @ self.gate) * (h @ self.up)) @ self.down
        self.token.copy_(torch.argmax(x @ self.head, dim=-1))
        return self.token


SHAPES = {  # name: hidden, inner, layers, batch, CUDA graph
    "decode_graph": (4096, 14336, 32, 8, True),
    "decode_eager": (4096, 14336, 32, 8, False),
    "decode_eager_host_bound": (1024, 2816, 48, 4, False),
}


def decode(name: str, seconds: float, warm_s: float) -> dict[str, float]:
    """Generate tokens; each is read back by the host, as a server does."""
    import torch

    hidden, inner, layers, batch, graph = SHAPES[name]
    model = Decoder(hidden, inner, layers, batch)
    with torch.inference_mode():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                model.step()
            side.synchronize()
            run: Callable[[], Any] = model.step
            if graph:
                captured = torch.cuda.CUDAGraph()
                with torch.cuda.graph(captured, stream=side):
                    model.step()
                run = captured.replay
            steps, began = 0, _warm(lambda: (run(), model.token.cpu()), warm_s)
            while time.perf_counter() - began < seconds:
                run()
                model.token.cpu()
                steps += 1
            return {"count": steps, "seconds": time.perf_counter() - began}


def _warm(once: Callable[[], Any], warm_s: float) -> float:
    end = time.perf_counter() + warm_s
    once()
    while time.perf_counter() < end:
        once()
    return time.perf_counter()


def copy_heavy(_name: str, seconds: float, warm_s: float) -> dict[str, float]:
    """State saved and restored: 32 MB pinned and pageable, and many small ones."""
    import torch

    device = torch.empty(32_000_000, dtype=torch.uint8, device=DEVICE)
    small = torch.empty(65_536, dtype=torch.uint8, device=DEVICE)
    pinned, pageable = (
        torch.empty(32_000_000, dtype=torch.uint8).pin_memory(),
        torch.empty(8_000_000, dtype=torch.uint8),
    )
    small_pinned = torch.empty(65_536, dtype=torch.uint8).pin_memory()

    def once() -> None:
        device.copy_(pinned, non_blocking=True)
        pinned.copy_(device, non_blocking=True)
        for _ in range(50):
            small.copy_(small_pinned, non_blocking=True)
        pageable.copy_(device[:8_000_000])
        torch.cuda.synchronize()

    n, began = 0, _warm(once, warm_s)
    while time.perf_counter() - began < seconds:
        once()
        n += 1
    return {"count": n, "seconds": time.perf_counter() - began}


LOADS: dict[str, Callable[[str, float, float], dict[str, float]]] = {
    **dict.fromkeys(SHAPES, decode),
    "copy_heavy": copy_heavy,
}


def run_load(name: str, seconds: float, warm_s: float) -> dict[str, Any]:
    """Run one load; its throughput is count / seconds."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF)
    result = LOADS[name](name, seconds, warm_s)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"load": name, **result, "rate": result["count"] / result["seconds"], "cpu_s": cpu}


def program_jax() -> None:
    """A jitted training-like loop."""
    import jax
    import jax.numpy as jnp

    step = jax.jit(lambda w, x: w - 0.01 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w))
    w, x = jnp.ones((1024, 1024)), jnp.ones((256, 1024))
    for _ in range(200):
        w = step(w, x)
    print(float(jnp.asarray(w).sum()))


def program_cupy() -> None:
    """Elementwise kernels, a reduction, copies both ways."""
    import cupy

    x = cupy.asarray(cupy.random.rand(1_000_000).get())
    for _ in range(200):
        x = cupy.sin(x) + 0.5
    print(float(x.sum()))


def program_triton() -> None:
    """A hand-written Triton kernel."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add(a, b, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(a + at, tl.load(a + at, mask=at < n) + tl.load(b + at, mask=at < n), mask=at < n)

    a, b = torch.zeros(1_000_000, device=DEVICE), torch.ones(1_000_000, device=DEVICE)
    for _ in range(300):
        add[(triton.cdiv(len(a), 1024),)](a, b, len(a), BLOCK=1024)
    print(float(a.sum()))


def program_compile() -> None:
    """torch.compile with CUDA graphs (mode reduce-overhead)."""
    import torch

    net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).to(DEVICE).eval()
    fast = torch.compile(net, mode="reduce-overhead")
    x = torch.randn(32, 512, device=DEVICE)
    with torch.inference_mode():
        for _ in range(100):
            y = fast(x).clone()
    torch.cuda.synchronize()
    print(float(y.sum()))


PROGRAMS = {
    "jax": program_jax,
    "cupy": program_cupy,
    "triton": program_triton,
    "torch_compile": program_compile,
}


def main() -> None:
    """Run what the command line names."""
    if sys.argv[1] == "program":
        PROGRAMS[sys.argv[2]]()
    else:
        print(json.dumps(run_load(sys.argv[2], float(sys.argv[3]), 1.0)), flush=True)


if __name__ == "__main__":
    main()
