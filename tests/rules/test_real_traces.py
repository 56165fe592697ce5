"""The verdicts on the real recordings are an expert's; their figures equal plain SQL and loops on the same files."""

from __future__ import annotations

import re
from functools import cache

import pytest
from independent import length, merged, overlap, sql
from traces import NAMES, trace_path

from nsysparse.accounting.device import Options
from nsysparse.analysis import Analysis, analyze
from nsysparse.findings import Failed, Finding, Severity
from nsysparse.source import open_trace
from nsysparse.units import percent
from rules.plain import DTOH, Plain

REQUESTS = {"llama_default": 16, "llama_nosave": 16}
# All findings of high severity; the tests below defend each with numbers.
HIGH = {
    "eager_h2d": {"idle_gaps"},
    "state_checkpoint": {"state_offload"},
    "train_item": {"launch_bound"},
    "llama_default": {"state_offload"},
}


@cache
def analysis(name: str) -> Analysis:
    with open_trace(trace_path(name)) as trace:
        return analyze(trace, Options(requests=REQUESTS.get(name)))


@cache
def plain(name: str, steps: str | None = None) -> Plain:
    return Plain(trace_path(name), steps)


def finding(name: str, rule: str) -> Finding:
    (only,) = [f for f in analysis(name).findings if f.rule == rule]
    return only


def rules(name: str, severity: Severity) -> set[str]:
    return {f.rule for f in analysis(name).findings if f.severity >= severity}


@pytest.mark.parametrize("name", NAMES)
def test_no_rule_breaks_and_every_high_finding_is_known(name: str) -> None:
    assert not [o for o in analysis(name).outcomes if isinstance(o, Failed)]
    assert rules(name, Severity.HIGH) == HIGH.get(name, set())


@pytest.mark.parametrize("name", NAMES)
def test_lost_time_is_split_without_rest_and_without_repetition(name: str) -> None:
    """The rows of a device add up to its window's time without a kernel, worked out from the file."""
    for account in analysis(name).devices:
        window = account.window
        rows = analysis(name).lost.filter(device=account.number)
        compute = account.busy.compute.length
        assert rows["lost_ns"].sum() == window.length_ns - compute
        assert rows["lost_ns"].min() >= 0
        owned = {f.id: f.own_ns for f in analysis(name).findings if f.device == account.number and f.own_ns is not None}
        assert {r["finding"]: r["lost_ns"] for r in rows.to_dicts() if r["finding"] in owned} == owned


@pytest.mark.parametrize("name", NAMES)
def test_bounds_are_possible(name: str) -> None:
    """No finding promises more than its window has without a kernel, and none more than it names."""
    by_device = {a.number: a for a in analysis(name).devices}
    for f in analysis(name).findings:
        if f.bound_ns is None or f.device is None:
            continue
        account = by_device[f.device]
        assert 0 <= f.bound_ns <= account.window.length_ns - account.busy.compute.length
        assert f.evidence["bound_window_ratio"] == pytest.approx(f.bound_ns / account.window.length_ns)
        for start, end in f.instances:
            assert start < end
            assert account.window.start_ns < end
            assert start < account.window.end_ns


class TestStateCheckpoint:
    """Copy-bound: 40 MB a request to pageable memory, on the serving thread."""

    name, steps = "state_checkpoint", "request:"

    def test_at_the_top(self) -> None:
        top = analysis(self.name).findings[0]
        assert (top.rule, top.severity, top.confidence) == ("state_offload", Severity.HIGH, "high")
        assert "40 MB of state a request" in top.title
        assert "request:#/state_save (tensor.cpu() < state_checkpoint (workloads.py:31))" in top.detail
        assert "the only thread that serves" in top.detail

    def test_figures(self) -> None:
        p, e = plain(self.name, self.steps), finding(self.name, "state_offload").evidence
        copies = p.copies(DTOH, pageable=True)
        assert [c.nbytes for c in copies] == [40_000_000] * 15
        assert (e["copies"], e["bytes"], e["bytes_per_request"]) == (15, 600_000_000, 40_000_000)
        calls = [p.call_of(c) for c in copies]
        assert e["in_call_ns"] == sum(c.end - c.start for c in calls)
        alone = merged(((c.start, c.end) for c in copies), p.low, p.high)
        assert e["exposed_ns"] == length(alone) - overlap(alone, p.kernels)
        assert e["exposed_window_ratio"] == pytest.approx(0.721, abs=0.001)
        assert e["bandwidth"] == pytest.approx(
            sum(c.nbytes for c in copies) * 1e9 / sum(c.end - c.start for c in copies)
        )

    def test_bound_is_what_calls_and_their_ranges_hold(self) -> None:
        p, f = plain(self.name, self.steps), finding(self.name, "state_offload")
        held = [(c.start, c.end) for c in p.held(p.copies(DTOH, pageable=True))]
        saves = [r for r in p.ranges("state_save") if r[0] >= p.low]
        assert f.bound_ns == p.without_kernel([*held, *saves])
        assert f.evidence["host_waited_ns"] == length(merged(held, p.low, p.high))
        assert f.evidence["around_ns"] == length(merged(saves, p.low, p.high)) - overlap(
            merged(saves, p.low, p.high), merged(held, p.low, p.high)
        )
        requests = [r for r in p.ranges("request:") if r[0] >= p.low]
        inside = merged([*held, *saves], p.low, p.high)
        latency = overlap(inside, requests) - overlap(inside, p.kernels)
        assert f.evidence["bound_latency_ratio"] == pytest.approx(latency / length(requests), rel=1e-9)

    def test_what_pinning_wins(self) -> None:
        """32.4 ms a copy to under 1 ms."""
        e = finding(self.name, "state_offload").evidence
        assert e["call_mean_ns"] == pytest.approx(32.4e6, rel=0.01)
        assert e["pinned_copy_ns"] < 1_000_000
        assert e["pinning_wins_ns"] == e["in_call_ns"] - round(600_000_000 / (0.85 * 63e9) * 1e9)

    def test_nothing_else_above_information(self) -> None:
        assert rules(self.name, Severity.LOW) == {"state_offload"}


class TestTrainItem:
    """Launch-bound; the read-backs are reported with their true, small price."""

    name, steps = "train_item", "train_step"

    def test_launch_bound_at_the_top(self) -> None:
        p, top = plain(self.name, self.steps), analysis(self.name).findings[0]
        assert (top.rule, top.severity) == ("launch_bound", Severity.HIGH)
        held = [(c.start, c.end) for c in p.held(p.copies(DTOH, most=8))]
        gaps = merged(p.launch_gaps(1_000_000), p.low, p.high)
        claimed = overlap(gaps, merged(held, p.low, p.high))
        assert top.bound_ns == length(gaps) - claimed
        assert top.bound_ns / p.wall > 0.8
        assert top.evidence["kernels_per_request"] == 46
        kernels = sorted(o.end - o.start for o in p.ops if o.kind == "kernel" and p.low <= o.start < p.high)
        assert top.evidence["kernel_median_ns"] == kernels[(len(kernels) - 1) // 2]
        assert top.evidence["launch_interval_ns"] > 5 * top.evidence["kernel_median_ns"]

    def test_read_backs_at_their_price(self) -> None:
        p, f = plain(self.name, self.steps), finding(self.name, "scalar_readback")
        scalars = p.copies(DTOH, most=8)
        held = [(c.start, c.end) for c in p.held(scalars)]
        assert (f.evidence["readbacks"], f.evidence["bytes"]) == (len(scalars), 4 * len(scalars)) == (59, 236)
        assert f.evidence["host_waited_ns"] == length(merged(held, p.low, p.high))
        assert f.bound_ns == p.without_kernel(held) == 1_800_490
        assert f.evidence["bound_wall_ratio"] == pytest.approx(0.0056, abs=0.0001)
        assert f.severity is Severity.INFO
        assert "train_step/log (tensor.item() < train_item (workloads.py:84))" in f.detail
        assert f.evidence["cadence"]["nvtx"] == "train_step"

    def test_the_gpu_had_run_dry_before(self) -> None:
        p, e = plain(self.name, self.steps), finding(self.name, "scalar_readback").evidence
        before = []
        for scalar in p.copies(DTOH, most=8):
            at = p.call_of(scalar).start
            before.append(at - max(end for _, end in p.busy if end <= at))
            assert not any(s <= at < e for s, e in p.busy)
        before.sort()
        assert e["dry_before_ratio"] == 1.0
        assert e["dry_before_median_ns"] == before[len(before) // 2]


class TestEagerH2d:
    """The host is the limit; pageable copies are 3% of the wall and a third of request latency."""

    name, steps = "eager_h2d", "request"

    def test_the_host_is_the_limit(self) -> None:
        p, top = plain(self.name, self.steps), analysis(self.name).findings[0]
        assert top.rule == "idle_gaps"
        assert top.title.startswith("The host is the limit")
        # The defence of "high": most of the window lies outside every request, and the GPU is idle in it.
        requests = merged(p.ranges("request"), p.low, p.high)
        outside = p.wall - length(requests)
        assert outside / p.wall > 0.8
        assert top.evidence["outside_ranges_ns"] <= outside
        long = [g for g in p.gaps() if g[1] - g[0] >= 100_000]
        claimed = merged([(c.start, c.end) for c in p.held(p.copies(pageable=True))], p.low, p.high)
        assert top.bound_ns <= length(long) - overlap(long, claimed)
        assert top.bound_ns / p.wall > 0.8

    def test_pageable_copies(self) -> None:
        p, f = plain(self.name, self.steps), finding(self.name, "pageable_copies")
        copies = p.copies(pageable=True)
        held = [(c.start, c.end) for c in p.held(copies)]
        assert f.evidence["copies"] == len(copies) == 398
        assert f.evidence["directions"]["HtoD Pageable to Device"]["bytes"] == 199 * 262_144
        assert f.evidence["host_waited_ns"] == length(merged(held, p.low, p.high)) == 24_853_264
        assert f.evidence["idle_while_host_waited_ns"] == p.without_kernel(held)
        assert f.bound_ns == p.without_kernel(held)  # what follows at once is not idle time that waiting had cost
        requests = [r for r in p.ranges("request") if r[0] >= p.low]
        inside = merged(held, p.low, p.high)
        latency = overlap(inside, requests) - overlap(inside, p.kernels)
        assert f.evidence["bound_latency_ratio"] == pytest.approx(latency / length(requests), rel=1e-9)
        ranges = [r for r in p.ranges("to_") if r[0] >= p.low]
        assert f.evidence["ranges_latency_ratio"] == pytest.approx(length(ranges) / length(requests), rel=1e-9)
        assert f.evidence["ranges_latency_ratio"] == pytest.approx(1 / 3, abs=0.02)
        assert f.evidence["bound_wall_ratio"] == pytest.approx(0.029, abs=0.001)
        assert "request/to_device, request/to_host" in f.detail
        assert "the host is the limit" in f.detail
        # The summary says both: the share of the wall, and the third of request latency.
        third = f"{percent(f.evidence['ranges_latency_ratio'])} of request latency"
        assert f.title.endswith(f"2.9% of the window, {third} (16.5% inside the calls)")
        said = " ".join(analysis(self.name).verdict)
        assert said.index("the host is the limit") < said.index(third)

    def test_two_and_a_half_percent_of_all_ranges(self) -> None:
        """Of the window from the first request on, its first copy included, the copies are 2.5%."""
        with open_trace(trace_path(self.name)) as trace:
            result = analyze(trace, Options(window="ranges"))
        f = next(f for f in result.findings if f.rule == "pageable_copies")
        p = plain(self.name, self.steps)
        ranges = p.ranges("request")
        low, high = ranges[0][0], ranges[-1][1]
        copies = [o for o in p.ops if o.pageable and low <= o.start < high]
        held = merged([(c.start, c.end) for c in p.held(copies)], low, high)
        assert f.evidence["host_waited_ns"] == length(held)
        assert length(held) / (high - low) == pytest.approx(0.025, abs=0.0005)
        assert f.evidence["bound_wall_ratio"] == pytest.approx(0.025, abs=0.0005)


COPIES = {
    "pageable_copies", "state_offload", "scalar_readback", "serial_copies", "streamed_weights", "small_copies",
    "slow_copies", "device_copies", "unified_memory", "host_sync", "allocation_churn",
}  # fmt: skip


def test_pinned_overlap_raises_no_alarm_about_copies() -> None:
    assert not rules("pinned_overlap", Severity.LOW) & COPIES
    assert rules("pinned_overlap", Severity.HIGH) == set()


def test_loader_is_not_called_pageable() -> None:
    said = " ".join(f.title + f.detail for f in analysis("loader").findings)
    assert "pageable" not in said.lower()
    top = finding("loader", "idle_gaps")
    assert "pthread_cond_timedwait" in top.detail


def test_threads_read_back_on_each() -> None:
    p, f = plain("threads", "worker"), finding("threads", "scalar_readback")
    account = analysis("threads").devices[0]
    p.low, p.high = account.window.start_ns, account.window.end_ns
    by_thread: dict[int, list] = {}
    for copy in p.copies(DTOH, most=8):
        by_thread.setdefault(p.call_of(copy).thread, []).append(copy)
    assert len(by_thread) == len(f.evidence["by_thread"]) == 4
    expected = {t & 0xFFFFFF: len(copies) for t, copies in by_thread.items()}
    found = {int(re.findall(r"\((\d+)\)", t["thread"])[0]): t["readbacks"] for t in f.evidence["by_thread"]}
    assert found == expected
    waited = {}
    for thread, copies in by_thread.items():
        calls = [(c.start, c.end) for c in p.held(copies) if c.thread == thread]
        waited[thread & 0xFFFFFF] = length(merged(calls, p.low, p.high))
    assert {int(re.findall(r"\((\d+)\)", t["thread"])[0]): t["waited_ns"] for t in f.evidence["by_thread"]} == waited
    assert f.bound_ns == max(t["price_ns"] for t in f.evidence["by_thread"])


class TestLlama:
    """What started this project: state saved per request, whose price is not on the GPU."""

    SAVES = """
        SELECT count(*), sum(m.bytes), sum(r.end - r.start) FROM CUPTI_ACTIVITY_KIND_MEMCPY m
        JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = m.correlationId AND r.eventClass IN (0, 1)
        WHERE m.copyKind = 2 AND m.dstKind = 0
    """
    UNDER = """
        SELECT count(*) FROM (SELECT DISTINCT m.correlationId FROM CUPTI_ACTIVITY_KIND_MEMCPY m
        JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = m.correlationId AND r.callchainId IS NOT NULL
        JOIN CUDA_CALLCHAINS c ON c.id = r.callchainId JOIN StringIds s ON s.id = c.symbol
        WHERE m.copyKind = 2 AND m.dstKind = 0 AND s.value LIKE ?)
    """

    def test_at_the_top_with_its_figures(self) -> None:
        top = analysis("llama_default").findings[0]
        n, size, in_call = sql(trace_path("llama_default"), self.SAVES)[0]
        assert (top.rule, top.severity) == ("state_offload", Severity.HIGH)
        e = top.evidence
        assert (e["copies"], e["bytes"], e["in_call_ns"]) == (n, size, in_call) == (1_344, 1_444_380_672, 166_042_392)
        assert e["bytes_per_request"] == 1_444_380_672 / 16
        assert "90.27 MB of state a request" in top.title
        assert e["only_serving_thread"] is True
        assert e["exposed_window_ratio"] < 0.02
        assert "the price is in the host thread" in top.detail

    def test_names_the_call_paths(self) -> None:
        path, e = trace_path("llama_default"), finding("llama_default", "state_offload").evidence
        for function, expected in (("create_checkpoint", 768), ("prompt_save", 576), ("state_seq_get_data", 1_344)):
            (under,) = sql(path, self.UNDER, f"%::{function}(%")[0]
            mine = sum(p["count"] for p in e["call_paths"] if any(function in f for f in p["functions"]))
            assert under == mine == expected
        detail = finding("llama_default", "state_offload").detail
        assert "server_context_impl::create_checkpoint (768)" in detail
        assert "server_slot::prompt_save (576)" in detail

    def test_the_switch_that_tests_it(self) -> None:
        assert "--cache-ram 0 --ctx-checkpoints 0" in finding("llama_default", "state_offload").remedy

    def test_time_around_the_copies(self) -> None:
        p, f = plain("llama_default"), finding("llama_default", "state_offload")
        calls = p.held(p.copies(DTOH, pageable=True))
        held = [(c.start, c.end) for c in calls]
        silent, usual = p.silences(calls)
        around = merged([(s, e - usual) for s, e in silent], p.low, p.high)
        assert f.evidence["around"]["usual_silence_ns"] == usual
        assert f.evidence["around"]["silent_ns"] == length(merged(silent, p.low, p.high))
        assert f.bound_ns == p.without_kernel([*held, *around])
        a = f.evidence["around"]
        assert a["samples_own"] == a["samples_named"] >= 14  # every sample that can be named is in the saving

    def test_the_bound_is_what_turning_it_off_won(self) -> None:
        """The other recording is the same load with the saving off: the same work in so much less time."""
        with_it, without = analysis("llama_default").devices[0], analysis("llama_nosave").devices[0]

        def served(account):
            return account.window.end_ns - account.loading.end_ns

        won = served(with_it) - served(without)
        assert finding("llama_default", "state_offload").bound_ns == pytest.approx(won, rel=0.1)

    def test_gone_when_turned_off(self) -> None:
        assert "state_offload" not in {f.rule for f in analysis("llama_nosave").findings}
        assert sql(trace_path("llama_nosave"), self.SAVES)[0][0] == 0
        assert rules("llama_nosave", Severity.HIGH) == set()

    def test_without_a_number_of_requests_it_says_per_second(self) -> None:
        with open_trace(trace_path("llama_default")) as trace:
            top = analyze(trace).findings[0]
        assert top.rule == "state_offload"
        assert top.evidence["bytes_per_request"] is None
        assert "MB/s of state" in top.title


def test_graph_replay_copies_in_sequence() -> None:
    """Copies inside a graph, one after the other with its kernels: 16% of a window of 4 ms, held up."""
    f = finding("graph_replay_node", "serial_copies")
    p = plain("graph_replay_node", "replay")
    pending = merged(
        ((p.call_of(o).end, o.start) for o in p.ops if o.kind == "kernel" and o.correlation in p.by_correlation),
        p.low,
        p.high,
    )
    copies = merged(((c.start, c.end) for c in p.copies()), p.low, p.high)
    beside = overlap(copies, p.kernels)
    assert beside == 0
    assert f.evidence["held_up_ns"] == f.bound_ns == overlap(copies, pending) == 630_009
    assert f.severity is Severity.MEDIUM


def test_p2p_names_both_directions() -> None:
    found = [f for f in analysis("p2p").findings if f.rule == "device_copies"]
    assert {next(iter(f.evidence["pairs"])) for f in found} == {"GPU 0 to GPU 1", "GPU 1 to GPU 0"}
    for f in found:
        assert f.severity is Severity.INFO
        assert (f.evidence["copies"], f.evidence["bytes"]) == (29, 29 * 8_000_000)


def test_lossy_recording_is_called_incomplete_and_its_hole_is_not_idle() -> None:
    found = {f.id for f in analysis("pinned_overlap_lossy").findings}
    assert "recording:recording:incomplete" in found
    top = finding("pinned_overlap_lossy", "launch_bound")
    assert top.severity <= Severity.MEDIUM
    hole = max(h.end_ns for h in analysis("pinned_overlap_lossy").integrity.holes)
    assert all(start >= hole for start, _ in top.instances)
