"""One cycle of the scheduler: the head of each queue is assigned flavors, admitted, or given the reason of its wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from apiserver.kueue import workloads
from apiserver.kueue.amounts import FlavorResource
from apiserver.kueue.elastic import replaces
from apiserver.kueue.flavors import Assigner, Assignment, Grade
from apiserver.kueue.info import Info
from apiserver.kueue.names import pod_sets_of
from apiserver.kueue.preemption import Preemption, Target, possibility
from apiserver.kueue.queue_state import Queue, State

Obj = dict[str, Any]
NO_LONGER = "Workload no longer fits after processing another workload"
OVERLAP = "Workload has overlapping preemption targets with another workload"
# places the pod sets of an assignment that fits by quota: the number of the pod set that finds no place, and why
Place = Callable[[Info, Assignment, "Iterable[Target]", bool], "tuple[int, str] | None"]


@dataclass(slots=True)
class Entry:
    """A head in a cycle, and its outcome."""

    info: Info
    queue: Queue | None
    assignment: Assignment = field(default_factory=Assignment)
    targets: list[Target] = field(default_factory=list)
    outcome: str = ""  # "", "skipped", "preempting", "assumed"
    message: str = ""
    requeue: str = "Generic"


class Cycle:
    """One cycle over the heads. It reserves use in the tree as it goes and returns it at the end."""

    def __init__(self, state: State, now: datetime, place: Place, refuse: Callable[[Info], str]) -> None:
        self.state = state
        self.now = now
        self.place = place
        self.refuse = refuse  # why a workload is not admissible in its namespace
        self.reserved: list[tuple[Queue, dict[FlavorResource, int]]] = []
        self.preempted: dict[str, Target] = {}

    def run(self, heads: list[Info]) -> list[Entry]:
        """The entries, decided: those assumed are to be admitted, the targets of those preempting to be evicted."""
        entries = [self.nominate(info) for info in heads]
        ready = [each for each in entries if not each.message or each.assignment.pod_sets]
        ready.sort(key=lambda each: (each.assignment.borrowing, -each.info.priority, each.info.queued_at))
        for entry in ready:
            if entry.queue is not None:
                self.process(entry, entry.queue)
        for queue, usage in reversed(self.reserved):
            for fr, value in usage.items():
                queue.node.remove(fr, value)
        return ready + [each for each in entries if each not in ready]

    def nominate(self, info: Info) -> Entry:
        """Assign flavors, and find victims if the assignment needs them."""
        queue = self.state.queues.get(info.cluster_queue)
        entry = Entry(info, queue)
        if workloads.checks(info.obj, "Retry") or workloads.checks(info.obj, "Rejected"):
            entry.message = "The workload has failed admission checks"
        elif queue is None:
            entry.message = f"ClusterQueue {info.cluster_queue} not found"
        elif not self.state.is_active(queue.name):
            entry.message = f"ClusterQueue {info.cluster_queue} is inactive"
        else:
            entry.message = self.refuse(info)
            if entry.message:
                entry.requeue = "NamespaceMismatch" if "namespace doesn't match" in entry.message else "Generic"
                return entry
            entry.assignment, entry.targets = self.assignments(info, queue)
            entry.message = entry.assignment.message()
            info.tried = [each.tried for each in entry.assignment.pod_sets]
        return entry

    def assignments(self, info: Info, queue: Queue) -> tuple[Assignment, list[Target]]:
        """The assignment of the whole workload or, if it may shrink, of as many pods as fit."""
        if info.tried is not None and (info.tried_shape != info.shape() or len(info.tried) != len(info.pod_sets)):
            info.tried = None
        info.tried_shape = info.shape()

        def oracle(of: Info, fr: FlavorResource, value: int) -> Grade:
            return possibility(self.state, of, fr, value, self.now)

        key = replaces(info.obj)
        before = queue.workloads.get(key) if key is not None else None
        assigner = Assigner(info, queue, self.state.flavors, oracle, before)
        whole, targets, found = self._try(info, assigner, None)
        if found or not info.can_shrink():
            return whole, targets
        return self._shrunk(info, assigner) or (whole, [])

    def _try(self, info: Info, assigner: Assigner, counts: list[int] | None) -> tuple[Assignment, list[Target], bool]:
        assignment = assigner.assign(counts)
        if assignment.fits():
            self._place(info, assignment, [])
            if assignment.fits():
                return assignment, [], True
        if not assignment.needs_preemption():
            return assignment, [], False

        short, usage = assignment.short_of(), assignment.usage
        search = Preemption(self.state, info, short, usage, self.now, lambda: True)
        targets = search.targets() if short else []
        if targets:
            self._place(info, assignment, targets)
        return assignment, targets, bool(targets)

    def _place(self, info: Info, assignment: Assignment, targets: list[Target]) -> None:
        failed = self.place(info, assignment, targets, False)
        if failed is None:
            return
        number, why = failed
        pod_set = assignment.pod_sets[number]
        pod_set.reasons.append(why)
        pod_set.flavors = {}  # nobody is preempted for the sake of a place

    def _shrunk(self, info: Info, assigner: Assigner) -> tuple[Assignment, list[Target]] | None:
        """The largest fitting number of pods, by bisection between the full and the least number."""
        specs = pod_sets_of(info.obj)
        full = [each.count for each in info.pod_sets]
        slack = [count - int(spec.get("minCount") or count) for count, spec in zip(full, specs, strict=True)]
        total = sum(slack)
        best: tuple[Assignment, list[Target]] | None = None
        low, high = 0, total + 1
        while total and low < high:
            middle = (low + high) // 2
            counts = [count - less * middle // total for count, less in zip(full, slack, strict=True)]
            assignment, targets, found = self._try(info, assigner, counts)
            if found:
                best, high = (assignment, targets), middle
            else:
                low = middle + 1
        return best if low <= total else None

    def process(self, entry: Entry, queue: Queue) -> None:
        """Admit, preempt, or put back."""
        assignment = entry.assignment
        usage = assignment.usage
        if not assignment.fits() and not assignment.needs_preemption():
            entry.requeue = "NoFit"
            return
        if assignment.needs_preemption() and not entry.targets:
            entry.requeue = "PreemptionNoCandidates"
            if queue.policy("reclaimWithinCohort") != "Any":
                self._reserve(queue, self._unreclaimable(queue, assignment))
            return
        if any(target.info.uid in self.preempted for target in entry.targets):
            entry.outcome, entry.message, entry.requeue = "skipped", OVERLAP, "FailedAfterNomination"
            return
        gone = {**self.preempted, **{target.info.uid: target for target in entry.targets}}
        with queue.without([(target.queue, target.info) for target in gone.values()]):
            fits = all(queue.node.available(fr) >= value for fr, value in usage.items())
        if not fits:
            entry.outcome, entry.message, entry.requeue = "skipped", NO_LONGER, "FailedAfterNomination"
            return
        self.preempted |= {target.info.uid: target for target in entry.targets}
        self._reserve(queue, usage)
        entry.info.tried = None
        if entry.targets:
            entry.outcome, entry.requeue = "preempting", "PendingPreemption"
            entry.message += f". Pending the preemption of {len(entry.targets)} workload(s)"
        else:
            entry.outcome = "assumed"

    def _reserve(self, queue: Queue, usage: dict[FlavorResource, int]) -> None:
        for fr, value in usage.items():
            queue.node.add(fr, value)
        self.reserved.append((queue, usage))

    @staticmethod
    def _unreclaimable(queue: Queue, assignment: Assignment) -> dict[FlavorResource, int]:
        """Quota kept from the others of this cycle by a workload waiting for room."""
        found = {}
        for fr, value in assignment.usage.items():
            quota, used = queue.node.quotas.get(fr), queue.node.usage.get(fr, 0)
            if assignment.borrowing and quota is not None:
                found[fr] = value if quota.borrowing is None else min(value, quota.nominal + quota.borrowing - used)
            else:
                found[fr] = max(0, min(value, queue.node.nominal(fr) - used))
        return found
