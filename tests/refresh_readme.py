"""Put what the commands print into the README: run it after a change of any output, and read the difference."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

from test_readme import CONSOLE, PYTHON, README, ROOT, run
from traces import trace_path


def refreshed(folder: Path) -> str:
    """The README with every output as it is now."""
    text = README
    for block in CONSOLE:
        made = []
        for part in re.split(r"(?m)^\$ ", block)[1:]:
            command = part.partition("\n")[0]
            made.append(f"$ {command}\n{run(command, folder)}\n")
        text = text.replace(f"```console\n{block}```", "```console\n" + "".join(made) + "```")
    for code, shown in PYTHON:
        (folder / "example.py").write_text(code)
        printed = run(f"{sys.executable} example.py", folder)
        text = text.replace(f"{code}```\n\n```text\n{shown}```", f"{code}```\n\n```text\n{printed}\n```")
    return text


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        for trace in ("llama_default", "state_checkpoint"):
            shutil.copyfile(trace_path(trace), where / f"{trace}.sqlite")
        (ROOT / "README.md").write_text(refreshed(where), "utf-8")
