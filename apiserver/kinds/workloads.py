"""Controllers of pods and their budgets: apps, batch, policy."""

from __future__ import annotations

from apiserver.kinds.base import STATUS, Kind, Subresource, nothing
from apiserver.kinds.jobs import job_deletion, job_errors, job_status_errors, job_update_errors
from apiserver.kinds.workload_defaults import (
    default_budget,
    default_deployment,
    default_job,
    default_replica_set,
    default_stateful_set,
    label_job,
    select_job,
)

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
        default=default,
        generation=True,
        counts_annotations=kind == "Deployment",
    )
    for plural, kind, short, default in (
        ("deployments", "Deployment", "deploy", default_deployment),
        ("replicasets", "ReplicaSet", "rs", default_replica_set),
        ("statefulsets", "StatefulSet", "sts", default_stateful_set),
        ("daemonsets", "DaemonSet", "ds", nothing),
    )
)
CONTROLLER_REVISIONS = Kind("apps", "v1", "controllerrevisions", "ControllerRevision")
JOBS = Kind(
    "batch", "v1", "jobs", "Job", categories=ALL, generation=True,
    subresources={"status": Subresource("status", validate=job_status_errors)},
    fields=("status.successful",), default=default_job, prepare_create=select_job,
    finish_create=label_job, validate=job_errors, validate_again=job_errors, validate_update=job_update_errors,
    deletion=job_deletion,
)  # fmt: skip
CRON_JOBS = Kind(
    "batch", "v1", "cronjobs", "CronJob", short_names=("cj",), categories=ALL, subresources={"status": STATUS},
    generation=True,
)  # fmt: skip
BUDGETS = Kind(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", short_names=("pdb",),
    subresources={"status": STATUS}, generation=True, default=default_budget,
)  # fmt: skip
WORKLOADS = (*APPS, CONTROLLER_REVISIONS, JOBS, CRON_JOBS, BUDGETS)
