"""The sections of the report: every template in ``sections/`` is one, described by its first comment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nsysparse import schema
from nsysparse.errors import NsysparseError
from nsysparse.recorded import Recorded

_HEAD = re.compile(r"\s*\{#\s*title:\s*(?P<title>[^;]+);\s*order:\s*(?P<order>\d+);\s*needs:\s*(?P<needs>[^#]*)#\}")


@dataclass(frozen=True)
class Section:
    """One section.

    Attributes:
        key: The template's name, also its anchor.
        title: Heading.
        order: Place on the page.
        needs: Canonical tables; of each inner group one suffices (``kernels or graphs, api``).
    """

    key: str
    title: str
    order: int
    needs: tuple[tuple[str, ...], ...]

    @property
    def template(self) -> str:
        """Name for the template loader."""
        return f"sections/{self.key}.html"

    def missing(self, recorded: Sequence[Recorded]) -> tuple[Recorded, ...]:
        """What this section needs and the recording lacks."""
        by_table = {r.table: r for r in recorded}
        lacking = []
        for group in self.needs:
            known = [by_table[t] for name in group for t in schema.TABLES[name].sources if t in by_table]
            if known and not any(r.rows for r in known):
                lacking.append(known[0])
        return tuple(lacking)


def find_sections(templates: Path) -> list[Section]:
    """Every section of a folder of templates, in the order of the page."""
    found = [read_head(file.stem, file.read_text(encoding="utf-8")) for file in (templates / "sections").glob("*.html")]
    return sorted(found, key=lambda s: (s.order, s.key))


def read_head(key: str, source: str) -> Section:
    """A section from its template's text.

    Raises:
        NsysparseError: The first comment does not say what it must.
    """
    match = _HEAD.match(source)
    if match is None:
        raise NsysparseError(
            f"the section '{key}' does not say what it is",
            "begin its template with {# title: ...; order: N; needs: TABLE, ... #}",
        )
    groups = [tuple(n.strip() for n in g.split(" or ")) for g in match["needs"].split(",") if g.strip()]
    unknown = [n for g in groups for n in g if n not in schema.TABLES]
    if unknown:
        raise NsysparseError(
            f"the section '{key}' needs '{unknown[0]}', which is no table",
            f"one of: {', '.join(schema.TABLES)}",
        )
    return Section(key, match["title"].strip(), int(match["order"]), tuple(groups))
