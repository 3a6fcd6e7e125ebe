"""Tolerations and node affinity of a pod, against the taints and labels of a flavor or node."""

from __future__ import annotations

from typing import Any

from apiserver.actors.fit import covers

Obj = dict[str, Any]


def untolerated(taints: list[Obj], tolerations: list[Obj]) -> Obj | None:
    """The first taint to keep a pod away; None if none does."""
    for taint in taints:
        if taint.get("effect") not in {"NoSchedule", "NoExecute"}:
            continue
        if not any(covers(each, taint) for each in tolerations):
            return taint
    return None


def meets(expression: Obj, labels: dict[str, str]) -> bool:
    """True if labels meet one requirement of node affinity."""
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or []
    found = labels.get(key)
    if operator == "In":
        return found in values
    if operator == "NotIn":
        return found not in values
    if operator == "Exists":
        return found is not None
    if operator == "DoesNotExist":
        return found is None
    try:
        number, limit = int(found or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return number > limit if operator == "Gt" else number < limit


def required_terms(spec: Obj) -> list[list[Obj]]:
    """Required node affinity as terms: one term must match, with all of its requirements."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return [term.get("matchExpressions") or [] for term in required.get("nodeSelectorTerms") or []]


def wants_flavor(spec: Obj, labels: dict[str, str]) -> bool:
    """True if a pod may run on nodes with the labels of a flavor; only the keys of the flavor are compared."""
    for key, value in (spec.get("nodeSelector") or {}).items():
        if key in labels and labels[key] != value:
            return False
    terms = [[each for each in term if each["key"] in labels] for term in required_terms(spec)]
    if not terms or any(not term for term in terms):
        return True
    return any(all(meets(each, labels) for each in term) for term in terms)


def wants_node(spec: Obj, labels: dict[str, str]) -> bool:
    """True if the node selector and affinity of a pod allow a node with these labels."""
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    terms = required_terms(spec)
    return not terms or any(all(meets(each, labels) for each in term) for term in terms)
