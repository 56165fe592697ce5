"""The real command line, run in this process: its exit status and what it prints."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from nsysparse.cli import main


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    code: int
    out: str
    err: str


class CommandLine:
    """Runs commands in a folder of its own, as the entry point does."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._patch, self._captured = monkeypatch, capfd
        monkeypatch.chdir(folder)

    def __call__(self, *arguments: object) -> Done:
        self._captured.readouterr()
        self._patch.setattr(sys, "argv", ["nsysparse", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = self._captured.readouterr()
        code = left.value.code
        return Done(0 if code is None else int(code), out, err)


def complaint(done: Done) -> tuple[str, str]:
    """The two lines of an error: exit 2, one `Error:` line, one `Hint:` line, and nothing else anywhere."""
    lines = done.err.splitlines()
    assert (done.code, len(lines), done.out) == (2, 2, ""), done
    assert lines[0].startswith("Error: ")
    assert lines[1].startswith("Hint: ")
    assert len(lines[0]) > len("Error: ") + 5
    assert len(lines[1]) > len("Hint: ") + 5
    assert "internal error" not in done.err
    return lines[0].removeprefix("Error: "), lines[1].removeprefix("Hint: ")
