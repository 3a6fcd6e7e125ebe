"""Stop pods that no Job or queue stands for, by the Eviction API: disruption budgets are honoured, grace is given.

All evictions are tried first, and nothing is evicted where one of them is refused. A trial does not use up a budget, so
a budget may still refuse the second pod of a gang; the rest of the gang follows when the budget allows it.
Pods whose Job would fail by it are left alone.
"""

from __future__ import annotations

from actuators.kubernetes.api import Api, Obj, Ref, unread
from actuators.kubernetes.levers.base import Effect, Ended, Lever, Progress, Rule, Tools, Waiting, ended_by
from actuators.kubernetes.levers.deactivate import of_pods
from actuators.kubernetes.levers.evicting import after_saving, evict_all, take_back
from actuators.kubernetes.objects import Target
from actuators.kubernetes.writing import each
from autopilot.core.model.operations import EvictOperation, Save, StopReason
from autopilot.core.model.records import Cause, Instruction, OutcomeKind

BACKOFF_LIMIT = 6
"""`backoffLimit` of a Job that states none."""


def suits(_instruction: Instruction, target: Target) -> str:
    """Pods on their own, of a group, or of a service."""
    if target.job:
        return "its Job is stopped as a whole"
    if target.workload and not of_pods(target.workload):
        return "Kueue stops it as a whole"
    return "" if target.of("Pod") else "it has no pods"


def _stop(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:  # noqa: ARG001 - as every step
    operation = effect.instruction.operation
    if not isinstance(operation, EvictOperation):
        return Ended(OutcomeKind.CONFLICT, "it is no eviction")
    answers = each(target.of("Pod"), tools.api.read)
    failed = unread(answers)
    if failed is not None:
        return ended_by(failed, "its pods")  # the rest of the gang would stop without this one
    pods = [each.body for each in answers if each.ok and _stays(each.body)]
    if not pods:
        return Waiting("its pods stop")
    for pod in pods:
        why_not = _left_alone(tools.api, pod, operation.reason)
        if why_not:
            return Ended(OutcomeKind.DECLINED, why_not, cause=Cause.HARM)
    grace_s = operation.grace_s if operation.save != Save.SKIP and operation.grace_s > 0 else None
    begun = any(each.ok and each.body["metadata"].get("deletionTimestamp") for each in answers)
    _, held = evict_all(tools, effect, pods, grace_s, begun=begun)
    return held or Waiting("its pods stop")


def _stays(pod: Obj) -> bool:
    over = pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
    return not over and not pod["metadata"].get("deletionTimestamp")


def _left_alone(api: Api, pod: Obj, reason: StopReason) -> str:
    """Why a pod is not evicted; "" where it may be."""
    meta = pod["metadata"]
    owner = next((each for each in meta.get("ownerReferences") or () if each.get("controller")), None)
    if owner is None:
        return f"no controller makes pod {meta['name']} again" if reason.continues_elsewhere else ""
    if owner["kind"] != "Job":
        return ""
    answer = api.read(Ref("Job", meta["namespace"], owner["name"], owner["uid"]))
    return job_fails(answer.body) if answer.ok else f"its Job {owner['name']} cannot be read: {answer.message}"


def job_fails(job: Obj) -> str:
    """Why the eviction of a pod would fail its Job; "" where it would not."""
    limit, failed = job["spec"].get("backoffLimit", BACKOFF_LIMIT), job.get("status", {}).get("failed", 0)
    for rule in (job["spec"].get("podFailurePolicy") or {}).get("rules") or ():
        kinds = {each.get("type") for each in rule.get("onPodConditions") or () if each.get("status", "True") == "True"}
        if "DisruptionTarget" in kinds:
            if rule.get("action") == "Ignore":
                return ""
            break
    if failed < limit:
        return ""
    name = job["metadata"]["name"]
    return f"the eviction would fail Job {name}: {failed} of its {limit} allowed failures are used"


LEVER = Lever(
    "evict-pods",
    frozenset({"evict"}),
    "evict pods by the Eviction API, under disruption budgets",
    (
        Rule("", "pods", ("get", "patch")),
        Rule("", "pods/eviction", ("create",)),
        Rule("batch", "jobs", ("get",)),
    ),
    suits,
    after_saving(_stop),
    take_back,
)
