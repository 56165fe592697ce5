"""nsys's statistics reports and analysis rules, from the same file, with the same names and figures."""

from __future__ import annotations

from nsysparse.stats.report import Report, Table, find_reports, find_rules, list_names, make_table, pick

__all__ = ["Report", "Table", "find_reports", "find_rules", "list_names", "make_table", "pick"]
