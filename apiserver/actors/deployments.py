"""Deployments: a ReplicaSet for each version of the template, and their exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apiserver.actors import rollout
from apiserver.actors.job_status import owner_reference
from apiserver.actors.objects import controller_of, delete, name_of
from apiserver.actors.owners import Owners, template_hash
from apiserver.actors.pod_status import condition, is_terminal, is_terminating
from apiserver.actors.rollout import HASH, REVISION, replicas_of, revision_of, total
from apiserver.store import Event
from apiserver.timeline import stamp
from apiserver.users import service_account

Obj = dict[str, Any]


class Deployments(Owners):
    """Versions are exchanged within maxSurge and maxUnavailable, or at once after the old one is gone.

    A sync writes the status under the version it has read: a second write conflicts, and the sync is tried again,
    as in the real controller.
    """

    resource = "deployments.apps"
    owned = "replicasets.apps"
    kind = "Deployment"
    account = "deployment-controller"
    user = service_account("kube-system", account)

    def start(self) -> None:
        """Follow Deployments, ReplicaSets and the end of pods."""
        super().start()
        self.follow("pods", self._on_pod)

    def _on_pod(self, event: Event) -> None:
        owner = controller_of(event.obj) if event.type == "DELETED" else None
        if owner is not None and owner["kind"] == "ReplicaSet":
            held = self._store.get(self.owned, event.obj["metadata"]["namespace"], owner["name"])
            parent = controller_of(held) if held is not None else None
            if parent is not None and parent["kind"] == self.kind:
                self._queue.add((event.obj["metadata"]["namespace"], parent["name"]))

    def sync(self, owner: Obj, held: list[Obj]) -> None:
        """Scale the ReplicaSets of all versions."""
        metadata, status = dict(owner["metadata"]), dict(owner.get("status") or {})
        owner = owner | {"metadata": metadata, "status": status}
        sets = sorted(held, key=lambda each: (each["metadata"]["creationTimestamp"], each["metadata"]["name"]))
        if is_terminating(owner):
            new, old = self._versions(owner, sets)
            self._report(owner, old, new, progress=False)
            return
        self._state_pause(owner)
        wanted = replicas_of(owner)
        resized = any(_desired(each, wanted) != wanted for each in sets if replicas_of(each))
        if owner["spec"].get("paused") or resized:
            self._rescale(owner, sets)
        elif rollout.is_rolling(owner):
            self._roll(owner, sets)
        else:
            self._replace(owner, sets)

    def _set(self, owner: Obj, value: str, reason: str, message: str) -> None:
        """Set the condition Progressing in the next status to write."""
        now = stamp(self._timeline.now)
        conditions = owner["status"].get("conditions") or []
        owner["status"]["conditions"] = rollout.with_deployment_condition(
            conditions, "Progressing", value, (reason, message), now
        )

    def _write(self, owner: Obj) -> None:
        self.client.update(self.resource, owner, "status")

    def _state_pause(self, owner: Obj) -> None:
        reason = condition(owner, "Progressing").get("reason")
        if not rollout.has_deadline(owner) or reason == rollout.TIMED_OUT:
            return
        paused = bool(owner["spec"].get("paused"))
        if paused != (reason == "DeploymentPaused"):
            word = "paused" if paused else "resumed"
            self._set(owner, "Unknown", f"Deployment{word.capitalize()}", f"Deployment is {word}")
            self._write(owner)

    # versions

    def _versions(self, owner: Obj, sets: Sequence[Obj]) -> tuple[Obj | None, list[Obj]]:
        """The ReplicaSet of the template if there is one, and those of older templates."""
        template = _without_hash(owner["spec"]["template"])
        new = next((each for each in sets if _without_hash(each["spec"]["template"]) == template), None)
        old = [each for each in sets if each is not new]
        return (self._refresh(owner, new, _next_revision(old)) if new is not None else None), old

    def _new_version(self, owner: Obj, sets: Sequence[Obj]) -> tuple[Obj, list[Obj]]:
        """As `_versions`; the ReplicaSet of the template is made if need be."""
        new, old = self._versions(owner, sets)
        return new or self._create(owner, old, _next_revision(old)), old

    def _refresh(self, owner: Obj, new: Obj, revision: int) -> Obj:
        """Bring annotations and minReadySeconds of the new version up to date."""
        held = new["metadata"].get("annotations") or {}
        annotations = rollout.copied_annotations(owner, held, revision)
        min_ready_s = owner["spec"].get("minReadySeconds", 0)
        if annotations != held or min_ready_s != new["spec"].get("minReadySeconds", 0):
            spec = {name: value for name, value in new["spec"].items() if name != "minReadySeconds"}
            spec |= {"minReadySeconds": min_ready_s} if min_ready_s else {}
            return self.client.update(
                self.owned, new | {"metadata": new["metadata"] | {"annotations": annotations}, "spec": spec}
            )
        changed = self._number(owner, annotations[REVISION])
        if rollout.has_deadline(owner) and not condition(owner, "Progressing"):
            name = new["metadata"]["name"]
            self._set(owner, "True", "FoundNewReplicaSet", f'Found new replica set "{name}"')
            changed = True
        if changed:
            self._write(owner)
        return new

    def _number(self, owner: Obj, revision: str) -> bool:
        """Note the number of the version in the next Deployment to write; True if the number is new."""
        annotations = owner["metadata"].get("annotations") or {}
        owner["metadata"]["annotations"] = dict(annotations) | {REVISION: revision}
        return bool(annotations.get(REVISION) != revision)

    def _create(self, owner: Obj, old: Sequence[Obj], revision: int) -> Obj:
        metadata, template, selector = owner["metadata"], owner["spec"]["template"], owner["spec"]["selector"]
        label = template_hash(template)
        labels = dict((template.get("metadata") or {}).get("labels") or {}) | {HASH: label}
        name = f"{metadata['name']}-{label}"
        replicas = rollout.new_size(owner, old, 0)
        annotations = rollout.copied_annotations(owner, {}, revision) | rollout.set_annotations(owner)
        spec: Obj = {
            "replicas": replicas,
            "selector": selector | {"matchLabels": dict(selector.get("matchLabels") or {}) | {HASH: label}},
            "template": template | {"metadata": dict(template.get("metadata") or {}) | {"labels": labels}},
        }
        if owner["spec"].get("minReadySeconds"):
            spec["minReadySeconds"] = owner["spec"]["minReadySeconds"]
        made = {"name": name, "namespace": metadata["namespace"], "labels": labels, "annotations": annotations}
        made["ownerReferences"] = [owner_reference("apps/v1", self.kind, owner)]
        created = self.client.create(
            self.owned, {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": made, "spec": spec}
        )
        if replicas:
            self._events.normal(owner, "ScalingReplicaSet", f"Scaled up replica set {name} from 0 to {replicas}")
        changed = self._number(owner, str(revision))
        if rollout.has_deadline(owner):
            self._set(owner, "True", "NewReplicaSetCreated", f'Created new replica set "{name}"')
            changed = True
        if changed:
            self._write(owner)
        return created

    def _scale(self, owner: Obj, each: Obj, size: int) -> Obj:
        """The ReplicaSet with another size, and with the matching number of the Deployment."""
        old = replicas_of(each)
        annotations = (each["metadata"].get("annotations") or {}) | rollout.set_annotations(owner)
        if old == size and annotations == each["metadata"].get("annotations"):
            return each
        changed = each | {"metadata": each["metadata"] | {"annotations": annotations}}
        found = self.client.update(self.owned, changed | {"spec": each["spec"] | {"replicas": size}})
        if old != size:
            way = "up" if size > old else "down"
            text = f"Scaled {way} replica set {each['metadata']['name']} from {old} to {size}"
            self._events.normal(owner, "ScalingReplicaSet", text)
        return found

    def _scale_all(self, owner: Obj, sets: Sequence[Obj], sizes: Sequence[int]) -> list[Obj]:
        pairs = zip(sets, sizes, strict=True)
        return [each if replicas_of(each) == size else self._scale(owner, each, size) for each, size in pairs]

    # strategies

    def _rescale(self, owner: Obj, sets: Sequence[Obj]) -> None:
        """Another number, or no rollout: versions keep their shares."""
        new, old = self._versions(owner, sets)
        every = [*old, *([new] if new is not None else [])]
        active = [each for each in every if replicas_of(each)]
        wanted = replicas_of(owner)
        if len(active) <= 1:
            newest = active[0] if active else every[-1] if every else None
            sizes = [wanted if each is newest else replicas_of(each) for each in every]
            done = self._scale_all(owner, every, sizes)
        elif new is not None and _is_saturated(new, wanted):
            done = self._scale_all(owner, every, [wanted if each is new else 0 for each in every])
        elif rollout.is_rolling(owner):
            sizes_by = {id(each): size for each, size in rollout.proportions(owner, active)}
            done = [self._scale(owner, each, sizes_by[id(each)]) if id(each) in sizes_by else each for each in every]
        else:
            done = every
        if owner["spec"].get("paused"):
            self._clean(owner, old)
        self._report(owner, done[: len(old)], done[len(old)] if new is not None else None, progress=False)

    def _roll(self, owner: Obj, sets: Sequence[Obj]) -> None:
        """Grow the new version as far as maxSurge allows, else shrink the old ones as far as maxUnavailable does."""
        new, old = self._new_version(owner, sets)
        wanted, size = replicas_of(owner), replicas_of(new)
        target = min(wanted, size) if size >= wanted else rollout.new_size(owner, [*old, new], size)
        if target != size:
            new = self._scale(owner, new, target)
        else:
            sizes = self._shrunk(owner, old, new)
            if sizes != [replicas_of(each) for each in old]:
                old = self._scale_all(owner, old, sizes)
            elif rollout.is_complete(owner, owner["status"]):
                self._clean(owner, old)
        self._report(owner, old, new)

    def _shrunk(self, owner: Obj, old: Sequence[Obj], new: Obj) -> list[int]:
        """The sizes of the old versions: first without unavailable pods, then as availability allows."""
        sizes = [replicas_of(each) for each in old]
        least = replicas_of(owner) - rollout.max_unavailable(owner)
        new_missing = replicas_of(new) - total([new], "availableReplicas")
        left = sum(sizes) + replicas_of(new) - least - new_missing
        if not sum(sizes) or left <= 0:
            return sizes
        for at, each in enumerate(old):
            take = min(max(left, 0), sizes[at] - total([each], "availableReplicas")) if sizes[at] else 0
            sizes[at] -= max(take, 0)
            left -= max(take, 0)
        more = total([*old, new], "availableReplicas") - least
        for at in range(len(sizes)):
            take = min(max(more, 0), sizes[at])
            sizes[at] -= take
            more -= take
        return sizes

    def _replace(self, owner: Obj, sets: Sequence[Obj]) -> None:
        """Recreate: the new version starts after the last pod of the old ones."""
        new, old = self._versions(owner, sets)
        if total(old):
            old = self._scale_all(owner, old, [0] * len(old))
        elif not total(old, "replicas") and not self._runs(owner, old):
            if new is None:
                new, old = self._new_version(owner, sets)
            [new] = self._scale_all(owner, [new], [replicas_of(owner)])
            if rollout.is_complete(owner, owner["status"]):
                self._clean(owner, old)
        self._report(owner, old, new)

    def _runs(self, owner: Obj, old: Sequence[Obj]) -> bool:
        uids = {each["metadata"]["uid"] for each in old}
        pods = self._store.objects("pods", owner["metadata"]["namespace"]) if uids else []
        return any((controller_of(pod) or {}).get("uid") in uids and not is_terminal(pod) for pod in pods)

    def _clean(self, owner: Obj, old: Sequence[Obj]) -> None:
        """Delete the oldest empty versions above the limit of the history."""
        kept = [each for each in old if not is_terminating(each)]
        limit = owner["spec"].get("revisionHistoryLimit", rollout.NO_DEADLINE)
        for each in sorted(kept, key=revision_of)[: max(len(kept) - limit, 0)]:
            status = each.get("status") or {}
            seen = status.get("observedGeneration", 0) >= each["metadata"].get("generation", 1)
            if not replicas_of(each) and not status.get("replicas") and seen:
                delete(self.client, self.owned, each)

    def _report(self, owner: Obj, old: Sequence[Obj], new: Obj | None, *, progress: bool = True) -> None:
        """State the counts and conditions; look again after the deadline of the progress."""
        now = self._timeline.now
        every = [*old, *([new] if new is not None else [])]
        status = rollout.counted(owner, every, new, stamp(now))
        if progress:
            conditions = rollout.with_progress(owner, status, new, now)
            status["conditions"] = rollout.with_failure(conditions, old, new)
        self._state(owner, status, "terminatingReplicas", "collisionCount")
        limit = rollout.deadline_of(owner)
        if progress and limit is not None and not rollout.is_complete(owner, status):
            self._queue.add_after(name_of(owner), max((limit - now).total_seconds(), 0.0) + 1.0)


def _next_revision(old: Sequence[Obj]) -> int:
    return max(map(revision_of, old), default=0) + 1


def _desired(each: Obj, default: int) -> int:
    """The number of the Deployment at the last scaling of a ReplicaSet."""
    return int((each["metadata"].get("annotations") or {}).get(rollout.DESIRED, default))


def _is_saturated(new: Obj, wanted: int) -> bool:
    return replicas_of(new) == wanted == _desired(new, -1) == total([new], "availableReplicas")


def _without_hash(template: Obj) -> Obj:
    metadata = template.get("metadata") or {}
    labels = {name: value for name, value in (metadata.get("labels") or {}).items() if name != HASH}
    return template | {"metadata": metadata | {"labels": labels}}
