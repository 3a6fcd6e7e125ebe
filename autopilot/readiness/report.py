"""The lines of a check as text and as a document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from autopilot.readiness.line import Line, Status

_WORDS = {Status.WARNING: "warning", Status.FAILED: "FAILED", Status.UNKNOWN: "unknown", Status.SKIPPED: "skipped"}


def text_of(line: Line) -> str:
    """One finding, and below it the fix."""
    head = f"{_WORDS.get(line.status, 'ok'):<8} {line.check:<12} {line.subject:<22} {line.text}".rstrip()
    return f"{head}\n{'':<9}fix: {line.fix}" if line.fix and line.status not in {Status.OK, Status.SKIPPED} else head


def summary(lines: Iterable[Line]) -> str:
    """Number of lines of each status, and their meaning."""
    count = Counter(line.status for line in lines)
    shown = ", ".join(
        f"{count[status]} {_WORDS.get(status, 'ok').lower()}" for status in Status if count[status] or status == "ok"
    )
    if count[Status.FAILED]:
        return f"{shown}. Not ready: correct what failed, then check again."
    if count[Status.WARNING] or count[Status.UNKNOWN]:
        return f"{shown}. Ready, with less than it could know."
    return f"{shown}. Ready."


def document(lines: Iterable[Line]) -> dict[str, Any]:
    """The JSON of `autopilot check --json`; `ready` is false with a failed line."""
    found = list(lines)
    return {
        "ready": not any(line.status == Status.FAILED for line in found),
        "lines": [
            {
                "check": line.check,
                "subject": line.subject,
                "status": line.status.value,
                "text": line.text,
                "fix": line.fix,
            }
            for line in found
        ],
    }
