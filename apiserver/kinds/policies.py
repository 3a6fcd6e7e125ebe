"""Defaults and checks of admission policies and priority classes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from apiserver.cel.program import CompileError, compiled
from apiserver.cel.typecheck import check_names, literal_type
from apiserver.errors import FieldError, forbidden_field, invalid_value, quoted, required, unsupported

Obj = dict[str, Any]
FAILURE_POLICIES = ("Fail", "Ignore")
ACTIONS = ("Audit", "Deny", "Warn")
OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
VARIABLES = ("object", "oldObject", "request", "params", "namespaceObject", "variables", "authorizer")


def fill_priority_class(obj: Obj) -> None:
    """Defaults of a priority class, in place."""
    obj.setdefault("value", 0)
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


def priority_class_changes(obj: Obj, old: Obj) -> list[FieldError]:
    """Errors of an update of a priority class: its fixed fields."""
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
    """Errors of a policy: unknown choices, no constraints, expressions with compile errors."""
    spec = policy["spec"]
    errors = []
    if spec.get("failurePolicy") not in FAILURE_POLICIES:
        errors.append(unsupported("spec.failurePolicy", spec.get("failurePolicy", ""), FAILURE_POLICIES))
    constraints = spec.get("matchConstraints")
    if constraints is None:
        errors.append(required("spec.matchConstraints"))
    else:
        errors += _match_problems(constraints, "spec.matchConstraints")
        if not constraints.get("resourceRules"):
            errors.append(required("spec.matchConstraints.resourceRules"))
    errors += _expression_problems(spec)
    if not spec.get("validations") and not spec.get("auditAnnotations"):
        why = "validations or auditAnnotations must contain at least one item"
        errors.append(required("spec.validations", why))
    return errors


def policy_changes(policy: Obj, _old: Obj) -> list[FieldError]:
    """An update is checked like a new policy."""
    return policy_problems(policy)


def binding_problems(binding: Obj) -> list[FieldError]:
    """Errors of a binding."""
    spec = binding["spec"]
    actions = spec.get("validationActions") or []
    errors = []
    if not spec.get("policyName"):
        errors.append(required("spec.policyName"))
    if not actions:
        errors.append(required("spec.validationActions", "at least one validation action is required"))
    for number, action in enumerate(actions):
        if action not in ACTIONS:
            errors.append(unsupported(f"spec.validationActions[{number}]", action, ACTIONS))
    if {"Deny", "Warn"} <= set(actions):
        why = (
            "must not contain both Deny and Warn (repeating the same validation failure information in the API "
            "response and headers serves no purpose)"
        )
        errors.append(invalid_value("spec.validationActions", actions, why))
    return errors + _match_problems(spec.get("matchResources") or {}, "spec.matchResources")


def binding_changes(binding: Obj, _old: Obj) -> list[FieldError]:
    """An update is checked like a new binding."""
    return binding_problems(binding)


def _match_problems(match: Obj, path: str) -> list[FieldError]:
    errors = []
    for part in ("resourceRules", "excludeResourceRules"):
        for number, rule in enumerate(match.get(part) or ()):
            fields = ("operations", "apiGroups", "apiVersions", "resources")
            errors += [required(f"{path}.{part}[{number}].{field}") for field in fields if not rule.get(field)]
            for at, operation in enumerate(rule.get("operations") or ()):
                if operation not in OPERATIONS:
                    errors.append(unsupported(f"{path}.{part}[{number}].operations[{at}]", operation, OPERATIONS))
    return errors


PARTS = {
    "matchConditions": {"expression": "bool"},
    "variables": {"expression": ""},
    "validations": {"expression": "bool", "messageExpression": "string"},
}
"""Lists of a policy with the fields of their entries that are expressions, and the types that these must have."""


def _expression_problems(spec: Obj) -> Iterator[FieldError]:
    names = tuple(each for each in VARIABLES if each != "params" or spec.get("paramKind"))
    for part, fields in PARTS.items():
        for number, entry in enumerate(spec.get(part) or ()):
            for field, wanted in fields.items():
                if entry.get(field):
                    why = _problem(entry[field], names, wanted)
                    if why:
                        at, shown = f"spec.{part}[{number}].{field}", quoted(entry[field])
                        yield FieldError(at, "FieldValueInvalid", f"Invalid value: {shown}: {why}")


@lru_cache(maxsize=1024)  # like the programs: a policy that is applied again has the same expressions
def _problem(source: str, names: tuple[str, ...], wanted: str) -> str:
    try:
        program = compiled(source)
        check_names(program, dict.fromkeys(names))
    except CompileError as error:
        return f"compilation failed: {error}"
    got = literal_type(program)
    return f"must evaluate to {wanted} but got {got}" if wanted and got and got != wanted else ""
