"""Shared fixtures: analyses of the real recordings, made once a test process."""

from __future__ import annotations

import os
import tempfile
from functools import cache

import pytest
from hypothesis import settings
from traces import trace_path

from nsysparse.accounting.device import Options
from nsysparse.analysis import Analysis, analyze
from nsysparse.source import open_trace

# A shared or loaded machine is slow, not wrong: no example has a time limit.
settings.register_profile("nsysparse", deadline=None)
settings.load_profile("nsysparse")


def pytest_configure(config: pytest.Config) -> None:
    """Whatever the tests of one run put into the temporary folder, killed programs' files too, goes when it ends."""
    if hasattr(config, "workerinput"):  # a worker inherits the folder
        return
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # a failed test's folder stays
    folder = tempfile.TemporaryDirectory(prefix="nsysparse-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    os.chmod(folder.name, 0o711)  # some tests are nobody
    os.environ["TMPDIR"] = tempfile.tempdir = folder.name


@cache
def analyzed(name: str, window: str | None = None) -> Analysis:
    """The analysis of a real recording."""
    with open_trace(trace_path(name)) as trace:
        return analyze(trace, Options(window=window))


@pytest.fixture(scope="session")
def analysis_of():
    """``analysis_of(name, window=None)``."""
    return analyzed
