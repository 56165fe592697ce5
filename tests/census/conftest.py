from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .fake import Fake, build_fake

if shutil.which("gcc") is None and shutil.which("cc") is None:
    collect_ignore_glob = ["test_recorder*.py"]  # no C compiler on this machine


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Fake:
    return build_fake(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "census"
