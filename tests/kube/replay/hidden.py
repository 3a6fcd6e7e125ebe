"""What happened on the recorded server without being a recorded step, read from what the steps show.

A topic's script also prepared things (its namespace, queues, nodes) and wrote between two steps (the objects whose
changes a watch shows). Without these the replay would ask for objects that are not there. Only what a *client* must
have done is inferred: objects that a controller makes (they have a controller as owner, or one of the kinds below) and
fields that controllers write are the server's own work and are never filled in.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.kube.replay.recording import Recording, Sighting, Step, sightings, start_of

Obj = dict[str, Any]
LEAD_S = 0.004  # a hidden write happens this long before the event that shows it
MADE_BY_CONTROLLERS = {"Event", "Lease", "Endpoints", "EndpointSlice", "ControllerRevision", "Workload", "Status", ""}
MADE_NAMES = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}
CLIENT_FIELDS = {"ConfigMap": ("data", "binaryData"), "Secret": ("data",)}  # written by clients alone
SERVER_METADATA = (
    "uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "deletionTimestamp",
    "deletionGracePeriodSeconds", "selfLink",
)  # fmt: skip
SYSTEM_NAMESPACES = {"default", "kube-system", "kube-public", "kube-node-lease"}


@dataclass(frozen=True)
class HiddenWrite:
    """A request that the recording does not hold. `t_s` is negative for what was there before the topic began."""

    t_s: float
    method: str
    kind: str
    api_version: str
    namespace: str
    name: str
    body: Obj


def hidden_writes(recording: Recording) -> list[HiddenWrite]:
    """The writes between and before the steps, in order of time."""
    seen = [each for each in sightings(recording) if each.obj.get("kind")]
    found = [*_namespaces(recording, seen), *_creations(recording, seen), *_changes(recording, seen)]
    return sorted(found, key=lambda each: each.t_s)


def _namespaces(recording: Recording, seen: list[Sighting]) -> Iterator[HiddenWrite]:
    """Every namespace that is used and that no step creates."""
    used = {each.key[1] for each in seen} | {
        step.request["path"].partition("/namespaces/")[2].split("/")[0]
        for step in recording.steps
        if "/namespaces/" in step.request.get("path", "") and 200 <= step.status < 300
    }
    known = {each.key[2] for each in seen if each.key[0] == "Namespace"}
    ghosts = {
        step.request["path"].partition("/namespaces/")[2].split("/")[0]
        for step in recording.steps
        if step.status == 404
        and isinstance(step.body, dict)
        and (step.body.get("details") or {}).get("kind") == "namespaces"
    }
    for name in sorted(used - known - ghosts - SYSTEM_NAMESPACES - {""}):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        yield HiddenWrite(-10.0, "POST", "Namespace", "v1", "", name, body)


def _creations(recording: Recording, seen: list[Sighting]) -> Iterator[HiddenWrite]:
    """Every object that is seen and that no step creates."""
    start_s = start_of(recording).timestamp()
    created = _created_uids(recording)
    first: dict[tuple[tuple[str, str, str], str], Sighting] = {}
    best: dict[tuple[tuple[str, str, str], str], Sighting] = {}
    for each in seen:
        identity = (each.key, each.obj["metadata"].get("uid", ""))
        first.setdefault(identity, each)
        if identity not in best or (each.whole and not best[identity].whole):
            best[identity] = each
    last_t: dict[tuple[str, str, str], float] = {}
    for identity, sighting in first.items():
        (kind, namespace, name), uid = identity
        obj = best[identity].obj
        owners = sighting.obj["metadata"].get("ownerReferences") or []
        if uid in created or kind in MADE_BY_CONTROLLERS or (kind, name) in MADE_NAMES:
            continue
        if any(owner.get("controller") for owner in owners) or (not uid and identity[0] in last_t):
            continue
        if _created_by_step(recording, identity[0], uid):
            continue
        moment_s = sighting.t_s - LEAD_S
        stamp = sighting.obj["metadata"].get("creationTimestamp")
        if stamp and sighting.change != "ADDED":
            moment_s = min(moment_s, datetime.fromisoformat(stamp).timestamp() + 0.9 - start_s)
        if stamp and datetime.fromisoformat(stamp).timestamp() + 1 < start_s:
            moment_s = -5.0 + 1e-4 * len(last_t)
        elif moment_s < 0:
            moment_s = -1.0 + 1e-4 * len(last_t)
        last_t[identity[0]] = moment_s
        yield HiddenWrite(moment_s, "POST", kind, obj.get("apiVersion", ""), namespace, name, client_body(obj))


def _created_uids(recording: Recording) -> set[str]:
    return {
        step.body["metadata"].get("uid", "-")
        for step in recording.steps
        if step.status == 201 and isinstance(step.body, dict) and "metadata" in step.body
    } - {"-"}


def _created_by_step(recording: Recording, key: tuple[str, str, str], uid: str) -> bool:
    """Whether a step creates the object; by name where the step's body shows no uid."""
    for step in recording.steps:
        body = step.request.get("body")
        if step.request.get("method") not in {"POST", "PATCH"} or not isinstance(body, dict) or step.status != 201:
            continue
        if "dryRun" in (step.request.get("query") or {}):
            continue
        metadata = body.get("metadata") or {}
        same = body.get("kind") == key[0] and metadata.get("name") == key[2]
        shown = step.body.get("metadata", {}).get("uid") if isinstance(step.body, dict) else None
        if same and (not shown or not uid or shown == uid):
            return True
    return False


def client_body(obj: Obj) -> Obj:
    """What a client sent to create an object that looks like this now."""
    body = copy.deepcopy(obj)
    for name in SERVER_METADATA:
        body["metadata"].pop(name, None)
    if body.get("kind") != "Node":
        body.pop("status", None)
    elif "spec" in body:
        body["spec"].pop("taints", None)
    if body.get("kind") == "Pod":
        _plain_pod(body)
    return body


def _plain_pod(body: Obj) -> None:
    spec = body.get("spec") or {}
    spec.pop("nodeName", None)
    spec.pop("priority", None) if "priorityClassName" in spec else None


def _changes(recording: Recording, seen: list[Sighting]) -> Iterator[HiddenWrite]:
    """Changes of what only clients write, and deletions, that a watch shows and no step makes."""
    state: dict[tuple[str, str, str], Obj] = {}
    removed: set[tuple[tuple[str, str, str], str]] = set()
    for each in seen:
        metadata = each.obj["metadata"]
        identity = (each.key, metadata.get("uid", ""))
        before = state.get(each.key)
        state[each.key] = each.obj
        if each.change not in {"MODIFIED", "DELETED", "ADDED"} or before is None:
            continue
        if metadata.get("uid") != before["metadata"].get("uid") or _written_by_step(recording, each):
            continue
        if each.change == "DELETED" and each.key[0] in CLIENT_FIELDS and identity not in removed:
            yield from _left(recording, seen, each, before)
            continue
        if each.key[0] in CLIENT_FIELDS:
            patch = _patch(before, each.obj, CLIENT_FIELDS[each.key[0]])
            if patch:
                kind, namespace, name = each.key
                yield HiddenWrite(
                    each.t_s - LEAD_S, "PATCH", kind, each.obj.get("apiVersion", ""), namespace, name, patch
                )


def _left(recording: Recording, seen: list[Sighting], each: Sighting, before: Obj) -> Iterator[HiddenWrite]:
    """A DELETED event: the object is gone, or it left the selector of that watch for a while."""
    kind, namespace, name = each.key
    uid = each.obj["metadata"].get("uid")
    back = next(
        (o for o in seen if o.t_s > each.t_s and o.key == each.key and o.obj["metadata"].get("uid") == uid), None
    )
    api_version = each.obj.get("apiVersion", "")
    if back is None:
        yield HiddenWrite(each.t_s - LEAD_S, "DELETE", kind, api_version, namespace, name, {})
        return
    labels = dict.fromkeys(before["metadata"].get("labels") or {}, "elsewhere")
    patch = {"metadata": {"labels": labels}}
    yield HiddenWrite(each.t_s - LEAD_S, "PATCH", kind, api_version, namespace, name, patch)


def _written_by_step(recording: Recording, each: Sighting) -> bool:
    """Whether a recorded write of this object ended shortly before it was seen so."""
    name = each.key[2]

    def writes(step: Step) -> bool:
        path = step.request.get("path", "").split("/")
        return (
            step.request.get("method") in {"PATCH", "PUT", "DELETE"}
            and name in path
            and step.status < 300
            and "dryRun" not in (step.request.get("query") or {})
            and step.t_s - 0.05 <= each.t_s <= step.t_s + step.latency_s + 0.05
        )

    return any(writes(step) for step in recording.steps)


def _patch(before: Obj, after: Obj, fields: tuple[str, ...]) -> Obj:
    """A merge patch from one state to the next, of labels, annotations and the given fields."""
    patch: Obj = {}
    metadata: Obj = {}
    for name in ("labels", "annotations"):
        change = _merge(before["metadata"].get(name) or {}, after["metadata"].get(name) or {})
        if change:
            metadata[name] = change
    if metadata:
        patch["metadata"] = metadata
    for name in fields:
        change = _merge(before.get(name) or {}, after.get(name) or {})
        if change:
            patch[name] = change
    return patch


def _merge(before: Obj, after: Obj) -> Obj:
    change: Obj = {name: value for name, value in after.items() if before.get(name) != value}
    return change | {name: None for name in before if name not in after}
