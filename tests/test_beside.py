"""Temporary files and folders beside their targets: gone after an error, an interrupt or success."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from nsysparse.beside import file_beside, folder_beside


@pytest.mark.parametrize("beside", [file_beside, folder_beside])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, None])
def test_nothing_is_left(beside, error, tmp_path: Path) -> None:
    def use() -> None:
        with beside(tmp_path / "report.html") as temporary:
            assert temporary.parent == tmp_path
            assert stat.S_IMODE(temporary.stat().st_mode) & 0o077 == 0
            if temporary.is_dir():
                (temporary / "part").write_text("half")
            if error:
                raise error

    if error:
        with pytest.raises(error):
            use()
    else:
        use()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("beside", "maker"), [(file_beside, "open"), (folder_beside, "mkdir")])
def test_an_interrupt_right_after_it_was_made(beside, maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks the library for a name learns it too late for that."""
    of = os if maker == "open" else Path
    make = getattr(of, maker)

    def interrupted(*given: object, **more: object) -> None:
        made = make(*given, **more)
        if maker == "open":
            os.close(made)
        raise KeyboardInterrupt

    monkeypatch.setattr(of, maker, interrupted)
    with pytest.raises(KeyboardInterrupt), beside(tmp_path / "report.html"):
        pytest.fail("it was interrupted before")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_what_was_moved_stays(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    with file_beside(target) as temporary:
        temporary.write_text("whole")
        temporary.replace(target)
    assert [f.name for f in tmp_path.iterdir()] == ["report.html"]
    assert target.read_text() == "whole"
