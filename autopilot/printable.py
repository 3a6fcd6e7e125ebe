"""Text of others, made fit to be shown: on a terminal, in a log and in a table for a spreadsheet."""

from __future__ import annotations

import re

_ACTS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""Control characters, which a terminal obeys, and marks that reorder or hide what stands beside them."""


def printable(text: str, kept: str = "") -> str:
    """The text with `?` in place of each character that acts instead of being shown. Those in `kept` stay."""
    if text.isascii() and text.isprintable():
        return text
    return _ACTS.sub(lambda found: found[0] if found[0] in kept else "?", text)
