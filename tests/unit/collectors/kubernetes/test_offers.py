"""Clusters in which some nodes offer GPUs as resources and others by claims: work goes to nodes of its kind."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.core_world import AUTO, decide, observe, started
from tests.kits.dra_objects import by_template, device_class, dra_node, request, resource_slice, template, whole_gpu
from tests.kits.kube_objects import Json, node, pod
from tests.unit.collectors.kubernetes.view import Seen

GATE: dict[str, Any] = {"schedulingGates": [{"name": "gpu-autopilot.io/admission"}]}


def by_claims(name: str, gpus: int = 8) -> list[Json]:
    """A node whose GPUs are devices of the driver."""
    return [dra_node(name), resource_slice("s", name, [whole_gpu(name, k) for k in range(gpus)])]


def claims(name: str, gpus: int = 8) -> list[Json]:
    """A pod that asks for GPUs by a claim, and waits."""
    return [template(name, request(count=gpus)), pod(name, 0, **by_template(name), **GATE)]


def asks(name: str, gpus: int = 8) -> Json:
    """A pod that asks for GPUs as a resource, and waits."""
    return pod(name, gpus, **GATE)


def extended_class() -> Json:
    """A class for whose devices work may ask as a resource."""
    found = device_class("gpu.nvidia.com", "device.driver == 'gpu.nvidia.com'")
    found["spec"]["extendedResourceName"] = "nvidia.com/gpu"
    return found


def starts(*objects: Json) -> dict[str, set[str]]:
    """Nodes of the gangs that are started."""
    return {name: set(nodes) for name, nodes in started(decide(observe(Seen(*objects).snapshot()), AUTO)).items()}


@pytest.mark.parametrize(("plugin", "driver"), [("a", "b"), ("b", "a")])
def test_work_goes_to_nodes_of_its_kind(plugin: str, driver: str) -> None:
    """Both gangs would fit on either node."""
    found = starts(node(plugin, 8), *by_claims(driver), *claims("by-claim"), asks("by-resource"))
    assert found == {"team/by-claim": {driver}, "team/by-resource": {plugin}}


def test_what_has_no_node_of_its_kind_waits() -> None:
    """The free node offers GPUs in the other way."""
    other = node("a", 8), *by_claims("b", gpus=4)
    assert starts(*other, *claims("by-claim")) == {}
    assert starts(node("a", 4), *by_claims("b"), asks("by-resource")) == {}


def test_a_cluster_of_one_kind_asks_for_nothing() -> None:
    """No label is spent on it."""
    for objects in ([node("a", 8), asks("one")], [*by_claims("a"), *claims("one")]):
        seen = Seen(*objects).snapshot()
        assert seen.names.labels == ()
        assert seen.workloads.selector.tolist() == [0]


def test_a_kind_of_nodes_may_come_and_go() -> None:
    """A node of the other kind joins while a gang waits, and leaves again."""
    seen, added = Seen(node("a", 4), asks("one")), by_claims("b")
    assert seen.snapshot().workloads.selector.tolist() == [0]
    both = seen.snapshot(*added)
    assert started(decide(observe(both), AUTO)) == {}
    assert both.workloads.selector.tolist() != [0]
    assert seen.tables(gone=tuple(added))[1].workloads.selector.tolist() == [0]


def test_the_scheduler_may_make_the_claim_for_a_resource() -> None:
    """With an extended resource of a class, work that asks for a resource runs on both kinds of nodes."""
    nodes = node("a", 4), *by_claims("b")
    assert starts(*nodes, asks("by-resource")) == {}
    assert starts(*nodes, extended_class(), asks("by-resource")) == {"team/by-resource": {"b"}}


def test_slices_and_classes_may_come_after_nodes_and_work() -> None:
    """The driver of a node starts, and somebody adds a class for its resource."""
    joined, devices = by_claims("b")
    seen = Seen(node("a", 4), joined, asks("one"))
    assert started(decide(observe(seen.snapshot()), AUTO)) == {}
    assert started(decide(observe(seen.snapshot(devices)), AUTO)) == {}
    assert list(started(decide(observe(seen.snapshot(extended_class())), AUTO))) == ["team/one"]
