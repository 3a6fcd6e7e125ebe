"""Stop pods without a Job or queue by the Eviction API: disruption budgets are honoured, grace is given.

All evictions are tried first, and nothing is evicted if one of them is refused. A trial does not use up a budget, so a
budget may still refuse the second pod of a gang; the rest of the gang follows once the budget allows it. Pods whose Job
would fail by it are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from actuators.kubernetes.api import Api, Obj, Ref, unread
from actuators.kubernetes.levers.base import Effect, Ended, Lever, Progress, Rule, Tools, Waiting, ended_by
from actuators.kubernetes.levers.deactivate import of_pods
from actuators.kubernetes.levers.evicting import after_saving, evict_all, take_back
from actuators.kubernetes.levers.saving import ASKED
from actuators.kubernetes.objects import Target, annotation
from actuators.kubernetes.writing import each
from autopilot.core.effects.evict import EvictOperation
from autopilot.core.model.records import Cause, Instruction, OutcomeKind
from autopilot.core.model.stops import Save, StopReason
from autopilot.core.model.units import counted
from autopilot.core.model.verb import asked

BACKOFF_LIMIT, UNLIMITED = 6, 2**31 - 1
"""`backoffLimit` of a Job by default, without and with a limit for each index."""
INDEX = "batch.kubernetes.io/job-completion-index"
FAILURES_OF_INDEX = "batch.kubernetes.io/job-index-failure-count"
BY_SIGNAL = (143, 137)
"""Exit codes of a container ended by SIGTERM or SIGKILL."""


def suits(_instruction: Instruction, target: Target) -> str:
    """Pods on their own, of a group, or of a service."""
    if target.job:
        return "its Job is stopped as a whole"
    if target.workload and not of_pods(target.workload):
        return "Kueue stops it as a whole"
    return "" if target.of("Pod") else "it has no pods"


def _stop(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:  # noqa: ARG001 - as every step
    operation = asked(effect.instruction.operation, EvictOperation)
    answers = each(target.of("Pod"), tools.api.read)
    failed = unread(answers)
    if failed is not None:
        return ended_by(failed, "its pods")  # the rest of the gang would stop without this one
    pods = [each.body for each in answers if each.ok and _stays(each.body)]
    if not pods:
        return Waiting("its pods stop")
    harm = _harm(tools.api, [each.body for each in answers if each.ok and not _is_over(each.body)], operation.reason)
    if harm is not None:
        return harm
    grace_s = operation.grace_s if operation.save != Save.SKIP and operation.grace_s > 0 else None
    begun = any(each.ok and each.body["metadata"].get("deletionTimestamp") for each in answers)
    _, held = evict_all(tools, effect, pods, grace_s, begun=begun)
    return held or Waiting("its pods stop")


def _is_over(pod: Obj) -> bool:
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def _stays(pod: Obj) -> bool:
    return not _is_over(pod) and not pod["metadata"].get("deletionTimestamp")


def _harm(api: Api, pods: Sequence[Obj], reason: StopReason) -> Progress | None:
    """Reason against the eviction of pods, those on their way out included; None: no objection."""
    of_job: dict[Ref, list[Obj]] = {}
    for pod in pods:
        meta = pod["metadata"]
        owner = next((each for each in meta.get("ownerReferences") or () if each.get("controller")), None)
        if owner is None and reason.continues_elsewhere:
            why_not = f"no controller makes pod {meta['name']} again"
            return Ended(OutcomeKind.DECLINED, why_not, cause=Cause.HARM)
        if owner is not None and owner["kind"] == "Job":
            of_job.setdefault(Ref("Job", meta["namespace"], owner["name"], owner["uid"]), []).append(pod)
    for ref, mine in of_job.items():
        answer = api.read(ref)
        if not answer.ok:
            return ended_by(answer, f"reading {ref.shown}")
        why_not = job_fails(answer.body, mine)
        if why_not:
            return Ended(OutcomeKind.DECLINED, why_not, cause=Cause.HARM)
    return None


def job_fails(job: Obj, pods: Sequence[Obj]) -> str:
    """Reason for the failure of a Job, or of one index for good, by the eviction of these pods; "" for none."""
    name, spec = job["metadata"]["name"], job["spec"]
    action = _action(spec)
    if not pods or action == "Ignore":
        return ""
    if action in {"FailJob", "FailIndex"}:
        return f"the eviction would fail Job {name}: its podFailurePolicy says {action} for it"
    each_index = spec.get("backoffLimitPerIndex")
    for pod in pods if each_index is not None else ():
        failed = annotation(pod, FAILURES_OF_INDEX)
        if (int(failed) if failed.isdecimal() else 0) >= each_index:
            index = annotation(pod, INDEX) or "?"
            return f"the eviction would fail index {index} of Job {name}: its {each_index} allowed failures are used"
    limit = spec.get("backoffLimit", BACKOFF_LIMIT if each_index is None else UNLIMITED)
    failed_before = job.get("status", {}).get("failed", 0)
    if failed_before + len(pods) <= limit:
        return ""
    more = f" and {counted(len(pods), 'pod')} would leave" if len(pods) > 1 else ""
    return f"the eviction would fail Job {name}: {failed_before} of its {limit} allowed failures are used{more}"


def _action(spec: Obj) -> str:
    """Action of the podFailurePolicy of a Job for an evicted pod: that of the first matching rule, "" for none.

    A rule about exit codes matches if it names that of a container ended by SIGTERM or SIGKILL. A program may choose
    another one, so such a rule is not trusted to ignore the failure.
    """
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        action, codes = str(rule.get("action", "")), rule.get("onExitCodes") or {}
        named = {each in (codes.get("values") or ()) for each in BY_SIGNAL}
        if codes and action != "Ignore" and (codes.get("operator") == "In") in named:
            return action
        kinds = {each.get("type") for each in rule.get("onPodConditions") or () if each.get("status", "True") == "True"}
        if "DisruptionTarget" in kinds:
            return action
    return ""


LEVER = Lever(
    "evict-pods",
    frozenset({"evict"}),
    "evict pods by the Eviction API, under disruption budgets",
    (
        ASKED,
        Rule("", "pods/eviction", ("create",)),
        Rule("batch", "jobs", ("get",)),
    ),
    suits,
    after_saving(_stop),
    take_back,
)
