"""The reports of kubelets on nodes: conditions, and versions of the software."""

from __future__ import annotations

from typing import Any

from apiserver.actors.base import Actor
from apiserver.actors.kubelet import KUBELET, NODES, Kubelet, KubeletOptions
from apiserver.actors.objects import patch
from apiserver.actors.pod_status import condition
from apiserver.actors.timing import NODE_BEAT_S, NODE_READY_S
from apiserver.server import Server
from apiserver.store import Event
from apiserver.timeline import micro_stamp, stamp

Obj = dict[str, Any]
HEALTHY = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)
LEASES = "leases.coordination.k8s.io"
LEASE_NAMESPACE = "kube-node-lease"


class NodeAgent(Actor):
    """Reports a node at its appearance, and after it was taken for lost. A heartbeat changes no object."""

    user = NODES
    process = KUBELET

    def __init__(self, server: Server, kubelet: Kubelet, options: KubeletOptions | None = None) -> None:
        self._kubelet = kubelet
        self._options = options or KubeletOptions()
        self.manager = self._options.manager
        super().__init__(server)

    def start(self) -> None:
        """Follow nodes."""
        self._store = self.server.store
        self._timeline = self.clock
        self.follow("nodes", self._on_node)
        self._beat()

    def _beat(self) -> None:
        self._timeline.at(NODE_BEAT_S, self._beat)
        self._kubelet.beat()
        for node in self._store.objects("nodes"):
            lost = condition(node, "Ready").get("status") == "Unknown"
            if lost and self._kubelet.heard_us(node) == self._timeline.now_us:
                self._report(node["metadata"]["name"], node["metadata"]["uid"])

    def _on_node(self, event: Event) -> None:
        if event.type == "ADDED" and self._options.served(event.obj):
            name, uid = event.obj["metadata"]["name"], event.obj["metadata"]["uid"]
            self._timeline.at(NODE_READY_S, lambda: self._report(name, uid))

    def _report(self, name: str, uid: str) -> None:
        node = self._store.get("nodes", "", name)
        if node is None or node["metadata"]["uid"] != uid:
            return
        now = stamp(self._timeline.now)
        made = []
        for kind, value, reason, message in HEALTHY:
            old = condition(node, kind)
            since = old.get("lastTransitionTime") if old.get("status") == value else now
            made.append(
                {"type": kind, "status": value, "lastHeartbeatTime": now, "lastTransitionTime": since}
                | {"reason": reason, "message": message}
            )
        labels = node["metadata"].get("labels") or {}
        info = dict.fromkeys(("machineID", "systemUUID", "bootID", "kubeProxyVersion"), "")
        info |= {"kernelVersion": "6", "osImage": "fake", "containerRuntimeVersion": "fake://1"}
        info |= {"kubeletVersion": self._options.version, "operatingSystem": labels.get("kubernetes.io/os", "linux")}
        info |= {"architecture": labels.get("kubernetes.io/arch", "amd64")}
        patch(self.client, "nodes", node, {"status": {"conditions": made, "nodeInfo": info}}, "status")
        self._lease(name)

    def _lease(self, name: str) -> None:
        """The lease of the kubelet. It is not renewed: `Kubelet.heard_us` stands for the heartbeats."""
        if self._store.get(LEASES, LEASE_NAMESPACE, name) is None:
            spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": micro_stamp(self._timeline.now)}
            metadata = {"name": name, "namespace": LEASE_NAMESPACE}
            self.client.create(LEASES, {"metadata": metadata, "spec": spec})
