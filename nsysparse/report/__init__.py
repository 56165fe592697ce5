"""The HTML report: one self-contained page that works offline, and without JavaScript for everything but its charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsysparse.analysis import Analysis
from nsysparse.report.page import render

if TYPE_CHECKING:
    from nsysparse.crosscheck import Crosscheck

__all__ = ["render_report"]


def render_report(analysis: Analysis, top: int = 20, crosscheck: Crosscheck | None = None) -> str:
    """One HTML page.

    Args:
        analysis: What was measured.
        top: Rows to show of each table at most; less where many devices would make the page too large.
        crosscheck: The comparison with a census, for a section of its own.

    Returns:
        The page. The same analysis gives the same text.
    """
    return render(analysis, top, crosscheck)
