<<<<<<< HEAD
"""Where the shipped queries and report templates lie: inside an installed package, or in a checkout."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from nsysparse.errors import NsysparseError

if TYPE_CHECKING:
    from importlib.abc import Traversable

_IN_CHECKOUT = {"queries": "queries", "templates": "reports/templates"}


def data_folder(kind: str) -> Traversable:
    """The folder of one kind of data file.

    Args:
        kind: ``queries`` or ``templates``.

    Returns:
        ``nsysparse/_data/KIND`` of an installed wheel, else the folder beside ``pyproject.toml`` of a checkout.

    Raises:
        NsysparseError: Neither is there: the installation is damaged.
    """
    package = files("nsysparse")
    installed = package / "_data" / kind
    if installed.is_dir():
        return installed
    beside = Path(str(package)).parent / _IN_CHECKOUT[kind]
    if beside.is_dir():
        return beside
    raise NsysparseError(f"the {kind} of nsysparse are missing", "install nsysparse again")
=======
"""Where the shipped queries and templates are: inside an installed wheel, or in a checkout beside pyproject.toml."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
_IN_CHECKOUT = {"queries": "queries", "templates": "reports/templates"}


def data_folder(kind: str) -> Path:
    """The folder of ``queries`` or ``templates``."""
    installed = _PACKAGE / "_data" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / _IN_CHECKOUT[kind]
>>>>>>> main
