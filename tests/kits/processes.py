"""Questions about processes."""

from __future__ import annotations

import os
from pathlib import Path


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet counts."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def descendants() -> set[int]:
    """The processes that this one has started, directly or not, and that it has inherited."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            children.setdefault(int(path.read_text("ascii", "replace").rpartition(")")[2].split()[1]), []).append(
                int(path.parent.name)
            )
        except (FileNotFoundError, ProcessLookupError):
            continue
    found, left = set[int](), [os.getpid()]
    while left:
        left += (more := children.get(left.pop(), []))
        found.update(more)
    return found
