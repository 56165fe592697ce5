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


@pytest.mark.parametrize("name", HEALTHY)
def test_the_healthy_are_left_alone(name, tmp_path):
    loud = [f.title for f in analysis(name, tmp_path).findings if f.severity > Severity.INFO]
    assert not loud
