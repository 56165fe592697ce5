"""Writing an nsys-shaped SQLite export: tables of a real release, rows as Arrow columns, in chunks."""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import adbc_driver_sqlite.dbapi as adbc
import numpy as np
import pyarrow as pa

RELEASE = "2025.3.2.0"
SCHEMAS = Path(__file__).parent.parent / "tests" / "fixtures" / "schemas.json.xz"
PRAGMAS = ("page_size=4096", "journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE")
EVENT_TABLES = (
    *("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"),
    *("CUPTI_ACTIVITY_KIND_MEMSET", "NVTX_EVENTS", "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"),
)
OTHER_TABLES = (
    *("StringIds", "META_DATA_EXPORT", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE", "PROCESSES", "ThreadNames"),
    *("TARGET_INFO_SESSION_START_TIME", "ENUM_CUDA_MEMCPY_OPER", "ENUM_CUDA_MEM_KIND"),
)
# What a copy's kind and its memory are called; nsys's own reports take the names from the export.
COPY_KINDS = ("Unknown", "Host-to-Device", "Device-to-Host", *(f"Kind {i}" for i in range(3, 8)), "Device-to-Device")
MEMORY_KINDS = ("Pageable", "Pinned", "Device")


class Export:
    """One export being written; it has its name only when it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, int] = {}
        self._strings: dict[str, int] = {}
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._temporary.unlink(missing_ok=True)
        self._schema = json.loads(lzma.decompress(SCHEMAS.read_bytes()))[RELEASE]
        self._connection = adbc.connect(f"file:{self._temporary}", autocommit=True)
        self._cursor = self._connection.cursor()
        for pragma in PRAGMAS:
            self._run(f"PRAGMA {pragma}")
        for table in (*EVENT_TABLES, *OTHER_TABLES):
            self._run(_create(table, self._schema["tables"][table]))

    def _run(self, statement: str) -> None:
        self._cursor.execute(statement)
        self._cursor.fetchall()

    def string(self, text: str) -> int:
        """The reference of a text, as other tables use it."""
        return self._strings.setdefault(text, len(self._strings))

    def strings(self, texts: Sequence[str]) -> np.ndarray:
        """References of several texts."""
        return np.array([self.string(t) for t in texts], np.int64)

    def append(self, table: str, columns: Mapping[str, object]) -> None:
        """Append rows; a column is an array, or one value for all rows. Columns not named are NULL."""
        height = next(len(c) for c in columns.values() if isinstance(c, (np.ndarray, list, pa.Array)))
        if not height:
            return
        arrays = {}
        for name, column in columns.items():
            if isinstance(column, int):
                column = np.full(height, column, np.int64)
            arrays[name] = column if isinstance(column, pa.Array) else pa.array(column)
        self._cursor.adbc_ingest(table, pa.table(arrays), mode="append")
        self.rows[table] = self.rows.get(table, 0) + height

    def __enter__(self) -> Export:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                facts = {"EXPORT_PRODUCT_VERSION": RELEASE, "EXPORT_SCHEMA_VERSION": self._schema["schema"]}
                self.append("META_DATA_EXPORT", {"name": list(facts), "value": list(facts.values())})
                for table, labels in (("ENUM_CUDA_MEMCPY_OPER", COPY_KINDS), ("ENUM_CUDA_MEM_KIND", MEMORY_KINDS)):
                    names = [label.upper() for label in labels]
                    self.append(table, {"id": np.arange(len(labels)), "name": names, "label": list(labels)})
                self.append("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": np.array([1_795_966_272_000_000_000])})
                self.append("StringIds", {"id": list(self._strings.values()), "value": list(self._strings)})
            self._cursor.close()
            self._connection.close()
            if kind is None:
                os.replace(self._temporary, self.path)
        finally:
            self._temporary.unlink(missing_ok=True)


def _create(table: str, columns: list[list[str]]) -> str:
    """The CREATE statement of a table whose columns are (name, type, "not null", "pkN")."""
    keys = [name for _, name in sorted((c[-1], c[0]) for c in columns if c[-1].startswith("pk"))]
    body = [f'"{name}" {kind}{" NOT NULL" if "not null" in rest else ""}' for name, kind, *rest in columns]
    if keys:
        body.append(f"PRIMARY KEY ({', '.join(keys)})")
    return f'CREATE TABLE "{table}" ({", ".join(body)})'
