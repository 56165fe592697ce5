"""Numbers as text: units, rounding at the edges, and n/a for what is unknown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysparse import units


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1 us"),
        (999_949, "999.9 us"),
        (999_960, "1 ms"),
        (1_234_567, "1.235 ms"),
        (999_999_999_999, "1000 s"),
        (-2_500, "-2.5 us"),
    ],
)
def test_duration(ns, text):
    assert units.duration(ns) == text


@pytest.mark.parametrize(
    ("n", "text"), [(0, "0 B"), (999, "999 B"), (1_444_380_672, "1.444 GB"), (999_999, "1 MB"), (2.5e12, "2.5 TB")]
)
def test_size_is_decimal(n, text):
    assert units.size(n) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(1.23e9, "1.23 GB/s"), (3_000, "3 kB/s"), (2.108e12, "2.11 TB/s"), (0, "0 GB/s")]
)
def test_bandwidth(rate, text):
    assert units.bandwidth(rate) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(0, "0.0%"), (0.0001, "<0.1%"), (0.0005, "0.1%"), (0.721, "72.1%"), (1, "100.0%")]
)
def test_percent_never_shows_something_as_nothing(ratio, text):
    assert units.percent(ratio) == text


@pytest.mark.parametrize("formatter", units.FORMATTERS.values(), ids=units.FORMATTERS)
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_unknown_is_never_a_number(formatter, value):
    assert formatter(value) == "n/a"


@given(st.integers(1, 10**18))
def test_duration_is_within_rounding(ns):
    value, unit = units.duration(ns).split()
    scale = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert float(value) * scale == pytest.approx(ns, rel=6e-4)
