"""What happens to Node objects: kubelets register, labels and taints follow conditions, lost nodes lose their pods."""

from __future__ import annotations

from typing import Any

from apiserver.actors import pod_status
from apiserver.actors.base import Actor
from apiserver.actors.fit import covers
from apiserver.actors.kubelet import KUBELET, NODES, Kubelet, KubeletOptions
from apiserver.actors.objects import Name, delete, name_of, patch
from apiserver.actors.pod_status import condition, is_terminal, is_terminating, with_condition
from apiserver.actors.queue import WorkQueue
from apiserver.actors.timing import NODE_CHECK_S, NODE_GRACE_S, NODE_LABELS_S, NODE_READY_S, NODE_TAINT_S, NODE_TTL_S
from apiserver.server import Server
from apiserver.store import Event
from apiserver.timeline import US, Timer, micro_stamp, parse_stamp, stamp
from apiserver.users import service_account

Obj = dict[str, Any]
TTL = "node.alpha.kubernetes.io/ttl"  # written by the TTL controller: 0 for clusters of up to 100 nodes
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
BY_CONDITION = {  # taints NoSchedule by condition and its bad status
    ("Ready", "False"): NOT_READY,
    ("Ready", "Unknown"): UNREACHABLE,
    ("MemoryPressure", "True"): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", "True"): "node.kubernetes.io/disk-pressure",
    ("PIDPressure", "True"): "node.kubernetes.io/pid-pressure",
    ("NetworkUnavailable", "True"): "node.kubernetes.io/network-unavailable",
}
CORDONED = "node.kubernetes.io/unschedulable"
OWN = {*BY_CONDITION.values(), CORDONED}
LEGACY_LABELS = {"beta.kubernetes.io/os": "kubernetes.io/os", "beta.kubernetes.io/arch": "kubernetes.io/arch"}
HEALTHY = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)
LEASES = "leases.coordination.k8s.io"
LEASE_NAMESPACE = "kube-node-lease"
SILENT = "Kubelet stopped posting node status."
EVICTING = "Taint manager: deleting due to NoExecute taint"


class NodeAgent(Actor):
    """The part of kubelets that reports the node itself: conditions, and versions of what runs there."""

    user = NODES
    process = KUBELET

    def __init__(self, server: Server, options: KubeletOptions | None = None) -> None:
        self._options = options or KubeletOptions()
        self.manager = self._options.manager
        super().__init__(server)

    def start(self) -> None:
        """Follow nodes."""
        self._store = self.server.store
        self._timeline = self.clock
        self.follow("nodes", self._on_node)

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
        """The lease of the kubelet. It is not renewed: heartbeats are the conditions."""
        if self._store.get(LEASES, LEASE_NAMESPACE, name) is None:
            spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": micro_stamp(self._timeline.now)}
            metadata = {"name": name, "namespace": LEASE_NAMESPACE}
            self.client.create(LEASES, {"metadata": metadata, "spec": spec})


class NodeLifecycle(Actor):
    """Labels and taints of nodes as kube-controller-manager keeps them, and what happens to nodes that fall silent."""

    user = service_account("kube-system", "node-controller")
    manager = "kube-controller-manager"

    def __init__(self, server: Server, kubelet: Kubelet | None = None) -> None:
        self._kubelet = kubelet
        super().__init__(server)

    def start(self) -> None:
        """Follow nodes, and look at their heartbeats if there are kubelets."""
        self._store = self.server.store
        self._timeline = self.clock
        self._taints: WorkQueue[str] = WorkQueue(self._timeline, self._sync_taints, NODE_TAINT_S)
        self._ttl: WorkQueue[str] = WorkQueue(self._timeline, self._sync_ttl, NODE_TTL_S)
        self._labels: WorkQueue[str] = WorkQueue(self._timeline, self._sync_labels, NODE_LABELS_S)
        self.follow("nodes", self._on_node)
        if self._kubelet is not None:
            self._timeline.at(NODE_CHECK_S, self._check)

    def _on_node(self, event: Event) -> None:
        if event.type != "DELETED":
            name = event.obj["metadata"]["name"]
            self._ttl.add(name)
            self._taints.add(name)
            self._labels.add(name)

    def _sync_ttl(self, name: str) -> None:
        node = self._store.get("nodes", "", name)
        if node is not None and TTL not in (node["metadata"].get("annotations") or {}):
            self.client.patch("nodes", "", name, {"metadata": {"annotations": {TTL: "0"}}})

    def _sync_labels(self, name: str) -> None:
        node = self._store.get("nodes", "", name)
        if node is None:
            return
        labels = node["metadata"].get("labels") or {}
        wanted = {old: labels[new] for old, new in LEGACY_LABELS.items() if new in labels}
        if any(labels.get(key) != value for key, value in wanted.items()):
            self.client.patch("nodes", "", name, {"metadata": {"labels": wanted}})

    def _sync_taints(self, name: str) -> None:
        node = self._store.get("nodes", "", name)
        if node is None:
            return
        wanted = self._wanted(node)
        old = node["spec"].get("taints") or []
        kept = [each for each in old if each["key"] not in OWN or (each["key"], each["effect"]) in wanted]
        held = {(each["key"], each["effect"]) for each in kept}
        now = stamp(self._timeline.now)
        added = [
            {"key": key, "effect": effect, "timeAdded": now} for key, effect in wanted if (key, effect) not in held
        ]
        if added or len(kept) != len(old):
            patch(self.client, "nodes", node, {"spec": {"taints": [*kept, *added] or None}})

    def _wanted(self, node: Obj) -> list[tuple[str, str]]:
        """Key and effect of the taints that the conditions ask for. A node without Ready counts as not ready."""
        wanted = [(CORDONED, "NoSchedule")] if node["spec"].get("unschedulable") else []
        if not condition(node, "Ready"):
            wanted.append((NOT_READY, "NoSchedule"))
        for (kind, value), key in BY_CONDITION.items():
            if condition(node, kind).get("status") == value:
                wanted.append((key, "NoSchedule"))
                if kind == "Ready":
                    wanted.append((key, "NoExecute"))
        return wanted

    def _check(self) -> None:
        """Look for nodes whose heartbeats are overdue, and for those that are back."""
        self._timeline.at(NODE_CHECK_S, self._check)
        for node in self._store.objects("nodes"):
            name = node["metadata"]["name"]
            since_us = self._kubelet.silent_since_us(name) if self._kubelet is not None else None
            ready = condition(node, "Ready").get("status")
            if since_us is None:
                if ready == "Unknown":
                    self._set_ready(node, "True", "KubeletReady", HEALTHY[-1][-1])
            elif ready not in {None, "Unknown"} and self._timeline.now_us - since_us >= NODE_GRACE_S * US:
                self._set_ready(node, "Unknown", "NodeStatusUnknown", SILENT)
                self._lose_pods(name)

    def _set_ready(self, node: Obj, value: str, reason: str, message: str) -> None:
        new = condition(node, "Ready") | {"status": value, "reason": reason, "message": message}
        new["lastTransitionTime"] = stamp(self._timeline.now)
        conditions = with_condition(node["status"]["conditions"], new)
        patch(self.client, "nodes", node, {"status": {"conditions": conditions}}, "status")

    def _lose_pods(self, node: str) -> None:
        """The pods of a silent node are not ready any more."""
        for pod in self._store.objects("pods"):
            if pod["spec"].get("nodeName") == node:
                status = pod_status.lost(pod, stamp(self._timeline.now))
                if status is not pod.get("status"):
                    patch(self.client, "pods", pod, {"status": status}, "status")


class TaintManager(Actor):
    """Deletes pods that do not tolerate a NoExecute taint of their node, after the time that they tolerate it."""

    user = service_account("kube-system", "taint-eviction-controller")
    manager = "kube-controller-manager"

    def start(self) -> None:
        """Follow nodes and pods."""
        self._store = self.server.store
        self._timeline = self.clock
        self._pods: dict[str, set[Name]] = {}  # by node
        self._timers: dict[Name, Timer] = {}
        self.follow("nodes", self._on_node)
        self.follow("pods", self._on_pod)

    def _on_pod(self, event: Event) -> None:
        pod, key = event.obj, name_of(event.obj)
        node = pod["spec"].get("nodeName")
        if not node:
            return
        if event.type == "DELETED":
            self._pods.get(node, set()).discard(key)
            self._cancel(key)
        elif key not in self._pods.setdefault(node, set()):
            self._pods[node].add(key)
            self._judge(key, node)

    def _on_node(self, event: Event) -> None:
        old = event.old.obj["spec"].get("taints") if event.old is not None else None
        if event.type != "DELETED" and old != event.obj["spec"].get("taints"):
            for key in sorted(self._pods.get(event.obj["metadata"]["name"], ())):
                self._judge(key, event.obj["metadata"]["name"])

    def _cancel(self, key: Name) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _judge(self, key: Name, node: str) -> None:
        """When a pod has to go: at once, after the shortest toleration that runs, or not."""
        pod, found = self._store.get("pods", *key), self._store.get("nodes", "", node)
        self._cancel(key)
        if pod is None or found is None or is_terminal(pod) or is_terminating(pod):
            return
        ends: list[float] = []
        for taint in found["spec"].get("taints") or []:
            if taint["effect"] != "NoExecute":
                continue
            covering = [each for each in pod["spec"].get("tolerations") or [] if covers(each, taint)]
            limits = [each["tolerationSeconds"] for each in covering if each.get("tolerationSeconds") is not None]
            if not covering:
                ends.append(0.0)
            elif limits:
                since = taint.get("timeAdded")
                passed_s = (self._timeline.now - parse_stamp(since)).total_seconds() if since else 0.0
                ends.append(max(min(limits) - passed_s, 0.0))
        if ends:
            self._timers[key] = self._timeline.at(min(ends), lambda: self._evict(key, pod["metadata"]["uid"]))

    def _evict(self, key: Name, uid: str) -> None:
        self._timers.pop(key, None)
        pod = self._store.get("pods", *key)
        if pod is None or pod["metadata"]["uid"] != uid or is_terminating(pod):
            return
        new = {"type": "DisruptionTarget", "status": "True", "lastProbeTime": None}
        new |= {"observedGeneration": pod["metadata"].get("generation", 1)}
        new |= {
            "lastTransitionTime": stamp(self._timeline.now),
            "reason": "DeletionByTaintManager",
            "message": EVICTING,
        }
        status = {"conditions": with_condition((pod.get("status") or {}).get("conditions") or [], new)}
        patch(self.client, "pods", pod, {"status": status}, "status")
        delete(self.client, "pods", pod)
