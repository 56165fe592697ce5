"""What happens to each table and column of an export. What is not named here does not reach the copy.

Tables are listed; an unlisted one stops the command. In a listed table, numbers are copied; texts, and references to
the export's string table, only where a rule says what they are. All other texts are emptied, and strings that no rule
claims are left out of the string table.
"""

from __future__ import annotations

import re

# Kinds of texts that are kept (after path prefixes, addresses and the like were taken out of them).
NVTX, KERNEL, FUNCTION, MODULE, THREAD, PROCESS, PLAIN = (
    "nvtx",
    "kernels",
    "functions",
    "modules",
    "thread names",
    "process names",
    "plain",
)
# Columns with a treatment of their own.
UUID, MESSAGE, PAYLOAD, JSON, STRINGS, FORM = "uuid", "message", "payload", "json", "strings", "form"

# Class of what is removed -> what it is, for the summary and the documentation.
CLASSES = {
    "environment": "rows about the system and its environment",
    "capture": "settings of the recording: command line, working folder, user, environment of the program",
    "output": "output of the program",
    "files": "files kept inside the recording",
    "network": "network devices",
    "export": "facts of the export: host, user, file names",
    "processes": "names of processes that are not the program's",
    "arguments": "arguments and folders in the names of the program's processes",
    "threads": "names of threads that are not the program's",
    "uuids": "UUIDs, replaced by letters",
    "paths": "path prefixes, replaced by letters",
    "names": "hosts, users, addresses and e-mail addresses inside texts",
    "messages": "messages of the profiler, but for those that tell of loss",
    "payloads": "NVTX payloads, but for Python stacks; stray memory in the padding of those",
    "strings": "strings that nothing kept refers to",
    "texts": "texts in columns without a rule",
}

# Tables that are left out whole, and the class that counts their rows.
LEFT_OUT = {
    "TARGET_INFO_SYSTEM_ENV": "environment",
    "ProcessStreams": "output",
    "ANALYSIS_FILE": "files",
    "TARGET_INFO_NIC_INFO": "network",
    "ETW_EVENTS_DEPRECATED_TABLE": "environment",
}
# Tables of which only some rows are kept.
META_EXPORT = ("META_DATA_EXPORT", "EXPORT_META_DATA")
META_CAPTURE = "META_DATA_CAPTURE"
PROCESSES, THREADS, TARGET_PROCESS = "PROCESSES", "ThreadNames", "TARGET_INFO_PROCESS"
STRING_TABLE = "StringIds"

KNOWN = re.compile(
    r"ENUM_\w+|UnwindMethodType|StringIds|ANALYSIS_DETAILS|META_DATA_(CAPTURE|EXPORT)|EXPORT_META_DATA|PROCESSES|ThreadNames"
    r"|TARGET_INFO_(PROCESS|GPU|SESSION_START_TIME|CUDA_(CONTEXT_INFO|DEVICE|GPU|NULL_STREAM|STREAM)"
    r"|NVTX_CUDA_(CONTEXT|DEVICE|STREAM)|WDDM_CONTEXTS|XMC_SPEC|GPU_METRICS)"
    r"|CUPTI_ACTIVITY_KIND_(KERNEL|MEMCPY|MEMSET|RUNTIME|SYNCHRONIZATION|GRAPH_TRACE|CUDA_EVENT|OVERHEAD"
    r"|OPENACC_(DATA|LAUNCH|OTHER))"
    r"|CUDA_(CALLCHAINS|GPU_MEMORY_USAGE_EVENTS|GRAPH_EVENTS|GRAPH_NODE_EVENTS|UM_(CPU|GPU)_PAGE_FAULT_EVENTS)"
    r"|CUBLAS_EVENTS|CUDNN_EVENTS|NVTX_EVENTS|NVTX_PAYLOAD_(ENUMS|ENUM_ENTRIES|SCHEMAS|SCHEMA_ENTRIES)"
    r"|OSRT_(API|CALLCHAINS|FILE_ACCESS_DESCRIPTORS|FILE_ACCESS_EVENTS)|SAMPLING_CALLCHAINS|COMPOSITE_EVENTS|SCHED_EVENTS"
    r"|PROFILER_OVERHEAD|DIAGNOSTIC_EVENT|GPU_METRICS|FECS_EVENTS|GPU_MEMORY_(BUDGET|USAGE)_EVENTS"
    r"|OPENMP_EVENT_KIND_\w+|NVVIDEO_(DECODER|ENCODER)_API"
    r"|(D3D11|D3D12)_PIX_DEBUG_API|DX12_(API|MEMORY_OPERATION|WORKLOAD)|KHR_DEBUG_EVENTS|OPENGL_(API|WORKLOAD)"
    r"|VULKAN_(API|DEBUG_API|PIPELINE_CREATION_EVENTS|PIPELINE_STAGE_EVENTS|WORKLOAD)|SLI_(P2P|QUERIES|STATS)"
    r"|WDDM_(DMA_PACKET_(INFO|START|STOP)|EVICT_ALLOCATION|HW_QUEUE|PAGING_QUEUE_PACKET_(INFO|START|STOP)"
    r"|QUEUE_PACKET_(INFO|START|STOP))_EVENTS"
)
# References to the string table, by column; a table's own rule goes first.
REFERENCES = {
    "demangledName": KERNEL,
    "shortName": KERNEL,
    "mangledName": KERNEL,
    "kernelName": KERNEL,
    "nameId": FUNCTION,
    "endNameId": FUNCTION,
    "funcName": FUNCTION,
    "varName": FUNCTION,
    "symbol": FUNCTION,
    "module": MODULE,
    "srcFile": MODULE,
    "textId": NVTX,
}
OWN_REFERENCES = {
    (THREADS, "nameId"): THREAD,
    (TARGET_PROCESS, "nameId"): PROCESS,
    ("NVTX_EVENTS", "jsonTextId"): JSON,
}
# Texts in place.
TEXTS = {
    **{(table, column): PLAIN for table in (*META_EXPORT, META_CAPTURE) for column in ("name", "value")},
    ("NVTX_EVENTS", "text"): NVTX,
    ("NVTX_EVENTS", "jsonText"): JSON,
    ("NVTX_EVENTS", "binaryData"): PAYLOAD,
    ("NVTX_PAYLOAD_ENUMS", "name"): NVTX,
    ("NVTX_PAYLOAD_ENUM_ENTRIES", "name"): NVTX,
    ("NVTX_PAYLOAD_SCHEMAS", "name"): PLAIN,
    ("NVTX_PAYLOAD_SCHEMA_ENTRIES", "name"): PLAIN,
    ("CUDA_GPU_MEMORY_USAGE_EVENTS", "name"): FUNCTION,
    ("SAMPLING_CALLCHAINS", "symbolName"): FUNCTION,
    ("DIAGNOSTIC_EVENT", "text"): MESSAGE,
    (PROCESSES, "name"): PROCESS,
    (STRING_TABLE, "value"): STRINGS,
    ("TARGET_INFO_GPU", "name"): PLAIN,
    ("TARGET_INFO_GPU", "chipName"): PLAIN,
    ("TARGET_INFO_GPU", "busLocation"): FORM,
    ("TARGET_INFO_GPU", "uuid"): UUID,
    ("TARGET_INFO_CUDA_GPU", "name"): PLAIN,
    ("TARGET_INFO_CUDA_GPU", "pciBusId"): FORM,
    ("TARGET_INFO_CUDA_DEVICE", "uuid"): UUID,
    ("TARGET_INFO_CUDA_CONTEXT_INFO", "tpcMask"): FORM,
    ("TARGET_INFO_GPU_METRICS", "typeName"): PLAIN,
    ("TARGET_INFO_GPU_METRICS", "metricName"): PLAIN,
    ("TARGET_INFO_NVTX_CUDA_CONTEXT", "name"): NVTX,
    ("TARGET_INFO_NVTX_CUDA_DEVICE", "name"): NVTX,
    ("TARGET_INFO_NVTX_CUDA_STREAM", "name"): NVTX,
    ("TARGET_INFO_SESSION_START_TIME", "utcTime"): FORM,
    ("UnwindMethodType", "name"): PLAIN,
}
# Texts of a fixed form; any other is emptied.
FORMS = {
    ("TARGET_INFO_GPU", "busLocation"): re.compile(r"[0-9a-fA-F:.]{0,24}"),
    ("TARGET_INFO_CUDA_GPU", "pciBusId"): re.compile(r"[0-9a-fA-F:.]{0,24}"),
    ("TARGET_INFO_CUDA_CONTEXT_INFO", "tpcMask"): re.compile(r"[0-9a-fA-Fx, ]{0,400}"),
    ("TARGET_INFO_SESSION_START_TIME", "utcTime"): re.compile(r"[\dT:. Z+-]{0,40}"),
}
IDENTIFYING_NUMBERS = {("TARGET_INFO_GPU", "luid")}  # class "uuids"

# Rows of the facts of the export that are kept; their values are releases and switches.
EXPORT_FACTS = re.compile(
    r"EXPORT_(PRODUCT_(NAME|VERSION|DATE)|SCHEMA_VERSION(_\w+)?|PLATFORM|ARCH"
    r"|PARAM_(OVERWRITE|APPEND|LAZY|TIME_NORMALIZE|TIME_SHIFT)|CONFIG_TIME_SHIFT)"
)
EXPORT_VALUE = re.compile(
    r"NVIDIA Nsight Systems|true|false|-?[\d. ]{0,40}(-\w{1,16})?|[a-z]{1,12}(-[a-z]{1,12})?|(x|aarch|arm|sbsa)\w{0,6}"
)
EXPORT_FILTERS = re.compile(r"EXPORT_PARAM_(TABLES|TIMES)_TO_EXPORT")  # only that they were used
# Settings that are kept: what was traced and how; only where the value is a switch, a number or a word.
CAPTURE_FACTS = re.compile(
    r"(PROCESS_\d+:)?(CAPTURE_EVENT_TYPE|RATE_HZ|RUN_DURATION_MS|START_TRIGGER|STOP_TRIGGER|COLLECT_\w+"
    r"|CUDA_(FLUSH|SKIP|GRAPH|BACKTRACE)\w*(:\w+)?|OS_RUNTIME_OPTIONS:\w+|\w+_THRESHOLD_NS)"
)
CAPTURE_VALUE = re.compile(r"true|false|-?\d+(\.\d+)?|[A-Za-z]{1,24}")
# Messages that are kept, their numbers included: those that tell whether the recording is whole.
MESSAGES = (
    re.compile(r"Number of [\w /]+ (collected|produced|dropped)[\w :,.\t]*"),
    re.compile(r"(?i)not all cuda events might have been collected[\w ,.]*"),
    re.compile(r"(?i)number of incomplete cupti events dropped[\w :,.\t]*"),
    re.compile(r"(?i)\w*activityflushall returned[\w ,.:]*"),
    re.compile(r"(?i)no (cuda|nvtx) events collected[\w ,.?]*"),
    re.compile(r"(?i)cuda profiling might have not been started[\w ,.]*"),
)


def reference(table: str, column: str) -> str | None:
    """What the strings are that this column refers to; None where it refers to none, or nobody knows."""
    return OWN_REFERENCES.get((table, column)) or REFERENCES.get(column)


def text(table: str, column: str) -> str | None:
    """What the texts of this column are; None when they are to be emptied."""
    return PLAIN if table.startswith("ENUM_") else TEXTS.get((table, column))
