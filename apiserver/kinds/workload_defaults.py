"""Defaults by the server for Jobs, Deployments, ReplicaSets, StatefulSets and budgets."""

from __future__ import annotations

from typing import Any

from apiserver.kinds.pods import default_pod_spec

Obj = dict[str, Any]
JOB_NAME = ("batch.kubernetes.io/job-name", "job-name")
JOB_UID = ("batch.kubernetes.io/controller-uid", "controller-uid")


def default_template(template: Obj) -> None:
    """Defaults of a template of pods."""
    template.setdefault("metadata", {})
    default_pod_spec(template.setdefault("spec", {}))


def default_job(job: Obj) -> None:
    """Defaults of a Job: one pod, six retries, indexed or not."""
    spec = job.setdefault("spec", {})
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = spec["parallelism"] = 1
    if spec.get("parallelism") is None:
        spec["parallelism"] = 1
    if spec.get("backoffLimit") is None:
        spec["backoffLimit"] = 6
    spec.setdefault("completionMode", "NonIndexed")
    if spec.get("suspend") is None:
        spec["suspend"] = False
    if spec.get("manualSelector") is None:
        spec["manualSelector"] = False
    spec.setdefault("podReplacementPolicy", "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed")
    default_template(spec.setdefault("template", {}))
    job.setdefault("status", {})


def select_job(job: Obj) -> None:
    """Add the labels and selector tying the pods of a new Job to it; made of its name and uid."""
    job["status"] = {}
    if job["spec"].get("manualSelector"):
        return
    name, uid = job["metadata"].get("name", ""), job["metadata"]["uid"]
    made = dict.fromkeys(JOB_NAME, name) | dict.fromkeys(JOB_UID, uid)
    template = job["spec"]["template"]["metadata"]
    template["labels"] = (template.get("labels") or {}) | made
    selector = job["spec"].setdefault("selector", {})
    selector["matchLabels"] = (selector.get("matchLabels") or {}) | {JOB_UID[0]: uid}


def label_job(job: Obj) -> None:
    """A Job without labels has those of its template, as the server reads it back."""
    metadata = job["metadata"]
    if not metadata.get("labels") and job["spec"]["template"]["metadata"].get("labels"):
        metadata["labels"] = dict(job["spec"]["template"]["metadata"]["labels"])


def default_replicas(obj: Obj) -> None:
    """Shared defaults of ReplicaSets, Deployments and StatefulSets."""
    spec = obj.setdefault("spec", {})
    if spec.get("replicas") is None:
        spec["replicas"] = 1
    default_template(spec.setdefault("template", {}))
    obj.setdefault("status", {})


def default_replica_set(obj: Obj) -> None:
    """Defaults of a ReplicaSet."""
    default_replicas(obj)
    obj["status"].setdefault("replicas", 0)


def default_deployment(obj: Obj) -> None:
    """Defaults of a Deployment: a rolling update by quarters."""
    default_replicas(obj)
    spec = obj["spec"]
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)


def default_stateful_set(obj: Obj) -> None:
    """Defaults of a StatefulSet: ordered, with rolling updates."""
    default_replicas(obj)
    spec = obj["spec"]
    spec.setdefault("podManagementPolicy", "OrderedReady")
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("partition", 0)
        rolling.setdefault("maxUnavailable", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("persistentVolumeClaimRetentionPolicy", {"whenDeleted": "Retain", "whenScaled": "Retain"})
    obj["status"].setdefault("replicas", 0)
    obj["status"].setdefault("availableReplicas", 0)


def default_budget(obj: Obj) -> None:
    """A new budget allows nothing until the controller has counted."""
    status = obj.setdefault("status", {})
    for name in ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"):
        status.setdefault(name, 0)
