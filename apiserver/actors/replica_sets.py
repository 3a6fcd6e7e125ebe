"""ReplicaSets: pods of one version in the requested number."""

from __future__ import annotations

from typing import Any

from apiserver.actors import job_status
from apiserver.actors.job_status import owner_reference
from apiserver.actors.objects import delete, name_of
from apiserver.actors.owners import Owners, available_in_s, pod_from
from apiserver.actors.pod_status import condition, is_active, is_ready, is_terminating
from apiserver.errors import StatusError
from apiserver.timeline import stamp
from apiserver.users import service_account

Obj = dict[str, Any]
FAILURE = "ReplicaFailure"


class ReplicaSets(Owners):
    """Keeps the number of pods of a ReplicaSet; terminating pods are replaced at once."""

    resource = "replicasets.apps"
    kind = "ReplicaSet"
    account = "replicaset-controller"
    user = service_account("kube-system", account)

    def sync(self, owner: Obj, held: list[Obj]) -> None:
        """Create or delete pods."""
        active = [pod for pod in held if is_active(pod)]
        failed: StatusError | None = None
        try:
            if not is_terminating(owner):
                self._manage(owner, active)
        except StatusError as error:
            failed = error
        min_ready_s = owner["spec"].get("minReadySeconds", 0)
        waits_s = [wait_s for pod in active if (wait_s := available_in_s(pod, min_ready_s, self._timeline)) is not None]
        labels = (owner["spec"]["template"].get("metadata") or {}).get("labels") or {}
        status: Obj = {
            "replicas": len(active),
            "fullyLabeledReplicas": sum(labels.items() <= pod["metadata"].get("labels", {}).items() for pod in active),
            "readyReplicas": sum(map(is_ready, active)),
            "availableReplicas": waits_s.count(0.0),
            "terminatingReplicas": sum(is_terminating(pod) for pod in held),
            "conditions": self._conditions(owner, failed),
        }
        self._state(owner, status, "replicas", "terminatingReplicas")
        if any(waits_s):
            self._queue.add_after(name_of(owner), min(filter(None, waits_s)))
        if failed is not None:
            raise failed

    def _manage(self, owner: Obj, active: list[Obj]) -> None:
        missing = int(owner["spec"].get("replicas", 1)) - len(active)
        for _ in range(missing):
            metadata: Obj = {
                "generateName": f"{owner['metadata']['name']}-",
                "namespace": owner["metadata"]["namespace"],
                "ownerReferences": [owner_reference("apps/v1", self.kind, owner)],
            }
            try:
                pod = self.client.create("pods", pod_from(owner["spec"]["template"], metadata))
            except StatusError as error:
                self._events.warning(owner, "FailedCreate", f"Error creating: {error.message}")
                raise
            self._events.normal(owner, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")
        for pod in sorted(active, key=job_status.removal_order)[: max(-missing, 0)]:
            if delete(self.client, "pods", pod):
                self._events.normal(owner, "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")

    def _conditions(self, owner: Obj, failed: StatusError | None) -> list[Obj]:
        """The conditions with a failure to create pods, stated up to the next success."""
        kept = [each for each in (owner.get("status") or {}).get("conditions") or [] if each["type"] != FAILURE]
        old = condition(owner, FAILURE)
        if failed is None:
            return kept
        now = stamp(self._timeline.now)
        new = {"type": FAILURE, "status": "True", "lastTransitionTime": now, "reason": "FailedCreate"}
        return [*kept, old or new | {"message": failed.message}]
