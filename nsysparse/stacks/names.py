"""Names of frames: short forms that people read, and what a frame is there for.

The data keeps the whole name; a picture shows the short one. C++ names lose their template arguments, parameters
and return type, files lose the machine's folders, modules lose their version, so that the same code on another
machine or in another build has the same name.
"""

from __future__ import annotations

import html
import re

import polars as pl

from nsysparse import schema

# What a frame is there for; anything but CODE and API is noise to someone who asks who sent a copy.
CODE, API, PROFILER, DISPATCH, INTERPRETER, START = (
    "code",
    "api",
    "profiler",
    "dispatch",
    "interpreter",
    "start",
)
NATIVE, KERNEL_MODE, PYTHON, PSEUDO = "native", "kernel-mode", "python", "pseudo"
UNRESOLVED = r"^0x[0-9a-fA-F]+$"
NOWHERE = ("0x0", "0xffffffffffffffff")  # what an unwinder leaves where it lost its way

_PROFILER_MODULES = r"(?i)nsight-systems|^lib(cupti|nvperf|toolsinjection|nvtx)|injection(32|64)?\.so"
_INTERPRETER_MODULES = r"^(lib)?python[\d.]*[a-z]*(\.so[\d.]*)?$"
_SYSTEM_MODULES = r"^(libc|libpthread|libstdc\+\+|ld-linux[\w-]*)([.-][\d.]+)?\.so"
_START = r"^(_start|__libc_start_(main|call_main)(_impl)?|start_thread|clone3?|__clone3?)$"
# PyTorch's way from an operator to its kernel, and the standard library's from a function object to its function.
_DISPATCH = (
    r"^c10::(impl|detail|Dispatcher|KernelFunction|BoxedKernel|OperatorHandle|TypedOperatorHandle)\b"
    r"|^at::(_ops|redispatch)::"
    r"|^torch::autograd::VariableType::|^torch::ADInplaceOrView::|^torch::TraceType::"
    r"|::wrapper_(CUDA|CPU|Meta|Composite|Autograd|Sparse|Quantized|NestedTensor)\w*$"
    r"|^std::(__invoke|function|_Function_handler|__invoke_impl)\b"
)
_OPERATORS = re.compile(r"operator\s*(<=>|<<=?|>>=?|->\*?|<=?|>=?|\(\)|\[\])")
_HASH = re.compile(r"::h[0-9a-f]{16}$")
_SUFFIX = re.compile(r"(\s*(\[clone [^\]]*\]|\.(constprop|isra|part|cold|llvm)\.?\d*|\bconst|&{1,2}|volatile))+$")
_ANONYMOUS = "(anonymous namespace)"


def short_name(name: str) -> str:
    """A function's name without return type, template arguments and parameters.

    ``void at::native::gpu_kernel_impl<float>(at::TensorIteratorBase&)`` is ``at::native::gpu_kernel_impl``.
    """
    if "(" not in name and "<" not in name and " " not in name:
        return _HASH.sub("", name)
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(f"operator{match[1]}")
        return f"\x01{len(kept) - 1}\x02"

    text = _OPERATORS.sub(keep, name.replace(_ANONYMOUS + "::", ""))
    text = _without(text, r"<[^<>]*>")
    text = _without(text, r"\([^()]*\)")
    text = _SUFFIX.sub("", _HASH.sub("", text)).strip()
    head, operator, conversion = text.partition("operator ")  # a conversion, new or delete: a space in the name
    text = head.rsplit(" ", 1)[-1] + operator + conversion
    text = re.sub("\x01(\\d+)\x02", lambda m: kept[int(m[1])], text)
    return text if text and not text.startswith("::") else name[:200]


def _without(text: str, innermost: str) -> str:
    """The text without bracketed parts, from the inside out."""
    pattern = re.compile(innermost)
    while True:
        text, n = pattern.subn("", text)
        if not n:
            return text


def short_file(path: str) -> str:
    """A source file without the machine's folders: from its package on (``python/`` for the library), or bare."""
    path = path.replace("\\", "/")
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in path:
            return path.rsplit(mark, 1)[1]
    library = re.search(r"/lib(?:64)?/python\d[\d.]*/(.+)$", path)
    return f"python/{library[1]}" if library else path.rsplit("/", 1)[-1]


def unescaped(text: str) -> str:
    """A text that nsys HTML-escaped, unescaped once; it stays hostile."""
    return html.unescape(text)


def module_name(path: pl.Expr) -> pl.Expr:
    """A module without its folder."""
    return path.str.replace(r"^.*/", "")


def unversioned(module: pl.Expr) -> pl.Expr:
    """A module's name without its version: ``libcuda.so.580.159.04`` is ``libcuda.so``."""
    return module.str.replace(r"\.so[.\d]*$", ".so").str.replace(r"-\d[\d.]*\.so$", ".so")


def describe_native(frames: pl.DataFrame, api_names: set[str]) -> pl.DataFrame:
    """Name, label and role of native frames.

    Args:
        frames: ``symbol`` and ``module`` (texts), ``unresolved``, ``kernel_mode``, ``special`` (bool).
        api_names: Functions that the recording lists as CUDA calls, without suffixes.

    Returns:
        ``function`` (whole name), ``place`` (module without folder), ``line`` (NULL), ``kind``, ``role``, ``label``
        and ``name`` (what is drawn, and what two recordings are matched by), in the given order.
    """
    symbol = pl.col("symbol").fill_null("(no name)")
    place = module_name(pl.col("module").fill_null("[Unknown]"))
    frames = frames.select(
        symbol.alias("function"),
        place.alias("place"),
        pl.col("module").fill_null("").alias("path"),
        pl.lit(None, pl.Int64).alias("line"),
        unknown=pl.col("unresolved") | symbol.str.contains(UNRESOLVED),
        made_up=pl.col("special") | symbol.str.contains(r"^\[.*\]$"),
        in_kernel=pl.col("kernel_mode"),
    )
    distinct = frames.filter(~pl.col("unknown"))["function"].unique()
    short = pl.DataFrame(
        {"function": distinct, "short": [short_name(n) for n in distinct.to_list()]},
        schema={"function": pl.String, "short": pl.String},
    )
    frames = frames.join(short, on="function", how="left", maintain_order="left")
    frames = frames.with_columns(role=_role(api_names), bare=unversioned(pl.col("place")))
    label = (
        pl.when(pl.col("role") == API)
        .then(schema.normalized_api_name(pl.col("function")))
        .when(pl.col("role") == INTERPRETER)
        .then(pl.lit("(Python interpreter)"))
        .when("unknown")
        .then(pl.format("{} (unresolved)", "bare"))
        .when("made_up")
        .then("function")
        .otherwise(pl.coalesce("short", "function"))
    )
    kind = pl.when("made_up").then(pl.lit(PSEUDO)).when("in_kernel").then(pl.lit(KERNEL_MODE)).otherwise(pl.lit(NATIVE))
    return frames.select("function", "place", "line", kind.alias("kind"), "role", label.alias("label")).with_columns(
        name="label"
    )


def _role(api_names: set[str]) -> pl.Expr:
    function, place = pl.col("function"), pl.col("place")
    plain = schema.normalized_api_name(function)
    system = place.str.contains(_SYSTEM_MODULES)
    return (
        pl.when(plain.is_in(sorted(api_names)))
        .then(pl.lit(API))
        .when(pl.col("path").str.contains(_PROFILER_MODULES) | place.str.contains(_PROFILER_MODULES))
        .then(pl.lit(PROFILER))
        .when(function.is_in(NOWHERE) & pl.col("unknown"))
        .then(pl.lit(PROFILER))
        .when(function.str.contains(_START) | (system & pl.col("unknown")))
        .then(pl.lit(START))
        .when(place.str.contains(_INTERPRETER_MODULES))
        .then(pl.lit(INTERPRETER))
        .when(pl.coalesce("short", "function").str.contains(_DISPATCH))
        .then(pl.lit(DISPATCH))
        .otherwise(pl.lit(CODE))
    )


def describe_python(frames: pl.DataFrame) -> pl.DataFrame:
    """The same of Python frames.

    Args:
        frames: ``function`` and ``file`` (texts, escaped as nsys does), ``line``.
    """
    functions = {t: unescaped(t) for t in frames["function"].drop_nulls().unique().to_list()}
    files = {t: short_file(unescaped(t)) for t in frames["file"].drop_nulls().unique().to_list()}
    named = frames.select(
        pl.col("function").replace_strict(functions, default="(no name)", return_dtype=pl.String),
        pl.col("file").replace_strict(files, default="(no file)", return_dtype=pl.String).alias("place"),
        "line",
        kind=pl.lit(PYTHON),
        role=pl.lit(CODE),
    )
    return named.with_columns(
        label=pl.format("{} ({}:{})", "function", "place", pl.col("line").fill_null(-1)),
        name=pl.format("{} ({})", "function", "place"),
    )
