"""Flame graphs: what sent the work, from the process down to the operation, in several formats."""

from __future__ import annotations

from nsysparse.flamegraph.paths import CallPaths, read_call_path_tables, weigh_call_paths

__all__ = ["CallPaths", "read_call_path_tables", "weigh_call_paths"]
