"""A cluster with the GPU operator and its MIG manager, for the tests of changes of MIG geometry."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.api import Api
from actuators.kubernetes.events import Events
from actuators.kubernetes.levers.base import Tools
from actuators.kubernetes.levers.mig_config import CONFIG_MAP
from actuators.kubernetes.mig_node import CONFIG, STATE
from actuators.kubernetes.writing import Writer
from apiserver.actors.kubelet import KubeletOptions
from apiserver.actors.mig_manager import CLIENTS, DEPLOY, MigManager, MigOptions
from apiserver.client import Client
from apiserver.cluster import cluster
from apiserver.http.serve import serve
from apiserver.server import Server
from apiserver.timeline import US, Timeline
from apiserver.users import ADMIN
from autopilot.contract.annotations import EFFECT
from autopilot.core.geometry.recut import RecutGpu
from autopilot.core.model.objects import Geometry, Subject, SubjectKind
from autopilot.core.model.records import Instruction, Outcome
from tests.kits.acting_kit import Found, Identity
from tests.kits.rights_kit import Rights

Obj = dict[str, Any]
SPACE = "gpu-operator"
FILE = """version: v1
mig-configs:
  all-disabled: [{devices: all, mig-enabled: false}]
  small: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}]
"""
SMALL: Geometry = tuple(("1g.10gb", start) for start in range(7))
HALVES: Geometry = (("3g.40gb", 0), ("3g.40gb", 4))
GROUP = {
    "group": "nvidia.com",
    "names": {"plural": "clusterpolicies", "singular": "clusterpolicy", "kind": "ClusterPolicy"},
}
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def add_gpu_operator(server: Server, options: MigOptions, run: Callable[[float], None]) -> MigManager:
    """The GPU operator with a MIG manager on our ConfigMap. `run` lets time pass: a CRD is served after a moment."""
    client, manager = server.client(ADMIN, "test"), MigManager(server, options)
    add_cluster_policy(client, run, {"migManager": {"config": {"name": CONFIG_MAP}}})
    meta = {"name": CONFIG_MAP, "namespace": SPACE}
    data = {"config.yaml": FILE}
    client.create("configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
    return manager


def add_cluster_policy(client: Client, run: Callable[[float], None], spec: Obj) -> None:
    """The namespace of the GPU operator, and its ClusterPolicy. `run` lets time pass: a CRD is not served at once."""
    client.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": OPEN}}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusterpolicies.nvidia.com"},
        "spec": {**GROUP, "scope": "Cluster", "versions": [version]},
    }
    client.create("customresourcedefinitions.apiextensions.k8s.io", crd)
    run(5)
    policy = {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy"},
        "spec": spec,
        "status": {"namespace": SPACE},
    }
    client.create("clusterpolicies.nvidia.com", policy)


def labels_of_small() -> dict[str, str]:
    """Of a node of two H100 that the manager has cut into small instances."""
    return {DEPLOY + each: "true" for each in CLIENTS} | {
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        CONFIG: "small",
        STATE: "success",
    }


AMOUNTS = {"cpu": "64", "nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "14"}
"""What it offers."""


class Scene:
    """A cluster with the GPU operator; nodes of two H100, both cut into seven instances."""

    def __init__(self, folder: Any) -> None:
        self.timeline = Timeline(datetime(2026, 1, 1, tzinfo=UTC))
        self.server = cluster(self.timeline, random.Random(1), kubelets=KubeletOptions(served=lambda _node: False))
        self.client = self.server.client(ADMIN, "test")
        self.options = MigOptions(config_map=(SPACE, CONFIG_MAP), may_reboot=True)
        self.manager = add_gpu_operator(self.server, self.options, self.timeline.run_for)
        self.running = serve(self.server)
        self._hold = self.running.clock.hold()
        self._hold.__enter__()
        self.rights = Rights(self.server, self.running, folder)
        self._uids: dict[str, str] = {}

    def close(self) -> None:
        """Stop listening."""
        self._hold.__exit__(None, None, None)
        self.running.close()

    @property
    def now_s(self) -> float:
        """The time of the server."""
        return self.timeline.now.timestamp()

    def run(self, seconds: float) -> None:
        """Let time pass."""
        with self.running.clock.lock:
            self.timeline.run_until_us(self.timeline.now_us + round(seconds * US))

    def add_node(self, name: str, **spec: Any) -> None:
        """A node whose GPUs are cut into small instances."""
        status = {"capacity": AMOUNTS, "allocatable": AMOUNTS}
        with self.running.clock.lock:
            found = self.client.create(
                "nodes",
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "labels": labels_of_small()},
                    "spec": spec,
                    "status": status,
                },
            )
            self._uids.setdefault(name, found["metadata"]["uid"])
        self.run(1)

    def node(self, name: str) -> Obj:
        """A node now."""
        found = self.server.store.get("nodes", "", name)
        assert found is not None
        return found

    def labels(self, name: str) -> dict[str, str]:
        """Its labels."""
        found: dict[str, str] = self.node(name)["metadata"]["labels"]
        return found

    def offers(self, name: str) -> dict[str, str]:
        """What of its GPUs can be allocated."""
        amounts: dict[str, str] = self.node(name)["status"]["allocatable"]
        return {key: each for key, each in amounts.items() if key.startswith("nvidia.com/") and each != "0"}

    def is_open(self, name: str) -> bool:
        """Whether it takes pods, and no effect is recorded on it."""
        node = self.node(name)
        return not node["spec"].get("unschedulable") and EFFECT not in node["metadata"].get("annotations", {})

    def label(self, name: str, **labels: str | None) -> None:
        """Set labels as a person would; `state` and `config` are those of the manager."""
        keys = {"config": CONFIG, "state": STATE}
        named = {keys.get(key, key): value for key, value in labels.items()}
        with self.running.clock.lock:
            self.client.patch("nodes", "", name, {"metadata": {"labels": named}})

    def pod(self, name: str, node: str, limits: Obj, app: str = "") -> None:
        """A pod on a node."""
        spec = {"nodeName": node, "containers": [{"name": "main", "image": "app:1", "resources": {"limits": limits}}]}
        meta = {"name": name, "namespace": "default", "labels": {"app": app}}
        with self.running.clock.lock:
            self.client.create("pods", {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    # --- the actuator -------------------------------------------------------------------------

    def actuator(self) -> KubernetesActuator:
        """A new process."""
        return KubernetesActuator(self.api(), self)

    def api(self) -> Api:
        """Requests with the rights of re-cuts. They take no time, however busy the machine is."""
        return Api(self.rights.access("recut"), steady_s=lambda: self.now_s)

    def tools(self) -> Tools:
        """What the upkeep works with, with the rights of re-cuts."""
        api = self.api()
        return Tools(api, Writer(api), Events(api, "test"), self)

    def find(self, kind: str, uid: str) -> Found | None:
        """The node of a GPU, as the view showed it first (port `Objects`)."""
        name = uid.partition(":")[0]
        return Found(0, (Identity("Node", "", name, self._uids[name]),)) if kind == "gpu" else None

    def changing(self) -> Iterator[tuple[Identity, str]]:
        """Nodes with a record of an effect."""
        for name, uid in self._uids.items():
            text = self.node(name)["metadata"].get("annotations", {}).get(EFFECT)
            if text:
                yield Identity("Node", "", name, uid), text

    def ceiled(self) -> Iterator[tuple[Any, str]]:
        """No service has a ceiling."""
        yield from ()

    def offered(self) -> Iterator[Any]:
        """No node is offered back."""
        yield from ()

    def left_over(self) -> Iterator[Any]:
        """No Retry is left over."""
        yield from ()

    def reservations(self, uids: Sequence[str]) -> Iterator[Any]:
        """None."""
        yield from ()

    def taken(self) -> Iterator[Any]:
        """None."""
        yield from ()

    def placed(self) -> Iterator[Any]:
        """None."""
        return iter(())

    def uids(self) -> Iterator[str]:
        """None."""
        return iter(())

    def recut(
        self, node: str, index: int = 0, before: Geometry | None = SMALL, after: Geometry | None = HALVES, **more: Any
    ) -> Instruction:
        """An instruction about one GPU."""
        scope = more.pop("scope", "node")
        uid = f"{node}:gpu{index}"
        operation = RecutGpu(pool="p", before=before, after=after, scope=scope, node=node, index=index)
        return Instruction(
            f"1/p/{uid}", Subject(SubjectKind.GPU, uid, uid, 0), operation, self.now_s + 1500.0, 1, "p", **more
        )

    def follow(self, actuator: KubernetesActuator, *under_way: Instruction, most_s: float = 2000.0) -> list[Outcome]:
        """Ticks until every effect has ended."""
        ended: list[Outcome] = []
        end_s = self.now_s + most_s
        while len(ended) < len(under_way) and self.now_s < end_s:
            self.run(20)
            ended += actuator.advance(self.now_s, 1, under_way)
        return ended
