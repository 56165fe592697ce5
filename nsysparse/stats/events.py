"""Events as nsys's reports list them: every row of the export, joined plainly, quirks and all.

nsysparse's own analysis uses :mod:`nsysparse.joins`, where a call and a piece of work are one row each. The reports
here repeat nsys's figures, so they count what it counts: with ``--cudabacktrace`` a call has two rows, and both count.
"""

from __future__ import annotations

import polars as pl

from nsysparse import schema
from nsysparse.source import Trace
from nsysparse.stats.cut import kept_rows

# The labels of nsys's enumerations, which exports hold only from 2022.4.1.
COPY_LABELS = dict(
    enumerate(
        (
            *("Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host", "Array-to-Array"),
            *("Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host", "Peer-to-Peer"),
            *("Unified Host-to-Device", "Unified Device-to-Host", "Unified Device-to-Device"),
        )
    )
)
MEMORY_LABELS = dict(
    enumerate(("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown"))
)
MEMSET = "[CUDA memset]"
KERNEL, MEMORY, API = "CUDA_KERNEL", "MEMORY_OPER", "CUDA_API"


TEXT = pl.col("text behind")


def duration() -> pl.Expr:
    """Length of an event, ns."""
    return (pl.col("end_ns") - pl.col("start_ns")).alias("duration")


def with_text(frame: pl.DataFrame, trace: Trace, reference: str, **names: pl.Expr) -> pl.DataFrame:
    """Add texts behind a string reference; NULL where it dangles. The order of the rows stays.

    Args:
        frame: The rows.
        trace: Where they come from.
        reference: The column of references.
        names: New columns, categorical, each made of the text (``TEXT``).
    """
    texts = trace.strings(frame[reference]).rename({"id": reference, "value": "text behind"})
    texts = texts.select(reference, **{name: text.cast(pl.Categorical) for name, text in names.items()})
    return frame.join(texts, on=reference, how="left", maintain_order="left")


def without_version(name: pl.Expr) -> pl.Expr:
    """An API's name as nsys's summaries print it: only a four-character version is cut off (``_v3020``)."""
    return name.str.replace(r"_v.{4}$", "")


def extra_column(trace: Trace, table: str, column: str, name: str, zero: int | None = None) -> pl.Series:
    """A column that the canonical table lacks, in its row order; NULL for 0 and where the export has none.

    Args:
        trace: The recording.
        table: A canonical table.
        column: The column's name in the export.
        name: Its new name.
        zero: What is put for 0.
    """
    source = schema.TABLES[table].source(trace.tables)
    if source is None or column not in trace.tables[source]:
        return pl.Series(name, [], pl.Int64).extend_constant(None, trace.frame(table).height)
    arrow = trace.backend.read(source, {name: (column, "int")})
    values = pl.from_arrow(arrow.column(name))
    assert isinstance(values, pl.Series)
    replaced: pl.Series = kept_rows(trace, table, values).replace(0, zero).alias(name)
    return replaced


API_COLUMNS = ("start_ns", "end_ns", "thread", "correlation", "name_id", "event_class")
KERNEL_COLUMNS = ("start_ns", "end_ns", "name_id")


def load_api(trace: Trace, *columns: str) -> pl.DataFrame:
    """Rows of the API table: API_COLUMNS and these columns, and what follows from them.

    Returns:
        Also ``process``, ``duration``, ``api`` (the name) and ``function`` (the name less its version).
    """
    rows = trace.part("api", [*API_COLUMNS, *columns])
    frame = with_text(rows, trace, "name_id", api=TEXT, function=without_version(TEXT))
    return frame.with_columns(duration(), process=schema.process_of(pl.col("thread")))


def load_kernels(trace: Trace, *columns: str) -> pl.DataFrame:
    """Rows of the kernel table: KERNEL_COLUMNS, ``kernel`` (the demangled name), ``duration``, and these columns."""
    rows = trace.part("kernels", list(dict.fromkeys((*KERNEL_COLUMNS, *columns))))
    return with_text(rows, trace, "name_id", kernel=TEXT).with_columns(duration())


def load_memory(trace: Trace) -> pl.DataFrame:
    """Copies, then fills: ``start_ns``, ``duration``, ``operation``, ``bytes``, ``src``, ``dst``, and what all have."""
    shared = ["start_ns", "end_ns", "ordinal", "context", "stream", "correlation", "process", "bytes"]
    copies = trace.frame("copies").select(
        *shared,
        pl.format("[CUDA memcpy {}]", labelled("kind", COPY_LABELS)).cast(pl.Categorical).alias("operation"),
        labelled("src_kind", MEMORY_LABELS).alias("src"),
        labelled("dst_kind", MEMORY_LABELS).alias("dst"),
        extra_column(trace, "copies", "greenContextId", "green_context"),
    )
    memsets = trace.frame("memsets").select(
        *shared,
        pl.lit(MEMSET).cast(pl.Categorical).alias("operation"),
        labelled("memory_kind", MEMORY_LABELS).alias("src"),
        pl.lit(None, pl.String).alias("dst"),
        extra_column(trace, "memsets", "greenContextId", "green_context"),
    )
    return pl.concat([copies, memsets]).with_columns(duration())


def labelled(column: str, labels: dict[int, str]) -> pl.Expr:
    """Text of an enumeration's number; a number that no release so far has is shown as it is."""
    number = pl.col(column)
    return number.replace_strict(labels, default=pl.format("Unknown {}", number), return_dtype=pl.String)


def grid(axis: str) -> pl.Expr:
    """Three sizes in nsys's fixed columns of four: ``  32    1    8``."""
    parts = [pl.col(f"{axis}_{d}").cast(pl.String).str.pad_start(4) for d in "xyz"]
    return pl.concat_str(parts, separator=" ")
