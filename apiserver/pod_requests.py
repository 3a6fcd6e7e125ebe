"""The requests of a pod to its node: those of containers, init containers, sidecars, overhead and the pod itself."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from apiserver.quantity import parse

Obj = dict[str, Any]
Amounts = dict[str, Fraction]


def pod_requests(spec: Obj) -> Amounts:
    """Requests by resource name, as the scheduler counts them. Limits stand in for absent requests.

    Sidecars (init containers with restartPolicy Always) run beside the containers; of the other init containers only
    one runs at a time, beside the sidecars before it. `spec.resources` of the pod replaces the sum of its containers.
    """
    sums: Amounts = {}
    for container in spec.get("containers") or []:
        _add(sums, container_requests(container))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or []:
        asked = container_requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sums, asked)
            _add(sidecars, asked)
            at_once = dict(sidecars)
        else:
            at_once = dict(sidecars)
            _add(at_once, asked)
        _at_least(peak, at_once)
    _at_least(sums, peak)
    sums.update(container_requests(spec))
    _add(sums, {name: parse(text) for name, text in (spec.get("overhead") or {}).items()})
    return sums


def container_requests(container: Obj) -> Amounts:
    """Requests of one container; a limit without a request is one."""
    resources = container.get("resources") or {}
    return {
        name: parse(text)
        for name, text in ((resources.get("limits") or {}) | (resources.get("requests") or {})).items()
    }


def _add(sums: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        sums[name] = sums.get(name, Fraction(0)) + amount


def _at_least(sums: Amounts, other: Amounts) -> None:
    for name, amount in other.items():
        sums[name] = max(sums.get(name, Fraction(0)), amount)
