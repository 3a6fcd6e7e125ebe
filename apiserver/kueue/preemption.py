"""Preemption: candidates of the queue and its cohort in their order, and the smallest set to make room."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from apiserver.kueue import conditions, workloads
from apiserver.kueue.amounts import FlavorResource
from apiserver.kueue.flavors import Grade, Mode
from apiserver.kueue.info import Info
from apiserver.kueue.queue_state import NEVER, Queue, State
from apiserver.kueue.quota import Node, Usage, lowest_that_fits

Obj = dict[str, Any]
WORDS = {
    "InClusterQueue": "prioritization in the ClusterQueue",
    "InCohortReclamation": "reclamation within the cohort",
    "InCohortReclaimWhileBorrowing": "reclamation within the cohort while borrowing",
}


class Variant(Enum):
    """The reason to preempt a workload; the value is the reason of its condition."""

    WITHIN_QUEUE = "InClusterQueue"
    HIERARCHICAL = "InCohortReclamation"
    WITHOUT_BORROWING = "InCohortReclamation "  # another variant with the same words
    WHILE_BORROWING = "InCohortReclaimWhileBorrowing"


@dataclass(frozen=True, slots=True)
class Target:
    """A victim."""

    info: Info
    queue: Queue
    variant: Variant

    @property
    def reason(self) -> str:
        """Reason of the condition Preempted."""
        return self.variant.value.strip()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A preemptible workload, and the cohort it shares with the preemptor."""

    target: Target
    shared: Node | None


Fits = Callable[[], bool]


class Preemption:
    """The search for the victims of one workload."""

    def __init__(
        self, state: State, info: Info, short_of: Iterable[FlavorResource], usage: Usage, now: datetime, also: Fits
    ) -> None:
        self.state = state
        self.info = info
        self.queue = state.queues[info.cluster_queue]
        self.short_of = set(short_of)
        self.usage = usage
        self.now = now
        self.also = also  # what must hold besides quota

    def targets(self) -> list[Target]:
        """The victims; empty if preemption does not help."""
        same = self._ordered(self._same_queue())
        hierarchy, others = map(self._ordered, self._cohort())
        groups = (hierarchy, others, same)
        evicted = [each for group in groups for each in group if workloads.is_evicted(each.target.info.obj)]
        standing = [each for group in groups for each in group if not workloads.is_evicted(each.target.info.obj)]
        candidates = evicted + standing
        if not candidates:
            return []
        forbidden = not self.queue.borrow_within_cohort()[0]
        node = self.queue.node
        under_nominal = all(node.nominal(fr) > node.usage.get(fr, 0) for fr in self.short_of)
        if (not hierarchy and not others) or (forbidden and not under_nominal):
            attempts = [True]
        elif forbidden and not hierarchy:
            attempts = [False, True]
        else:
            attempts = [True, False]
        for borrowing in attempts:
            found = self._attempt(candidates, borrowing=borrowing)
            if found:
                return found
        return []

    def _attempt(self, candidates: list[Candidate], *, borrowing: bool) -> list[Target]:
        taken: list[Target] = []
        found: list[Target] = []
        for candidate in candidates:
            if not self._valid(candidate, borrowing=borrowing):
                continue
            self._take(candidate.target)
            taken.append(candidate.target)
            if self._fits(borrowing=borrowing):
                found = self._fill_back(taken, borrowing=borrowing)
                break
        for each in found or taken:
            self._give(each)
        return found

    def _fill_back(self, taken: list[Target], *, borrowing: bool) -> list[Target]:
        """Give back needless victims; the rest is the answer."""
        kept = list(taken)
        for number in range(len(kept) - 2, -1, -1):
            self._give(kept[number])
            if self._fits(borrowing=borrowing):
                kept[number] = kept[-1]
                kept.pop()
            else:
                self._take(kept[number])
        return kept

    def _take(self, target: Target) -> None:
        for fr, value in target.info.usage().items():
            target.queue.node.remove(fr, value)

    def _give(self, target: Target) -> None:
        for fr, value in target.info.usage().items():
            target.queue.node.add(fr, value)

    def _fits(self, *, borrowing: bool) -> bool:
        node = self.queue.node
        for fr, value in self.usage.items():
            if not borrowing and node.borrows_with(fr, value):
                return False
            if value > node.available(fr):
                return False
        return self.also()

    def _valid(self, candidate: Candidate, *, borrowing: bool) -> bool:
        target = candidate.target
        if target.queue is self.queue:
            return True
        if borrowing and target.variant == Variant.WITHOUT_BORROWING:
            return False
        if target.queue.node.within_nominal(self.short_of):
            return False
        for cohort in target.queue.node.path():
            if cohort is candidate.shared:
                break
            if cohort.within_nominal(self.short_of):
                return False
        return True

    def _same_queue(self) -> list[Candidate]:
        if self.queue.policy("withinClusterQueue") == NEVER:
            return []
        return self._of_queue(self.queue, None, advantage=False)

    def _cohort(self) -> tuple[list[Candidate], list[Candidate]]:
        """Candidates of other queues: those on quota claimed by the preemptor, and the others."""
        claimed: list[Candidate] = []
        others: list[Candidate] = []
        if self.queue.node.parent is None or self.queue.policy("reclaimWithinCohort") == NEVER:
            return claimed, others
        advantage, left = self.queue.node.fit(self.usage)
        below: Node | None = None
        for cohort in self.queue.node.path():
            self._of_subtree(cohort, cohort, below, claimed if advantage else others, advantage=advantage)
            fits, left = cohort.fit(left)
            advantage = advantage or fits
            below = cohort
        return claimed, others

    def _of_subtree(
        self, cohort: Node, shared: Node, skip: Node | None, found: list[Candidate], *, advantage: bool
    ) -> None:
        for child in cohort.cohorts.values():
            if child is not skip and not child.within_nominal(self.short_of):
                self._of_subtree(child, shared, skip, found, advantage=advantage)
        for name, node in cohort.queues.items():
            if name != self.queue.name and not node.within_nominal(self.short_of):
                found += self._of_queue(self.state.queues[name], shared, advantage=advantage)

    def _of_queue(self, queue: Queue, shared: Node | None, *, advantage: bool) -> list[Candidate]:
        found = []
        for info in queue.workloads.values():
            variant = self._variant(info, queue, advantage=advantage)
            if variant is not None:
                found.append(Candidate(Target(info, queue, variant), shared))
        return found

    def _variant(self, info: Info, queue: Queue, *, advantage: bool) -> Variant | None:
        own = queue is self.queue
        policy = self.queue.policy("withinClusterQueue" if own else "reclaimWithinCohort")
        if not self._allowed(policy, info):
            return None
        if not any((flavor, name) in self.short_of for each in info.pod_sets for name, flavor in each.flavors.items()):
            return None
        if own:
            return Variant.WITHIN_QUEUE
        if advantage:
            return Variant.HIERARCHICAL
        may_borrow, threshold = self.queue.borrow_within_cohort()
        if (
            not may_borrow
            or info.priority >= self.info.priority
            or (threshold is not None and info.priority > threshold)
        ):
            return Variant.WITHOUT_BORROWING
        return Variant.WHILE_BORROWING

    def _allowed(self, policy: str, info: Info) -> bool:
        lower = self.info.priority > info.priority
        if policy == "LowerPriority":
            return lower
        if policy == "LowerOrNewerEqualPriority":
            return lower or (self.info.priority == info.priority and self.info.queued_at < info.queued_at)
        return policy == "Any"

    def _ordered(self, candidates: list[Candidate]) -> list[Candidate]:
        """Other queues first, then low priority, then the newest."""

        def rank(each: Candidate) -> tuple[bool, bool, int, float, str]:
            info = each.target.info
            reserved = conditions.find(info.obj, workloads.QUOTA_RESERVED)
            since = conditions.since(reserved) if reserved and reserved["status"] == "True" else self.now
            own = each.target.queue is self.queue
            return not workloads.is_evicted(info.obj), own, info.priority, -since.timestamp(), info.uid

        return sorted(candidates, key=rank)


def possibility(state: State, info: Info, fr: FlavorResource, value: int, now: datetime) -> Grade:
    """The success of preemption for an amount, and the borrowing left after it."""
    queue = state.queues[info.cluster_queue]
    targets = Preemption(state, info, {fr}, {fr: value}, now, lambda: True).targets()
    if not targets:
        return Mode.NO_CANDIDATES, lowest_that_fits(queue.node, fr, value)[0]
    with queue.without([(each.queue, each.info) for each in targets]):
        borrow = lowest_that_fits(queue.node, fr, value)[0]
    own = any(each.queue is queue for each in targets)
    return (Mode.PREEMPT if own else Mode.RECLAIM), borrow


def message(preemptor: Info, job_uid: str, target: Target, path: str) -> str:
    """The message for the victim."""
    return (
        f"Preempted to accommodate a workload (UID: {preemptor.uid}, JobUID: {job_uid or 'UNKNOWN'}) due to "
        f"{WORDS[target.reason]}; preemptor path: {path}; preemptee path: {target.queue.node.full_path()}"
    )
