"""Joined work after its accounts: what is left of it."""

from __future__ import annotations

from traces import trace_path

from nsysparse.joins.work import GPU_TABLES, SPENT, load_work
from nsysparse.source import open_trace


def test_accounted_work_keeps_all_but_what_is_spent():
    with open_trace(trace_path("graph_replay_node")) as trace:
        work = load_work(trace)
    left = work.accounted()
    assert "correlation" in work.calls.frame.columns
    assert left.calls.frame.equals(work.calls.frame.drop("correlation"))
    for name in GPU_TABLES:
        before, after = getattr(work, name), getattr(left, name)
        kept = [c for c in before.columns if c not in SPENT]
        assert after.columns == kept
        plain = [c for c in kept if c != "graph_node"]
        assert after.select(plain).equals(before.select(plain))
        if "graph_node" in kept:
            assert after["graph_node"].is_not_null().to_list() == before["graph_node"].is_not_null().to_list()
            assert set(after["graph_node"].drop_nulls()) <= {1}
    assert work.kernels["graph_node"].count()  # some ran inside a graph


def test_domains_do_not_hold_all_rows():
    """A filter that takes rows which lie together returns a view, which would keep the whole table in memory."""
    with open_trace(trace_path("state_checkpoint")) as trace:
        rows, domains = trace.nvtx(), trace.nvtx_domains
    assert domains.height == 1
    for column in ("start_ns", "thread"):
        whole, part = (frame[column].to_arrow().buffers()[1] for frame in (rows, domains))
        assert not whole.address <= part.address < whole.address + whole.size
