"""Text of others, made fit to be shown: on a terminal, in a log and in a table for a spreadsheet."""

from __future__ import annotations

import re

_ACTS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Control characters (a terminal obeys them), marks that reorder their neighbours, and invisible letters."""


def printable(text: str, kept: str = "") -> str:
    """The text with `?` in place of each control character (it acts instead of being shown). Those in `kept` stay."""
    if text.isascii() and text.isprintable():
        return text
    return _ACTS.sub(lambda found: found[0] if found[0] in kept else "?", text)
