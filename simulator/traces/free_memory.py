"""The memory still open to this process, by the machine, by its control group and by its own limit."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

KIB = 1024


def free_memory_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> float:
    """The least of the three; infinity if the system tells none of them."""
    found = [float("inf")]
    with suppress(OSError, ValueError, IndexError):
        lines = (proc / "meminfo").read_text("ascii").splitlines()
        found += [KIB * float(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        folder = groups if most == "memory.max" else groups / "memory"
        with suppress(OSError, ValueError):  # `max` is no number: there is no limit
            found.append(float((folder / most).read_text("ascii")) - float((folder / used).read_text("ascii")))
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        with suppress(OSError, ValueError, IndexError):
            pages = float((proc / "self" / "statm").read_text("ascii").split()[0])
            found.append(soft - pages * resource.getpagesize())
    return max(min(found), 0.0)
