"""A copy of a recording that is fit to share: what happened stays, who and where goes. See docs/scrub.md."""

from __future__ import annotations

from nsysparse.scrub.copy import Options, scrub
from nsysparse.scrub.policy import CLASSES
from nsysparse.scrub.texts import HASHED

__all__ = ["CLASSES", "HASHED", "Options", "scrub"]
