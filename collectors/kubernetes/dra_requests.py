"""Requests of resource claims: whole GPUs, or instances of one MIG profile.

A request is understood if its class and its selectors state no more than driver, type and profile:

    deviceClassName: mig.nvidia.com
    selectors:
    - cel: {expression: "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"}

Everything else is named and not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from autopilot.core.hardware.mig_profiles import find_profile_name
from collectors.kubernetes.asks import UNCLAIMED, Claimed
from collectors.kubernetes.dra_devices import DRIVER
from collectors.kubernetes.dra_wire import ClaimSpec, DeviceClass, DeviceRequest, Exactly, Selector

SHIPPED = {"gpu.nvidia.com": "gpu", "mig.nvidia.com": "mig"}
"""Classes of NVIDIA's driver and the type of their devices, for a view without classes."""

_TERM = re.compile(
    r"""\s*device\.(?:(?P<driver>driver)|attributes\[\s*(?P<q>['"])gpu\.nvidia\.com(?P=q)\s*\]\.(?P<name>type|profile))"""
    r"""\s*==\s*(?P<quote>['"])(?P<value>[^'"\\]*)(?P=quote)\s*"""
)


def wanted(spec: ClaimSpec, classes: Mapping[str, DeviceClass]) -> Claimed:
    """The request of a claim. `classes` by name. Devices of other drivers do not count."""
    total = UNCLAIMED
    for each in spec.devices.requests or ():
        total += wanted_by(each, classes)
    constrained = (total.gpus > 0 or total.profiles) and spec.devices.constraints
    return total + Claimed(problem="it has constraints on its devices") if constrained else total


def wanted_by(request: DeviceRequest, classes: Mapping[str, DeviceClass]) -> Claimed:
    """The content of one request."""
    if request.exactly is None:
        return Claimed(problem=f"request {request.name!r} leaves a choice between devices")
    asked = request.exactly
    kind, profile, problem = _kind(asked, classes)
    if not kind and not problem:
        return UNCLAIMED
    if asked.admin_access:  # it shares devices of others
        return UNCLAIMED
    if not problem and asked.allocation_mode not in {"", "ExactCount"}:
        problem = f"allocation mode {asked.allocation_mode} states no number"
    if not problem and asked.capacity:
        problem = "it asks for a part of a device"
    if problem:
        return Claimed(problem=f"request {request.name!r}: {problem}")
    count = asked.count if asked.count is not None else 1
    return Claimed(profiles=((profile, count),)) if profile else Claimed(gpus=count)


def _kind(asked: Exactly, classes: Mapping[str, DeviceClass]) -> tuple[str, str, str]:
    """The type of the devices (gpu, mig, "" for those of another driver), their profile, and the unknown part."""
    name, known = asked.device_class_name, classes.get(asked.device_class_name)
    facts = {"type": {SHIPPED[name]} if known is None and name in SHIPPED else set(), "profile": set(), "driver": set()}
    unclear = _read([*((known.spec.selectors or ()) if known is not None else ()), *(asked.selectors or ())], facts)
    if facts["driver"] - {DRIVER}:
        return "", "", ""
    if known is None and name not in SHIPPED:
        return "", "", f"device class {name} is not in the view"
    if unclear:
        return "", "", f"a selector says more than driver, type and profile: {unclear}"
    if facts["profile"]:
        facts["type"].add("mig")
    if len(facts["type"]) != 1 or len(facts["profile"]) > 1 or not facts["type"] <= {"gpu", "mig"}:
        return "", "", f"device class {name} and its selectors name no single kind of GPU"
    (kind,) = facts["type"]
    if kind == "gpu":
        return kind, "", ""
    if not facts["profile"]:
        return "", "", "it names no MIG profile"
    (text,) = facts["profile"]
    profile = find_profile_name(text)
    return (kind, str(profile), "") if profile is not None else ("", "", f"{text!r} is no MIG profile")


def _read(selectors: Iterable[Selector], facts: Mapping[str, set[str]]) -> str:
    """Add the terms of selectors to `facts`. Returns the first selector with any other term, "" for none."""
    unclear = ""
    for each in selectors:
        text = each.cel.expression if each.cel is not None else ""
        for term in text.split("&&"):
            match = _TERM.fullmatch(term)
            if match is None:
                unclear = unclear or text
            else:
                facts[match["name"] or "driver"].add(match["value"])
    return unclear
