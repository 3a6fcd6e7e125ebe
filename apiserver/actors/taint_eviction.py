"""The taint eviction controller: pods leave nodes with a taint NoExecute they do not tolerate, or no longer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apiserver.actors import pod_status
from apiserver.actors.base import Actor
from apiserver.actors.fit import covers
from apiserver.actors.objects import Name, delete, name_of, patch
from apiserver.actors.recorder import Recorder
from apiserver.store import Event
from apiserver.timeline import Timer, stamp
from apiserver.users import service_account

Obj = dict[str, Any]
ACCOUNT = "taint-eviction-controller"
DELETING = "Taint manager: deleting due to NoExecute taint"


class TaintEviction(Actor):
    """Deletes pods at once, or after their toleration of the taints; the time counts from its first look."""

    user = service_account("kube-system", ACCOUNT)
    manager = "kube-controller-manager"

    def start(self) -> None:
        """Follow nodes and pods."""
        self._store = self.server.store
        self._timeline = self.clock
        self._events = Recorder(self.client, self._timeline, ACCOUNT)
        self._taints: dict[str, list[Obj]] = {}  # taints NoExecute by node
        self._pods: dict[str, set[Name]] = {}  # by node
        self._work: dict[Name, tuple[int, Timer | None]] = {}  # since when; None: done
        self.follow("nodes", self._on_node)
        self.follow("pods", self._on_pod)

    def _on_pod(self, event: Event) -> None:
        pod, key = event.obj, name_of(event.obj)
        node, old = pod["spec"].get("nodeName"), event.old.obj["spec"] if event.old is not None else {}
        if not node:
            return
        if event.type == "DELETED":
            self._pods.get(node, set()).discard(key)
            self._cancel(key)
            return
        self._pods.setdefault(node, set()).add(key)
        same = old.get("nodeName") == node and old.get("tolerations") == pod["spec"].get("tolerations")
        if node in self._taints and not same:
            self._judge(key, self._taints[node])

    def _on_node(self, event: Event) -> None:
        name = event.obj["metadata"]["name"]
        old = self._taints.pop(name, [])
        if event.type == "DELETED":
            return
        taints = [each for each in event.obj["spec"].get("taints") or [] if each["effect"] == "NoExecute"]
        if taints:
            self._taints[name] = taints
        if taints != old:
            for key in sorted(self._pods.get(name, ())):
                self._judge(key, taints)

    def _cancel(self, key: Name) -> None:
        """Forget the planned deletion of a pod."""
        _, timer = self._work.pop(key, (0, None))
        if timer is not None:
            timer.cancel()
            self._events.normal(_reference(key), "TaintManagerEviction", f"Cancelling deletion of Pod {'/'.join(key)}")

    def _judge(self, key: Name, taints: Sequence[Obj]) -> None:
        """Plan the deletion of a pod: at once, after the shortest toleration in use, or not."""
        pod = self._store.get("pods", *key)
        if pod is None:
            return
        wait_s = _tolerated_s(taints, pod["spec"].get("tolerations") or [])
        if wait_s is None:
            self._cancel(key)
            return
        since_us = self._timeline.now_us
        old_us, timer = self._work.get(key, (since_us, None))
        if wait_s and timer is not None and old_us < since_us:
            return  # it goes earlier than it would by what it tolerates now
        self._cancel(key)
        self._work[key] = (since_us, self._timeline.at(wait_s, lambda: self._evict(key)))

    def _evict(self, key: Name) -> None:
        self._work[key] = (self._work[key][0], None)
        self._events.normal(_reference(key), "TaintManagerEviction", f"Marking for deletion Pod {'/'.join(key)}")
        pod = self._store.get("pods", *key)
        if pod is not None:
            now = stamp(self._timeline.now)
            conditions = pod_status.disrupted(pod, now, "DeletionByTaintManager", DELETING)
            patch(self.client, "pods", pod, {"status": {"conditions": conditions}}, "status")
            delete(self.client, "pods", pod)


def _reference(key: Name) -> Obj:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": key[0], "name": key[1]}}


def _tolerated_s(taints: Sequence[Obj], tolerations: Sequence[Obj]) -> float | None:
    """Toleration of the taints (s); None: without an end. The first toleration to cover a taint counts."""
    ends: list[float] = []
    for taint in taints:
        found = next((each for each in tolerations if covers(each, taint)), None)
        if found is None:
            return 0.0
        if found.get("tolerationSeconds") is not None:
            ends.append(max(float(found["tolerationSeconds"]), 0.0))
    return min(ends) if ends else None
