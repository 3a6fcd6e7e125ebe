"""Errors of the parts of a pod: ports, variables and mounts of containers, volumes, and node affinity."""

from __future__ import annotations

from typing import Any

from apiserver.errors import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_found_value,
    required,
    unsupported,
)
from apiserver.metadata import dns_label_errors, qualified_name_errors

Obj = dict[str, Any]
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
DNS_POLICIES = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
VARIABLE = "a valid environment variable name must consist only of printable ASCII characters other than '='"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def range_text(low: int, high: int) -> str:
    """The text about a number outside its range."""
    return f"must be between {low} and {high}, inclusive"


def volume_errors(spec: Obj, path: str) -> list[FieldError]:
    """Volumes have names of their own."""
    errors, seen = [], set()
    for at, volume in enumerate(spec.get("volumes") or []):
        name, where = volume.get("name", ""), f"{path}.volumes[{at}].name"
        if not name:
            errors.append(required(where))
        elif name in seen:
            errors.append(duplicate(where, name))
        else:
            errors += [invalid_value(where, name, why) for why in dns_label_errors(name)]
        seen.add(name)
    return errors


def container_errors(container: Obj, volumes: set[str], path: str) -> list[FieldError]:
    """Errors of a container beside its name, image and resources."""
    errors = []
    for at, port in enumerate(container.get("ports") or []):
        where, number = f"{path}.ports[{at}].containerPort", port.get("containerPort", 0)
        if not number:
            errors.append(required(where))
        elif not 0 < number < 65536:
            errors.append(invalid_value(where, number, range_text(1, 65535)))
    for at, variable in enumerate(container.get("env") or []):
        where, name = f"{path}.env[{at}].name", variable.get("name", "")
        if not name:
            errors.append(required(where))
        elif "=" in name or not name.isascii() or not name.isprintable():
            errors.append(invalid_value(where, name, VARIABLE))
    for at, mount in enumerate(container.get("volumeMounts") or []):
        where, name = f"{path}.volumeMounts[{at}]", mount.get("name", "")
        if not name:
            errors.append(required(f"{where}.name"))
        if name not in volumes:
            errors.append(not_found_value(f"{where}.name", name))
        if not mount.get("mountPath"):
            errors.append(required(f"{where}.mountPath"))
    if container.get("imagePullPolicy") not in {*PULL_POLICIES, None, ""}:
        errors.append(unsupported(f"{path}.imagePullPolicy", container["imagePullPolicy"], PULL_POLICIES))
    return errors


def affinity_errors(spec: Obj, path: str) -> list[FieldError]:
    """Errors of the node affinity of a pod."""
    nodes = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    errors = []
    if REQUIRED in nodes:
        where = f"{path}.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"
        terms = nodes[REQUIRED].get("nodeSelectorTerms") or []
        if not terms:
            errors.append(required(where, "must have at least one node selector term"))
        for at, term in enumerate(terms):
            errors += _term_errors(term, f"{where}[{at}]")
    for at, each in enumerate(nodes.get(PREFERRED) or []):
        where = f"{path}.affinity.nodeAffinity.{PREFERRED}[{at}]"
        if not 0 < each.get("weight", 0) <= 100:
            errors.append(invalid_value(f"{where}.weight", each.get("weight", 0), "must be in the range 1-100"))
        errors += _term_errors(each.get("preference") or {}, f"{where}.preference")
    return errors


def _term_errors(term: Obj, path: str) -> list[FieldError]:
    errors = []
    for at, each in enumerate(term.get("matchExpressions") or []):
        where = f"{path}.matchExpressions[{at}]"
        operator, values = each.get("operator", ""), each.get("values") or []
        if operator in {"In", "NotIn"}:
            if not values:
                text = "must be specified when `operator` is 'In' or 'NotIn'"
                errors.append(required(f"{where}.values", text))
        elif operator in {"Exists", "DoesNotExist"}:
            if values:
                text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                errors.append(forbidden_field(f"{where}.values", text))
        elif operator in {"Gt", "Lt"}:
            if len(values) != 1:
                text = "must be specified single value when `operator` is 'Lt' or 'Gt'"
                errors.append(required(f"{where}.values", text))
        else:
            errors.append(invalid_value(f"{where}.operator", operator, "not a valid selector operator"))
        key = each.get("key", "")
        errors += [invalid_value(f"{where}.key", key, why) for why in qualified_name_errors(key)]
    return errors
