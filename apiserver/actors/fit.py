"""The fit of a pod on a node: the filters of kube-scheduler with their texts, and its preference among nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from apiserver.actors.objects import Name, name_of
from apiserver.actors.pod_status import is_terminal
from apiserver.pod_requests import pod_requests
from apiserver.quantity import parse

Obj = dict[str, Any]
Milli = dict[str, int]  # amounts by resource in thousandths of the unit
MILLI = 1000
SCORED = {"cpu": 100, "memory": 200 * 1024 * 1024 * MILLI}  # what scores count for a pod that asks for none
UNSCHEDULABLE = "node(s) were unschedulable"
TAINTED = "node(s) had untolerated taint(s)"
NO_MATCH = "node(s) didn't match Pod's node affinity/selector"
NO_VICTIMS = "No preemption victims found for incoming pod"
NOT_HELPFUL = "Preemption is not helpful for scheduling"
UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@dataclass(frozen=True, slots=True)
class Misfit:
    """The reasons of a node to refuse a pod. `final` if no preemption on the node can help."""

    reasons: tuple[str, ...]
    final: bool


@dataclass(slots=True)
class NodeView:
    """A node as the scheduler sees it, with the pods holding its resources."""

    node: Obj
    allocatable: Milli
    used: Milli = field(default_factory=dict)
    pods: dict[Name, Obj] = field(default_factory=dict)
    asked: dict[Name, Milli] = field(default_factory=dict)  # by pod
    scored: Milli = field(default_factory=lambda: {"cpu": 0, "memory": 0})  # see SCORED
    owners: Counter[str] = field(default_factory=Counter)  # pods by uid of those that own them

    def copy(self) -> NodeView:
        """An independent copy of the view."""
        mine = replace(self, used=dict(self.used), pods=dict(self.pods), asked=dict(self.asked))
        mine.scored, mine.owners = dict(self.scored), Counter(self.owners)
        return mine

    @property
    def name(self) -> str:
        """Name of the node."""
        return str(self.node["metadata"]["name"])

    def take(self, pod: Obj) -> None:
        """Count a pod."""
        key, asked = name_of(pod), requests_milli(pod)
        self.pods[key], self.asked[key] = pod, asked
        self._add(pod, asked, 1)

    def give(self, pod: Obj) -> None:
        """Count a pod no longer; nothing happens if it was not counted."""
        key = name_of(pod)
        held = self.pods.pop(key, None)
        if held is not None:
            self._add(held, self.asked.pop(key), -1)

    def _add(self, pod: Obj, asked: Milli, sign: int) -> None:
        for name, amount in asked.items():
            self.used[name] = self.used.get(name, 0) + sign * amount
        for name, default in SCORED.items():
            self.scored[name] += sign * (asked.get(name) or default)
        for uid in owners_of(pod):
            self.owners[uid] += sign


def view_of(node: Obj) -> NodeView:
    """An empty view of a node."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return NodeView(node, {name: milli(text) for name, text in allocatable.items()})


def milli(text: str) -> int:
    """A quantity in thousandths, rounded up."""
    return ceil(parse(text) * MILLI)


def requests_milli(pod: Obj) -> Milli:
    """The requests of a pod, and one place for itself."""
    asked = {name: ceil(amount * MILLI) for name, amount in pod_requests(pod["spec"]).items()}
    return asked | {"pods": MILLI}


def holds_node(pod: Obj) -> bool:
    """True if the pod counts on its node: bound and not over."""
    return bool(pod["spec"].get("nodeName")) and not is_terminal(pod)


def misfit(pod: Obj, view: NodeView, asked: Milli) -> Misfit | None:
    """The first refusing filter, in the scheduler's order; None if it fits. `asked` is `requests_milli(pod)`."""
    spec, node = pod["spec"], view.node
    if node["spec"].get("unschedulable") and not tolerates(spec, UNSCHEDULABLE_TAINT):
        return Misfit((UNSCHEDULABLE,), final=True)
    for taint in node["spec"].get("taints") or []:
        if taint["effect"] in {"NoSchedule", "NoExecute"} and not tolerates(spec, taint):
            return Misfit((TAINTED,), final=True)
    if not matches_node(spec, node):
        return Misfit((NO_MATCH,), final=True)
    short = [name for name, amount in asked.items() if amount and amount > _left(view, name)]
    if not short:
        return None
    never = any(asked[name] > view.allocatable.get(name, 0) for name in short)
    texts = ("Too many pods" if name == "pods" else f"Insufficient {name}" for name in short)
    return Misfit(tuple(texts), final=never)


def _left(view: NodeView, name: str) -> int:
    return view.allocatable.get(name, 0) - view.used.get(name, 0)


def tolerates(spec: Obj, taint: Mapping[str, str]) -> bool:
    """True if one of the pod's tolerations covers a taint."""
    return any(covers(each, taint) for each in spec.get("tolerations") or [])


def covers(toleration: Mapping[str, Any], taint: Mapping[str, str]) -> bool:
    """True if a toleration covers a taint."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def matches_node(spec: Obj, node: Obj) -> bool:
    """True if nodeSelector and the required node affinity select a node."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(_matches_term(term, node) for term in required.get("nodeSelectorTerms") or [])


def _matches_term(term: Obj, node: Obj) -> bool:
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    labels = node["metadata"].get("labels") or {}
    by_name = {"metadata.name": node["metadata"]["name"]}
    if not expressions and not fields:
        return False  # an empty term selects nothing
    return all(_matches(each, labels) for each in expressions) and all(_matches(each, by_name) for each in fields)


def _matches(requirement: Obj, labels: Mapping[str, str]) -> bool:
    key, operator, values = requirement["key"], requirement["operator"], requirement.get("values") or []
    if operator in {"Exists", "DoesNotExist"}:
        return (key in labels) is (operator == "Exists")
    if operator in {"In", "NotIn"}:
        return (labels.get(key) in values) is (operator == "In")
    try:
        found, limit = int(labels[key]), int(values[0])
    except (KeyError, ValueError, IndexError):
        return False
    return found > limit if operator == "Gt" else found < limit


def preference(pod: Obj, view: NodeView, asked: Milli) -> int:
    """Higher is better, in whole points as the scheduler counts: many nodes are alike.

    Room in cpu and memory after the pod (LeastAllocated), even use of both (BalancedAllocation), preferred affinity,
    and the spread of the pods of one owner.
    """
    free = sum(_free_points(view, name, asked.get(name) or default) for name, default in SCORED.items()) // len(SCORED)
    cpu, memory = (_used_ratio(view, name, asked.get(name, 0)) for name in SCORED)
    even = int((1 - abs(cpu - memory) / 2) * 100)
    wanted = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
        "preferredDuringSchedulingIgnoredDuringExecution"
    ) or []
    liked = sum(int(each["weight"]) for each in wanted if _matches_term(each["preference"], view.node))
    return free + even + 2 * liked - 20 * sum(view.owners[uid] for uid in owners_of(pod))


def _free_points(view: NodeView, name: str, asked: int) -> int:
    capacity = view.allocatable.get(name, 0)
    return max(capacity - view.scored[name] - asked, 0) * 100 // capacity if capacity else 0


def _used_ratio(view: NodeView, name: str, asked: int) -> float:
    capacity = view.allocatable.get(name, 0)
    return min((view.used.get(name, 0) + asked) / capacity, 1.0) if capacity else 1.0


def owners_of(pod: Obj) -> list[str]:
    """The uids of the owners with pods spread over nodes: all but Jobs."""
    return [each["uid"] for each in pod["metadata"].get("ownerReferences") or [] if each["kind"] != "Job"]


def reasons_text(nodes: int, reasons: Iterable[str]) -> str:
    """`0/4 nodes are available: 1 this, 3 that.` with one entry in `reasons` for each node and reason."""
    counted = sorted(f"{count} {reason}" for reason, count in Counter(reasons).items())
    return f"0/{nodes} nodes are available: {', '.join(counted)}."
