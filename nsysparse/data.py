"""Where the shipped queries and templates are: inside an installed wheel, or in a checkout beside pyproject.toml."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
_IN_CHECKOUT = {"queries": "queries", "templates": "reports/templates"}


def data_folder(kind: str) -> Path:
    """The folder of ``queries`` or ``templates``."""
    installed = _PACKAGE / "_data" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / _IN_CHECKOUT[kind]
