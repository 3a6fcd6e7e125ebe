"""Names of Kubernetes for the simulator's freely named objects: tenants, jobs, nodes, queues, GPU models."""

from __future__ import annotations

import hashlib
import re

LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of generated names, as in Kubernetes."""
QUEUE = "default"
"""Name of the LocalQueue in each namespace: Kueue gives a Job without a queue the queue of this name."""
MODEL = "playground.gpu-autopilot.io/gpu-model"
"""Label of nodes that can be turned: the model of their GPUs, shared or not."""
LONGEST = 48
"""Longest name of a Job or Deployment here: names of pods and Workloads add to it, and hold 63 characters."""


def slug(text: str, longest: int = LONGEST) -> str:
    """`text` as a DNS label: lower case, other characters replaced by a dash."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:longest].strip("-")
    return plain or "x"


class Slugs:
    """DNS labels for texts, one for each text; two texts never share one."""

    def __init__(self, longest: int = LONGEST) -> None:
        """`longest`: most characters of a label."""
        self._longest = longest
        self._of: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, text: str) -> str:
        """The label of `text`."""
        known = self._of.get(text)
        if known is not None:
            return known
        plain = found = slug(text, self._longest)
        number = 1
        while found in self._taken:
            number += 1
            found = f"{plain[: self._longest - 5]}-{number}"
        self.take(found, text)
        return found

    def take(self, label: str, text: str) -> None:
        """`label` is the label of `text`, because a person chose it."""
        self._of[text] = label
        self._taken.add(label)


def suffix(text: str, letters: int = 5) -> str:
    """A few letters determined by `text` alone, as the end of a generated name."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    found = ""
    for _ in range(letters):
        number, rest = divmod(number, len(LETTERS))
        found += LETTERS[rest]
    return found


def workload_name(kind: str, group: str, name: str, uid: str) -> str:
    """Kueue's name for the Workload of an owner: `job-<name>-<5 hex digits>`."""
    digest = hashlib.sha1(f"{kind}\n{group}\n{name}\n{uid}".encode(), usedforsecurity=False).hexdigest()
    return f"{kind.lower()}-{name}-{digest[:5]}"
