"""Claims and slices of dynamic resource allocation: what is filled in, and what may not change."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from apiserver.client import Client
from apiserver.cluster import cluster
from apiserver.errors import StatusError
from apiserver.timeline import Timeline
from apiserver.users import ADMIN

API = "resource.k8s.io/v1"
CLAIMS, SLICES = "resourceclaims.resource.k8s.io", "resourceslices.resource.k8s.io"


@pytest.fixture
def client() -> Client:
    """An administrator of a fresh cluster, with one claim and one slice."""
    found = cluster(Timeline(datetime(2026, 11, 23, tzinfo=UTC)), random.Random(1)).client(ADMIN, "test")
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}
    spec = {"devices": {"requests": [request]}}
    metadata = {"name": "c", "namespace": "default"}
    found.create(CLAIMS, {"apiVersion": API, "kind": "ResourceClaim", "metadata": metadata, "spec": spec})
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    body = {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": []}
    found.create(SLICES, {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": body})
    return found


def _refused(client: Client, resource: str, name: str, patch: dict[str, Any], part: str = "") -> str:
    with pytest.raises(StatusError) as caught:
        client.patch(resource, "default" if resource == CLAIMS else "", name, patch, part)
    return str(caught.value)


def test_a_request_asks_for_one_device(client: Client) -> None:
    """Mode and number are filled in, and stay: what a claim asks for cannot change."""
    (claim,) = client.list(CLAIMS)
    exactly = {"deviceClassName": "gpu.example.com", "allocationMode": "ExactCount", "count": 1}
    assert claim["spec"]["devices"]["requests"] == [{"name": "gpu", "exactly": exactly}]
    more = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly | {"count": 2}}]}}}
    assert "spec: Invalid value:" in (text := _refused(client, CLAIMS, "c", more))
    assert text.endswith("field is immutable")


def test_an_allocation_is_taken_back_and_never_changed(client: Client) -> None:
    """Another device needs a release first."""

    def allocated(device: str) -> dict[str, Any]:
        row = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": device}
        return {"status": {"allocation": {"devices": {"results": [row]}}}}

    client.patch(CLAIMS, "default", "c", allocated("gpu-0"), "status")
    assert "status.allocation: Invalid value:" in _refused(client, CLAIMS, "c", allocated("gpu-1"), "status")
    client.patch(CLAIMS, "default", "c", {"status": {"allocation": None}}, "status")
    client.patch(CLAIMS, "default", "c", allocated("gpu-1"), "status")


@pytest.mark.parametrize("change", [{"driver": "other.example.com"}, {"nodeName": "n2"}, {"pool": {"name": "n2"}}])
def test_a_slice_keeps_its_driver_node_and_pool(client: Client, change: dict[str, Any]) -> None:
    """Devices and the generation of the pool may change."""
    assert "field is immutable" in _refused(client, SLICES, "s", {"spec": change})
    client.patch(SLICES, "", "s", {"spec": {"pool": {"generation": 2}}})
