"""The life of a definition: names accepted, served, established, and the deletion of its objects before its own."""

from __future__ import annotations

import copy
from typing import Any

from apiserver.actors.base import Actor
from apiserver.crd.definition import FINALIZER, changed_problems, condition, fill, is_served, names_conflict, problems
from apiserver.crd.serve import kinds_of
from apiserver.kinds.base import STATUS, Kind, keep_status
from apiserver.schemas import schema
from apiserver.store import Event
from apiserver.timeline import stamp
from apiserver.users import ADMIN

Obj = dict[str, Any]
CRDS = "customresourcedefinitions.apiextensions.k8s.io"

NAMES_S = 0.015
"""From the creation until the names are accepted and the first request can be answered, and ..."""
ESTABLISHED_S = 0.045
"""... until Established: upper bounds 0.1 and 0.14 s, measured on Kubernetes 1.36."""
SERVED_S = 0.1  # from a change of the versions until paths follow it
CLEANUP_S = 0.02  # from the deletion of a definition until its objects go


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
        """Follow definitions, those that are there already included."""
        self._serving: dict[str, list[Kind]] = {}
        self.server.store.subscribe(CRDS, self._changed)

    def _changed(self, event: Event) -> None:
        crd, name = event.obj, event.obj["metadata"]["name"]
        timeline = self.server.timeline
        if event.type == "DELETED":
            self._serve(name, [])
        elif "deletionTimestamp" in crd["metadata"]:
            timeline.at(CLEANUP_S, lambda: self._clean(name))
        elif event.type == "ADDED":
            timeline.at(NAMES_S, lambda: self._accept(name))
        elif event.old is not None and event.old.obj["spec"] != crd["spec"]:
            timeline.at(SERVED_S, lambda: self._follow(name))

    def _now(self) -> str:
        return stamp(self.server.timeline.now)

    def _write(self, crd: Obj, status: Obj) -> None:
        self.client.update(CRDS, crd | {"status": status}, "status")

    def _accept(self, name: str) -> None:
        crd = self.client.get(CRDS, "", name)
        if crd is None or "deletionTimestamp" in crd["metadata"]:
            return
        taken, now = names_conflict(crd, self.client.list(CRDS)), self._now()
        if taken:
            refused = condition("NamesAccepted", "False", "NameConflict", taken, now)
            waiting = condition("Established", "False", "NotAccepted", "not all names are accepted", now)
            self._write(crd, crd["status"] | {"conditions": [refused, waiting]})
            return
        text = "the initial names have been accepted"
        accepted = condition("NamesAccepted", "True", "NoConflicts", "no conflicts found", now)
        installing = condition("Established", "False", "Installing", text, now)
        names = copy.deepcopy(crd["spec"]["names"])
        self._write(crd, crd["status"] | {"conditions": [accepted, installing], "acceptedNames": names})
        self._follow(name)
        self.server.timeline.at(ESTABLISHED_S - NAMES_S, lambda: self._establish(name))

    def _establish(self, name: str) -> None:
        crd = self.client.get(CRDS, "", name)
        if crd is None or "deletionTimestamp" in crd["metadata"]:
            return
        text = "the initial names have been accepted"
        kept = [each for each in crd["status"]["conditions"] or () if each["type"] != "Established"]
        done = condition("Established", "True", "InitialNamesAccepted", text, self._now())
        self._write(crd, crd["status"] | {"conditions": [*kept, done]})

    def _follow(self, name: str) -> None:
        crd = self.client.get(CRDS, "", name)
        if crd is not None and is_served(crd):
            self._serve(name, kinds_of(crd))

    def _serve(self, name: str, kinds: list[Kind]) -> None:
        wanted = {(kind.group, kind.version, kind.plural) for kind in kinds}
        for kind in self._serving.pop(name, ()):
            if (kind.group, kind.version, kind.plural) not in wanted:
                self.server.kinds.remove(kind.group, kind.version, kind.plural)
                self.server.end_watches(kind)
        for kind in kinds:
            self.server.kinds.add(kind)
        if kinds:
            self._serving[name] = kinds

    def _clean(self, name: str) -> None:
        """Delete the objects; when none is left, the definition may go."""
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
            self.server.timeline.at(CLEANUP_S * 5, lambda: self._clean(name))
            return
        left = [each for each in crd["metadata"].get("finalizers") or () if each != FINALIZER]
        self._serve(name, [])
        self.client.patch(CRDS, "", name, {"metadata": {"finalizers": left}})
