"""A small cluster in virtual time, and what is seen of it."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

from apiserver.actors.kubelet import KubeletOptions
from apiserver.cluster import cluster
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import ADMIN

Obj = dict[str, Any]
SPACE = "team"


class Scene:
    """A cluster with a client, and what was seen of each resource."""

    def __init__(self, kubelets: KubeletOptions | None = None) -> None:
        self.timeline = Timeline(datetime(2026, 1, 1, tzinfo=UTC))
        self.server: Server = cluster(self.timeline, random.Random(1), kubelets=kubelets)
        self.client = self.server.client(ADMIN, "test")
        self.client.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})

    def node(self, name: str, gpus: int = 4, **labels: str) -> None:
        """A ready node."""
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        self.client.create(
            "nodes",
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": labels},
                "spec": {},
                "status": {
                    "capacity": amounts,
                    "allocatable": amounts,
                    "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                },
            },
        )
        self.timeline.run_for(1)

    def pod(self, name: str, gpus: int = 1, annotations: Obj | None = None, **spec: Any) -> None:
        """A pod."""
        metadata = {"name": name, "namespace": SPACE, "labels": {"app": name}, "annotations": annotations or {}}
        self.client.create(
            "pods", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": containers(gpus) | spec}
        )

    def job(self, name: str, pods: int, gpus: int = 1, annotations: Obj | None = None, **spec: Any) -> None:
        """A Job of some pods at once."""
        template = {
            "metadata": {"annotations": annotations or {}},
            "spec": containers(gpus) | {"restartPolicy": "Never"},
        }
        body = {"parallelism": pods, "completions": pods, "template": template} | spec
        metadata = {"name": name, "namespace": SPACE}
        self.client.create("jobs.batch", {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": body})

    def status(self, name: str, resource: str = "jobs.batch") -> Obj:
        """The status of an object now."""
        found = self.server.store.get(resource, SPACE, name)
        assert found is not None
        status: Obj = found["status"]
        return status

    def events(self, reason: str) -> list[Obj]:
        """The Events of a reason, oldest first."""
        found = [each for each in self.server.store.objects("events") if each["reason"] == reason]
        return sorted(found, key=lambda each: each["metadata"]["name"].rpartition(".")[2])

    def pods(self) -> list[Obj]:
        """The pods of the namespace now."""
        return self.server.store.objects("pods", SPACE)

    def conditions(self, name: str, resource: str = "jobs.batch") -> list[tuple[str, str, str]]:
        """Type, status and reason of the conditions of an object."""
        found = self.status(name, resource).get("conditions", [])
        return [(each["type"], each["status"], each.get("reason", "")) for each in found]


def containers(gpus: int) -> Obj:
    """The spec of a pod that asks for GPUs."""
    limits = {"cpu": "1", "nvidia.com/gpu": str(gpus)}
    return {"containers": [{"name": "main", "image": "app:1", "resources": {"limits": limits}}]}
