"""NVIDIA's own reports of the real recordings, as shipped with the tests."""

from __future__ import annotations

import io
import tarfile
from functools import cache
from pathlib import Path

ARCHIVE = Path(__file__).parent / "fixtures" / "oracle.tar.xz"


@cache
def load_oracle() -> dict[tuple[str, str], str]:
    """Every file of the archive: (recording, report) to its text; analysis rules are named ``rule.NAME``."""
    files = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            if member.isfile():
                trace, name = Path(member.name).parts[-2:]
                content = archive.extractfile(member)
                assert content is not None
                files[trace, name.removesuffix(".csv")] = io.TextIOWrapper(content, "utf-8", newline="").read()
    return files
