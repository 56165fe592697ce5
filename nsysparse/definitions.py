"""What every term in a report means, in one place: table headers link here, and so does the documentation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """One term.

    Attributes:
        key: Stable id, used in links.
        term: As it is printed.
        text: What it means, in a few sentences.
    """

    key: str
    term: str
    text: str


_TERMS = (
    (
        "window",
        "Window",
        "The stretch of time that every share is a share of. By default it is the steady state where top-level NVTX"
        " ranges repeat, and otherwise the whole recording on the device. Operations that cross its edge are clipped"
        " to it; an operation is counted, with its bytes, in the window in which it starts.",
    ),
    (
        "phase",
        "Phase",
        "A window that the recording offers by itself. whole: first start to last end of any GPU operation. ranges:"
        " first to last of the repeated top-level NVTX ranges. steady: the same from their second repetition on, so"
        " that imports, loading and warm-up lie outside.",
    ),
    (
        "session-time",
        "Session time",
        "Time since the recording session began: the clock of the Nsight Systems timeline. The times printed here can"
        " be typed there.",
    ),
    (
        "device",
        "Device",
        "One GPU. Work of several processes is brought together on the physical GPU where the export says which one"
        " it is; where it does not, a device is a process and its CUDA ordinal, and no model is claimed.",
    ),
    (
        "kind",
        "Kind of work",
        "Kernels, copies, memsets, whole CUDA graphs (recorded as one span, their kernels hidden) and unified-memory"
        " migrations.",
    ),
    (
        "busy",
        "Busy",
        "Length of the union of the intervals in which something ran. Two streams that run at once count once, so"
        " busy time never exceeds the window. Busy of a kind is the union over that kind alone, which is why the kinds"
        " can add up to more than busy.",
    ),
    ("idle", "Idle", "Window minus busy: no kernel, copy, memset, graph or migration was running."),
    (
        "exposed",
        "Exposed",
        "Copy time during which no kernel and no graph ran. Where copies overlap each other an instant goes to the one"
        " that started first, so the rows of a table add up to the window's exposed time. Exposed is not yet lost: see"
        " held up and host-blocked in copies.",
    ),
    (
        "overlapped",
        "Overlapped",
        "Copy time during which a kernel or a graph ran: hidden behind computation.",
    ),
    (
        "held-up",
        "Held up",
        "The part of exposed copy time during which a kernel had been submitted (its launch call had returned) and had"
        " not started. The GPU had work, and a copy stood in its way.",
    ),
    (
        "host-blocked-in-copies",
        "Host-blocked in copies",
        "The part of exposed copy time during which a thread that feeds the device was inside a copy or synchronize"
        " call. What better copies can win is bounded by this and by held-up time.",
    ),
    (
        "host-blocked",
        "Host blocked",
        "Time that a thread spent inside calls that wait: synchronize calls, synchronous copies, and copies from or to"
        " pageable memory, which wait whatever their name says. A union per thread.",
    ),
    (
        "idle-while-blocked",
        "Idle while the host was blocked",
        "Time in which the device was idle and a thread that feeds it was inside a call that waits.",
    ),
    (
        "utilization",
        "Utilization",
        "Four figures that are often taken for one. Kernel-busy is the one that nvidia-smi's follows: the share of"
        " time in which any kernel ran, however small. Copy-busy is the same for copies. Busy is either, or anything"
        " else. SM fill says how much of the GPU the kernels used while they ran. Measured side by side on an H200, for"
        " a program bound by copies: nvidia-smi said 7.6%, kernel-busy was 1.6%, copy-busy 83.0% and busy 84.6%.",
    ),
    (
        "sm-fill",
        "SM fill (estimate)",
        "Resident blocks of a kernel over the blocks of its shape that the device can hold, from grid, block,"
        " registers, shared memory and the device's limits; averages are weighted by time. An estimate: 100% means that"
        " the grid fills every multiprocessor once, not that they compute at their peak.",
    ),
    (
        "loading",
        "Loading phase",
        "A leading stretch in which at least 90% of all host-to-device bytes arrive and hardly a kernel runs: a model"
        " being loaded. Its shares say nothing of serving.",
    ),
    (
        "copy-kind",
        "Copy",
        "Direction of a copy. H is host, D is device, A is a CUDA array, P is a peer GPU: DtoH brings data from the"
        " device to the host.",
    ),
    (
        "memory-kind",
        "Memory",
        "Where a copy reads and writes. Pageable memory is ordinary host memory: the driver copies it through a buffer"
        " of its own while the caller waits. Pinned memory is page-locked, and the GPU reaches it directly.",
    ),
    (
        "peer",
        "Peer",
        "The two devices of a peer copy, as GPU numbers where the export maps CUDA ordinals to GPUs. Its bytes are"
        " counted once, on the device whose stream ran it.",
    ),
    (
        "count",
        "Count",
        "Operations that start in the window. A batched record counts as the copies that it stands for.",
    ),
    ("bytes", "Bytes", "Bytes of the counted operations. Units are decimal: 1 MB is 1,000,000 bytes."),
    (
        "time",
        "Time",
        "Sum of durations on the GPU, clipped to the window. Operations on several streams are added, so a sum can"
        " exceed the busy time of its kind, and even the window.",
    ),
    (
        "duration",
        "Duration",
        "Time on the GPU of one operation; mean, median, least and most of the counted ones.",
    ),
    (
        "in-call",
        "In the call",
        "Time that host threads spent inside the API calls that asked for these copies: what the copies cost their"
        " caller. Not known for copies inside CUDA graphs.",
    ),
    (
        "bandwidth",
        "Bandwidth, GPU",
        "Bytes over the time the copies took on the GPU. For pageable memory this flatters: the driver's own copying"
        " on the host is not in it.",
    ),
    (
        "call-bandwidth",
        "Bandwidth, call",
        "The same bytes over the time in the call. Where calls wait, this is what the program gets; where they return"
        " at once it means little and can exceed the link.",
    ),
    ("best-copy", "Best copy", "Bandwidth of the fastest single copy of at least 1 MB in the group."),
    (
        "link-peak",
        "Link peak",
        "What the link between host and device can carry in one direction, by GPU model or as given by the user;"
        " n/a where the model does not tell.",
    ),
    (
        "size-class",
        "Size",
        "Copies by size in powers of two: a class holds sizes from the one printed to below twice that.",
    ),
    ("per-request", "Per request", "Total in the window divided by the number of requests in it."),
    (
        "request",
        "Request",
        "A step or request of the program: NVTX ranges named by the user, a number given by the user, or the top-level"
        " ranges that repeat. A call belongs to the latest-started request around it, so nothing counts twice.",
    ),
    (
        "latency",
        "Latency",
        "Length of the request's range on the host, from its push to its pop.",
    ),
    (
        "quantile",
        "Median, p95, p99",
        "Half, 95% and 99% of the requests lie at or below this value, with linear interpolation.",
    ),
    ("unclaimed", "Unclaimed", "Kernels and copies of the window that no request sent."),
    (
        "call-path",
        "Call path",
        "The functions behind an operation, from the thread to the call: recorded with the call, or seen by a sample"
        " inside it. Python frames stand in the interpreter's place; the profiler's own frames, a framework's dispatch"
        " and the driver's inside are left out. A row opens to the whole path, as drawn.",
    ),
    (
        "waiting-call",
        "Waiting call",
        "A synchronize call, or a copy that blocks its caller; counted when it touches the window.",
    ),
    (
        "stack-coverage",
        "Coverage by stacks",
        "How many operations of the whole recording have a call stack, and what share of their time: recorded with"
        " their call, or seen by a CPU or Python sample that fell inside it. The time of a synchronization is that in"
        " the call.",
    ),
    (
        "cpu-sample",
        "CPU sample",
        "One look of the profiler at a running thread of the program, inside the window. A thread that sleeps is not"
        " sampled.",
    ),
    (
        "on-stack",
        "On the stack",
        "Samples whose stack holds a CUDA copy or synchronize function. Stacks that could not be unwound escape it.",
    ),
    (
        "inside-call",
        "Inside a call",
        "Samples that fell between the start and the return of such a call of their thread, whatever their stack shows."
        " Calls that were not recorded escape it.",
    ),
    (
        "nvtx-path",
        "NVTX path",
        "The push/pop ranges open on the calling thread when it made the call, from the outside in. Names that differ"
        " only in their digits are brought together under a pattern with # for the digits.",
    ),
    (
        "found-by",
        "Found by",
        "How an operation got its path. thread: by the ranges of the thread that made the call. in time: that thread"
        " has no NVTX (autograd's thread, for one), so the range that encloses the call in time in the same process was"
        " taken; counted apart because it is a guess. none: no range.",
    ),
    ("ranges", "Ranges", "Instances of the range that start in the window."),
    (
        "own-total",
        "Own and total",
        "Own figures belong to calls made directly under the path; totals include the paths below it.",
    ),
    (
        "start-end",
        "Start/end ranges",
        "NVTX ranges that may overlap and may end on another thread. They are no level of a path.",
    ),
    ("api", "API call", "The CUDA function, without its version suffix, that asked for the operation."),
    ("thread", "Thread", "Name, process id and thread id of the thread that made the call."),
    (
        "feeds",
        "Operations sent",
        "GPU operations that ran in the window, also those that began before it, whose call this thread made. Calls are"
        " all CUDA calls of the thread that touch the window, one each, however many rows backtraces make of it.",
    ),
    (
        "call-time",
        "Time in calls",
        "Union of the thread's calls of this sort, clipped to the window. Memsets are no copies here.",
    ),
    (
        "kernel-name",
        "Kernel",
        "The function's short name; open it for the whole demangled one. Kernels with the same demangled name are one"
        " row.",
    ),
    (
        "gap",
        "Gap",
        "A stretch in which the device was idle. Its thread is the one whose call sent the operation that ended it.",
    ),
    (
        "activity",
        "What the host was doing",
        "What the gap's thread was doing, instant by instant, the first that applies: profiler overhead, synchronize,"
        " copy (or memset), allocation, launch or other CUDA call, OS runtime call. No traced call means that it ran"
        " code (or waited) outside anything the recording shows.",
    ),
    (
        "coverage",
        "Coverage",
        "How much of the GPU's work could be attributed: by number of operations, and by the sum of their time.",
    ),
    (
        "check",
        "Check",
        "One way in which a recording can be incomplete or wrong. ok: looked and found nothing. unknown: the export"
        " does not hold what the check needs. note: worth knowing. suspect: perhaps incomplete. incomplete: data is"
        " missing.",
    ),
    (
        "hole",
        "Hole",
        "A stretch of time in which part of the recording is missing. Shares of a window that overlaps one are marked"
        " with a dagger: they are shares of what is left.",
    ),
    (
        "finding",
        "Finding",
        "What a rule has to say. Severity follows what there is to win as a share of wall time or of request latency;"
        " confidence says how sure the rule is of the cause; the bound is the most that winning it back could bring in"
        " the window. Bounds of several findings overlap where they speak of the same instants: what is shown as in no"
        " finding above is what remains when each instant counts once, and only that may be added up.",
    ),
    (
        "lost-time",
        "Time without a kernel",
        "The window minus kernels and whole graphs: idle time, and time in which only copies or memsets ran. It is"
        " split so that each instant belongs to one finding: first to those with a cause of their own (copies, waits,"
        " allocations), the one with the most to win first, then to what explains the rest. What no finding claims is"
        " shown as such.",
    ),
    (
        "sampler",
        "Sampler",
        "A profiler that looks N times a second. One that looks at the device sees a class of copies with a chance"
        " equal to its share of the window: right in the mean, with a standard error of sqrt(p (1 - p) / looks), and"
        " blind to most single operations that are shorter than its period. One that looks at CPU threads sees a copy"
        " only while a thread is inside its call; no thread is inside an asynchronous copy.",
    ),
    (
        "outcome",
        "Outcome",
        "Every rule ends in one of four ways on every device: fired (a finding), quiet (looked, nothing to say),"
        " skipped (what it needs was not recorded), failed (an error in the rule).",
    ),
    (
        "recorded",
        "Recorded",
        "Rows in the export of one kind of data, the table they come from, and the option of nsys profile that"
        " records them.",
    ),
)

DEFINITIONS: dict[str, Definition] = {key: Definition(key, term, text) for key, term, text in _TERMS}
