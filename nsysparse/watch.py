"""Being told how the reading of a large recording goes on."""

from __future__ import annotations


class Watch:
    """Told of every table that is read; does nothing by itself. ``add`` may be called from several threads."""

    def begin(self, table: str, rows: int | None) -> None:
        """A table is about to be read; about so many rows, None when that is not known."""

    def add(self, rows: int, size_bytes: int) -> None:
        """So many more rows were read, which take so many bytes in memory."""

    def end(self) -> None:
        """The table is read, or its reading failed."""
