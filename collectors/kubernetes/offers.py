"""Clusters with two forms of GPUs: resources of a device plugin, and claims of a driver (DRA).

A node offers its GPUs in one of them. In a cluster with nodes of both kinds, work is bound to the nodes of its kind by
a requirement of its own, like a node selector. A cluster of one kind needs none.
"""

from __future__ import annotations

from collections.abc import Iterable

from autopilot.core.model.identity import OF_NODES
from collectors.kubernetes.asks import ask_of, is_gpu
from collectors.kubernetes.constraints import Meets, on_nodes
from collectors.kubernetes.dra_wire import DeviceClass
from collectors.kubernetes.shapes import PodShape
from collectors.kubernetes.wire import Node

AS_RESOURCES = f"{OF_NODES}GPUs as resources"
BY_CLAIMS = f"{OF_NODES}GPUs by resource claims"


def offers_resources(node: Node) -> bool:
    """True for a node with GPUs or instances of a device plugin, even if none is usable now."""
    offered = {*(node.status.capacity or {}), *(node.status.allocatable or {})}
    return any(map(is_gpu, offered))


def claims_for_resources(classes: Iterable[DeviceClass]) -> bool:
    """True if a class has an extended resource: the scheduler makes claims for pods requesting that resource."""
    return any(is_gpu(each.spec.extended_resource_name or "") for each in classes)


def asked_of_nodes(shape: PodShape, *, claims_for_resources: bool) -> tuple[tuple[str, Meets], ...]:
    """Requirements of these pods on nodes in a cluster with nodes of both kinds, as (name, test)."""
    own = ask_of(shape.spec)
    found: list[tuple[str, Meets]] = []
    if own.any_gpu and not claims_for_resources:
        found.append((AS_RESOURCES, on_nodes(offers_resources)))
    if shape.ask.units > own.units:
        found.append((BY_CLAIMS, on_nodes(_offers_claims)))
    return tuple(found)


def _offers_claims(node: Node) -> bool:
    return not offers_resources(node)
