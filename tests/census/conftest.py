from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from .fake import Fake, build_fake


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Fake:
    if sys.platform != "linux" or (shutil.which("gcc") is None and shutil.which("cc") is None):
        pytest.skip("the recorder needs Linux and a C compiler")
    return build_fake(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "census"
