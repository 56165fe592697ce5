"""The canonical tables of call stacks, CPU samples and NVTX payloads."""

from __future__ import annotations

from nsysparse.schema.model import Column, Table


def _col(name: str, source: str, meaning: str, **options: object) -> Column:
    return Column(name, source, meaning, **options)  # type: ignore[arg-type]


def _stack_columns() -> tuple[Column, ...]:
    """Columns that every table of native stacks shares: one row a frame."""
    return (
        _col("chain", "id", "the stack", required=True),
        _col("depth", "stackDepth", "0 is the leaf", required=True),
        _col("symbol_id", "symbol", "function", required=True, text="symbol"),
        _col("module_id", "module", "file that the code is in", text="module"),
        _col("unresolved", "unresolved", "1 where the function is not known", default=0),
        _col("kernel_mode", "kernelMode", "1 for a frame of the operating system's kernel", default=0),
        _col("special", "specialEntry", "1 for a frame that the profiler made up", default=0),
    )


CUDA_STACKS = Table(
    "cuda_stacks",
    ("CUDA_CALLCHAINS",),
    "stacks of CUDA calls",
    _stack_columns(),
    flag="nsys profile --cudabacktrace=all",
)
SAMPLE_STACKS = Table(
    "sample_stacks",
    ("SAMPLING_CALLCHAINS",),
    "stacks of CPU samples; the stack's id is the sample's",
    _stack_columns(),
    flag="nsys profile --sample=process-tree --backtrace=dwarf",
)
OSRT_STACKS = Table(
    "osrt_stacks",
    ("OSRT_CALLCHAINS",),
    "stacks of OS runtime calls",
    _stack_columns(),
    flag="nsys profile -t osrt --osrt-backtrace-threshold=N",
)
SAMPLES = Table(
    "samples",
    ("COMPOSITE_EVENTS",),
    "CPU samples",
    (
        _col("sample", "id", "the sample", required=True),
        _col("time_ns", "start", "when it was taken", required=True),
        _col("thread", "globalTid", "serialized thread id"),
    ),
    flag="nsys profile --sample=process-tree",
)
PAYLOADS = Table(
    "payloads",
    ("NVTX_EVENTS",),
    "what NVTX events carry with them: Python stacks, above all",
    (
        _col("time_ns", "start", "time of the event", required=True),
        _col("type", "eventType", "34 for a Python stack", required=True),
        _col("thread", "globalTid", "serialized thread id"),
        _col("domain", "domainId", "domain number", default=0),
        _col("payload", "binaryData", "bytes, laid out as payload_entries say", kind="blob"),
        _col("json", "jsonText", "the same as JSON, in exports made so", kind="text"),
        _col("json_id", "jsonTextId", "the same, in the string table"),
    ),
    flag="nsys profile --python-backtrace=cuda, exported with --include-blobs=true",
)
PAYLOAD_SCHEMAS = Table(
    "payload_schemas",
    ("NVTX_PAYLOAD_SCHEMAS",),
    "layouts of payloads",
    (
        _col("domain", "domainId", "domain number"),
        _col("schema", "schemaId", "layout", required=True),
        _col("name", "name", "name of the layout", kind="text"),
        _col("size_bytes", "payloadSize", "size of one element, where it is fixed"),
    ),
)
PAYLOAD_ENTRIES = Table(
    "payload_entries",
    ("NVTX_PAYLOAD_SCHEMA_ENTRIES",),
    "fields of a layout",
    (
        _col("domain", "domainId", "domain number"),
        _col("schema", "schemaId", "layout", required=True),
        _col("field", "idx", "number of the field in its layout", required=True),
        _col("flags", "flags", "48: an array whose length is in the field `detail`"),
        _col("type", "type", "type number, or the layout of its elements"),
        _col("name", "name", "name of the field", kind="text"),
        _col("detail", "arrayOrUnionDetail", "length of an array, or the field that holds it"),
        _col("offset", "offset", "place in the payload, bytes", default=0),
    ),
)

STACK_TABLES: dict[str, Table] = {
    t.name: t for t in (CUDA_STACKS, SAMPLE_STACKS, OSRT_STACKS, SAMPLES, PAYLOADS, PAYLOAD_SCHEMAS, PAYLOAD_ENTRIES)
}
