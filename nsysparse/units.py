"""Nanoseconds, bytes and ratios as text: the only place that formats numbers.

Sizes are decimal (1 MB = 1,000,000 bytes), as Nsight Systems prints them. Unknown is ``n/a``, never 0.
Each function takes ``None`` and non-finite numbers, and is registered as a Jinja filter under its own name.
"""

from __future__ import annotations

import math
from collections.abc import Callable

UNKNOWN = "n/a"
_TIME = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns"))
_SIZE = ((1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB"), (1, "B"))


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _scaled(value: float, steps: tuple[tuple[int, str], ...]) -> str:
    for i, (size, unit) in enumerate(steps):
        if abs(value) >= size or size == 1:
            scaled = value / size
            digits = f"{scaled:.4g}"
            if abs(float(digits)) >= 1000 and i > 0:  # 999,960 ns rounds up into the next unit
                size, unit = steps[i - 1]
                digits = f"{value / size:.4g}"
            return f"{digits} {unit}"
    return f"{value:.4g}"


def duration(ns: float | None) -> str:
    """A time in its natural unit, four significant digits: ``1.234 ms``."""
    return _scaled(float(ns), _TIME) if ns is not None and _known(ns) else UNKNOWN


def size(n_bytes: float | None) -> str:
    """A size in its natural decimal unit, four significant digits: ``1.444 GB``."""
    return _scaled(float(n_bytes), _SIZE) if n_bytes is not None and _known(n_bytes) else UNKNOWN


def bandwidth(bytes_per_second: float | None) -> str:
    """A throughput in GB/s: ``26.1 GB/s``; below 0.01 GB/s and from 1,000 GB/s in its natural unit."""
    if bytes_per_second is None or not _known(bytes_per_second):
        return UNKNOWN
    if 0 < abs(bytes_per_second) < 10_000_000:
        return f"{size(bytes_per_second)}/s"
    if abs(bytes_per_second) >= 999_500_000_000:
        return f"{bytes_per_second / 1e12:.3g} TB/s"
    return f"{bytes_per_second / 1e9:.3g} GB/s"


def percent(ratio: float | None) -> str:
    """A ratio as a percentage with one decimal; what is not zero is never shown as zero."""
    if ratio is None or not _known(ratio):
        return UNKNOWN
    if 0 < ratio < 0.0005:
        return "<0.1%"
    return f"{100 * ratio:.1f}%"


def count(n: float | None) -> str:
    """A number with thousands separators: ``1,344``; one decimal when it is not whole."""
    if n is None or not _known(n):
        return UNKNOWN
    return f"{n:,.0f}" if float(n).is_integer() else f"{n:,.1f}"


def exact(value: object) -> str:
    """Every digit of a value, for tooltips."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.12g}" if isinstance(value, float) else str(value)


def instant(ns: float | None) -> str:
    """A point of session time in seconds, to the nanosecond: ``5.651284414 s``, as Nsight Systems prints it."""
    if ns is None or not _known(ns):
        return UNKNOWN
    whole, part = divmod(abs(round(ns)), 1_000_000_000)
    return f"{'-' if ns < 0 else ''}{whole}.{part:09d} s"


# Control characters but tab and newline, and those that turn the direction of writing.
_INVISIBLE = [
    *range(9),
    *range(11, 32),
    *range(127, 160),
    0x200E,
    0x200F,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
]
_ESCAPES = {c: f"\\x{c:02x}" if c < 256 else f"\\u{c:04x}" for c in _INVISIBLE}


def visible(text: str) -> str:
    """A text from a trace or a path for the terminal, which it must not steer: control characters are written out."""
    return text.translate(_ESCAPES).encode("utf-8", "backslashreplace").decode()


FORMATTERS: dict[str, Callable[..., str]] = {
    "duration": duration,
    "size": size,
    "bandwidth": bandwidth,
    "percent": percent,
    "count": count,
    "exact": exact,
    "instant": instant,
}
