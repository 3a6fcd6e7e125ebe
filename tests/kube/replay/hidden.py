"""What happened on the recorded server without being a recorded step.

A topic's script also prepared things (its namespace, queues, nodes) and wrote between two steps. Two sources say what:
- `worlds/TOPIC.yaml`, written by hand: requests before the topic or before a named step, for what no step shows whole;
- inference from what the steps show. Only what a *client* must have done is inferred: objects that a controller makes
  (they have a controller as owner, or one of the kinds below) and fields that controllers write are the server's own
  work and are never filled in.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from tests.kube.replay.aliases import family_of
from tests.kube.replay.recording import Recording, Sighting, Step, sightings, start_of
from tests.kube.replay.worlds import Prepared

Obj = dict[str, Any]
Key = tuple[str, str, str]  # kind, namespace, name
NEEDS_CONTAINERS = {"Pod", "Job", "Deployment", "StatefulSet", "ReplicaSet"}
LEAD_S = 0.004  # a hidden write happens this long before the event that shows it
LAG_S = 0.001  # and this long after the step before it, where only a later answer shows it
MADE_BY_CONTROLLERS = {
    "Event", "Lease", "Endpoints", "EndpointSlice", "ControllerRevision", "Workload", "Status", "", "Table",
    "PartialObjectMetadata", "PendingWorkloadsSummary",
}  # fmt: skip
GENERATED = {"Pod", "ReplicaSet", "ResourceClaim"}  # those with a drawn part in their name are a controller's
MADE_NAMES = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}
FORK_BUNDLE = "openshift-service-ca.crt"  # a ConfigMap that the recorded distribution puts into every namespace
CLIENT_FIELDS = {"ConfigMap": ("data", "binaryData"), "Secret": ("data",)}  # written by clients alone
SERVER_METADATA = (
    "uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "deletionTimestamp",
    "deletionGracePeriodSeconds", "selfLink",
)  # fmt: skip
NODE_LABELS = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "example.com/fakelet": "true"}
NODE_RESOURCES = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "100Gi", "nvidia.com/gpu": "8"}
PLAIN_CONTAINER = {"name": "main", "image": "app:1"}
SYSTEM_NAMESPACES = {"default", "kube-system", "kube-public", "kube-node-lease"}


@dataclass(frozen=True)
class HiddenWrite:
    """A request that the recording does not hold. `t_s` is negative for what was there before the topic began.

    `version` is the recorded resourceVersion that it led to; 0 if that is not known.
    """

    t_s: float
    method: str
    kind: str
    api_version: str
    namespace: str
    name: str
    body: Obj
    version: int = 0


def hidden_writes(recording: Recording, prepared: Prepared) -> list[HiddenWrite]:
    """The writes between and before the steps, in order of time."""
    seen = [each for each in sightings(recording) if each.obj.get("kind")]
    states = _states(seen)
    found = [
        *_namespaces(recording, seen, prepared),
        *_nodes(seen, prepared),
        *_creations(recording, seen, prepared),
        *_changes(recording, states),
        *_terminations(recording),
    ]
    return sorted(found, key=lambda each: each.t_s)


def _version(obj: Obj) -> int:
    return int(obj["metadata"].get("resourceVersion") or 0)


def _states(seen: list[Sighting]) -> dict[Key, list[Sighting]]:
    """For each object its different states, in order of version, each when it was first seen."""
    found: dict[Key, dict[int, Sighting]] = {}
    for each in seen:
        version = _version(each.obj)
        if version and each.whole and each.key[0] not in MADE_BY_CONTROLLERS:
            held = found.setdefault(each.key, {})
            if version not in held or each.change == "DELETED":
                held[version] = each
    return {key: [held[version] for version in sorted(held)] for key, held in found.items()}


def _namespace_of(step: Step) -> str:
    path = step.request.get("path", "")
    return path.partition("/namespaces/")[2].split("/")[0] if "/namespaces/" in path else ""


def _namespaces(recording: Recording, seen: list[Sighting], prepared: Prepared) -> Iterator[HiddenWrite]:
    """Every namespace that is used and that no step creates."""
    used = {each.key[1] for each in seen} | {
        _namespace_of(step) for step in recording.steps if 200 <= step.status < 300
    }
    known = {each.key[2] for each in seen if each.key[0] == "Namespace"} | prepared.names("Namespace")
    ghosts = {
        _namespace_of(step)
        for step in recording.steps
        if step.status == 404
        and isinstance(step.body, dict)
        and (step.body.get("details") or {}).get("kind") == "namespaces"
    }
    for name in sorted(used - known - ghosts - SYSTEM_NAMESPACES - {""}):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        yield HiddenWrite(-10.0, "POST", "Namespace", "v1", "", name, body)
        bundle = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": FORK_BUNDLE, "namespace": name}}
        yield HiddenWrite(-9.0, "POST", "ConfigMap", "v1", name, FORK_BUNDLE, bundle)


def _nodes(seen: list[Sighting], prepared: Prepared) -> Iterator[HiddenWrite]:
    """Every node on which a pod ran and that no step shows, with the labels that the pods selected it by."""
    labels: dict[str, Obj] = {}
    for each in seen:
        spec, status = each.obj.get("spec") or {}, each.obj.get("status") or {}
        if each.key[0] == "Pod" and spec.get("nodeName") and status.get("phase") in {"Running", "Succeeded", "Failed"}:
            labels.setdefault(spec["nodeName"], {}).update(spec.get("nodeSelector") or {})
    known = {each.key[2] for each in seen if each.key[0] == "Node"} | prepared.names("Node")
    for name in sorted(labels.keys() - known):
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": NODE_LABELS | {"kubernetes.io/hostname": name} | labels[name]},
            "status": {
                "capacity": NODE_RESOURCES,
                "allocatable": NODE_RESOURCES,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        }
        yield HiddenWrite(-9.5, "POST", "Node", "v1", "", name, body)


def _creations(recording: Recording, seen: list[Sighting], prepared: Prepared) -> Iterator[HiddenWrite]:
    """Every object that is seen and that no step creates."""
    start_s = start_of(recording).timestamp()
    created = _created_uids(recording)
    first: dict[tuple[Key, str], Sighting] = {}
    best: dict[tuple[Key, str], Sighting] = {}
    for each in seen:
        identity = (each.key, each.obj["metadata"].get("uid", ""))
        first.setdefault(identity, each)
        if identity not in best or (each.whole and not best[identity].whole):
            best[identity] = each
    last_t: dict[Key, float] = {}
    for identity, sighting in first.items():
        (kind, namespace, name), uid = identity
        obj = best[identity].obj
        owners = sighting.obj["metadata"].get("ownerReferences") or []
        if uid in created or kind in MADE_BY_CONTROLLERS or (kind, name) in MADE_NAMES:
            continue
        if kind in NEEDS_CONTAINERS and not _has_containers(obj):
            continue  # cut too much to be made of what is seen: see kueue_world
        if any(owner.get("controller") for owner in owners) or (not uid and identity[0] in last_t):
            continue
        if _created_by_step(recording, identity[0], uid) or name in prepared.names(kind):
            continue
        if kind in GENERATED and family_of(namespace, name) is not None:
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
        version = _version(sighting.obj) if sighting.change == "ADDED" else 0
        body = client_body(obj)
        yield HiddenWrite(moment_s, "POST", kind, obj.get("apiVersion", ""), namespace, name, body, version)


def _has_containers(obj: Obj) -> bool:
    spec = obj.get("spec") or {}
    return bool(
        (spec if obj.get("kind") == "Pod" else (spec.get("template") or {}).get("spec") or {}).get("containers")
    )


def _created_uids(recording: Recording) -> set[str]:
    return {
        step.body["metadata"].get("uid", "-")
        for step in recording.steps
        if step.status == 201 and isinstance(step.body, dict) and "metadata" in step.body
    } - {"-"}


def _created_by_step(recording: Recording, key: Key, uid: str) -> bool:
    """Whether a step creates the object; by name where the step's body shows no uid."""
    for step in recording.steps:
        body = step.request.get("body")
        if step.request.get("method") not in {"POST", "PATCH"} or step.status != 201:
            continue
        if "dryRun" in (step.request.get("query") or {}):
            continue
        if isinstance(body, dict):
            same = body.get("kind") == key[0] and (body.get("metadata") or {}).get("name") == key[2]
        else:  # a body that is only described: its name is in the answer
            same = isinstance(step.body, dict) and (step.body.get("metadata") or {}).get("name") == key[2]
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
    """A pod as its client sent it: not bound, and without what admission added."""
    spec = body.setdefault("spec", {})
    spec.setdefault("containers", [dict(PLAIN_CONTAINER)])
    for name in ("nodeName", "priority", "tolerations", "preemptionPolicy"):
        if name != "priority" or "priorityClassName" in spec:
            spec.pop(name, None)
    added = {each["name"] for each in spec.get("volumes") or [] if each["name"].startswith("kube-api-access-")}
    spec["volumes"] = [each for each in spec.get("volumes") or [] if each["name"] not in added]
    for container in [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]:
        mounts = [each for each in container.get("volumeMounts") or [] if each["name"] not in added]
        container["volumeMounts"] = mounts


def _changes(recording: Recording, states: dict[Key, list[Sighting]]) -> Iterator[HiddenWrite]:
    """Changes of what only clients write, and deletions, that the steps show and none of them makes."""
    for key, seen in states.items():
        fields = CLIENT_FIELDS.get(key[0])
        for before, each in pairwise(seen) if fields else ():
            if each.obj["metadata"].get("uid") != before.obj["metadata"].get("uid"):
                continue
            if each.change in {"MODIFIED", "DELETED", "ADDED"}:
                if not _written_by_step(recording, each):
                    yield from _shown_by_event(each, before, seen, fields or ())
            elif each.change in {"PATCH", "PUT", "GET"}:
                yield from _shown_by_answer(each, before, fields or ())


def _shown_by_event(
    each: Sighting, before: Sighting, seen: list[Sighting], fields: tuple[str, ...]
) -> Iterator[HiddenWrite]:
    kind, namespace, name = each.key
    api_version, version = each.obj.get("apiVersion", ""), _version(each.obj)
    if each.change != "DELETED":
        patch = _patch(before.obj, each.obj, fields)
    elif seen[-1] is each:
        yield HiddenWrite(each.t_s - LEAD_S, "DELETE", kind, api_version, namespace, name, {}, version)
        return
    else:  # it left the selector of that watch and comes back later
        labels = dict.fromkeys(before.obj["metadata"].get("labels") or {}, "elsewhere")
        patch = {"metadata": {"labels": labels}}
    yield HiddenWrite(each.t_s - LEAD_S, "PATCH", kind, api_version, namespace, name, patch, version)


def _shown_by_answer(each: Sighting, before: Sighting, fields: tuple[str, ...]) -> Iterator[HiddenWrite]:
    """What the answer to a step shows beyond what the step asked for."""
    if _version(each.obj) <= _version(before.obj) + 1 and each.change != "GET":
        return
    body = each.step.request.get("body")
    asked = body if isinstance(body, dict) else {}
    patch = {
        name: change
        for name, change in _patch(before.obj, each.obj, fields).items()
        if name != "metadata" or each.change == "GET"
    }
    for name in fields:
        patch[name] = {key: value for key, value in patch.get(name, {}).items() if key not in (asked.get(name) or {})}
    patch = {name: change for name, change in patch.items() if change}
    if patch:
        kind, namespace, name = each.key
        moment_s = before.t_s + LAG_S
        yield HiddenWrite(moment_s, "PATCH", kind, each.obj.get("apiVersion", ""), namespace, name, patch)


def _terminations(recording: Recording) -> Iterator[HiddenWrite]:
    """A namespace that refuses new content was deleted just before."""
    for step in recording.steps:
        details = step.body.get("details") if isinstance(step.body, dict) else None
        causes = (details or {}).get("causes") or []
        if step.status == 403 and any(each.get("reason") == "NamespaceTerminating" for each in causes):
            name = _namespace_of(step)
            yield HiddenWrite(step.t_s - LEAD_S, "DELETE", "Namespace", "v1", "", name, {})


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
