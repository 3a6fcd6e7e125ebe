"""The shared part of controllers of pods: owners of one resource, their objects, adoption and release."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from typing import Any

from apiserver.actors.base import Actor
from apiserver.actors.job_status import owner_reference
from apiserver.actors.objects import Name, controller_of, name_of, patch
from apiserver.actors.pod_status import condition, is_ready, is_terminating
from apiserver.actors.queue import WorkQueue
from apiserver.actors.recorder import Recorder
from apiserver.actors.timing import CONTROLLER_S
from apiserver.kinds.base import NAME_LETTERS
from apiserver.selectors import matches_labels
from apiserver.store import Event
from apiserver.timeline import Clock, parse_stamp

Obj = dict[str, Any]


def template_hash(template: Obj) -> str:
    """A short name of a pod template: equal templates have equal names."""
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).digest()
    return "".join(NAME_LETTERS[byte % len(NAME_LETTERS)] for byte in digest[:10])


def pod_from(template: Obj, metadata: Obj) -> Obj:
    """A pod of a template with more metadata."""
    base = dict(template.get("metadata") or {})
    labels = dict(base.get("labels") or {}) | metadata.pop("labels", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": base | metadata | {"labels": labels},
        "spec": template["spec"],
    }


def available_in_s(pod: Obj, min_ready_s: int, clock: Clock) -> float | None:
    """Time until a pod counts as available (s): 0 if it does now; None while it is not ready."""
    if not is_ready(pod):
        return None
    since = condition(pod, "Ready").get("lastTransitionTime")
    passed_s = (clock.now - parse_stamp(since)).total_seconds() if since else 0.0
    return max(min_ready_s - passed_s, 0.0)


class Owners(Actor):
    """A controller of owners of one resource."""

    resource = ""
    owned = "pods"
    kind = ""
    account = ""
    manager = "kube-controller-manager"

    def start(self) -> None:
        """Follow the owners and their objects."""
        self._store = self.server.store
        self._timeline = self.clock
        self._events = Recorder(self.client, self._timeline, self.account)
        self._queue: WorkQueue[Name] = WorkQueue(self._timeline, self._run, CONTROLLER_S)
        self._held: dict[str, dict[Name, Obj]] = {}  # what is owned, by uid of the owner
        self._orphans: dict[str, dict[Name, Obj]] = {}  # what has no controller, by namespace
        self._adopting: set[Name] = set()  # owners that look for orphans at their next sync
        self.follow(self.resource, self._on_owner)
        self.follow(self.owned, self._on_owned)

    def _on_owner(self, event: Event) -> None:
        key = name_of(event.obj)
        if event.type == "DELETED":
            self._held.pop(event.obj["metadata"]["uid"], None)
            return
        if event.type == "ADDED":
            self._adopting.add(key)
        self._queue.add(key)

    def _on_owned(self, event: Event) -> None:
        obj, key = event.obj, name_of(event.obj)
        gone = event.type == "DELETED"
        owner = controller_of(obj)
        before = controller_of(event.old.obj) if event.old is not None else None
        for each in (before, owner):
            if each is not None and each["kind"] == self.kind:
                held = self._held.setdefault(each["uid"], {})
                held.pop(key, None)
                if each is owner and not gone:
                    held[key] = obj
                self._queue.add((key[0], each["name"]))
        orphans = self._orphans.setdefault(key[0], {})
        orphans.pop(key, None)
        if owner is None and not gone:
            orphans[key] = obj
            for other in self._store.objects(self.resource, key[0]):
                if self._may_adopt(other, obj):
                    self._adopting.add(name_of(other))
                    self._queue.add(name_of(other))

    def _may_adopt(self, owner: Obj, obj: Obj) -> bool:
        ends = is_terminating(owner) or is_terminating(obj)
        return not ends and matches_labels(owner["spec"].get("selector"), obj["metadata"].get("labels"))

    def _run(self, key: Name) -> None:
        owner = self._store.get(self.resource, *key)
        if owner is None:
            return
        held = self._held.get(owner["metadata"]["uid"], {})
        for obj in list(held.values()):
            if not is_terminating(obj) and not matches_labels(owner["spec"]["selector"], obj["metadata"].get("labels")):
                references = [
                    each for each in obj["metadata"]["ownerReferences"] if each["uid"] != owner["metadata"]["uid"]
                ]
                patch(self.client, self.owned, obj, {"metadata": {"ownerReferences": references or None}})
                del held[name_of(obj)]
        if key in self._adopting:
            self._adopting.discard(key)
            for obj in list(self._orphans.get(key[0], {}).values()):
                if self._may_adopt(owner, obj):
                    references = obj["metadata"].get("ownerReferences") or []
                    mine = owner_reference("apps/v1", self.kind, owner)
                    patch(self.client, self.owned, obj, {"metadata": {"ownerReferences": [*references, mine]}})
        self.sync(owner, [obj for _, obj in sorted(held.items())])

    @abstractmethod
    def sync(self, owner: Obj, held: list[Obj]) -> None:
        """Bring the held objects to the owner's specification, and write its status."""

    def _state(self, owner: Obj, status: Obj, *shown: str) -> None:
        """Write the status if it differs. Fields of 0 are left out, except the `shown` ones."""
        status = {name: value for name, value in status.items() if name in shown or value not in (0, None, [])}
        status["observedGeneration"] = owner["metadata"].get("generation", 1)
        if status != (owner.get("status") or {}):
            self.client.update(self.resource, owner | {"status": status}, "status")
