"""Text from a trace made fit to be shown: nothing in it can act on the page or on the reader's eyes."""

from __future__ import annotations

MAX_CHARACTERS = 1_000

_CONTROLS = (*(c for c in range(0x20) if chr(c) not in "\t\n"), *range(0x7F, 0xA0))
# Marks that reorder or hide what follows them: zero width, bidirectional embeddings, overrides and isolates, BOM.
_INVISIBLE = (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0x061C, 0xFEFF)
_VISIBLE: dict[int, str] = {c: f"[U+{c:04X}]" for c in (*_CONTROLS, *_INVISIBLE)}
_VISIBLE |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")


def visible(text: str) -> str:
    """The text with every control, bidirectional and invisible character replaced by its code."""
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_VISIBLE)


def clipped(text: str, limit: int = MAX_CHARACTERS) -> str:
    """The text's beginning, with its length when it is longer than a page should hold."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text):,} characters)"
