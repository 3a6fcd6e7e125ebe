"""Controllers of pods and their budgets: apps, batch, policy."""

from __future__ import annotations

from apiserver.kinds.base import STATUS, Kind

ALL = ("all",)
APPS = tuple(
    Kind(
        "apps",
        "v1",
        plural,
        kind,
        short_names=(short,),
        categories=ALL,
        subresources={"status": STATUS},
        generation=True,
    )
    for plural, kind, short in (
        ("deployments", "Deployment", "deploy"),
        ("replicasets", "ReplicaSet", "rs"),
        ("statefulsets", "StatefulSet", "sts"),
        ("daemonsets", "DaemonSet", "ds"),
    )
)
CONTROLLER_REVISIONS = Kind("apps", "v1", "controllerrevisions", "ControllerRevision")
JOBS = Kind(
    "batch", "v1", "jobs", "Job", categories=ALL, subresources={"status": STATUS}, generation=True,
    fields=("status.successful",),
)  # fmt: skip
CRON_JOBS = Kind(
    "batch", "v1", "cronjobs", "CronJob", short_names=("cj",), categories=ALL, subresources={"status": STATUS},
    generation=True,
)  # fmt: skip
BUDGETS = Kind(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", short_names=("pdb",),
    subresources={"status": STATUS}, generation=True,
)  # fmt: skip
WORKLOADS = (*APPS, CONTROLLER_REVISIONS, JOBS, CRON_JOBS, BUDGETS)
