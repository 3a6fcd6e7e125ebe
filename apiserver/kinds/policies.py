"""Defaults and checks of admission policies and priority classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from apiserver.cel.program import CompileError, compiled
from apiserver.cel.typecheck import check_names
from apiserver.errors import FieldError, forbidden_field, quoted

Obj = dict[str, Any]
VARIABLES = ("object", "oldObject", "request", "params", "namespaceObject", "variables", "authorizer")


def fill_priority_class(obj: Obj) -> None:
    """Defaults of a priority class, in place."""
    obj.setdefault("value", 0)
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


def priority_class_changes(obj: Obj, old: Obj) -> list[FieldError]:
    """What an update of a priority class may not change."""
    text = "may not be changed in an update."
    return [forbidden_field(name, text) for name in ("value", "preemptionPolicy") if obj.get(name) != old.get(name)]


def fill_policy(policy: Obj) -> None:
    """Defaults of a policy, in place."""
    spec = policy["spec"]
    spec.setdefault("failurePolicy", "Fail")
    if "matchConstraints" in spec:
        _fill_match(spec["matchConstraints"])
    policy.setdefault("status", {})


def fill_binding(binding: Obj) -> None:
    """Defaults of a binding, in place."""
    if "matchResources" in binding["spec"]:
        _fill_match(binding["spec"]["matchResources"])


def _fill_match(match: Obj) -> None:
    match.setdefault("namespaceSelector", {})
    match.setdefault("objectSelector", {})
    match.setdefault("matchPolicy", "Equivalent")
    for rule in [*(match.get("resourceRules") or ()), *(match.get("excludeResourceRules") or ())]:
        rule.setdefault("scope", "*")


def policy_problems(policy: Obj) -> list[FieldError]:
    """Expressions of a policy that cannot be compiled."""
    return list(_policy_problems(policy))


def policy_changes(policy: Obj, _old: Obj) -> list[FieldError]:
    """An update is checked like a new policy."""
    return policy_problems(policy)


PARTS = {
    "matchConditions": ("expression",),
    "variables": ("expression",),
    "validations": ("expression", "messageExpression"),
}
"""Lists of a policy with the fields of their entries that are expressions."""


def _policy_problems(policy: Obj) -> Iterator[FieldError]:
    types = dict.fromkeys(VARIABLES)
    for part, fields in PARTS.items():
        for number, entry in enumerate(policy["spec"].get(part) or ()):
            for field in fields:
                try:
                    if entry.get(field):
                        check_names(compiled(entry[field]), types)
                except CompileError as error:
                    at, shown = f"spec.{part}[{number}].{field}", quoted(entry[field])
                    yield FieldError(at, "FieldValueInvalid", f"Invalid value: {shown}: compilation failed: {error}")
