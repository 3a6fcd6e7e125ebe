"""The webhooks of Kueue as a step of admission; they may be down."""

from __future__ import annotations

from typing import Any

from apiserver.admission.base import Attributes
from apiserver.errors import FieldError, WebhookError, denied_by_webhook, joined
from apiserver.kinds.base import State
from apiserver.kueue import elastic
from apiserver.kueue import webhook_rules as rules
from apiserver.kueue.config import Config
from apiserver.kueue.names import (
    ADMISSION_GATE,
    CLUSTER_QUEUES,
    COHORTS,
    DEFAULT_QUEUE,
    DEPLOYMENTS,
    FLAVORS,
    GROUP_INDEX_ANNOTATION,
    GROUP_INDEX_LABEL,
    IN_USE,
    JOBS,
    LOCAL_QUEUES,
    MANAGED,
    PODS,
    PRIORITY_LABEL,
    QUEUE_LABEL,
    ROLE_HASH,
    STATEFUL_SETS,
    SUSPENDED_BY,
    TOPOLOGY_GATE,
    WORKLOADS,
    annotations_of,
    controller_of,
    queue_name,
)
from apiserver.kueue.roles import role_hash
from apiserver.quantity import canonical

Obj = dict[str, Any]
# resource: name of the webhook, path, and operations of the mutating and of the validating one
MUTATING = {
    CLUSTER_QUEUES: ("mclusterqueue.kb.io", "kueue-x-k8s-io-v1beta2-clusterqueue", {"CREATE"}),
    DEPLOYMENTS: ("mdeployment.kb.io", "apps-v1-deployment", {"CREATE", "UPDATE"}),
    JOBS: ("mjob.kb.io", "batch-v1-job", {"CREATE"}),
    PODS: ("mpod.kb.io", "-v1-pod", {"CREATE"}),
    FLAVORS: ("mresourceflavor.kb.io", "kueue-x-k8s-io-v1beta2-resourceflavor", {"CREATE"}),
    STATEFUL_SETS: ("mstatefulset.kb.io", "apps-v1-statefulset", {"CREATE", "UPDATE"}),
    WORKLOADS: ("mworkload.kb.io", "kueue-x-k8s-io-v1beta2-workload", {"CREATE"}),
}
VALIDATING = {
    CLUSTER_QUEUES: ("vclusterqueue.kb.io", "kueue-x-k8s-io-v1beta2-clusterqueue"),
    COHORTS: ("vcohort.kb.io", "kueue-x-k8s-io-v1beta2-cohort"),
    DEPLOYMENTS: ("vdeployment.kb.io", "apps-v1-deployment"),
    JOBS: ("vjob.kb.io", "batch-v1-job"),
    PODS: ("vpod.kb.io", "-v1-pod"),
    FLAVORS: ("vresourceflavor.kb.io", "kueue-x-k8s-io-v1beta2-resourceflavor"),
    STATEFUL_SETS: ("vstatefulset.kb.io", "apps-v1-statefulset"),
    WORKLOADS: ("vworkload.kb.io", "kueue-x-k8s-io-v1beta2-workload"),
}
EXCLUDED = {"kube-system", "kueue-system"}  # namespaces whose jobs and pods the webhooks do not see
REFUSED = "dial tcp WEBHOOK: connect: connection refused"


class KueueWebhooks:
    """Mutating and validating webhooks. While `down`, every write in their scope fails with 500."""

    name = "kueue"

    def __init__(self, config: Config) -> None:
        self.config = config
        self.down = False

    def mutate(self, attributes: Attributes, server: State) -> None:
        """Suspend jobs, gate pods, canonical quantities, finalizers."""
        found = MUTATING.get(attributes.kind.resource)
        if found is None or attributes.subresource or attributes.operation not in found[2] or _excluded(attributes):
            return
        if self.down:
            raise unreachable(found[0], f"mutate-{found[1]}")
        obj = attributes.obj
        if attributes.kind.resource == PODS:
            _mutate_pod(obj, server)
        elif attributes.kind.resource == JOBS:
            _default_queue(obj, server)
            if queue_name(obj) or _managed_owner(obj, server):
                obj["spec"]["suspend"] = True
            if elastic.is_elastic(obj):
                elastic.gate(obj["spec"]["template"])
        elif attributes.kind.resource in {DEPLOYMENTS, STATEFUL_SETS}:
            _default_queue(obj, server)
            _mutate_serving(obj, attributes.kind.kind.lower())
        elif attributes.kind.resource in {CLUSTER_QUEUES, FLAVORS}:
            held = obj["metadata"].setdefault("finalizers", [])
            if IN_USE not in held:
                held.append(IN_USE)
            _canonical_quotas(obj)

    def validate(self, attributes: Attributes, server: State) -> None:
        """Refuse with 403."""
        found = VALIDATING.get(attributes.kind.resource)
        if found is None or attributes.operation not in {"CREATE", "UPDATE"} or _excluded(attributes):
            return
        if attributes.subresource and (attributes.kind.resource, attributes.subresource) != (WORKLOADS, "status"):
            return
        if self.down:
            raise unreachable(found[0], f"validate-{found[1]}")
        errors = self._errors(attributes.kind.resource, attributes.obj, attributes.old)
        if errors:
            raise denied_by_webhook(found[0], joined(errors))

    def _errors(self, resource: str, obj: Obj, old: Obj | None) -> list[FieldError]:
        if resource == WORKLOADS:
            return rules.workload(obj, old, boosts=self.config.priority_boost)
        if resource == CLUSTER_QUEUES:
            return rules.cluster_queue(obj)
        if resource == COHORTS:
            return rules.cohort(obj)
        if resource == FLAVORS:
            return rules.flavor(obj)
        if resource == JOBS:
            return rules.job(obj, old) + elastic.errors_of(obj, old)
        checks = {PODS: rules.pod, DEPLOYMENTS: rules.serving, STATEFUL_SETS: rules.stateful_set}
        check = checks.get(resource)
        return check(obj, old) if check is not None else []


def unreachable(webhook: str, path: str) -> WebhookError:
    """500: the API server cannot reach a webhook."""
    return WebhookError(webhook, f'Post "https://WEBHOOK/{path}?timeout=10s": {REFUSED}')


def _excluded(attributes: Attributes) -> bool:
    return attributes.kind.namespaced and attributes.namespace in EXCLUDED


def _default_queue(obj: Obj, server: State) -> None:
    """A LocalQueue named `default` takes objects without a queue."""
    metadata = obj["metadata"]
    if queue_name(obj) or controller_of(obj) is not None:
        return
    if server.store.get(LOCAL_QUEUES, metadata.get("namespace", ""), DEFAULT_QUEUE) is not None:
        metadata.setdefault("labels", {})[QUEUE_LABEL] = DEFAULT_QUEUE


OWNERS = {
    "Job": JOBS,
    "StatefulSet": STATEFUL_SETS,
    "Deployment": DEPLOYMENTS,
    "ReplicaSet": "replicasets.apps",
    "Pod": PODS,
}


def _managed_owner(obj: Obj, server: State) -> bool:
    """True if an owner of an object, at any distance, belongs to a queue."""
    namespace = obj["metadata"].get("namespace", "")
    for _ in range(10):
        reference = controller_of(obj)
        resource = OWNERS.get(reference["kind"]) if reference else None
        owner = server.store.get(resource, namespace, reference["name"]) if reference and resource else None
        if owner is None:
            return False
        if queue_name(owner):
            return True
        obj = owner
    return False


def _mutate_pod(pod: Obj, server: State) -> None:
    by_parent = SUSPENDED_BY in annotations_of(pod)
    metadata = pod["metadata"]
    if not by_parent:
        if _managed_owner(pod, server):
            return
        _default_queue(pod, server)
        if not queue_name(pod):
            return
        metadata.setdefault("labels", {})[MANAGED] = "true"
        held = metadata.setdefault("finalizers", [])
        if MANAGED not in held:
            held.append(MANAGED)
    index = annotations_of(pod).get(GROUP_INDEX_ANNOTATION)
    if index is not None:
        metadata.setdefault("labels", {})[GROUP_INDEX_LABEL] = metadata.get("labels", {}).get(index, "")
    gates = pod["spec"].setdefault("schedulingGates", [])
    for name in (ADMISSION_GATE, TOPOLOGY_GATE):
        if not any(each["name"] == name for each in gates):
            gates.append({"name": name})
    notes = metadata.setdefault("annotations", {})
    notes.setdefault(ROLE_HASH, role_hash(pod["spec"]))


def _mutate_serving(obj: Obj, kind: str) -> None:
    queue = queue_name(obj)
    if not queue:
        return
    metadata = obj["spec"]["template"].setdefault("metadata", {})
    metadata.setdefault("annotations", {})[SUSPENDED_BY] = kind
    if kind == "deployment":
        labels = metadata.setdefault("labels", {})
        labels[MANAGED] = "true"
        labels[QUEUE_LABEL] = queue
        priority = (obj["metadata"].get("labels") or {}).get(PRIORITY_LABEL)
        if priority:
            labels[PRIORITY_LABEL] = priority


def _canonical_quotas(obj: Obj) -> None:
    for group in (obj.get("spec") or {}).get("resourceGroups") or []:
        for flavor in group.get("flavors") or []:
            for each in flavor.get("resources") or []:
                for name in ("nominalQuota", "borrowingLimit", "lendingLimit"):
                    if name in each:
                        try:
                            each[name] = canonical(each[name])
                        except ValueError:
                            continue  # the schema refuses it
