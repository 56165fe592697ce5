"""The recording as a Perfetto trace: processes, threads, streams, flows and counters."""

from __future__ import annotations

from nsysparse.outputs.perfetto.trace import write_perfetto

__all__ = ["write_perfetto"]
