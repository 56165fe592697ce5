"""Which framework the program is written in, so that a remedy can be given in its words."""

from __future__ import annotations

import polars as pl

from nsysparse.rules._scene import Scene

PYTORCH, LLAMA_CPP, JAX, CUPY, CUDA = "pytorch", "llama.cpp", "jax", "cupy", "cuda"
# Signs, the first that fits: functions or modules in stacks, names of kernels, names of threads.
SIGNS = (
    (LLAMA_CPP, r"libllama|libggml|ggml_backend|^llama_", r"ggml|mul_mat_(f|q|vec)|ssm_scan_f32", r"llama"),
    (PYTORCH, r"libtorch|^at::|^torch::", r"at::native|at_cuda_detail|at::cuda", r"pt_autograd"),
    (
        JAX,
        r"xla_extension|libjax|jaxlib|^xla::",
        r"(^|_)fusion(_\d+)?$|^loop_|^input_reduce|^wrapped_",
        r"$^",
    ),
    (CUPY, r"cupy", r"cupy_", r"$^"),
)


def framework(scene: Scene) -> str:
    """As :func:`find_framework`, worked out once a device."""
    if "framework" not in scene.found:
        scene.found["framework"] = find_framework(scene)
    return str(scene.found["framework"])


def find_framework(scene: Scene) -> str:
    """The framework by its traces in stacks, kernel names and thread names; ``cuda`` when nothing tells."""
    threads = scene.account.host.threads["name"]
    kernels = scene.account.tables["kernels"]
    names = pl.concat([kernels["name"], kernels["short_name"]])
    for name, in_stacks, in_kernels, in_threads in SIGNS:
        if (
            scene.recording.call_stacks.mention(in_stacks)
            or names.str.contains(in_kernels).any()
            or threads.str.contains(in_threads).any()
        ):
            return name
    return CUDA


def worded(scene: Scene, texts: dict[str, str]) -> str:
    """The text for the program's framework, else the one for plain CUDA."""
    return texts.get(framework(scene), texts[CUDA])
