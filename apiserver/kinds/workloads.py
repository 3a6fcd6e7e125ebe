"""Controllers of pods and their budgets: apps, batch, policy."""

from __future__ import annotations

from apiserver.kinds.base import STATUS, Kind, Subresource, nothing, valid, valid_update
from apiserver.kinds.jobs import job_deletion, job_errors, job_status_errors, job_update_errors
from apiserver.kinds.workload_checks import (
    budget_changes,
    budget_errors,
    deployment_changes,
    deployment_errors,
    replica_set_changes,
    replica_set_errors,
    stateful_set_changes,
    stateful_set_errors,
)
from apiserver.kinds.workload_defaults import (
    default_budget,
    default_deployment,
    default_job,
    default_replica_set,
    default_stateful_set,
    label_job,
    select_job,
)
from apiserver.metadata import dns_label_errors, subdomain_errors

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
        validate=check,
        validate_update=changes,
        name_errors=dns_label_errors if kind == "StatefulSet" else subdomain_errors,
    )
    for plural, kind, short, default, check, changes in (
        ("deployments", "Deployment", "deploy", default_deployment, deployment_errors, deployment_changes),
        ("replicasets", "ReplicaSet", "rs", default_replica_set, replica_set_errors, replica_set_changes),
        ("statefulsets", "StatefulSet", "sts", default_stateful_set, stateful_set_errors, stateful_set_changes),
        ("daemonsets", "DaemonSet", "ds", nothing, valid, valid_update),
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
    subresources={"status": STATUS}, generation=True, default=default_budget, validate=budget_errors,
    validate_update=budget_changes,
)  # fmt: skip
WORKLOADS = (*APPS, CONTROLLER_REVISIONS, JOBS, CRON_JOBS, BUDGETS)
