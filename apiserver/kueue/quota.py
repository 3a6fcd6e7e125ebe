"""Quota in a tree of cohorts and queues: the available, the borrowed, and the passage of use up the tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from apiserver.kueue.amounts import FlavorResource, amount

Obj = dict[str, Any]
Usage = dict[FlavorResource, int]


@dataclass(frozen=True, slots=True)
class Quota:
    """Quota of one resource in one flavor."""

    nominal: int
    borrowing: int | None = None
    lending: int | None = None


def quotas_of(resource_groups: list[Obj] | None) -> dict[FlavorResource, Quota]:
    """The quotas stated by a ClusterQueue or Cohort."""
    found: dict[FlavorResource, Quota] = {}
    for group in resource_groups or []:
        for flavor in group["flavors"]:
            for each in flavor["resources"]:
                name = each["name"]
                limits = [
                    amount(name, each[key]) if key in each else None for key in ("borrowingLimit", "lendingLimit")
                ]
                found[flavor["name"], name] = Quota(amount(name, each["nominalQuota"]), *limits)
    return found


class Node:
    """A queue (a leaf) or a cohort. `usage` of a cohort is the amount its children take from it."""

    def __init__(self, name: str, *, queue: bool = False) -> None:
        self.name = name
        self.is_queue = queue
        self.parent: Node | None = None
        self.cohorts: dict[str, Node] = {}
        self.queues: dict[str, Node] = {}
        self.quotas: dict[FlavorResource, Quota] = {}
        self.subtree: Usage = {}
        self.usage: Usage = {}

    def nominal(self, fr: FlavorResource) -> int:
        """Nominal quota; 0 if none is stated."""
        found = self.quotas.get(fr)
        return found.nominal if found else 0

    def local(self, fr: FlavorResource) -> int:
        """Quota kept from the rest of the cohort."""
        found = self.quotas.get(fr)
        if found is None or found.lending is None:
            return 0
        return max(0, self.subtree.get(fr, 0) - found.lending)

    def local_available(self, fr: FlavorResource) -> int:
        """The free part of the local quota."""
        return max(0, self.local(fr) - self.usage.get(fr, 0))

    def unbounded(self, fr: FlavorResource) -> int:
        """Quota to be taken now; negative if the use is above the quota."""
        if self.parent is None:
            return self.subtree.get(fr, 0) - self.usage.get(fr, 0)
        above = self.parent.unbounded(fr)
        quota = self.quotas.get(fr)
        if quota is not None and quota.borrowing is not None:
            kept = self.local(fr)
            stored = self.subtree.get(fr, 0) - kept
            used = max(0, self.usage.get(fr, 0) - kept)
            above = min(stored - used + quota.borrowing, above)
        return self.local_available(fr) + above

    def available(self, fr: FlavorResource) -> int:
        """Quota to be taken now, borrowed quota included."""
        return max(0, self.unbounded(fr))

    def potential(self, fr: FlavorResource) -> int:
        """Quota to be taken if nothing were used."""
        if self.parent is None:
            return self.subtree.get(fr, 0)
        found = self.local(fr) + self.parent.potential(fr)
        quota = self.quotas.get(fr)
        if quota is not None and quota.borrowing is not None:
            found = min(self.subtree.get(fr, 0) + quota.borrowing, found)
        return found

    def borrows_with(self, fr: FlavorResource, value: int) -> bool:
        """True if using `value` more means borrowing."""
        return self.nominal(fr) < self.usage.get(fr, 0) + value

    def within_nominal(self, frs: Iterable[FlavorResource]) -> bool:
        """It uses no more than the quota of its subtree, in all of these."""
        return all(self.subtree.get(fr, 0) >= self.usage.get(fr, 0) for fr in frs)

    def add(self, fr: FlavorResource, value: int) -> None:
        """Use more; the part beyond the local quota counts in the parent."""
        free = self.local_available(fr)
        self.usage[fr] = self.usage.get(fr, 0) + value
        if self.parent is not None and value > free:
            self.parent.add(fr, value - free)

    def remove(self, fr: FlavorResource, value: int) -> None:
        """Use less."""
        above = self.usage.get(fr, 0) - self.local(fr)
        self.usage[fr] = self.usage.get(fr, 0) - value
        if above > 0 and self.parent is not None:
            self.parent.remove(fr, min(value, above))

    def fit(self, requests: Usage) -> tuple[bool, Usage]:
        """True if requests fit into the quota of the subtree; and the part of them left for the parent."""
        fits = all(self.subtree.get(fr, 0) >= self.usage.get(fr, 0) + value for fr, value in requests.items())
        return fits, {fr: max(0, value - self.local_available(fr)) for fr, value in requests.items()}

    def path(self) -> Iterator[Node]:
        """The cohorts above, the nearest first."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def root(self) -> Node:
        """The top of the tree."""
        node = self
        for node in self.path():  # noqa: B007 - the last one is the root
            pass
        return node

    def height(self) -> int:
        """Levels below."""
        return max(
            [min(len(self.cohorts) + len(self.queues), 1), *(each.height() + 1 for each in self.cohorts.values())]
        )

    def full_path(self) -> str:
        """Names from the root of the tree down to it: `/COHORT/QUEUE`."""
        return "/" + "/".join([*reversed([each.name for each in self.path()]), self.name])

    def in_cycle(self) -> bool:
        """True for a cohort below itself."""
        seen = set()
        node: Node | None = self
        while node is not None:
            if id(node) in seen:
                return True
            seen.add(id(node))
            node = node.parent
        return False


def rebuild(root: Node) -> None:
    """Quota of subtrees and use in cohorts, from the quotas and the use of the queues below."""
    for node in (*root.cohorts.values(), *root.queues.values()):
        rebuild(node)
    root.subtree = {fr: quota.nominal for fr, quota in root.quotas.items()}
    if root.is_queue:
        return
    root.usage = {}
    for child in (*root.cohorts.values(), *root.queues.values()):
        for fr, value in child.subtree.items():
            root.subtree[fr] = root.subtree.get(fr, 0) + value - child.local(fr)
        for fr, value in child.usage.items():
            root.usage[fr] = root.usage.get(fr, 0) + max(0, value - child.local(fr))


def lowest_that_fits(queue: Node, fr: FlavorResource, value: int) -> tuple[int, bool]:
    """Height of the lowest cohort with room for `value` (0: no borrowing); and True if others are above it."""
    if queue.parent is None or not queue.borrows_with(fr, value):
        return 0, queue.parent is not None
    left = value - queue.local_available(fr)
    for cohort in queue.path():
        if cohort.subtree.get(fr, 0) >= cohort.usage.get(fr, 0) + left:
            return cohort.height(), cohort.parent is not None
        left -= cohort.local_available(fr)
    return queue.root().height(), False
