"""Gangs with a changeable width while they run. actuators/kubernetes/levers/width.py has the same rule.

Only Jobs without an owner are resized. A JobSet, RayJob or LeaderWorkerSet states its width in its own object, and its
controller chooses the pods to make and to remove. Its treatment of leaving pods was never recorded.
"""

from __future__ import annotations

from autopilot.contract.annotations import ELASTIC_JOB
from collectors.kubernetes.gangs import JOBSET_NAME, Gang
from collectors.kubernetes.serving import SET_NAME
from collectors.kubernetes.wire import Meta


def why_rigid(gang: Gang) -> str:
    """Reason against a lever on its width; "" for none, if its owner declares `members` and fewer `min-members`."""
    job = gang.job
    if job is None:
        return f"{_owner(gang)}, and only Jobs without an owner are resized"
    owner = job.metadata.owner
    if owner is not None:
        return f"{owner.kind} {owner.name} manages its Job, and only Jobs without an owner are resized"
    if job.spec.completions is not None or job.spec.completion_mode == "Indexed":
        return "its Job counts completions, so a pod that leaves would have to run again"
    if gang.workload is not None and job.metadata.note(ELASTIC_JOB) != "true":
        return f"Kueue keeps it: its Job does not have the annotation {ELASTIC_JOB}=true"
    return ""


def _owner(gang: Gang) -> str:
    """The owner of its pods."""
    for meta in [each.pod.metadata for each in gang.pods.values()][:1]:
        for kind, key in (("JobSet", JOBSET_NAME), ("LeaderWorkerSet", SET_NAME)):
            if meta.label(key):
                return f"{kind} {meta.label(key)} manages its pods"
    metas: list[Meta] = [gang.workload.metadata] if gang.workload is not None else []
    metas += [each.pod.metadata for each in gang.pods.values()][:1]
    owner = next((meta.owner for meta in metas if meta.owner is not None and meta.owner.kind != "Pod"), None)
    return f"{owner.kind} {owner.name} manages its pods" if owner is not None else "it has no Job"
