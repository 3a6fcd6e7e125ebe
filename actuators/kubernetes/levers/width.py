"""Number of pods allowed for a Job: its owner's declaration, and the obstacles to a change of its width.

A Job is elastic if its owner declares `members` and fewer `min-members`, and if a leaving pod does not have to run
again: it counts no completions. Kueue changes the width of running work only with its annotation `elastic-job`.
"""

from __future__ import annotations

from actuators.kubernetes.api import Obj
from actuators.kubernetes.objects import Target, annotation, devices, label
from autopilot.contract.annotations import ELASTIC_JOB
from autopilot.contract.tree import PREFIX

GPU = "nvidia.com/gpu"


def rigid(target: Target) -> str:
    """Reason for a fixed width; "" for none."""
    job = target.job
    if not job:
        return "it is no Job"
    owners = job["metadata"].get("ownerReferences") or ()
    owner = next((each for each in owners if each.get("controller")), None)
    if owner is not None:
        return f"{owner['kind']} {owner['name']} manages its Job"
    if job["spec"].get("completions") is not None or job["spec"].get("completionMode") == "Indexed":
        return "its Job counts completions, so a pod that leaves would have to run again"
    least, most = bounds(job)
    if not 0 < least < most:
        return f"its Job does not declare {PREFIX}members and a smaller {PREFIX}min-members"
    if target.workload and annotation(job, ELASTIC_JOB) != "true":
        return f"Kueue keeps its width: its Job does not have the annotation {ELASTIC_JOB}=true"
    if not units_of(job):
        return "its pods request no whole GPU"
    return ""


def bounds(job: Obj) -> tuple[int, int]:
    """The fewest and the most pods allowed by its owner; 0: not declared."""
    return _declared(job, "min-members"), _declared(job, "members")


def width_of(job: Obj) -> int:
    """The requested pods of a Job."""
    return int(job["spec"].get("parallelism", 1))


def units_of(job: Obj) -> int:
    """GPUs of one of its pods."""
    found = 0
    for each in job["spec"]["template"]["spec"].get("containers") or ():
        resources = each.get("resources") or {}
        wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        found += devices(GPU, wanted.get(GPU, 0))
    return found


def _declared(job: Obj, name: str) -> int:
    """A number of the workload contract on the Job or its template; 0 for none."""
    for found in (job, job["spec"]["template"]):
        text = annotation(found, PREFIX + name) or label(found, PREFIX + name)
        if text.isdecimal() and len(text) < 7:
            return int(text)
    return 0
