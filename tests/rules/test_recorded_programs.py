"""Programs recorded on an H200 (benchmarks): each pattern is found and leads, the healthy are left alone.

What leads is what somebody who knows the program says of its recording; where that is not the rule that the program was
written for, LEADS says why.
"""

from __future__ import annotations

import lzma
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest
from independent import length, merged, overlap, sql

from nsysparse.analysis import Analysis, analyze
from nsysparse.findings import Failed, Finding, Severity
from nsysparse.integrity import Status
from nsysparse.source import open_trace

FOLDER = Path(__file__).parents[1] / "fixtures" / "patterns"
LEADS = {
    "asarray_each_step": "idle_gaps",  # 51 ms of copies, 404 ms of the host's copying into its own pinned buffer
    "arrays_into_jit": "idle_gaps",  # the same in XLA
    "cache_cloned_each_token": "device_copies",
    "double_buffer_by_copy": "device_copies",
    "eager_decode": "idle_gaps",  # a kernel is compiled each token, as its samples say
    "elementwise_chain": "launch_bound",
    "empty_cache_each_step": "allocation_churn",
    "forty_small_tensors": "small_copies",
    "four_blocks": "low_fill",
    "kv_offloaded_cache": "launch_bound",  # see test_launches_cost_more_than_the_offloaded_cache
    "loader_too_slow": "idle_gaps",
    "losses_one_by_one": "scalar_readback",
    "managed_to_and_fro": "unified_memory",
    "narrow_tiles": "slow_copies",
    "no_memory_pool": "allocation_churn",
    "pageable_images": "pageable_copies",
    "pageable_tokens": "pageable_copies",
    "pageable_workers": "pageable_copies",
    "pinned_buffer_each_step": "allocation_churn",
    "pinned_in_sequence": "serial_copies",
    "pipeline_over_peers": "device_copies",
    "python_between_steps": "idle_gaps",
    "results_in_sequence": "serial_copies",
    "session_swap": "state_offload",
    "small_batch_lstm": "low_fill",
    "strided_columns": "slow_copies",
    "swap_blocks": "state_offload",
    "synchronize_each_layer": "launch_bound",  # see test_launches_cost_more_than_the_synchronizations
    "table_each_step": "streamed_weights",
    "token_by_item": "scalar_readback",
    "wait_for_each_kernel": "host_sync",
    "weights_from_host": "streamed_weights",
    "while_not_done": "launch_bound",  # the device has run dry before nearly all of its read-backs
}
ALSO = {
    "eager_decode": "launch_bound",
    "kv_offloaded_cache": "state_offload",
    "synchronize_each_layer": "host_sync",
    "while_not_done": "scalar_readback",
}
ONLY_INFORMATION = {"clip_by_item": "scalar_readback", "graphs_recorded_whole": "recording"} | dict.fromkeys(
    ("half_in_graphs", "mostly_loading"), "recording"
)
HEALTHY = sorted(p.name.partition(".")[0] for p in FOLDER.glob("healthy_*.xz"))


@cache
def unpacked(name: str) -> Path:
    target = Path(tempfile.mkdtemp()) / f"{name}.sqlite"
    with lzma.open(FOLDER / f"{name}.sqlite.xz") as packed, target.open("wb") as out:
        shutil.copyfileobj(packed, out)
    return target


@cache
def analysis(name: str) -> Analysis:
    with open_trace(unpacked(name)) as trace:
        return analyze(trace)


def finding(name: str, rule: str) -> Finding:
    return next(f for f in analysis(name).findings if f.rule == rule)


def spans(name: str, table: str, where: str = "1") -> list[tuple[int, int]]:
    query = f"SELECT start, end FROM CUPTI_ACTIVITY_KIND_{table} WHERE {where}"
    return sql(unpacked(name), query)


def union(name: str, table: str, where: str = "1") -> list[tuple[int, int]]:
    """Merged spans inside the window, after its start-up."""
    account = analysis(name).devices[0]
    low = max(account.window.start_ns, account.startup.end_ns if account.startup else 0)
    return merged(spans(name, table, where), low, account.window.end_ns)


@pytest.mark.parametrize("name", LEADS)
def test_the_pattern_leads(name: str) -> None:
    result = analysis(name)
    assert not [o for o in result.outcomes if isinstance(o, Failed)]
    top = result.findings[0]
    assert (top.rule, top.severity > Severity.INFO) == (LEADS[name], True)


@pytest.mark.parametrize("name", ALSO)
def test_what_comes_next_is_named(name: str) -> None:
    assert finding(name, ALSO[name]).severity > Severity.INFO


@pytest.mark.parametrize("name", ONLY_INFORMATION)
def test_what_costs_nothing_is_for_information(name: str) -> None:
    result = analysis(name)
    assert result.findings[0].rule == ONLY_INFORMATION[name]
    assert {f.severity for f in result.findings} == {Severity.INFO}
    assert not [o for o in result.outcomes if isinstance(o, Failed)]


@pytest.mark.parametrize("name", HEALTHY)
def test_the_healthy_are_left_alone(name: str) -> None:
    result = analysis(name)
    assert not [f.title for f in result.findings if f.severity > Severity.INFO]
    assert not [o for o in result.outcomes if isinstance(o, Failed)]


def test_there_are_enough_of_them() -> None:
    assert len(HEALTHY) >= 14
    assert set(LEADS) | set(ONLY_INFORMATION) | set(HEALTHY) == {p.name.partition(".")[0] for p in FOLDER.glob("*.xz")}


def test_waits_of_small_copies_are_not_told_twice() -> None:
    assert "host_sync" not in {f.rule for f in analysis("forty_small_tensors").findings}


# --- what leads, defended with numbers of plain SQL ---


def test_launches_cost_more_than_the_offloaded_cache() -> None:
    """Nothing at all runs in 73% of the time; without the copies at most the 21% in which they run alone were won."""
    name = "kv_offloaded_cache"
    window = analysis(name).devices[0].window
    kernels, copies, memsets = (union(name, t) for t in ("KERNEL", "MEMCPY", "MEMSET"))
    busy = merged([*kernels, *copies, *memsets], window.start_ns, window.end_ns)
    idle, alone = window.length_ns - length(busy), length(copies) - overlap(copies, kernels)
    launch, offload = finding(name, "launch_bound"), finding(name, "state_offload")
    assert idle > 3 * alone
    assert alone < launch.bound_ns <= idle
    assert offload.bound_ns <= alone
    assert offload.evidence["direction"] == "both"


def test_launches_cost_more_than_the_synchronizations() -> None:
    """Without a single wait the host still needs most of the time that the device has nothing to do."""
    name = "synchronize_each_layer"
    waits = length(union(name, "RUNTIME", "nameId IN (SELECT id FROM StringIds WHERE value LIKE 'cuda%Synchronize%')"))
    kernels, window = union(name, "KERNEL"), analysis(name).devices[0].window
    without_waits = window.length_ns - waits  # the host's own time
    assert finding(name, "host_sync").bound_ns <= waits < 0.18 * window.length_ns
    assert without_waits > 3 * length(kernels)  # it could not have kept the device busy
    assert finding(name, "launch_bound").bound_ns <= window.length_ns - length(kernels) - waits + 0.5 * waits


def test_a_small_price_is_called_small() -> None:
    """576 read-backs, and yet kernels run in 96% of the time: there is no more to win than the rest."""
    name = "clip_by_item"
    window, kernels = analysis(name).devices[0].window, union(name, "KERNEL")
    assert finding(name, "scalar_readback").bound_ns <= window.length_ns - length(kernels) < 0.04 * window.length_ns


def test_compiling_leads_where_samples_say_so() -> None:
    top = analysis("eager_decode").findings[0]
    assert top.evidence["sampled_functions"][0]["function"] == "nvrtcCompileProgram"
    assert top.bound_ns > 3 * finding("eager_decode", "launch_bound").bound_ns


@pytest.mark.parametrize("name", ["graphs_recorded_whole", "half_in_graphs", "healthy_graph"])
def test_hidden_graphs_are_said_in_the_verdict(name: str) -> None:
    graphs = union(name, "GRAPH_TRACE")
    account = analysis(name).devices[0]
    said = finding(name, "recording").evidence
    assert said["graphs"] == len(spans(name, "GRAPH_TRACE"))
    whole = length(merged(spans(name, "GRAPH_TRACE"), account.window.start_ns, account.window.end_ns))
    assert said["graphs_ns"] == whole >= length(graphs)
    assert said["graphs_busy_ratio"] == pytest.approx(whole / account.busy.everything.length)
    assert said["graphs_busy_ratio"] > 0.5
    assert any("--cuda-graph-trace=node" in s and "Whole CUDA graphs hide" in s for s in analysis(name).verdict)


# --- start-up, loading, and calls without a GPU row ---


def test_startup_is_no_part_of_what_findings_are_shares_of() -> None:
    """Most of the window is imports and compilation; of what follows, the device waits for launches."""
    name = "elementwise_chain"
    account, top = analysis(name).devices[0], analysis(name).findings[0]
    startup, window = account.startup, account.window
    ops = sorted(spans(name, "KERNEL"))
    assert startup.operations == sum(s < startup.end_ns for s, _ in ops)
    assert startup.operations_ratio == pytest.approx(startup.operations / len(ops))
    assert startup.operations_ratio < 0.001
    assert startup.window_ratio == pytest.approx((startup.end_ns - window.start_ns) / window.length_ns)
    assert startup.window_ratio > 0.5
    after = window.end_ns - startup.end_ns
    assert top.evidence["bound_wall_ratio"] == pytest.approx(top.bound_ns / after)
    assert top.bound_ns <= after - length(union(name, "KERNEL"))
    assert "after start-up" in top.title
    assert any("is start-up" in s for s in analysis(name).verdict)
    lost = analysis(name).lost
    assert lost["lost_ns"].sum() == window.length_ns - length(merged(ops, window.start_ns, window.end_ns))
    assert "start-up" in lost["finding"].to_list()


def test_the_last_copies_of_a_model_are_loading_too() -> None:
    """No kernel runs before the last weight has come: all of them are loading, not pageable inputs."""
    name = "mostly_loading"
    loading = analysis(name).devices[0].loading
    copies = sorted(spans(name, "MEMCPY", "copyKind = 1"))
    assert loading.end_ns == copies[-1][1]
    assert loading.bytes_ratio == 1


def test_copies_that_the_profiler_never_sees_are_not_lost() -> None:
    """XLA's autotuning: no cuMemcpyDtoHAsync has a GPU row, and each stands between calls that have one."""
    for name in ("arrays_into_jit", "healthy_jax"):
        result = analysis(name)
        check = next(c for c in result.integrity.checks if c.id == "missing_rows")
        calls = sql(
            unpacked(name),
            "SELECT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE nameId IN"
            " (SELECT id FROM StringIds WHERE value LIKE 'cuMemcpyDtoHAsync%')",
        )
        rows = {c for (c,) in sql(unpacked(name), "SELECT correlationId FROM CUPTI_ACTIVITY_KIND_MEMCPY")}
        assert calls
        assert not rows & {c for (c,) in calls}
        assert check.evidence["never_recorded"] == len(calls)
        assert check.evidence["lost"] == 0
        assert result.integrity.status is Status.OK


# --- single patterns ---


def test_a_table_that_dominates_is_named_without_a_name() -> None:
    name = "table_each_step"
    f, copies, kernels = finding(name, "streamed_weights"), union(name, "MEMCPY"), union(name, "KERNEL")
    assert length(copies) > 10 * length(kernels)
    assert f.confidence == "low"  # nothing says what it is
    assert (f.evidence["copies"], f.evidence["bytes"]) == (80, 80 * 128_000_000)
    assert f.bound_ns <= length(copies)
    assert f.severity is Severity.HIGH


def test_a_cache_swapped_out_and_in_is_state_and_no_weights() -> None:
    name = "swap_blocks"
    f, window = finding(name, "state_offload"), analysis(name).devices[0].window
    moved = sql(
        unpacked(name),
        f"SELECT sum(bytes), count(*) FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE start BETWEEN {window.start_ns} AND"
        f" {window.end_ns}",
    )
    assert f.evidence["direction"] == "both"
    assert (f.evidence["bytes"], f.evidence["copies"]) == moved[0]
    assert f.bound_ns <= window.length_ns - length(union(name, "KERNEL"))


def test_peer_copies_between_stages_are_named_by_gpu() -> None:
    """One GPU hands 268 MB a step to the other; that one waits for it, and for no host."""
    name = "pipeline_over_peers"
    f, (sender, receiver) = finding(name, "device_copies"), analysis(name).devices
    low, high = sender.window.start_ns, sender.window.end_ns
    mine = f"deviceId = 0 AND start BETWEEN {low} AND {high}"
    rows = sql(
        unpacked(name), f"SELECT count(*), sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind = 10 AND {mine}"
    )
    assert (
        [tuple(f.evidence["pairs"]["GPU 0 to GPU 1"][k] for k in ("copies", "bytes"))]
        == rows
        == [(199, 53_418_655_744)]
    )
    copies, kernels = (merged(spans(name, t, "deviceId = 0"), low, high) for t in ("MEMCPY", "KERNEL"))
    assert f.evidence["alone_ns"] == length(copies) - overlap(copies, kernels)
    assert 0.8 * f.evidence["alone_ns"] < f.bound_ns == f.evidence["held_up_ns"] <= f.evidence["alone_ns"]
    # Most of the receiver's idle time lies inside the host's waits, and yet the kernels that end it had been sent.
    waits = [o for o in analysis(name).findings if (o.rule, o.device) == ("host_sync", receiver.number)]
    assert all(w.bound_ns < 0.3 * receiver.busy.idle.length for w in waits)
    assert all(w.severity < Severity.HIGH for w in waits)


def test_idle_between_requests_is_for_information() -> None:
    """The serving thread waits for its queue outside every request: nobody asked."""
    f = finding("healthy_low_load", "idle_gaps")
    assert f.evidence["cause"] == "no work"
    window = analysis("healthy_low_load").devices[0].window
    asked = sql(unpacked("healthy_low_load"), "SELECT start, end FROM NVTX_EVENTS WHERE eventType = 59 AND end > 0")
    inside = merged(asked, window.start_ns, window.end_ns)
    assert f.evidence["outside_ranges_ns"] <= window.length_ns - length(inside)
    assert length(inside) < 0.15 * window.length_ns
    assert f.bound_ns > 0.9 * (window.length_ns - length(inside))
