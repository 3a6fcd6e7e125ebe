"""Garbage collection: objects without their owners, and the finalizers for orphaning and for waiting on dependents."""

from __future__ import annotations

from typing import Any

from apiserver.actors.base import Actor
from apiserver.actors.objects import Name, delete, name_of, patch
from apiserver.actors.pod_status import is_terminating
from apiserver.actors.queue import WorkQueue
from apiserver.actors.timing import GARBAGE_S
from apiserver.store import Event
from apiserver.users import service_account

Obj = dict[str, Any]
Ref = tuple[str, Name]  # resource, namespace and name
ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
IGNORED = {"events", "events.events.k8s.io"}


class GarbageCollector(Actor):
    """Watches every served resource, those of later custom resources included."""

    user = service_account("kube-system", "generic-garbage-collector")
    manager = "kube-controller-manager"

    def start(self) -> None:
        """Follow every served resource."""
        self._store = self.server.store
        self._queue: WorkQueue[Ref] = WorkQueue(self.clock, self._sync, GARBAGE_S)
        self._dependents: dict[str, set[Ref]] = {}  # by uid of the owner
        self._watched: set[str] = set()
        self.watch_new_kinds()
        self.follow("customresourcedefinitions.apiextensions.k8s.io", lambda _event: self.watch_new_kinds())

    def watch_new_kinds(self) -> None:
        """Start to watch resources served since the last call; a custom resource calls it by itself."""
        for kind in self.server.kinds.all():
            if kind.storage not in self._watched and kind.storage not in IGNORED:
                self._watched.add(kind.storage)
                self.follow(kind.storage, self._on_change)

    def _on_change(self, event: Event) -> None:
        ref: Ref = (event.resource, name_of(event.obj))
        before = _owners(event.old.obj) if event.old is not None else set()
        after = _owners(event.obj) if event.type != "DELETED" else set()
        for uid in before - after:
            self._dependents.get(uid, set()).discard(ref)
        for uid in after - before:
            self._dependents.setdefault(uid, set()).add(ref)
        if event.type == "DELETED":
            for each in sorted(self._dependents.get(event.obj["metadata"]["uid"], ())):
                self._queue.add(each)
            for owner in event.obj["metadata"].get("ownerReferences") or []:
                self._look_at_owner(owner, ref[1][0])  # it may have waited for this one
            return
        finalizers = event.obj["metadata"].get("finalizers") or []
        if is_terminating(event.obj) and {ORPHAN, FOREGROUND} & set(finalizers):
            self._queue.add(ref)
        if event.type == "ADDED" and after:
            self._queue.add(ref)

    def _look_at_owner(self, owner: Obj, namespace: str) -> None:
        found = self._owner(owner, namespace)
        if found is not None and is_terminating(found[1]):
            self._queue.add(found[0])

    def _owner(self, reference: Obj, namespace: str) -> tuple[Ref, Obj] | None:
        """The object named by a reference, if its uid agrees."""
        kind = self.server.kinds.of(reference["apiVersion"], reference["kind"])
        if kind is None:
            return None
        where = namespace if kind.namespaced else ""
        found = self._store.get(kind.storage, where, reference["name"])
        if found is None or found["metadata"]["uid"] != reference["uid"]:
            return None
        return (kind.storage, (where, reference["name"])), found

    def _sync(self, ref: Ref) -> None:
        resource, key = ref
        obj = self._store.get(resource, *key)
        if obj is None:
            return
        finalizers = obj["metadata"].get("finalizers") or []
        if is_terminating(obj) and ORPHAN in finalizers:
            self._orphan(resource, obj)
        elif is_terminating(obj) and FOREGROUND in finalizers:
            self._foreground(resource, obj)
        elif not is_terminating(obj):
            self._collect(resource, obj)

    def _orphan(self, resource: str, owner: Obj) -> None:
        """Take the reference from the dependents, then the finalizer from the owner."""
        uid = owner["metadata"]["uid"]
        for kind, key in sorted(self._dependents.get(uid, ())):
            obj = self._store.get(kind, *key)
            if obj is None:
                continue
            left = [each for each in obj["metadata"].get("ownerReferences") or [] if each["uid"] != uid]
            patch(self.client, kind, obj, {"metadata": {"ownerReferences": left or None}})
        self._drop(resource, owner, ORPHAN)

    def _foreground(self, resource: str, owner: Obj) -> None:
        """Delete the dependents; the owner goes after the blocking ones."""
        uid = owner["metadata"]["uid"]
        blocked = False
        for kind, key in sorted(self._dependents.get(uid, ())):
            obj = self._store.get(kind, *key)
            if obj is None:
                continue
            references = obj["metadata"].get("ownerReferences") or []
            blocked = blocked or any(each["uid"] == uid and each.get("blockOwnerDeletion") for each in references)
            if not is_terminating(obj):
                delete(self.client, kind, obj, propagation="Foreground" if kind != "pods" else "Background")
        if not blocked:
            self._drop(resource, owner, FOREGROUND)

    def _drop(self, resource: str, obj: Obj, finalizer: str) -> None:
        left = [each for each in obj["metadata"].get("finalizers") or [] if each != finalizer]
        patch(self.client, resource, obj, {"metadata": {"finalizers": left or None}})

    def _collect(self, resource: str, obj: Obj) -> None:
        """Delete an object without a living owner; if some live, forget the others."""
        references = obj["metadata"].get("ownerReferences") or []
        if not references:
            return
        namespace = obj["metadata"].get("namespace", "")
        known = [each for each in references if self.server.kinds.of(each["apiVersion"], each["kind"]) is not None]
        alive = [each for each in references if each not in known or self._owner(each, namespace) is not None]
        if not alive:
            delete(self.client, resource, obj, propagation="Background")
        elif len(alive) < len(references):
            patch(self.client, resource, obj, {"metadata": {"ownerReferences": alive}})


def _owners(obj: Obj) -> set[str]:
    return {each["uid"] for each in obj["metadata"].get("ownerReferences") or []}
