"""StatefulSets: pods with ordinals, made and exchanged one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from apiserver.actors.job_status import owner_reference
from apiserver.actors.objects import delete, name_of
from apiserver.actors.owners import Owners, available_in_s, pod_from, template_hash
from apiserver.actors.pod_status import is_terminal, is_terminating, phase_of
from apiserver.actors.rollout import replicas_of, scaled
from apiserver.errors import StatusError
from apiserver.users import service_account

Obj = dict[str, Any]
REVISION = "controller-revision-hash"
NAME_LABEL = "statefulset.kubernetes.io/pod-name"
INDEX_LABEL = "apps.kubernetes.io/pod-index"
COUNTS = ("replicas", "readyReplicas", "availableReplicas", "currentReplicas", "updatedReplicas")


@dataclass(slots=True)
class _Sync:
    """One look at a StatefulSet: its pods by ordinal, its two revisions, and the counts of its next status."""

    owner: Obj
    pods: dict[int, Obj]
    current: str
    update: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    @property
    def spec(self) -> Obj:
        """Of the StatefulSet."""
        found: Obj = self.owner["spec"]
        return found

    @property
    def ordinals(self) -> range:
        """Ordinals of the expected pods."""
        first = int((self.spec.get("ordinals") or {}).get("start", 0))
        return range(first, first + replicas_of(self.owner))

    def count(self, pod: Obj, number: int = 1) -> None:
        """Count a pod for its revision."""
        revision = pod["metadata"]["labels"].get(REVISION)
        for name, wanted in (("currentReplicas", self.current), ("updatedReplicas", self.update)):
            self.counts[name] += number * (revision == wanted)


class StatefulSets(Owners):
    """One pod at a time unless podManagementPolicy is Parallel. Volumes are not made."""

    resource = "statefulsets.apps"
    kind = "StatefulSet"
    account = "statefulset-controller"
    user = service_account("kube-system", account)

    def start(self) -> None:
        """Follow StatefulSets and pods."""
        super().start()
        self._templates: dict[tuple[str, str], Obj] = {}  # by uid of the set and name of the revision

    def _may_adopt(self, owner: Obj, obj: Obj) -> bool:
        parent, _, ordinal = obj["metadata"]["name"].rpartition("-")
        return parent == owner["metadata"]["name"] and ordinal.isdigit() and super()._may_adopt(owner, obj)

    def sync(self, owner: Obj, held: list[Obj]) -> None:
        """Create the missing ordinals, replace failed pods, remove those above the number, exchange old ones."""
        metadata, spec, old = owner["metadata"], owner["spec"], owner.get("status") or {}
        update = f"{metadata['name']}-{template_hash(spec['template'])}"
        self._templates[metadata["uid"], update] = spec["template"]
        current = old.get("currentRevision", update)
        if (metadata["uid"], current) not in self._templates:
            current = update
        pods = {int(pod["metadata"]["name"].rpartition("-")[2]): pod for pod in held}
        sync = _Sync(owner, pods, current, update)
        min_ready_s = spec.get("minReadySeconds", 0)
        waits_s = []
        for pod in held:
            wait_s = available_in_s(pod, min_ready_s, self._timeline) if phase_of(pod) == "Running" else None
            sync.counts["replicas"] += 1
            sync.counts["readyReplicas"] += wait_s is not None
            sync.counts["availableReplicas"] += wait_s == 0
            waits_s += [wait_s] if wait_s else []
            if not is_terminating(pod):
                sync.count(pod)
        failed: StatusError | None = None
        try:
            if not is_terminating(owner) and not self._fill(sync) and not self._shrink(sync):
                self._exchange(sync)
        except StatusError as error:
            failed = error
        self._report(sync)
        if waits_s:
            self._queue.add_after(name_of(owner), min(waits_s))
        if failed is not None:
            raise failed

    def _report(self, sync: _Sync) -> None:
        old, counts = sync.owner.get("status") or {}, sync.counts
        wanted = replicas_of(sync.owner)
        rolling = (sync.spec.get("updateStrategy") or {}).get("type", "RollingUpdate") == "RollingUpdate"
        whole = all(counts[name] == wanted for name in ("replicas", "readyReplicas", "updatedReplicas"))
        if rolling and whole:
            counts["currentReplicas"], sync.current = counts["updatedReplicas"], sync.update
        status: Obj = {**counts, "currentRevision": sync.current, "updateRevision": sync.update}
        status |= {"collisionCount": 0, "conditions": old.get("conditions")}
        self._state(sync.owner, status, "replicas", "availableReplicas", "collisionCount")

    def _is_healthy(self, sync: _Sync, pod: Obj) -> bool:
        """True if a pod runs, is available, and stays."""
        wait_s = available_in_s(pod, sync.spec.get("minReadySeconds", 0), self._timeline)
        return phase_of(pod) == "Running" and wait_s == 0 and not is_terminating(pod)

    def _one_by_one(self, sync: _Sync) -> bool:
        return bool(sync.spec.get("podManagementPolicy", "OrderedReady") == "OrderedReady")

    def _fill(self, sync: _Sync) -> bool:
        """Replace ended pods, create missing ones; True if the rest of the sync has to wait."""
        for ordinal in sync.ordinals:
            pod = sync.pods.get(ordinal)
            if pod is not None and is_terminal(pod) and not is_terminating(pod):
                self._recreate(sync, pod)
                return True
            if pod is None:
                self._create(sync, ordinal)
            elif self._is_healthy(sync, pod):
                continue
            if self._one_by_one(sync):
                return True
        return False

    def _recreate(self, sync: _Sync, pod: Obj) -> None:
        space, name = name_of(sync.owner)
        if phase_of(pod) == "Failed":
            text = f"StatefulSet {space}/{name} is recreating failed Pod {pod['metadata']['name']}"
            self._events.warning(sync.owner, "RecreatingFailedPod", text)
        else:
            text = f"StatefulSet {space}/{name} is recreating terminated Pod {pod['metadata']['name']}"
            self._events.normal(sync.owner, "RecreatingTerminatedPod", text)
        self._delete(sync, pod)
        sync.counts["replicas"] -= 1

    def _create(self, sync: _Sync, ordinal: int) -> None:
        spec, metadata = sync.spec, sync.owner["metadata"]
        strategy = spec.get("updateStrategy") or {}
        kept = sync.ordinals.start + int((strategy.get("rollingUpdate") or {}).get("partition") or 0)
        is_old = strategy.get("type", "RollingUpdate") == "RollingUpdate" and ordinal < kept
        revision = sync.current if is_old else sync.update
        name = f"{metadata['name']}-{ordinal}"
        made = pod_from(
            self._templates[metadata["uid"], revision],
            {
                "name": name,
                "generateName": f"{metadata['name']}-",
                "namespace": metadata["namespace"],
                "labels": {REVISION: revision, NAME_LABEL: name, INDEX_LABEL: str(ordinal)},
                "ownerReferences": [owner_reference("apps/v1", self.kind, sync.owner)],
            },
        )
        made["spec"] = made["spec"] | {"hostname": name, "subdomain": spec.get("serviceName", "")}
        text = f"create Pod {name} in StatefulSet {metadata['name']}"
        try:
            self.client.create("pods", made)
        except StatusError as error:
            self._events.warning(sync.owner, "FailedCreate", f"{text} failed error: {error.message}")
            raise
        self._events.normal(sync.owner, "SuccessfulCreate", f"{text} successful")
        sync.counts["replicas"] += 1
        sync.count(made)

    def _shrink(self, sync: _Sync) -> bool:
        """Delete the highest ordinals above the number; True if the rest of the sync has to wait."""
        for ordinal in sorted(set(sync.pods) - set(sync.ordinals), reverse=True):
            pod = sync.pods[ordinal]
            if not is_terminating(pod):
                self._delete(sync, pod)
            if self._one_by_one(sync):
                return True
        return False

    def _exchange(self, sync: _Sync) -> None:
        """Delete pods of an old revision from the highest ordinal on, as many as may be missing."""
        strategy = sync.spec.get("updateStrategy") or {}
        if strategy.get("type", "RollingUpdate") != "RollingUpdate":
            return
        rolling = strategy.get("rollingUpdate") or {}
        most = max(scaled(rolling.get("maxUnavailable") or 1, replicas_of(sync.owner), up=False), 1)
        pods = [sync.pods[each] for each in sync.ordinals if each in sync.pods]
        free = most - sum(not self._is_healthy(sync, pod) for pod in pods)
        old: Sequence[int] = [
            each
            for each in sync.ordinals[int(rolling.get("partition") or 0) :]
            if each in sync.pods and sync.pods[each]["metadata"]["labels"].get(REVISION) != sync.update
        ]
        for ordinal in sorted(old, reverse=True)[: max(free, 0)]:
            if not is_terminating(sync.pods[ordinal]):
                self._delete(sync, sync.pods[ordinal])

    def _delete(self, sync: _Sync, pod: Obj) -> None:
        name = pod["metadata"]["name"]
        if delete(self.client, "pods", pod):
            text = f"delete Pod {name} in StatefulSet {sync.owner['metadata']['name']} successful"
            self._events.normal(sync.owner, "SuccessfulDelete", text)
            sync.count(pod, -1)
