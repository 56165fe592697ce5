"""Texts without what they say about a machine and its people, and texts as hashes.

Replacements are lettered and one to one, so that two names that differed still differ: no figure by name changes.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache

from nsysparse.schema.codes import PROGRAM
from nsysparse.scrub import policy

HASHED = {"nvtx": policy.NVTX, "kernels": policy.KERNEL, "functions": policy.FUNCTION}
_PATH = re.compile(r"(?<![\w./\]])(?:[A-Za-z]:)?(?P<folder>[/\\](?:[^/\\\s:'\"<>|,;()\[\]{}]+[/\\])+)(?=[^/\\\s])")
_PUBLIC = re.compile(r"/(?=(?:(?:site|dist)-packages|python\d\.\d+)/)")
_UUID = re.compile(r"(?:GPU-|MIG-)?\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+")
# Where a version has four parts an address is not meant.
_VERSIONED = {policy.MODULE, policy.FUNCTION, policy.KERNEL, policy.PLAIN}
_PROFILER_DOMAIN = re.compile(r"Python (Backtrace on CUDA|Periodic Sampling)")
_DIGITS = re.compile(r"\d+")


class Cleaner:
    """Takes paths, UUIDs, addresses and known names out of texts.

    Attributes:
        removed: How many texts each class of CLASSES was taken out of.
    """

    def __init__(self, names: Iterable[str], hashed: Iterable[str] = (), key: bytes = b"", keep: Iterable[str] = ()):
        """Prepare.

        Args:
            names: Hosts and users that the recording names elsewhere.
            hashed: Kinds of texts that become hashes.
            key: Key of the hashes.
            keep: Classes that are not taken out.
        """
        self.removed: Counter[str] = Counter()
        self._keep = set(keep)
        self._hashed = {HASHED[h] for h in hashed}
        self._key = key
        self._seen: dict[str, dict[str, int]] = {}
        words = sorted({n for n in names if len(n) >= 3}, key=lambda n: (-len(n), n))
        alternatives = "|".join(re.escape(w) for w in words)
        self._names = (
            re.compile(rf"(?<![A-Za-z0-9])(?:{alternatives})(?![A-Za-z0-9])", re.IGNORECASE) if words else None
        )
        self.text = lru_cache(maxsize=200_000)(self._text)

    def _text(self, kind: str, text: str) -> str:
        """A text of some kind, cleaned."""
        if kind in self._hashed and not _PROFILER_DOMAIN.match(text):
            return self._hash(text)
        if kind == policy.PROCESS:
            text = self._program(text)
        text = self._replace("paths", _PATH, "path", text, group="folder")
        text = self._replace("uuids", _UUID, "uuid", text)
        text = self._replace("names", _MAIL, "name", text)
        if kind not in _VERSIONED:
            text = self._replace("names", _ADDRESS, "address", text)
        if self._names is not None and kind != policy.PLAIN:  # a host called h200 is no reason to rename the GPU
            text = self._replace("names", self._names, "name", text)
        return text

    def _program(self, text: str) -> str:
        """A process's name without folder and arguments."""
        found = re.match(PROGRAM, text)
        if found is None or found[1] == text or "arguments" in self._keep:
            return text
        self.removed["arguments"] += 1
        return found[1]

    def _replace(self, what: str, pattern: re.Pattern[str], label: str, text: str, group: str = "") -> str:
        if what in self._keep or not pattern.search(text):
            return text
        self.removed[what] += 1

        def stand_in(match: re.Match[str]) -> str:
            found = match[group] if group else match[0]
            if group:  # where a package is installed is private, its name and what is inside are not
                found = found[: public.start()] + "/" if (public := _PUBLIC.search(found)) else found
            replaced = f"[{label} {self._letters(label, found)}]"
            return match[0].replace(found, f"{replaced}/" if group else replaced)

        return pattern.sub(stand_in, text)

    def _letters(self, label: str, text: str) -> str:
        """Letters, not digits: names that differ only in digits are put together by the analysis."""
        known = self._seen.setdefault(label, {})
        number = known.setdefault(text.lower() if label == "name" else text, len(known)) + 1
        letters = ""
        while number:
            number, digit = divmod(number - 1, 26)
            letters = chr(97 + digit) + letters
        return letters

    def of_form(self, form: re.Pattern[str]) -> Callable[[str], str]:
        """Empties texts that have not the form they should have."""

        def checked(text: str) -> str:
            if "texts" in self._keep or form.fullmatch(text):
                return text
            self.removed["texts"] += 1
            return ""

        return checked

    def uuid(self, text: str) -> str:
        """A UUID as letters; the same one gets the same ones."""
        if not text or "uuids" in self._keep:
            return text
        self.removed["uuids"] += 1
        return f"[uuid {self._letters('uuid', text)}]"

    def message(self, text: str) -> str:
        """A message of the profiler, if it tells of loss; else nothing."""
        if "messages" in self._keep or any(p.fullmatch(text.strip()) for p in policy.MESSAGES):
            return text
        self.removed["messages"] += 1
        return "[message removed]"

    def _hash(self, text: str) -> str:
        """A hash in letters with the text's numbers behind it, so that names alike but for numbers stay alike."""
        skeleton = _DIGITS.sub("#", text)
        digest = hmac.new(self._key, skeleton.encode(), hashlib.sha256).digest()[:6]
        letters = "".join(chr(97 + (b >> 4)) + chr(97 + (b & 15)) for b in digest)
        return ":".join([letters, *_DIGITS.findall(text)])
