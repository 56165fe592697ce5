"""What the figures behind a finding are called: one name in JSON, one label for people, one definition.

The report shows labels and definitions, docs/json.md lists all three. The unit is in the name: ``_ns`` are nanoseconds,
``_bytes`` bytes, ``_ratio`` numbers from 0 to 1, ``bandwidth`` bytes a second; all else are numbers or texts.
"""

from __future__ import annotations

from typing import NamedTuple


class Label(NamedTuple):
    """How a figure is shown: ``text`` beside it, ``meaning`` where it is asked for."""

    text: str
    meaning: str


_ALL = {
    # what can be won
    "bound_ns": ("At most to win", "Upper bound of the time that mending this could save in the window"),
    "bound_wall_ratio": (
        "At most to win, of wall time",
        "The bound over the window without model loading and start-up: what severity follows",
    ),
    "bound_window_ratio": ("At most to win, of the whole window", "The bound over the window as it stands"),
    "bound_latency_ratio": (
        "At most to win, of request latency",
        "Share of the requests' latency that lies in the bound's instants; n/a without requests",
    ),
    "host_waited_ns": (
        "Host inside the calls",
        "Time in which a thread that feeds the device was inside the waiting calls meant here; n/a where no calls are",
    ),
    "idle_while_host_waited_ns": (
        "of it with nothing else running",
        "The part of it in which nothing ran but the copies meant here; of synchronizations, nor had more been sent",
    ),
    "idle_after_ns": ("Idle right after", "Idle time right after these calls that counts into the bound"),
    "around_ns": (
        "Host around the calls",
        "Silent host time next to the calls that was told to belong to them; n/a where nothing tells",
    ),
    "held_up_ns": ("Kernels held up", "Time in which these copies kept a submitted kernel from starting"),
    "framework": ("Framework", "In whose words the remedy is given, by stacks, kernel names and thread names"),
    # copies
    "copies": ("Copies", "Number; a batched record counts as the copies it stands for"),
    "bytes": ("Bytes", "What they moved"),
    "median_bytes": ("Size, median", "Bytes of the copy in the middle; of an even number the smaller of the two"),
    "bytes_per_request": ("Bytes a request", "Bytes over the number of requests; n/a without requests"),
    "requests": ("Requests", "Number of requests or steps in the window; n/a where nothing says what one is"),
    "bytes_per_second": ("Bytes a second", "Bytes over the wall time without model loading and start-up"),
    "gpu_time_ns": ("Time on the GPU", "Sum of the copies' durations"),
    "exposed_ns": ("Exposed", "The copies' own part of the time in which copies and no kernel ran, in the window"),
    "exposed_window_ratio": ("Exposed, of the whole window", "Exposed time over the window as it stands"),
    "alone_ns": (
        "Alone on the device",
        "Time in which one of these copies and no kernel ran, without model loading and start-up",
    ),
    "alone_wall_ratio": ("Alone, of wall time", "That over the window without model loading and start-up"),
    "in_call_ns": ("Inside the copy calls", "Sum of the host's time in the calls; n/a for copies inside graphs"),
    "in_call_window_ratio": ("Inside the copy calls, of the whole window", "That over the window as it stands"),
    "bandwidth": ("Bandwidth on the GPU", "Bytes over the time the copies took on the GPU"),
    "call_bandwidth": ("Bandwidth to their callers", "Bytes over time in the call, of copies whose calls wait"),
    "senders": ("Who sends them", "By NVTX path, thread, API call and memory, most bytes first"),
    "call_paths": ("Call paths", "Distinct call stacks that sent them, leaf first"),
    "copies_with_path": ("Copies with a call path", "How many of them have a stack"),
    "cadence": ("Cadence", "How regularly they recur"),
    "threads": ("Threads", "Each thread that sent them, and how long it was inside the calls"),
    "directions": ("By direction", "Copies, bytes and time in calls by direction and memory"),
    "pairs": ("Pairs of devices", "Copies, bytes and bandwidth from one device to another"),
    "ranges_latency_ratio": (
        "NVTX ranges of the copies, of request latency",
        "Share of request latency in NVTX ranges that hold these copies and launch nothing",
    ),
    "by_size": ("By size", "Copies in powers of two of their size"),
    "from_bytes": ("From size", "Least size of the class; it ends below twice that"),
    "of_reach_ratio": ("Of what can be reached", "Their bandwidth over what large pinned copies reach"),
    "reach": ("Bandwidth that can be reached", "Bytes a second of large pinned copies here, or by the GPU's model"),
    "reach_basis": ("Where that comes from", "A copy in this recording, or the GPU's model"),
    "pinned_bandwidth": ("Bandwidth of pinned copies", "Bytes a second; n/a where neither recording nor model tells"),
    "pinned_basis": ("Where that comes from", "A copy in this recording, or the GPU's model"),
    "order": ("Order of copies and kernels", "Shares of the exposed time by what the trace says of the order"),
    "habit": ("Habit", "To the host on the kernels' own stream: the next kernel does not need them"),
    "input": ("Input", "To the device on the kernels' own stream: probably this step's input"),
    "declared": ("Declared", "On other streams, for which kernels were told to wait"),
    "kernels_ns": ("Kernels", "Time in which a kernel ran, in the window"),
    "runs": ("Runs", "Unbroken runs of small copies"),
    "copies_per_run": ("Copies a run", "In the median"),
    "median_call_ns": ("Time in one call, median", "Of these copies"),
    "median_gpu_ns": ("Time on the GPU of one copy, median", "Of these copies"),
    "latency_floor_ns": ("Latency floor", "What a copy takes here whatever its size"),
    "sequence_copies": ("Copies in the sequence", "Copies after which the sizes repeat"),
    "sequence_bytes": ("Bytes of the sequence", "What one such sequence moves"),
    "named_as_weights": ("Named as weights", "Whether NVTX ranges or functions call them so"),
    # state
    "direction": ("Direction", "eviction, reload or both"),
    "bursts": ("Blocks", "Unbroken runs of copies in one direction"),
    "burst_median_bytes": ("Size of a block, median", "Of an even number the smaller of the two in the middle"),
    "pageable_copies": ("Pageable copies", "How many of them read or write pageable memory"),
    "pageable_bytes": ("Pageable bytes", "What these moved"),
    "serving_thread_waits": ("A serving thread sends them", "Whether a thread that launches kernels does"),
    "only_serving_thread": ("The only serving thread sends them", "Whether no other thread launches kernels"),
    "named_as_state": ("Named as state", "Whether NVTX ranges or functions call them so"),
    "around": ("Host time around the copies", "How it was told to belong to them"),
    "sign": ("Told by", "nvtx, samples or comparison; see state_offload in rules.md"),
    "silent_ns": ("Silence next to them", "All host time without a CUDA call next to these copies"),
    "usual_silence_ns": ("Usual silence", "The threads' median silence elsewhere"),
    "samples": ("CPU samples", "How many fell there"),
    "samples_named": ("Samples with a known function", "Those that call stacks can name"),
    "samples_own": ("Samples in the copies' own functions", "Those in functions that only these copies' stacks have"),
    "call_mean_ns": ("Time in one call, mean", "Of the pageable ones"),
    "pinned_copy_ns": ("The same from pinned memory", "Bytes over the bandwidth of pinned copies"),
    "pinning_wins_ns": ("What pinning wins", "Time in the calls without a kernel, less what pinned copies would take"),
    # read-backs, waits, allocations
    "readbacks": ("Read-backs", "Copies of a few bytes to the host"),
    "by_thread": ("By thread", "Read-backs, waits and price of each thread"),
    "price_ns": ("Price", "What this thread's read-backs cost it"),
    "waited_ns": ("Waited", "Time inside the calls"),
    "waited_for_work_ns": ("Waited for work", "The part of the wait in which kernels ran that had to run anyway"),
    "dry_before_ratio": ("Device already idle before", "Share of read-backs before which the device had run dry"),
    "dry_before_median_ns": ("Idle before, median", "How long it had been idle by then"),
    "by_caller": ("By caller", "Waiting calls by function, NVTX path and thread"),
    "calls": ("Calls", "How many"),
    "calls_per_request": ("Calls a request", "n/a without requests"),
    "priced_elsewhere_ns": ("Counted by other findings", "Waits that belong to copies, by the rule that counts them"),
    "for_results": ("Waits for results", "Whether the waits follow copies of results"),
    "by_function": ("By function", "Allocating calls by function and thread"),
    # launching and idling
    "launches": ("Launches", "Launch calls in the window"),
    "kernels": ("Kernels", "How many ran in the window, or which"),
    "graph_launches": ("Graph launches", "How many of the launches are of graphs"),
    "graph_kernels_ratio": ("Kernels from graphs", "Share of the kernels that graphs sent"),
    "kernel_median_ns": ("Kernel, median", "Duration on the GPU"),
    "launch_interval_ns": ("From launch to launch, median", "Between neighbouring launches of one thread"),
    "launch_call_median_ns": ("Launch call, median", "Time in the call"),
    "gaps": ("Gaps", "How many"),
    "gap_median_ns": ("Gap, median", "How long"),
    "gaps_ns": ("Gaps, in all", "How long, with what other findings hold"),
    "empty_queue_ratio": ("Device had run dry", "Share of kernels before which its queue was empty"),
    "idle_in_launch_calls_ns": ("Idle inside launch calls", "The part of the bound in which a launch call was running"),
    "kernels_per_request": ("Kernels a request", "n/a without requests"),
    "stacks_recorded": ("Backtraces recorded", "Whether they slowed launches down"),
    "by_length": ("By length", "Gaps and idle time by order of magnitude"),
    "length": ("Length", "Order of magnitude"),
    "idle_ns": ("Idle", "In gaps of this row"),
    "by_activity_ns": ("What the host was doing", "Time by what the thread that ended each gap did in it"),
    "most": ("Most of all", "What takes most of the gaps"),
    "most_ratio": ("Its share", "Of the gaps' time"),
    "by_nvtx": ("By NVTX path", "Gaps by the range that their thread was in"),
    "outside_ranges_ns": ("Outside every NVTX range", "Of the gaps' time; n/a without ranges"),
    "os_functions": ("Operating system calls", "What the threads were in, most time first"),
    "sampled_functions": ("Sampled functions", "The program's functions in CPU samples there, most samples first"),
    "single_gaps": ("Single gaps", "Long gaps that do not recur, from and to; not counted"),
    "single_idle_ns": ("Single gaps, in all", "Their idle time; not counted"),
    "claimed_ns": ("Time claimed", "What the bound is made of"),
    "cause": ("Cause", "What the gaps are put down to"),
    "ns": ("Time", "In this row"),
    # fill, unified memory
    "kernels_busy_ratio": ("Kernels ran", "Share of wall time without model loading and start-up"),
    "sm_reach_ratio": ("Multiprocessors reached", "Blocks over multiprocessors, at most 1, weighted by time"),
    "sm_fill_ratio": ("SM fill (estimate)", "Resident blocks over what the device can hold, weighted by time"),
    "reach_ratio": ("Multiprocessors reached", "Blocks over multiprocessors, at most 1"),
    "unreached_ns": ("Time times what is not reached", "Duration times the share without a block"),
    "streams": ("Streams", "How many ran kernels"),
    "short_name": ("Kernel", "Its short name"),
    "time_ns": ("Time", "On the GPU"),
    "count": ("Count", "How many"),
    "migrations": ("Migrations", "Unified-memory transfers"),
    "bytes_to_device": ("Bytes to the device", "By migration"),
    "bytes_to_host": ("Bytes to the host", "By migration"),
    "return_ratio": ("Goes both ways", "The smaller direction over the larger"),
    "by_cause": ("By cause", "Migrations by what caused them"),
    "by_fault_ratio": ("By page fault", "Share of the bytes"),
    "prefetched_ratio": ("Prefetched by the program", "Share of the bytes"),
    "working_set_bytes": ("Working set", "Distinct bytes that migrate at all; n/a without addresses"),
    "beyond_working_set_bytes": ("Beyond it", "Bytes moved beyond one pass each way over the working set"),
    # who and when
    "api": ("API call", "The CUDA function"),
    "nvtx": ("NVTX path", "Ranges open on the thread, or the range with the same period"),
    "nvtx_by": ("Path found by", "thread, in time, or none"),
    "thread": ("Thread", "Name and number"),
    "kind": ("Copy", "Direction and memory"),
    "functions": ("Functions", "Leaf first"),
    "function": ("Function", "Its name"),
    "events": ("Events", "How many"),
    "period_ns": ("Period", "Median distance of two"),
    "spread_ratio": ("Spread", "Half the distance between the quartiles of the period, over the period"),
    "regular": ("Regular", "Whether the spread is at most a quarter"),
    # the recording
    "checks": ("Checks", "The integrity checks that say so"),
    "graphs": ("Graphs", "Recorded as one span each"),
    "graphs_ns": ("Whole graphs", "Time in which one ran"),
    "graphs_window_ratio": ("Whole graphs, of the window", "That over the window"),
    "graphs_busy_ratio": ("Whole graphs, of busy time", "That over the time in which anything ran"),
    "calls_with_stack": ("Calls with a backtrace", "How many"),
    "loading_end_ns": ("End of loading", "Session time"),
    "loading_window_ratio": ("Loading, of the window", "Share of the window that loads a model"),
    "wall_ns": ("Wall time", "The window without model loading and start-up"),
}

LABELS: dict[str, Label] = {name: Label(*texts) for name, texts in _ALL.items()}


def label(name: str) -> str:
    """What a figure is called in the report; names that are data (a function, a direction) are shown as they are."""
    return LABELS[name].text if name in LABELS else name
