"""Lists of host names as Slurm writes them: `n[1-3,7]`, `a1,b[01-02]`."""

from __future__ import annotations

import re

from autopilot.core.model.errors import InputError

_PART = re.compile(r"[^,\[]*(?:\[[^\]]*\][^,\[]*)*")
_RANGE = re.compile(r"([^\[]*)\[([^\]]*)\](.*)")


def expand(text: str) -> list[str]:
    """The names in order. Raises `InputError` for a broken range."""
    names: list[str] = []
    for part in _PART.findall(text.strip()):
        if part:
            names += _expanded(part)
    return names


def _expanded(part: str) -> list[str]:
    found = _RANGE.fullmatch(part)
    if found is None:
        return [part]
    head, ranges, tail = found.groups()
    names: list[str] = []
    for piece in ranges.split(","):
        first, _, last = piece.partition("-")
        last = last or first
        if not (first.isdigit() and last.isdigit() and int(first) <= int(last)):
            raise InputError(f"host list {part!r}: {piece!r} is no range; write it as in n[1-4,7]")
        middle = [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
        names += [head + each + rest for each in middle for rest in _expanded(tail)]
    return names
