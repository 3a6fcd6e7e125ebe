"""ReplicaSets, Deployments and StatefulSets: pods in the number and version that their owners ask for."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor
from typing import Any

from apiserver.actors import job_status
from apiserver.actors.base import Actor
from apiserver.actors.job_status import owner_reference
from apiserver.actors.objects import Name, controller_of, delete, name_of, patch, present
from apiserver.actors.pod_status import is_active, is_ready, is_terminating, phase_of
from apiserver.actors.queue import WorkQueue
from apiserver.actors.recorder import Recorder
from apiserver.actors.timing import CONTROLLER_S
from apiserver.server import NAME_LETTERS
from apiserver.store import Event
from apiserver.timeline import stamp
from apiserver.users import service_account

Obj = dict[str, Any]
HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
REVISION_HASH = "controller-revision-hash"
NAME_LABEL = "statefulset.kubernetes.io/pod-name"
INDEX_LABEL = "apps.kubernetes.io/pod-index"


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


class _Owner(Actor):
    """What the controllers of this file share: owners of one resource, and what they own."""

    resource = ""
    owned = "pods"
    kind = ""
    account = ""
    manager = "kube-controller-manager"

    def start(self) -> None:
        """Follow the owners and what they own."""
        self._store = self.server.store
        self._timeline = self.clock
        self._events = Recorder(self.client, self._timeline, self.account)
        self._queue: WorkQueue[Name] = WorkQueue(self._timeline, self._run, CONTROLLER_S)
        self._held: dict[str, dict[Name, Obj]] = {}  # what is owned, by uid of the owner
        self.follow(self.resource, self._on_owner)
        self.follow(self.owned, self._on_owned)

    def _on_owner(self, event: Event) -> None:
        if event.type == "DELETED":
            self._held.pop(event.obj["metadata"]["uid"], None)
        else:
            self._queue.add(name_of(event.obj))

    def _on_owned(self, event: Event) -> None:
        owner = controller_of(event.obj)
        if owner is None or owner["kind"] != self.kind:
            return
        held = self._held.setdefault(owner["uid"], {})
        if event.type == "DELETED":
            held.pop(name_of(event.obj), None)
        else:
            held[name_of(event.obj)] = event.obj
        self._queue.add((event.obj["metadata"]["namespace"], owner["name"]))

    def _run(self, key: Name) -> None:
        owner = self._store.get(self.resource, *key)
        if owner is not None:
            self.sync(owner, [obj for _, obj in sorted(self._held.get(owner["metadata"]["uid"], {}).items())])

    @abstractmethod
    def sync(self, owner: Obj, held: list[Obj]) -> None:
        """Bring what is owned to what the owner asks for, and state it."""

    def _state(self, owner: Obj, status: Obj) -> None:
        status = {name: value for name, value in status.items() if value not in (0, None)}
        status["observedGeneration"] = owner["metadata"].get("generation", 1)
        status.setdefault("replicas", 0)
        old = owner.get("status") or {}
        kept = {name: value for name, value in old.items() if name == "conditions"}
        if kept | status != old:
            present(lambda: self.client.update(self.resource, owner | {"status": kept | status}, "status"))


class ReplicaSets(_Owner):
    """Keeps the number of pods of a ReplicaSet; pods that terminate are replaced at once."""

    resource = "replicasets.apps"
    kind = "ReplicaSet"
    account = "replicaset-controller"
    user = service_account("kube-system", account)

    def sync(self, owner: Obj, held: list[Obj]) -> None:
        """Create or delete pods."""
        active = [pod for pod in held if is_active(pod)]
        missing = int(owner["spec"].get("replicas", 1)) - len(active)
        if not is_terminating(owner):
            for _ in range(max(missing, 0)):
                metadata = {
                    "generateName": f"{owner['metadata']['name']}-",
                    "namespace": owner["metadata"]["namespace"],
                }
                metadata |= {"ownerReferences": [owner_reference("apps/v1", self.kind, owner)]}
                pod = self.client.create("pods", pod_from(owner["spec"]["template"], metadata))
                self._events.normal(owner, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")
            for pod in sorted(active, key=job_status.removal_order)[: max(-missing, 0)]:
                if delete(self.client, "pods", pod):
                    self._events.normal(owner, "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")
        ready = sum(map(is_ready, active))
        stopping = sum(map(is_terminating, held))
        status = {"replicas": len(active), "fullyLabeledReplicas": len(active), "readyReplicas": ready}
        self._state(owner, status | {"availableReplicas": ready, "terminatingReplicas": stopping})


class Deployments(_Owner):
    """One ReplicaSet for each version of the template; versions are exchanged within maxSurge and maxUnavailable."""

    resource = "deployments.apps"
    owned = "replicasets.apps"
    kind = "Deployment"
    account = "deployment-controller"
    user = service_account("kube-system", account)

    def sync(self, owner: Obj, held: list[Obj]) -> None:
        """Scale the ReplicaSets of all versions."""
        if is_terminating(owner):
            return
        wanted = int(owner["spec"].get("replicas", 1))
        label = template_hash(owner["spec"]["template"])
        current = next((each for each in held if each["metadata"]["labels"].get(HASH) == label), None)
        others = [each for each in held if each is not current]
        if current is None:
            first = 0 if any(each["spec"].get("replicas") for each in others) else wanted
            current = self._create(owner, label, first, len(held) + 1)
        if not owner["spec"].get("paused"):
            self._exchange(owner, current, others, wanted)
        self._report(owner, current, [*others, current], wanted)

    def _create(self, owner: Obj, label: str, replicas: int, revision: int) -> Obj:
        metadata, template = owner["metadata"], owner["spec"]["template"]
        labels = dict((template.get("metadata") or {}).get("labels") or {}) | {HASH: label}
        selector = owner["spec"]["selector"]
        name = f"{metadata['name']}-{label}"
        made = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": name,
                "namespace": metadata["namespace"],
                "labels": labels,
                "annotations": {REVISION: str(revision)},
                "ownerReferences": [owner_reference("apps/v1", self.kind, owner)],
            },
            "spec": {
                "replicas": replicas,
                "selector": selector | {"matchLabels": dict(selector.get("matchLabels") or {}) | {HASH: label}},
                "template": template | {"metadata": dict(template.get("metadata") or {}) | {"labels": labels}},
            },
        }
        created = self.client.create(self.owned, made)
        text = f"Scaled up replica set {name} from 0 to {replicas}"
        self._events.normal(owner, "ScalingReplicaSet", text)
        return created

    def _exchange(self, owner: Obj, current: Obj, others: Sequence[Obj], wanted: int) -> None:
        """Grow the current version and shrink the others as far as the strategy allows now."""
        size = int(current["spec"].get("replicas", 0))
        old = sum(int(each["spec"].get("replicas", 0)) for each in others)
        strategy = owner["spec"].get("strategy") or {}
        if not old:
            self._scale(owner, current, wanted)
        elif strategy.get("type") == "Recreate":
            for each in others:
                self._scale(owner, each, 0)
            if not any((each.get("status") or {}).get("replicas") for each in others):
                self._scale(owner, current, wanted)
        else:
            rolling = strategy.get("rollingUpdate") or {}
            surge = scaled(rolling.get("maxSurge", "25%"), wanted, up=True)
            spare = scaled(rolling.get("maxUnavailable", "25%"), wanted, up=False)
            if not surge and not spare:
                spare = 1
            self._scale(owner, current, max(min(wanted, wanted + surge - old), min(size, wanted)))
            ready = sum(int((each.get("status") or {}).get("readyReplicas", 0)) for each in [*others, current])
            excess = max(ready - (wanted - spare), 0)
            for each in others:
                take = min(excess, int(each["spec"].get("replicas", 0)))
                if take:
                    self._scale(owner, each, int(each["spec"]["replicas"]) - take)
                    excess -= take

    def _scale(self, owner: Obj, each: Obj, replicas: int) -> None:
        old = int(each["spec"].get("replicas", 0))
        if old == replicas:
            return
        if patch(self.client, self.owned, each, {"spec": {"replicas": replicas}}):
            way = "up" if replicas > old else "down"
            text = f"Scaled {way} replica set {each['metadata']['name']} from {old} to {replicas}"
            self._events.normal(owner, "ScalingReplicaSet", text)

    def _report(self, owner: Obj, current: Obj, every: Sequence[Obj], wanted: int) -> None:
        """Counts over all versions, and the condition Available."""
        if current["metadata"].get("annotations", {}).get(REVISION) != (owner["metadata"].get("annotations") or {}).get(
            REVISION
        ):
            change = {"metadata": {"annotations": {REVISION: current["metadata"]["annotations"][REVISION]}}}
            owner = self.client.patch(self.resource, *name_of(owner), change)
        sums = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas", "terminatingReplicas"), 0)
        for each in every:
            for name in sums:
                sums[name] += int((each.get("status") or {}).get(name, 0))
        updated = int((current.get("status") or {}).get("replicas", 0))
        good = sums["availableReplicas"] >= wanted - scaled(
            ((owner["spec"].get("strategy") or {}).get("rollingUpdate") or {}).get("maxUnavailable", 0),
            wanted,
            up=False,
        )
        now = stamp(self._timeline.now)
        old: Obj = next(
            (each for each in (owner.get("status") or {}).get("conditions") or [] if each["type"] == "Available"), {}
        )
        value = "True" if good else "False"
        same = old.get("status") == value
        available = {
            "type": "Available",
            "status": value,
            "lastUpdateTime": old["lastUpdateTime"] if same else now,
            "lastTransitionTime": old["lastTransitionTime"] if same else now,
            "reason": "MinimumReplicasAvailable" if good else "MinimumReplicasUnavailable",
            "message": f"Deployment {'has' if good else 'does not have'} minimum availability.",
        }
        unavailable = max(wanted - sums["availableReplicas"], 0)
        self._state(
            owner, sums | {"updatedReplicas": updated, "unavailableReplicas": unavailable, "conditions": [available]}
        )


def scaled(value: int | str, total: int, *, up: bool) -> int:
    """A number, or a percentage of the total, rounded up or down."""
    if isinstance(value, int):
        return value
    exact = Fraction(int(value.rstrip("%")), 100) * total
    return ceil(exact) if up else floor(exact)


class StatefulSets(_Owner):
    """Pods with ordinals; one after the other unless podManagementPolicy is Parallel. Volumes are not made."""

    resource = "statefulsets.apps"
    kind = "StatefulSet"
    account = "statefulset-controller"
    user = service_account("kube-system", account)

    def sync(self, owner: Obj, held: list[Obj]) -> None:
        """Create the missing ordinals, replace failed pods, remove those above the number."""
        spec, metadata = owner["spec"], owner["metadata"]
        wanted = int(spec.get("replicas", 1))
        label = f"{metadata['name']}-{template_hash(spec['template'])}"
        by_ordinal = {int(pod["metadata"]["name"].rpartition("-")[2]): pod for pod in held}
        ordered = spec.get("podManagementPolicy", "OrderedReady") == "OrderedReady"
        if not is_terminating(owner):
            self._grow(owner, by_ordinal, wanted, label, ordered=ordered)
            self._shrink(owner, by_ordinal, wanted, ordered=ordered)
        alive = [pod for pod in held if not is_terminating(pod)]
        ready = sum(map(is_ready, alive))
        updated = sum(pod["metadata"]["labels"].get(REVISION_HASH) == label for pod in alive)
        status = {"replicas": len(held), "readyReplicas": ready, "availableReplicas": ready, "currentReplicas": updated}
        status |= {
            "updatedReplicas": updated,
            "currentRevision": label,
            "updateRevision": label,
            "collisionCount": None,
        }
        self._state(owner, status)

    def _grow(self, owner: Obj, held: dict[int, Obj], wanted: int, label: str, *, ordered: bool) -> None:
        for ordinal in range(wanted):
            pod = held.get(ordinal)
            if pod is None:
                self._create(owner, ordinal, label)
            elif not is_terminating(pod) and phase_of(pod) in {"Failed", "Succeeded"}:
                delete(self.client, "pods", pod)
            if ordered and (pod is None or not is_ready(pod) or is_terminating(pod)):
                return

    def _create(self, owner: Obj, ordinal: int, label: str) -> None:
        spec = owner["spec"]
        name = f"{owner['metadata']['name']}-{ordinal}"
        made = pod_from(
            spec["template"],
            {
                "name": name,
                "generateName": f"{owner['metadata']['name']}-",
                "namespace": owner["metadata"]["namespace"],
                "labels": {REVISION_HASH: label, NAME_LABEL: name, INDEX_LABEL: str(ordinal)},
                "ownerReferences": [owner_reference("apps/v1", self.kind, owner)],
            },
        )
        made["spec"] = made["spec"] | {"hostname": name, "subdomain": spec.get("serviceName", "")}
        if present(lambda: self.client.create("pods", made)):
            text = f"create Pod {name} in StatefulSet {owner['metadata']['name']} successful"
            self._events.normal(owner, "SuccessfulCreate", text)

    def _shrink(self, owner: Obj, held: dict[int, Obj], wanted: int, *, ordered: bool) -> None:
        for ordinal in sorted(held, reverse=True):
            if ordinal < wanted:
                return
            if not is_terminating(held[ordinal]) and delete(self.client, "pods", held[ordinal]):
                name = held[ordinal]["metadata"]["name"]
                text = f"delete Pod {name} in StatefulSet {owner['metadata']['name']} successful"
                self._events.normal(owner, "SuccessfulDelete", text)
            if ordered:
                return
