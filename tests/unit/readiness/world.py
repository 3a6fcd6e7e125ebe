"""A ready cluster as canned answers; each test changes what it is about."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from autopilot.core.hardware import dcgm
from autopilot.kube.cluster_api import Answer
from autopilot.readiness.line import Asked, Sample

NOW_S = 1_790_000_000.0
KUEUE = "/apis/kueue.x-k8s.io"


def node(name: str, labels: Mapping[str, str] | None = None, gpus: int = 8) -> dict[str, Any]:
    """A ready GPU node with the labels of GPU feature discovery."""
    stated = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
    shown = {key: value for key, value in {**stated, **(labels or {})}.items() if value}
    return {
        "metadata": {"name": name, "labels": shown},
        "status": {
            "capacity": {"cpu": "64", "nvidia.com/gpu": str(gpus)},
            "allocatable": {"cpu": "64", "nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def _active(name: str, **spec: Any) -> dict[str, Any]:
    status = {"conditions": [{"type": "Active", "status": "True", "message": "Can admit new workloads"}]}
    return {"metadata": {"name": name, "namespace": "team"}, "spec": spec, "status": status}


LISTS: dict[str, list[dict[str, Any]]] = {
    "/api/v1/nodes": [node("gpu-0", {"pool": "h100"}), node("gpu-1", {"pool": "h100"})],
    f"{KUEUE}/v1beta2/clusterqueues": [_active("research")],
    f"{KUEUE}/v1beta2/localqueues": [_active("main", clusterQueue="research")],
    f"{KUEUE}/v1beta2/resourceflavors": [_active("h100", nodeLabels={"pool": "h100"})],
    "/apis/apps/v1/deployments": [
        {
            "metadata": {"name": "kueue-controller-manager"},
            "spec": {
                "template": {"spec": {"containers": [{"name": "manager", "image": "r.example:5000/kueue:v0.19.2"}]}}
            },
            "status": {"readyReplicas": 1},
        }
    ],
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations": [
        {
            "metadata": {"name": "kueue-mutating-webhook-configuration"},
            "webhooks": [{"name": "mjob.kb.io", "clientConfig": {"caBundle": "Zm9v"}}],
        }
    ],
}


@dataclass
class World:
    """Lists by path, served versions of Kueue, denied rights, and answers that replace all others."""

    lists: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: deepcopy(LISTS))
    kueue: tuple[str, ...] = ("v1beta1", "v1beta2")
    version: str = "v1.36.2"
    denied: frozenset[tuple[str, str]] = frozenset()  # resource, verb
    skew_s: float = 0.0
    answers: dict[str, Answer] = field(default_factory=dict)
    page: int = 1  # objects of one page

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        if path in self.answers:
            return self.answers[path]
        if path == "/version":
            said = json.dumps({"gitVersion": self.version})
            return Answer(200, said, {"Date": formatdate(NOW_S - self.skew_s, usegmt=True)})
        if path == KUEUE and self.kueue:
            return Answer(200, json.dumps({"versions": [{"version": each} for each in self.kueue]}))
        if path not in self.lists:
            return Answer(404, "404 page not found\n")
        first = int((query or {}).get("continue", "0"))
        found, after = self.lists[path][first : first + self.page], first + self.page
        more = {"continue": str(after)} if after < len(self.lists[path]) else {}
        paged = "limit" in (query or {})
        return Answer(
            200, json.dumps({"metadata": more if paged else {}, "items": found if paged else self.lists[path]})
        )

    def post(self, path: str, body: Mapping[str, Any], query: Mapping[str, str] | None = None) -> Answer:
        if path.endswith("selfsubjectreviews"):
            return Answer(201, json.dumps({"status": {"userInfo": {"username": "ada"}}}))
        asked = body["spec"]["resourceAttributes"]
        allowed = (asked["resource"], asked["verb"]) not in self.denied
        return Answer(201, json.dumps({"status": {"allowed": allowed}}))


@dataclass
class Scraped:
    """A Prometheus: the names that it holds, and the values of the other questions by a word in them."""

    names: tuple[str, ...] = tuple(each.names[0] for each in dcgm.FIELDS.values())
    age_s: float = 20.0
    gpus: float = 16.0
    owned: float = 12.0
    clock_s: float = NOW_S
    broken: str = ""
    url: str = "http://prometheus:9090"

    def query(self, expression: str) -> list[Sample]:
        if self.broken:
            raise OSError(self.broken)
        if expression == "time()":
            return [Sample({}, self.clock_s)]
        if expression.startswith("count by (__name__)"):
            return [Sample({"__name__": name}, 16.0) for name in self.names]
        value = (
            self.age_s if "timestamp(" in expression else self.gpus if "count by (UUID)" in expression else self.owned
        )
        return [Sample({}, value)] if value else []


def asked(world: World, scraped: Scraped | None = None, now_s: Callable[[], float] = lambda: NOW_S) -> Asked:
    """What the checks ask, with the clock at NOW_S."""
    return Asked(world, scraped, now_s, "gpu-autopilot")
