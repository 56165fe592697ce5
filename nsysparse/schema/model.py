"""How a canonical table maps onto an export's."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from nsysparse.errors import SchemaError


@dataclass(frozen=True)
class Column:
    """One canonical column.

    Attributes:
        name: Canonical name; times end in ``_ns``, sizes in ``_bytes``, string references in ``_id``.
        source: The export's column.
        meaning: One line for the documentation.
        kind: ``int``, ``text`` or ``blob``.
        required: Whether an export without this column cannot be understood.
        alternatives: Other export columns that mean the same in older releases, tried in order.
        text: Canonical name of the text behind a string reference, for the SQL views.
        default: Value taken where the export has no such column or a NULL.
    """

    name: str
    source: str
    meaning: str
    kind: str = "int"
    required: bool = False
    alternatives: tuple[str, ...] = ()
    text: str = ""
    default: int | None = None

    def pick(self, present: Collection[str]) -> str | None:
        """The export's column to read, or None when the export has none of the candidates."""
        return next((c for c in (self.source, *self.alternatives) if c in present), None)

    @property
    def dtype(self) -> type[pl.DataType]:
        """Polars dtype of the column."""
        return {"int": pl.Int64, "text": pl.String, "blob": pl.Binary}[self.kind]


@dataclass(frozen=True)
class Table:
    """One canonical table and the export tables that it can come from (the first one present is read)."""

    name: str
    sources: tuple[str, ...]
    meaning: str
    columns: tuple[Column, ...]
    flag: str = ""
    _by_name: Mapping[str, Column] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {c.name: c for c in self.columns})

    def source(self, present: Collection[str]) -> str | None:
        """The export's table behind this one, or None when it was not recorded."""
        return next((s for s in self.sources if s in present), None)

    def empty(self) -> pl.DataFrame:
        """The table with its columns, types and no rows."""
        return pl.DataFrame(schema={c.name: c.dtype for c in self.columns})

    def resolve(self, source: str, present: Sequence[str]) -> dict[str, str]:
        """Map canonical column names to the export's columns.

        Args:
            source: The export's table, for the error message.
            present: The columns that it has.

        Returns:
            Canonical name to export column, without the columns that this export does not have.

        Raises:
            SchemaError: A required column is missing.
        """
        found = {}
        for column in self.columns:
            picked = column.pick(present)
            if picked is None and column.required:
                raise SchemaError(
                    f"table {source} has no column '{column.source}', which {self.name} cannot do without",
                    "export the .nsys-rep again with 'nsys export --type sqlite'; this file was changed or cut",
                )
            if picked is not None:
                found[column.name] = picked
        return found
