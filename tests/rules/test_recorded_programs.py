"""Programs recorded on an H200 (benchmarks/record_patterns.py): each pattern is found, the healthy are left alone."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import pytest

from nsysparse.analysis import analyze
from nsysparse.findings import Failed, Severity
from nsysparse.source import open_trace

FOLDER = Path(__file__).parents[1] / "fixtures" / "patterns"
EXPECTED = {
    "cache_cloned_each_token": "device_copies",
    "clip_by_item": "scalar_readback",
    "eager_decode": "launch_bound",
    "empty_cache_each_step": "allocation_churn",
    "forty_small_tensors": "small_copies",
    "four_blocks": "low_fill",
    "graphs_recorded_whole": "recording",
    "kv_offloaded_cache": "state_offload",
    "loader_too_slow": "idle_gaps",
    "managed_to_and_fro": "unified_memory",
    "pageable_images": "pageable_copies",
    "pageable_tokens": "pageable_copies",
    "pinned_in_sequence": "serial_copies",
    "python_between_steps": "idle_gaps",
    "session_swap": "state_offload",
    "strided_columns": "slow_copies",
    "synchronize_each_layer": "host_sync",
    "weights_from_host": "streamed_weights",
}
HEALTHY = ("healthy_graph", "healthy_pipeline", "healthy_quiet_server", "healthy_training")


def analysis(name, folder):
    target = folder / f"{name}.sqlite"
    with lzma.open(FOLDER / f"{name}.sqlite.xz") as packed, target.open("wb") as out:
        shutil.copyfileobj(packed, out)
    with open_trace(target) as trace:
        return analyze(trace)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_pattern_is_found(name, tmp_path):
    result = analysis(name, tmp_path)
    assert EXPECTED[name] in {f.rule for f in result.findings}
    assert not [o for o in result.outcomes if isinstance(o, Failed)]


# In these something else costs more, as their findings show: the host's launches, or compiling in each step.
NOT_FIRST = {"clip_by_item", "eager_decode", "graphs_recorded_whole", "kv_offloaded_cache", "synchronize_each_layer"}


@pytest.mark.parametrize("name", sorted(set(EXPECTED) - NOT_FIRST))
def test_the_pattern_leads(name, tmp_path):
    top = analysis(name, tmp_path).findings[0]
    assert (top.rule, top.severity > Severity.INFO) == (EXPECTED[name], True)


def test_what_costs_more_leads(tmp_path):
    """A small read-back price is reported as such; an offloaded cache is named, under the launches that cost more."""
    clip = analysis("clip_by_item", tmp_path).findings[0]
    assert (clip.rule, clip.severity) == ("scalar_readback", Severity.INFO)
    offload = analysis("kv_offloaded_cache", tmp_path).findings
    assert [f.rule for f in offload[:2]] == ["launch_bound", "state_offload"]
    assert offload[1].evidence["direction"] == "both"
    assert offload[0].bound_ns > 5 * offload[1].bound_ns
    compiling = analysis("eager_decode", tmp_path).findings[0]
    assert compiling.evidence["sampled_functions"][0]["function"] == "nvrtcCompileProgram"


def test_waits_of_small_copies_are_not_told_twice(tmp_path):
    assert "host_sync" not in {f.rule for f in analysis("forty_small_tensors", tmp_path).findings}


@pytest.mark.parametrize("name", HEALTHY)
def test_the_healthy_are_left_alone(name, tmp_path):
    loud = [f.title for f in analysis(name, tmp_path).findings if f.severity > Severity.INFO]
    assert not loud
