"""Where tests find the real recordings: shipped fixtures, or the shared folder beside a checkout."""

from __future__ import annotations

import lzma
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDERS = (HERE / "fixtures", HERE.parent.parent / "shared" / "traces")
NAMES = (
    "eager_h2d",
    "graph_replay_graph",
    "graph_replay_node",
    "llama_default",
    "llama_nosave",
    "loader",
    "p2p",
    "pinned_overlap",
    "pinned_overlap_lossy",
    "state_checkpoint",
    "threads",
    "train_item",
)


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="nsysparse-tests-"))


@cache
def trace_path(name: str) -> Path:
    """The unpacked recording, read-only; skips the test where it is not there."""
    packed = next((f for d in FOLDERS if (f := d / f"{name}.sqlite.xz").exists()), None)
    if packed is None:
        pytest.skip(f"the recording {name} is not in this checkout")
    target = _folder() / f"{name}.sqlite"
    with lzma.open(packed) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out)
    target.chmod(0o444)
    return target
