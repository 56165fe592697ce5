"""The census: a recorder that counts GPU work inside a running program, and the reader of its files.

``build`` and ``run`` need the standard library alone, so that they work on a server that has nothing else.
``dump`` reads the files (docs/census.md holds their format).
"""

from __future__ import annotations

FORMAT_NAME = "nsysparse-census"
FORMAT_VERSION = 1
MARKS_FILE = "marks.jsonl"
CONTROL_FILE = "control"
