"""The node lifecycle controller: labels and taints of nodes follow conditions, and silent nodes are taken for lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from apiserver.actors import pod_status
from apiserver.actors.base import Actor
from apiserver.actors.kubelet import Kubelet
from apiserver.actors.nodes import LEASE_NAMESPACE, LEASES
from apiserver.actors.objects import patch
from apiserver.actors.pod_status import condition, with_condition
from apiserver.actors.queue import WorkQueue
from apiserver.actors.recorder import Recorder
from apiserver.actors.timing import (
    NODE_CHECK_S,
    NODE_EVERY_S,
    NODE_EVERY_SLOW_S,
    NODE_EVICT_S,
    NODE_GRACE_S,
    NODE_LABELS_S,
    NODE_TAINT_S,
    NODE_TTL_S,
)
from apiserver.server import Server
from apiserver.store import Event
from apiserver.timeline import US, stamp
from apiserver.users import service_account

Obj = dict[str, Any]
Taint = tuple[str, str]  # key and effect
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
ZONE_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
EXCLUDED = "node.kubernetes.io/exclude-disruption"
REPORTED = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
STOPPED = ("NodeStatusUnknown", "Kubelet stopped posting node status.")
NEVER = ("NodeStatusNeverUpdated", "Kubelet never posted node status.")
LARGE_ZONE = 50  # large-cluster-size-threshold
PARTIAL_RATIO = 0.55  # unhealthy-zone-threshold
NORMAL, PARTIAL, FULL = "Normal", "PartialDisruption", "FullDisruption"


@dataclass(slots=True)
class _Zone:
    """Nodes of one zone waiting for their taint NoExecute."""

    state: str = "Initial"
    every_s: float | None = NODE_EVERY_S  # between two taints; None: no taints
    waiting: list[str] = field(default_factory=list)
    last_us: int | None = None


class NodeLifecycle(Actor):
    """Keeps labels and taints, and looks at the heartbeats of nodes.

    A node without a kubelet is judged from its second heartbeat on (Ready.lastHeartbeatTime or its Lease); before that
    it keeps the conditions it was given. A real controller takes it for lost after 50 s.
    """

    user = service_account("kube-system", "node-controller")
    manager = "kube-controller-manager"

    def __init__(self, server: Server, kubelet: Kubelet) -> None:
        self._kubelet = kubelet
        super().__init__(server)

    def start(self) -> None:
        """Follow nodes, and look at their heartbeats."""
        self._store = self.server.store
        self._timeline = self.clock
        self._events = Recorder(self.client, self._timeline, "node-controller")
        self._taints: WorkQueue[str] = WorkQueue(self._timeline, self._sync_taints, NODE_TAINT_S)
        self._ttl: WorkQueue[str] = WorkQueue(self._timeline, self._sync_ttl, NODE_TTL_S)
        self._labels: WorkQueue[str] = WorkQueue(self._timeline, self._sync_labels, NODE_LABELS_S)
        self._known: dict[str, Obj] = {}  # references to nodes by name
        self._shown: dict[str, tuple[Any, int | None]] = {}  # heartbeats that objects show by uid, and since when
        self._reset_us = 0  # all nodes were down together until then
        self._zones: dict[str, _Zone] = {}
        self.follow("nodes", self._on_node)
        self._look_again()

    def _on_node(self, event: Event) -> None:
        if event.type == "DELETED":
            self._shown.pop(event.obj["metadata"]["uid"], None)
        else:
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
        """Set the taints NoSchedule called for by the conditions. A node without Ready counts as not ready."""
        node = self._store.get("nodes", "", name)
        if node is None:
            return
        wanted = [CORDONED] if node["spec"].get("unschedulable") else []
        if not condition(node, "Ready"):
            wanted.append(NOT_READY)
        wanted += [key for (kind, value), key in BY_CONDITION.items() if condition(node, kind).get("status") == value]
        held = [key for key, effect in taints_of(node) if effect == "NoSchedule" and key in OWN]
        self._swap(node, [(key, "NoSchedule") for key in wanted], [(key, "NoSchedule") for key in held])

    def _swap(self, node: Obj, wanted: Sequence[Taint], held: Sequence[Taint]) -> None:
        """Add the wanted taints, then remove the unwanted ones among the held: a write each."""
        old: list[Obj] = node["spec"].get("taints") or []
        now = stamp(self._timeline.now)
        present = taints_of(node)
        added = [
            {"key": key, "effect": effect, "timeAdded": now} for key, effect in wanted if (key, effect) not in present
        ]
        if added:
            old = [*old, *added]
            patch(self.client, "nodes", node, {"spec": {"taints": old}})
        gone = set(held) - set(wanted)
        left = [each for each in old if (each["key"], each["effect"]) not in gone]
        if len(left) != len(old):
            patch(self.client, "nodes", node, {"spec": {"taints": left or None}})

    # heartbeats

    def _look_again(self) -> None:
        due_us = self._timeline.now_us + round(NODE_CHECK_S * US)
        self._timeline.at_us(due_us, lambda: self._check(late=self._timeline.now_us > due_us))

    def _check(self, *, late: bool) -> None:
        """Look for nodes with overdue heartbeats, and for those back again. A late look knows no heartbeats."""
        self._look_again()
        if late:
            return
        nodes = self._store.objects("nodes")
        self._register(nodes)
        ready: dict[str, list[bool]] = defaultdict(list)
        for node in nodes:
            observed = condition(node, "Ready").get("status")
            current = self._lose(node) if observed != "Unknown" and self._is_overdue(node) else observed
            zone = zone_of(node)
            self._zones.setdefault(zone, _Zone())
            if EXCLUDED not in (node["metadata"].get("labels") or {}):
                ready[zone].append(current == "True")
            if current == "True":
                self._reach(node)
            elif current is not None:
                self._taint_later(node, NOT_READY if current == "False" else UNREACHABLE)
            if observed == "True" and current != "True":
                name = node["metadata"]["name"]
                self._events.normal(reference(node), "NodeNotReady", f"Node {name} status is now: NodeNotReady")
                self._lose_pods(name)
        self._judge_zones(ready, nodes)
        if any(zone.waiting for zone in self._zones.values()):
            self._timeline.at(NODE_EVICT_S, self._evict)

    def _register(self, nodes: Sequence[Obj]) -> None:
        names = {node["metadata"]["name"]: node for node in nodes}
        for name, node in names.items():
            if name not in self._known:
                self._known[name] = reference(node)
                text = f"Node {name} event: Registered Node {name} in Controller"
                self._events.normal(self._known[name], "RegisteredNode", text)
        for name in [each for each in self._known if each not in names]:
            text = f"Node {name} event: Removing Node {name} from Controller"
            self._events.normal(self._known.pop(name), "RemovingNode", text)

    def _is_overdue(self, node: Obj) -> bool:
        heard_us = self._kubelet.heard_us(node)
        if heard_us is None:
            heard_us = self._shown_us(node)
        return heard_us is not None and self._timeline.now_us - max(heard_us, self._reset_us) >= NODE_GRACE_S * US

    def _shown_us(self, node: Obj) -> int | None:
        """Last heartbeat seen of a node without a kubelet (us); None before its second."""
        lease = self._store.get(LEASES, LEASE_NAMESPACE, node["metadata"]["name"]) or {"spec": {}}
        beat = (condition(node, "Ready").get("lastHeartbeatTime"), lease["spec"].get("renewTime"))
        uid = node["metadata"]["uid"]
        old, since_us = self._shown.get(uid, (beat, None))
        self._shown[uid] = (beat, since_us if beat == old else self._timeline.now_us)
        return self._shown[uid][1]

    def _lose(self, node: Obj) -> str:
        """All conditions reported by a kubelet are unknown from now on."""
        now = stamp(self._timeline.now)
        conditions = (node.get("status") or {}).get("conditions") or []
        for kind in REPORTED:
            old = condition(node, kind)
            new: Obj = {"type": kind, "status": "Unknown", "lastTransitionTime": now}
            new |= dict(zip(("reason", "message"), STOPPED if old else NEVER, strict=True))
            new["lastHeartbeatTime"] = old.get("lastHeartbeatTime") if old else node["metadata"]["creationTimestamp"]
            if old.get("status") != "Unknown":
                conditions = with_condition(conditions, new)
        patch(self.client, "nodes", node, {"status": {"conditions": conditions}}, "status")
        return "Unknown"

    def _lose_pods(self, node: str) -> None:
        """The pods of a lost node are not ready any more."""
        for pod in self._store.objects("pods"):
            if pod["spec"].get("nodeName") == node:
                status = pod_status.lost(pod, stamp(self._timeline.now))
                if status is not pod.get("status") and patch(self.client, "pods", pod, {"status": status}, "status"):
                    self._events.warning(pod, "NodeNotReady", "Node is not ready")

    # taints NoExecute

    def _reach(self, node: Obj) -> None:
        """Remove our taints NoExecute from a node: one ready again, or not to be emptied."""
        self._swap(node, [], [(UNREACHABLE, "NoExecute"), (NOT_READY, "NoExecute")])
        waiting = self._zones[zone_of(node)].waiting
        if node["metadata"]["name"] in waiting:
            waiting.remove(node["metadata"]["name"])

    def _taint_later(self, node: Obj, key: str) -> None:
        """Exchange one taint NoExecute for the other at once; the first one waits for its turn in the zone."""
        other = UNREACHABLE if key == NOT_READY else NOT_READY
        held, name = taints_of(node), node["metadata"]["name"]
        waiting = self._zones[zone_of(node)].waiting
        if (other, "NoExecute") in held:
            self._swap(node, [(key, "NoExecute")], [(other, "NoExecute")])
        elif (key, "NoExecute") not in held and name not in waiting:
            waiting.append(name)

    def _evict(self) -> None:
        """Taint the next node of each zone."""
        now_us = self._timeline.now_us
        for zone in self._zones.values():
            while zone.waiting and zone.every_s is not None:
                left_us = 0 if zone.last_us is None else zone.last_us + round(zone.every_s * US) - now_us
                if left_us > 0:
                    break
                node = self._store.get("nodes", "", zone.waiting.pop(0))
                key = BY_CONDITION.get(("Ready", condition(node or {}, "Ready").get("status", "")))
                if node is not None and key is not None:
                    zone.last_us = now_us
                    self._swap(node, [(key, "NoExecute")], [])

    def _judge_zones(self, ready: dict[str, list[bool]], nodes: Sequence[Obj]) -> None:
        """Empty nodes slowly in a zone with most nodes lost, and none at all if all nodes of all zones are lost."""
        states = {zone: zone_state(each) for zone, each in ready.items()}
        for gone in self._zones.keys() - states:
            del self._zones[gone]
        was_full = all(zone.state == FULL for zone in self._zones.values())
        full = all(state == FULL for state in states.values())
        if full and not was_full:
            for node in nodes:
                if zone_of(node) in self._zones:
                    self._reach(node)
        elif was_full and not full:
            self._reset_us = self._timeline.now_us
        for name, zone in self._zones.items():
            zone.state = states[name]
            zone.every_s = NODE_EVERY_S
            if full:
                zone.every_s = None
            elif zone.state == PARTIAL:
                zone.every_s = NODE_EVERY_SLOW_S if len(ready[name]) > LARGE_ZONE else None


def reference(node: Obj) -> Obj:
    """A node as the Events of its controller name it."""
    metadata = {name: node["metadata"][name] for name in ("name", "uid")}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def taints_of(node: Obj) -> list[Taint]:
    """Key and effect of its taints."""
    return [(each["key"], each["effect"]) for each in node["spec"].get("taints") or []]


def zone_of(node: Obj) -> str:
    """The region and zone named by the labels of a node."""
    labels = node["metadata"].get("labels") or {}
    return "/".join(labels.get(name, "") for name in ZONE_LABELS)


def zone_state(ready: Sequence[bool]) -> str:
    """State of a zone by its lost nodes: full, partial or normal disruption."""
    lost = ready.count(False)
    if lost == len(ready):
        return FULL
    return PARTIAL if lost > 2 and lost / len(ready) >= PARTIAL_RATIO else NORMAL
