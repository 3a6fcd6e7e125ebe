"""The life of a definition: names accepted, served, established, and the deletion of its objects before its own."""

from __future__ import annotations

from functools import partial
from typing import Any

from apiserver.actors.base import Actor
from apiserver.crd.definition import (
    CRDS,
    FINALIZER,
    accepted_names,
    changed_problems,
    condition,
    fill,
    is_served,
    problems,
)
from apiserver.crd.serve import kinds_of
from apiserver.kinds.base import STATUS, Kind, keep_status
from apiserver.schemas import schema
from apiserver.store import Event
from apiserver.timeline import stamp
from apiserver.users import ADMIN

Obj = dict[str, Any]

# Seconds after the write of a definition, measured on Kubernetes 1.36.
NAMES_S = 0.012  # its names are accepted, and writes are answered; of a known group at once
ESTABLISHED_S = 0.022
FILLED_S = 0.025  # the cache of its objects is filled: lists and watches get 429 before
LISTED_S = 0.036  # discovery shows it
CHANGED_S = 0.004  # a change of versions or schemas counts
REFILLED_S = 0.045  # the cache of a new version is filled
CLEANUP_S = 0.02  # from the deletion of a definition until its objects go, and to the first look whether they are gone
LOOK_S = 5.0  # between the next looks


def _prepare_delete(crd: Obj, now: str) -> None:
    crd["metadata"]["finalizers"] = list(dict.fromkeys([*crd["metadata"].get("finalizers", ()), FINALIZER]))
    conditions = [each for each in crd["status"].get("conditions") or () if each["type"] != "Terminating"]
    text = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"
    conditions.append(condition("Terminating", "True", "InstanceDeletionPending", text, now))
    crd["status"] = crd["status"] | {"conditions": conditions}


def _keep(crd: Obj, old: Obj) -> None:
    keep_status(crd, old)
    stored = [each["name"] for each in crd["spec"].get("versions") or () if each.get("storage")]
    held = crd["status"].get("storedVersions") or []
    crd["status"] = crd["status"] | {"storedVersions": [*held, *(each for each in stored if each not in held)]}


DEFINITIONS = Kind(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    subresources={"status": STATUS},
    schema=schema("CustomResourceDefinition"),
    prepare_create=fill,
    prepare_update=_keep,
    prepare_delete=_prepare_delete,
    validate=problems,
    validate_update=changed_problems,
    generation=True,
    marks_grace=False,
)


class Definitions(Actor):
    """Accepts names, serves the kinds of each definition, and cleans up behind a deleted one."""

    user = ADMIN
    manager = "kube-apiserver"

    def start(self) -> None:
        """Follow definitions, the present ones included."""
        self._serving: dict[str, list[Kind]] = {}
        self.server.store.subscribe(CRDS, self._changed)

    def _changed(self, event: Event) -> None:
        crd, name = event.obj, event.obj["metadata"]["name"]
        timeline = self.server.timeline
        if event.type == "DELETED":
            self._serve(name, [])
        elif "deletionTimestamp" in crd["metadata"]:
            if event.old is None or "deletionTimestamp" not in event.old.obj["metadata"]:
                timeline.at(CLEANUP_S, lambda: self._clean(name))
        elif event.type == "ADDED":
            known = self.server.kinds.has_group(crd["spec"]["group"])
            timeline.at(0.0 if known else NAMES_S, lambda: self._accept(name))
        elif event.old is not None and event.old.obj["spec"] != crd["spec"]:
            timeline.at(CHANGED_S, lambda: self._follow(name, REFILLED_S - CHANGED_S))

    def _now(self) -> str:
        return stamp(self.server.timeline.now)

    def _write(self, crd: Obj, status: Obj) -> None:
        self.client.update(CRDS, crd | {"status": status}, "status")

    def _accept(self, name: str) -> None:
        crd = self.client.get(CRDS, "", name)
        if crd is None or "deletionTimestamp" in crd["metadata"]:
            return
        names, reason, taken = accepted_names(crd, self.client.list(CRDS))
        now = self._now()
        if taken:
            refused = condition("NamesAccepted", "False", reason, taken, now)
            waiting = condition("Established", "False", "NotAccepted", "not all names are accepted", now)
            self._write(crd, crd["status"] | {"conditions": [refused, waiting], "acceptedNames": names})
            return
        text = "the initial names have been accepted"
        accepted = condition("NamesAccepted", "True", "NoConflicts", "no conflicts found", now)
        installing = condition("Established", "False", "Installing", text, now)
        self._write(crd, crd["status"] | {"conditions": [accepted, installing], "acceptedNames": names})
        self._follow(name, FILLED_S - NAMES_S)
        self.server.timeline.at(ESTABLISHED_S - NAMES_S, lambda: self._establish(name))

    def _establish(self, name: str) -> None:
        crd = self.client.get(CRDS, "", name)
        if crd is None or "deletionTimestamp" in crd["metadata"]:
            return
        text = "the initial names have been accepted"
        kept = [each for each in crd["status"]["conditions"] or () if each["type"] != "Established"]
        done = condition("Established", "True", "InitialNamesAccepted", text, self._now())
        self._write(crd, crd["status"] | {"conditions": [*kept, done]})

    def _follow(self, name: str, filled_s: float) -> None:
        crd = self.client.get(CRDS, "", name)
        if crd is not None and is_served(crd):
            self._serve(name, kinds_of(crd), filled_s)

    def _serve(self, name: str, kinds: list[Kind], filled_s: float = 0.0) -> None:
        """Serve the kinds of a definition; open watches of its former kinds end.

        The cache of a new kind is filled a moment later. Those of Kueue were served before (`install`).
        """
        before = {(kind.group, kind.version, kind.plural): kind for kind in self._serving.pop(name, ())}
        wanted = {(kind.group, kind.version, kind.plural): kind for kind in kinds}
        for place, kind in before.items():
            if place not in wanted:
                self.server.kinds.remove(*place)
            self.server.end_watches(kind)
        for place, kind in wanted.items():
            served = place in before or self.server.kinds.find(*place) is not None
            self.server.kinds.add(kind)
            if not served:
                self.server.uptime.fill(kind, filled_s)
                self.server.kinds.hide(kind)
                self.server.timeline.at(LISTED_S - NAMES_S, partial(self.server.kinds.show, kind))
        if kinds:
            self._serving[name] = kinds

    def _clean(self, name: str) -> None:
        """Delete the objects; after the last of them, the definition may go."""
        crd = self.client.get(CRDS, "", name)
        if crd is None:
            return
        kinds = self._serving.get(name) or kinds_of(crd)
        resource = f"{crd['spec']['names']['plural']}.{crd['spec']['group']}"
        if kinds and self.server.kinds.find(kinds[0].group, kinds[0].version, kinds[0].plural) is not None:
            for obj in self.client.list(resource):
                metadata = obj["metadata"]
                if "deletionTimestamp" not in metadata:
                    self.client.delete(resource, metadata.get("namespace", ""), metadata["name"])
        if self.server.store.count(resource):
            self._tell_progress(crd)
            self.server.timeline.at(LOOK_S, lambda: self._clean(name))
            return
        left = [each for each in crd["metadata"].get("finalizers") or () if each != FINALIZER]
        self._serve(name, [])
        self.client.patch(CRDS, "", name, {"metadata": {"finalizers": left}})

    def _tell_progress(self, crd: Obj) -> None:
        conditions = crd["status"].get("conditions") or []
        text = "CustomResource deletion is in progress"
        progress = condition("Terminating", "True", "InstanceDeletionInProgress", text, self._now())
        if not any(each["reason"] == progress["reason"] for each in conditions):
            kept = [each for each in conditions if each["type"] != "Terminating"]
            self._write(crd, crd["status"] | {"conditions": [*kept, progress]})
