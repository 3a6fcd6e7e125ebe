"""Checks and defaults of small kinds: ConfigMaps, Secrets, Leases, namespaces, NetworkPolicies."""

from __future__ import annotations

import re
from typing import Any

from apiserver.errors import FieldError, forbidden_field, invalid_value, too_long

Obj = dict[str, Any]
DATA_LIMIT = 1024 * 1024
KEY = re.compile(r"[-._a-zA-Z0-9]+")
KEY_TEXT = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)


def default_spec(obj: Obj) -> None:
    """A spec without a field is there all the same: Go leaves no struct out."""
    obj.setdefault("spec", {})


def data_errors(obj: Obj) -> list[FieldError]:
    """The data of a ConfigMap or Secret may be 1 MiB in all."""
    size = sum(len(value.encode()) for name in ("data", "binaryData") for value in (obj.get(name) or {}).values())
    errors = [
        invalid_value(f"{name}[{key}]", key, KEY_TEXT)
        for name in ("data", "binaryData")
        for key in sorted(obj.get(name) or {})
        if not KEY.fullmatch(key)
    ]
    if size <= DATA_LIMIT:
        return errors
    return [*errors, too_long("[]" if obj["kind"] == "ConfigMap" else "data", DATA_LIMIT)]


def data_update_errors(obj: Obj, old: Obj) -> list[FieldError]:
    """Refuse changes of an object marked immutable."""
    errors = []
    if old.get("immutable"):
        if not obj.get("immutable"):
            errors.append(forbidden_field("immutable", "field is immutable when `immutable` is set"))
        errors += [
            forbidden_field(name, "field is immutable when `immutable` is set")
            for name in ("data", "binaryData")
            if (obj.get(name) or {}) != (old.get(name) or {})
        ]
    return errors + data_errors(obj)


def lease_errors(lease: Obj) -> list[FieldError]:
    """A lease lasts longer than nothing and changes hands forwards."""
    spec = lease.get("spec") or {}
    errors = []
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        errors.append(invalid_value("spec.leaseDurationSeconds", seconds, "must be greater than 0"))
    if transitions is not None and transitions < 0:
        errors.append(invalid_value("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
    return errors


def lease_update_errors(lease: Obj, _old: Obj) -> list[FieldError]:
    """As at creation."""
    return lease_errors(lease)


def default_lease(lease: Obj) -> None:
    """A lease always has a spec. Fields of coordinated leader election (its gate is off) are dropped."""
    spec = lease.setdefault("spec", {})
    for name in ("strategy", "preferredHolder"):
        spec.pop(name, None)


def default_network_policy(policy: Obj) -> None:
    """It limits incoming traffic, and outgoing traffic if it has a rule for it. Ports are TCP."""
    spec = policy.setdefault("spec", {})
    spec.setdefault("policyTypes", ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])
    for rule in (*(spec.get("ingress") or ()), *(spec.get("egress") or ())):
        for port in rule.get("ports") or ():
            port.setdefault("protocol", "TCP")


def default_namespace(namespace: Obj) -> None:
    """A namespace is active, is held by its finalizer, and carries its name as a label."""
    metadata = namespace.setdefault("metadata", {})
    if metadata.get("name"):
        metadata["labels"] = (metadata.get("labels") or {}) | {"kubernetes.io/metadata.name": metadata["name"]}
    if "deletionTimestamp" not in metadata:
        namespace.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    namespace.setdefault("spec", {})
    namespace.setdefault("status", {}).setdefault("phase", "Active")


def namespace_held(namespace: Obj) -> bool:
    """A namespace stays until it is empty."""
    return bool((namespace.get("spec") or {}).get("finalizers"))


def end_namespace(namespace: Obj, _now: str) -> None:
    """A deleted namespace says so."""
    namespace["status"] = namespace["status"] | {"phase": "Terminating"}


def keep_namespace(namespace: Obj, old: Obj) -> None:
    """An update changes neither the finalizers nor the phase."""
    namespace["spec"] = old["spec"]
    namespace["status"] = old["status"]
