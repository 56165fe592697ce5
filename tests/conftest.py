"""Shared fixtures: analyses of the real recordings, made once a test process."""

from __future__ import annotations

from functools import cache

import pytest
from traces import trace_path

from nsysparse.accounting.device import Options
from nsysparse.analysis import Analysis, analyze
from nsysparse.source import open_trace


@cache
def analyzed(name: str, window: str | None = None) -> Analysis:
    """The analysis of a real recording."""
    with open_trace(trace_path(name)) as trace:
        return analyze(trace, Options(window=window))


@pytest.fixture(scope="session")
def analysis_of():
    """``analysis_of(name, window=None)``."""
    return analyzed
