"""The pods removed by kube-scheduler to make room for one of higher priority."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from apiserver.actors.fit import NO_VICTIMS, NOT_HELPFUL, Milli, Misfit, NodeView, misfit, reasons_text
from apiserver.actors.pod_status import is_terminating
from apiserver.selectors import matches_labels

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node, the pods to remove there, and the number of them under an exhausted budget."""

    view: NodeView
    victims: tuple[Obj, ...]
    violations: int


def priority_of(pod: Obj) -> int:
    """Its priority; 0 if it has none."""
    return int(pod["spec"].get("priority") or 0)


def waits_for_victims(pod: Obj, nominated: NodeView | None) -> bool:
    """True if a pod of lower priority is leaving the node promised to this pod."""
    if nominated is None:
        return False
    return any(is_terminating(each) and priority_of(each) < priority_of(pod) for each in nominated.pods.values())


def preempt(
    pod: Obj, asked: Milli, views: Sequence[NodeView], misfits: dict[str, Misfit], budgets: Sequence[Obj]
) -> Candidate | str:
    """The best node with its victims, or a text with the reasons for a miss. `misfits` is by name of node."""
    found: list[Candidate] = []
    reasons: list[str] = []
    for view in views:
        if misfits[view.name].final:
            reasons.append(NOT_HELPFUL)
            continue
        answer = _victims(pod, asked, view, budgets)
        if isinstance(answer, Candidate):
            found.append(answer)
        else:
            reasons.extend(answer)
    if not found:
        return reasons_text(len(views), reasons)
    return min(found, key=_disruption)


def _disruption(candidate: Candidate) -> tuple[object, ...]:
    """Fewest violated budgets, lowest highest priority, lowest sum, fewest victims, latest start, name of the node."""
    priorities = [priority_of(each) for each in candidate.victims]
    oldest_top = min(_started(each) for each in candidate.victims if priority_of(each) == max(priorities))
    return (
        candidate.violations,
        max(priorities),
        sum(priorities),
        len(priorities),
        tuple(-ord(char) for char in oldest_top),
        candidate.view.name,
    )


def _started(pod: Obj) -> str:
    return str((pod.get("status") or {}).get("startTime", pod["metadata"].get("creationTimestamp", "")))


def _victims(pod: Obj, asked: Milli, view: NodeView, budgets: Sequence[Obj]) -> Candidate | tuple[str, ...]:
    """All pods of lower priority, less those able to stay; the reasons if even all of them are too few."""
    lower = [each for each in view.pods.values() if priority_of(each) < priority_of(pod)]
    if not lower:
        return (NO_VICTIMS,)
    emptied = view.copy()
    for each in lower:
        emptied.give(each)
    still = misfit(pod, emptied, asked)
    if still is not None:
        return still.reasons
    lower.sort(key=lambda each: (-priority_of(each), _started(each)))
    protected = _protected(lower, budgets)
    victims: list[Obj] = []
    violations = 0
    for each in [*protected, *(other for other in lower if other not in protected)]:
        emptied.take(each)
        if misfit(pod, emptied, asked) is not None:
            emptied.give(each)
            victims.append(each)
            violations += each in protected
    return Candidate(view, tuple(victims), violations)


def _protected(pods: Sequence[Obj], budgets: Sequence[Obj]) -> list[Obj]:
    """Pods protected by a PodDisruptionBudget, each budget counted down in order."""
    allowed = {id(each): int((each.get("status") or {}).get("disruptionsAllowed", 0)) for each in budgets}
    found = []
    for pod in pods:
        violated = False
        for budget in budgets:
            if budget["metadata"]["namespace"] != pod["metadata"]["namespace"]:
                continue
            if not matches_labels(budget["spec"].get("selector"), pod["metadata"].get("labels")):
                continue
            if pod["metadata"]["name"] in ((budget.get("status") or {}).get("disruptedPods") or {}):
                continue
            allowed[id(budget)] -= 1
            violated = violated or allowed[id(budget)] < 0
        if violated:
            found.append(pod)
    return found
