"""Reports (``.nsys-rep``): exported to a temporary place by the user's own ``nsys``."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from nsysparse.errors import SourceError
from nsysparse.source.sqlite import SqliteBackend


class ReportBackend(SqliteBackend):
    """The SQLite export of a report, in a temporary folder that goes with it."""

    kind = "nsys-rep"

    def __init__(self, path: Path) -> None:
        report = path.resolve()
        if not report.is_file():
            raise SourceError(f"cannot read {path}: no such file", "check the path")
        command = f"nsys export --type sqlite --include-blobs=true --output trace.sqlite {shlex.quote(path.name)}"
        nsys = shutil.which("nsys")
        if nsys is None:
            raise SourceError(
                f"{path.name} is a report, and nsys is not on PATH to export it",
                f"where nsys is, run: {command}",
            )
        folder = tempfile.TemporaryDirectory(prefix="nsysparse-")
        target = Path(folder.name) / "trace.sqlite"
        arguments = [nsys, "export", "--type", "sqlite", "--include-blobs=true", "--force-overwrite=true"]
        try:
            done = subprocess.run(
                [*arguments, "--output", str(target), str(report)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0 or not target.exists():
                said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
                raise SourceError(f"nsys could not export {path.name}: {said[-1][:200]}", f"try by hand: {command}")
            super().__init__(target)
        except BaseException:
            folder.cleanup()
            raise
        self._report_folder = folder
        self.path = path
        self.remarks.append("exported from the report by the nsys on PATH")

    def close(self) -> None:
        """Remove the temporary export."""
        super().close()
        self._report_folder.cleanup()
