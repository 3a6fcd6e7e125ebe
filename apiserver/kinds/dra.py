"""Dynamic resource allocation: resource.k8s.io/v1."""

from __future__ import annotations

import json
from typing import Any

from apiserver.errors import FieldError, invalid_value
from apiserver.kinds.base import Kind, Subresource

Obj = dict[str, Any]
GROUP = "resource.k8s.io"
IMMUTABLE = "field is immutable"
# The fields of the server's own structures, in their order: texts about what may not change show all of them.
_EXACTLY = ("deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity")
_RESULT = (
    "request", "driver", "pool", "device", "adminAccess", "tolerations", "bindingConditions",
    "bindingFailureConditions", "shareID", "consumedCapacity",
)  # fmt: skip


def default_devices(devices: Obj) -> None:
    """A request asks for one device unless it says otherwise."""
    for request in devices.get("requests") or ():
        for each in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if each is not None:
                each.setdefault("allocationMode", "ExactCount")
                if each["allocationMode"] == "ExactCount":
                    each.setdefault("count", 1)


def default_claim(claim: Obj) -> None:
    """Its requests are complete, and it has a status."""
    default_devices((claim.get("spec") or {}).get("devices") or {})
    claim.setdefault("status", {})


def default_template(template: Obj) -> None:
    """Defaults of a template, as for its claims."""
    spec = template.setdefault("spec", {})
    spec.setdefault("metadata", {})
    default_devices((spec.get("spec") or {}).get("devices") or {})


def slice_update_errors(found: Obj, old: Obj) -> list[FieldError]:
    """The driver, the node and the pool of a slice stay."""
    given, held = found.get("spec") or {}, old.get("spec") or {}
    errors = [
        invalid_value(f"spec.{name}", given.get(name, ""), IMMUTABLE)
        for name in ("driver", "nodeName")
        if given.get(name) != held.get(name)
    ]
    pools = [(spec.get("pool") or {}).get("name") for spec in (given, held)]
    return errors + ([invalid_value("spec.pool.name", pools[0], IMMUTABLE)] if pools[0] != pools[1] else [])


def claim_update_errors(claim: Obj, old: Obj) -> list[FieldError]:
    """Refuse a change of a claim's spec."""
    if claim.get("spec") == old.get("spec"):
        return []
    return [invalid_value("spec", None, IMMUTABLE, raw=_text(_shown_spec(claim.get("spec") or {})))]


def claim_status_errors(claim: Obj, old: Obj) -> list[FieldError]:
    """An allocation is made and taken back as a whole, never changed."""
    given, held = ((each.get("status") or {}).get("allocation") for each in (claim, old))
    if given is None or held is None or given == held:
        return []
    return [invalid_value("status.allocation", None, IMMUTABLE, raw=_text(_shown_allocation(given)))]


def _text(value: Obj) -> str:
    """JSON in the order of the fields."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _struct(value: Obj, names: tuple[str, ...]) -> Obj:
    """The fields of a structure under their internal names; null for absent ones."""
    return {name[0].upper() + name[1:]: value.get(name) for name in names}


def _shown_spec(spec: Obj) -> Obj:
    devices = spec.get("devices") or {}
    requests = [
        {
            "Name": each.get("name"),
            "Exactly": _struct(each["exactly"], _EXACTLY) if each.get("exactly") is not None else None,
            "FirstAvailable": each.get("firstAvailable"),
        }
        for each in devices.get("requests") or ()
    ]
    return {"Devices": {"Requests": requests or None, **_struct(devices, ("constraints", "config"))}}


def _shown_allocation(allocation: Obj) -> Obj:
    devices, selector = allocation.get("devices") or {}, allocation.get("nodeSelector")
    terms = [
        {
            f"Match{kind}": [_struct(each, ("key", "operator", "values")) for each in term[f"match{kind}"]]
            if term.get(f"match{kind}")
            else None
            for kind in ("Expressions", "Fields")
        }
        for term in (selector or {}).get("nodeSelectorTerms") or ()
    ]
    return {
        "Devices": {
            "Results": [_struct(each, _RESULT) for each in devices.get("results") or ()] or None,
            "Config": devices.get("config"),
        },
        "NodeSelector": {"NodeSelectorTerms": terms} if selector is not None else None,
        "AllocationTimestamp": allocation.get("allocationTimestamp"),
    }


DRA = (
    Kind(
        GROUP, "v1", "resourceslices", "ResourceSlice", namespaced=False, generation=True,
        fields=("spec.nodeName", "spec.driver"), validate_update=slice_update_errors,
    ),
    Kind(GROUP, "v1", "deviceclasses", "DeviceClass", namespaced=False, generation=True),
    Kind(
        GROUP, "v1", "resourceclaims", "ResourceClaim", default=default_claim, validate_update=claim_update_errors,
        subresources={"status": Subresource("status", validate=claim_status_errors)},
    ),
    Kind(GROUP, "v1", "resourceclaimtemplates", "ResourceClaimTemplate", default=default_template),
)  # fmt: skip
