"""A recording and a census of the same load, row by row: equal, explained, unexplained or unknown."""

from __future__ import annotations

from nsysparse.crosscheck.check import Crosscheck, Requests, Row, Status, check_census

__all__ = ["Crosscheck", "Requests", "Row", "Status", "check_census"]
