"""The flavor of each resource of a workload, and the texts for a resource without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from apiserver.kueue.amounts import FlavorResource, quantity
from apiserver.kueue.info import Info, PodSet
from apiserver.kueue.matching import untolerated, wants_flavor
from apiserver.kueue.names import pod_sets_of, spec_of
from apiserver.kueue.queue_state import Queue
from apiserver.kueue.quota import lowest_that_fits

Obj = dict[str, Any]
TRY_NEXT = "TryNextFlavor"


class Mode(IntEnum):
    """The fit of an assignment; more is better."""

    NO_FIT = 0
    NO_CANDIDATES = 1  # preemption could help, but there is nobody to preempt
    PREEMPT = 2
    RECLAIM = 3
    FIT = 4


Grade = tuple[Mode, int]  # with the height up to which is borrowed; less is better
WORST: Grade = (Mode.NO_FIT, 1 << 30)
# whether, and how, preemption makes room for an amount in a flavor; and the borrowing that is left then
Oracle = Callable[[Info, FlavorResource, int], Grade]


@dataclass(slots=True)
class Attempt:
    """One considered flavor, for the event of the reservation."""

    flavor: str
    mode: Mode
    borrow: int
    reasons: list[str]

    def text(self) -> str:
        """`h100(Fit;borrow=1)`; "" for a plain fit."""
        if self.mode == Mode.FIT and not self.borrow:
            return ""
        possibility = {Mode.NO_CANDIDATES: "NoCandidates", Mode.PREEMPT: "Preempt", Mode.RECLAIM: "Reclaim"}
        mode = {Mode.FIT: "Fit", Mode.NO_FIT: "NoFit"}.get(self.mode) or f"preemptionMode={possibility[self.mode]}"
        borrow = [f"borrow={self.borrow}"] if self.borrow else []
        return f"{self.flavor}({';'.join([mode, *borrow, *self.reasons])})"


@dataclass(slots=True)
class Assigned:
    """The flavors of one pod set."""

    name: str
    count: int
    requests: dict[str, int]
    flavors: dict[str, str] = field(default_factory=dict)
    modes: dict[str, Mode] = field(default_factory=dict)
    tried: dict[str, int] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    topology: Obj | None = None

    def mode(self) -> Mode:
        """The worst of its resources."""
        if not self.reasons:
            return Mode.FIT
        if not self.flavors:
            return Mode.NO_FIT
        return min(self.modes.values(), default=Mode.FIT)

    def entry(self) -> Obj:
        """As it stands in status.admission."""
        found: Obj = {
            "count": self.count,
            "flavors": {name: self.flavors[name] for name in sorted(self.flavors)},
            "name": self.name,
            "resourceUsage": {name: quantity(name, self.requests[name]) for name in sorted(self.flavors)},
        }
        return found | {"topologyAssignment": self.topology} if self.topology else found


@dataclass(slots=True)
class Assignment:
    """The flavors of all pod sets."""

    pod_sets: list[Assigned] = field(default_factory=list)
    borrowing: int = 0
    usage: dict[FlavorResource, int] = field(default_factory=dict)

    def mode(self) -> Mode:
        """The worst of its pod sets."""
        return min((each.mode() for each in self.pod_sets), default=Mode.NO_FIT)

    def fits(self) -> bool:
        """No preemption is needed."""
        return self.mode() == Mode.FIT

    def needs_preemption(self) -> bool:
        """It would fit if others left."""
        return Mode.NO_FIT < self.mode() < Mode.FIT

    def message(self) -> str:
        """The reasons of a misfit."""
        return "; ".join(
            f"couldn't assign flavors to pod set {each.name}: {', '.join(sorted(each.reasons))}"
            for each in self.pod_sets
            if each.reasons
        )

    def considered(self) -> str:
        """The considered flavors, for the event of the reservation."""
        found = []
        for each in self.pod_sets:
            texts = [text for text in (attempt.text() for attempt in each.attempts) if text]
            if texts:
                found.append(f"{each.name}: {', '.join(texts)}")
        return " | ".join(found)

    def short_of(self) -> set[FlavorResource]:
        """Flavors and resources in need of preemption."""
        return {
            (each.flavors[name], name)
            for each in self.pod_sets
            for name, mode in each.modes.items()
            if Mode.NO_FIT < mode < Mode.FIT
        }


class Assigner:
    """Assigns flavors of one queue to one workload."""

    def __init__(
        self, info: Info, queue: Queue, flavors: dict[str, Obj], oracle: Oracle, before: Info | None = None
    ) -> None:
        """`before`: the replaced workload. Its quota counts as that of the new one, in the same flavors."""
        self.info = info
        self.before = {each.name: each for each in before.pod_sets} if before is not None else {}
        self.queue = queue
        self.flavors = flavors
        self.oracle = oracle
        fungibility = queue.spec.get("flavorFungibility") or {}
        self.next_after_borrow = fungibility.get("whenCanBorrow") == TRY_NEXT
        self.next_after_preempt = fungibility.get("whenCanPreempt", TRY_NEXT) == TRY_NEXT
        self.preference = fungibility.get("preference")

    def assign(self, counts: list[int] | None = None) -> Assignment:
        """Flavors for all pod sets, with other numbers of pods if `counts` is given."""
        assignment = Assignment()
        for number, asked in enumerate(self.info.pod_sets):
            pod_set = asked if counts is None else asked.scaled(counts[number])
            requests = dict(pod_set.requests)
            if "pods" in self.queue.group_of:
                requests["pods"] = pod_set.count
            each = Assigned(pod_set.name, pod_set.count, requests)
            assignment.pod_sets.append(each)
            found = self._fill(number, each, assignment)
            if not found and requests:
                each.flavors = {}
                return assignment
        return assignment

    def _fill(self, number: int, each: Assigned, assignment: Assignment) -> bool:
        for resource in sorted(each.requests):
            if resource in each.flavors:
                continue
            group = self.queue.group_of.get(resource)
            if group is None:
                if not each.requests[resource]:
                    continue
                each.reasons = [f"resource {resource} unavailable in ClusterQueue"]
                return False
            if not self._choose(number, each, group, assignment):
                return False
        for resource, flavor in each.flavors.items():
            fr = (flavor, resource)
            assignment.usage[fr] = assignment.usage.get(fr, 0) + each.requests[resource] - self._held(each, resource)
        return True

    def _held(self, each: Assigned, resource: str) -> int:
        """The quota of the replaced workload for the pod set."""
        return self.before[each.name].requests.get(resource, 0) if each.name in self.before else 0

    def _choose(self, number: int, each: Assigned, group: Obj, assignment: Assignment) -> bool:
        """One flavor for all resources of a group."""
        names = [flavor["name"] for flavor in group["flavors"]]
        wanted = [name for name in group["coveredResources"] if name in each.requests]
        tried = (self.info.tried or [{}] * (number + 1))[number].get(wanted[0], -1)
        best: tuple[Grade, str, dict[str, Grade]] = (WORST, "", {})
        reasons: list[str] = []
        last = -1
        for last in range(tried + 1, len(names)):
            flavor = names[last]
            refusal = self._refusal(number, flavor, group)
            if refusal:
                reasons.append(refusal)
                each.attempts.append(Attempt(flavor, Mode.NO_FIT, 0, [refusal]))
                continue
            grade, grades, why = self._grade(flavor, wanted, each, assignment)
            reasons += why
            each.attempts.append(
                Attempt(flavor, grade[0], max((borrow for _, borrow in grades.values()), default=0), why)
            )
            if not self._look_further(grade):
                best = (grade, flavor, grades)
                break
            if self._preferred(grade, best[0]):
                best = (grade, flavor, grades)
        grade, flavor, grades = best
        if grade[0] != Mode.FIT:
            each.reasons += reasons
        if not flavor:
            return False
        for resource, (mode, borrow) in grades.items():
            each.flavors[resource] = flavor
            each.modes[resource] = mode
            each.tried[resource] = -1 if last == len(names) - 1 else last
            assignment.borrowing = max(assignment.borrowing, borrow)
        return True

    def _refusal(self, number: int, name: str, group: Obj) -> str:
        flavor = self.flavors.get(name)
        if flavor is None:
            return f"flavor {name} not found"
        pod_set = pod_sets_of(self.info.obj)[number]
        topology = self._topology_refusal(pod_set, flavor, group)
        if topology:
            return topology
        spec, flavor_spec = pod_set["template"]["spec"], spec_of(flavor)
        tolerations = [*(spec.get("tolerations") or []), *(flavor_spec.get("tolerations") or [])]
        taint = untolerated(flavor_spec.get("nodeTaints") or [], tolerations)
        if taint is not None:
            text = f"{taint['key']} {taint.get('value', '')} {taint['effect']} <nil>"  # Kueue prints the fields
            return f"untolerated taint {{{text}}} in flavor {name}"
        if not wants_flavor(spec, flavor_spec.get("nodeLabels") or {}):
            return f"flavor {name} doesn't match node affinity"
        return ""

    def _topology_refusal(self, pod_set: Obj, flavor: Obj, group: Obj) -> str:
        asked = pod_set.get("topologyRequest") or {}
        explicit = any(asked.get(key) for key in ("required", "preferred", "unconstrained"))
        name = flavor["metadata"]["name"]
        if explicit and not spec_of(flavor).get("topologyName"):
            return f'Flavor "{name}" does not support TopologyAwareScheduling'
        if not explicit and spec_of(flavor).get("topologyName"):
            others = [self.flavors.get(each["name"]) for each in group["flavors"]]
            if not all(each is not None and spec_of(each).get("topologyName") for each in others):
                return f'Flavor "{name}" supports only TopologyAwareScheduling'
        return ""

    def _grade(
        self, flavor: str, wanted: list[str], each: Assigned, assignment: Assignment
    ) -> tuple[Grade, dict[str, Grade], list[str]]:
        worst: Grade = (Mode.FIT, 0)
        grades: dict[str, Grade] = {}
        reasons: list[str] = []
        for resource in sorted(wanted):
            fr = (flavor, resource)
            asked, other = each.requests[resource] - self._held(each, resource), ""
            if each.name in self.before:
                other = self.before[each.name].flavors.get(resource, "")
            if other and other != flavor:
                why = f"could not assign {flavor} flavor since the original workload is assigned: {other}"
                return (Mode.NO_FIT, 0), {}, [*reasons, why]
            grade, why = self._fits(fr, assignment.usage.get(fr, 0), asked)
            reasons += [why] if why else []
            if self._preferred(worst, grade):
                worst = grade
            if worst[0] != Mode.NO_FIT:
                grades[resource] = grade
        return worst, grades, reasons

    def _fits(self, fr: FlavorResource, assumed: int, asked: int) -> tuple[Grade, str]:
        flavor, resource = fr
        node = self.queue.node
        value, capacity, available = assumed + asked, node.potential(fr), node.available(fr)
        if value > capacity:
            return (Mode.NO_FIT, 0), (
                f"insufficient quota for {resource} in flavor {flavor}, previously considered podsets requests "
                f"({quantity(resource, assumed)}) + current podset request ({quantity(resource, asked)}) > maximum "
                f"capacity ({quantity(resource, capacity)})"
            )
        borrow, may_reclaim = lowest_that_fits(self.queue.node, fr, value)
        if value <= available:
            return (Mode.FIT, borrow), ""
        why = (
            f"insufficient unused quota for {resource} in flavor {flavor}, "
            f"{quantity(resource, value - available)} more needed"
        )
        if node.nominal(fr) >= value or may_reclaim or self.queue.borrow_within_cohort()[0]:
            return self.oracle(self.info, fr, value), why
        return (Mode.NO_FIT, borrow), why

    def _look_further(self, grade: Grade) -> bool:
        mode, borrow = grade
        if mode in {Mode.NO_FIT, Mode.NO_CANDIDATES}:
            return True
        if mode in {Mode.PREEMPT, Mode.RECLAIM} and self.next_after_preempt:
            return True
        return borrow > 0 and self.next_after_borrow

    def _preferred(self, first: Grade, second: Grade) -> bool:
        """True if the first grade is better."""
        if first[0] == Mode.NO_FIT or second[0] == Mode.NO_FIT:
            return first[0] != Mode.NO_FIT
        if (first[0] == Mode.NO_CANDIDATES) != (second[0] == Mode.NO_CANDIDATES):
            return second[0] == Mode.NO_CANDIDATES
        by_mode, by_borrow = (first[0], second[0]), (-first[1], -second[1])
        preempt_first = self.preference == "PreemptionOverBorrowing"
        order = (by_borrow, by_mode) if preempt_first else (by_mode, by_borrow)
        for mine, other in order:
            if mine != other:
                return mine > other
        return False


def resource_requests(pod_sets: list[PodSet]) -> list[Obj]:
    """status.resourceRequests of a waiting workload."""
    return [
        {"name": each.name, "resources": {name: quantity(name, each.requests[name]) for name in sorted(each.requests)}}
        for each in pod_sets
    ]
