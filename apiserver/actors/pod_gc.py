"""The pod garbage collector: pods beyond any kubelet, with a lost node or none from the start."""

from __future__ import annotations

from typing import Any

from apiserver.actors import pod_status
from apiserver.actors.base import Actor
from apiserver.actors.objects import Name, delete, name_of, patch
from apiserver.actors.pod_status import condition, is_terminal, is_terminating
from apiserver.actors.timing import POD_GC_QUARANTINE_S, POD_GC_S
from apiserver.store import Event
from apiserver.timeline import US, stamp
from apiserver.users import service_account

Obj = dict[str, Any]
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


class PodGarbage(Actor):
    """Looks every 20 s, and takes a node for gone if it was missing 40 s before as well."""

    user = service_account("kube-system", "pod-garbage-collector")
    manager = "kube-controller-manager"

    def start(self) -> None:
        """Follow pods."""
        self._store = self.server.store
        self._timeline = self.clock
        self._pods: dict[str, set[Name]] = {}  # by node; "": bound to none
        self._terminating: set[Name] = set()
        self._missing: dict[str, int] = {}  # nodes, and since when they are known to be missing
        self.follow("pods", self._on_pod)
        self._collect()

    def _on_pod(self, event: Event) -> None:
        key, node = name_of(event.obj), event.obj["spec"].get("nodeName", "")
        gone = event.type == "DELETED"
        (self._terminating.add if is_terminating(event.obj) and not gone else self._terminating.discard)(key)
        if gone:
            held = self._pods.get(node, set())
            held.discard(key)
            if not held:
                self._pods.pop(node, None)
        elif node:
            self._pods.setdefault(node, set()).add(key)

    def _collect(self) -> None:
        self._timeline.at(POD_GC_S, self._collect)
        for key in sorted(self._terminating):
            pod = self._store.get("pods", *key)
            if pod is not None and self._will_not_end(pod):
                self._remove(pod)
        now_us = self._timeline.now_us
        missing = {node for node in self._pods if self._store.get("nodes", "", node) is None}
        self._missing = {node: self._missing.get(node, now_us) for node in sorted(missing)}
        for node, since_us in list(self._missing.items()):
            if now_us - since_us < POD_GC_QUARANTINE_S * US:
                continue
            for key in sorted(self._pods.get(node, ())):
                if (pod := self._store.get("pods", *key)) is not None:
                    self._remove(pod, orphan=True)

    def _will_not_end(self, pod: Obj) -> bool:
        """True for a terminating pod without a node, or on a lost node tainted out of service."""
        node = self._store.get("nodes", "", pod["spec"].get("nodeName", ""))
        if node is None:
            return not pod["spec"].get("nodeName")
        taints = node["spec"].get("taints") or []
        lost = condition(node, "Ready").get("status") != "True"
        return lost and any(each["key"] == OUT_OF_SERVICE for each in taints)

    def _remove(self, pod: Obj, *, orphan: bool = False) -> None:
        """Let a pod fail, and delete it by force."""
        if not is_terminal(pod):
            status: Obj = {"phase": "Failed", "observedGeneration": pod["metadata"].get("generation", 1)}
            if orphan:
                text = "PodGC: node no longer exists"
                now = stamp(self._timeline.now)
                status["conditions"] = pod_status.disrupted(pod, now, "DeletionByPodGC", text)
            patch(self.client, "pods", pod, {"status": status}, "status")
        delete(self.client, "pods", pod, grace_s=0)
