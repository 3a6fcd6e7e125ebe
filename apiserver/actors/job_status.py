"""Conclusions of the Job controller from the pods of a Job: counts, indexes, backoff and end. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from apiserver.actors.pod_status import condition, is_terminating
from apiserver.timeline import parse_stamp

Obj = dict[str, Any]
TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
OWN_CONTROLLER = "kubernetes.io/job-controller"
BACKOFF_S = 10.0  # DefaultJobPodFailureBackOff
MAX_BACKOFF_S = 600.0  # MaxJobPodFailureBackOff
LIMIT_TEXT = "Job has reached the specified backoff limit"
DEADLINE_TEXT = "Job was active longer than specified deadline"
REACHED_TEXT = "Reached expected number of succeeded pods"


@dataclass(frozen=True, slots=True)
class End:
    """The end of a Job: the announcing condition, the final condition, reason and message."""

    target: str
    final: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Backoff:
    """Failures since the last success, and the time of the last failure."""

    failures: int = 0
    last: datetime | None = None

    def left_s(self, now: datetime) -> float:
        """Seconds to wait before the next pod."""
        if not self.failures or self.last is None:
            return 0.0
        wait_s: float = min(BACKOFF_S * 2 ** (self.failures - 1), MAX_BACKOFF_S)
        return max(wait_s - (now - self.last).total_seconds(), 0.0)

    def after(self, succeeded: Sequence[Obj], failed: Sequence[Obj]) -> Backoff:
        """The backoff after further ended pods."""
        times = sorted(finished_at(pod) for pod in failed)
        if not succeeded:
            return Backoff(self.failures + len(times), times[-1]) if times else self
        success = max(finished_at(pod) for pod in succeeded)
        later = [each for each in times if each > success]
        return Backoff(len(later), later[-1]) if later else Backoff()


def finished_at(pod: Obj) -> datetime:
    """End of a pod: the end of its containers, else its deletion, else its condition Ready, else its creation."""
    ends = [
        each["state"]["terminated"]["finishedAt"]
        for each in (pod.get("status") or {}).get("containerStatuses") or []
        if "finishedAt" in (each.get("state") or {}).get("terminated", {})
    ]
    if ends:
        return max(parse_stamp(each) for each in ends)
    metadata = pod["metadata"]
    if is_terminating(pod):
        return parse_stamp(metadata["deletionTimestamp"]) - timedelta(seconds=metadata["deletionGracePeriodSeconds"])
    ready = condition(pod, "Ready")
    return parse_stamp(ready.get("lastTransitionTime") or metadata["creationTimestamp"])


def is_finished(job: Obj) -> bool:
    """True if the Job is Complete or Failed."""
    return any(condition(job, name).get("status") == "True" for name in ("Complete", "Failed"))


def is_tracked(pod: Obj) -> bool:
    """True if the pod is still uncounted."""
    return TRACKING in (pod["metadata"].get("finalizers") or [])


def replaces_only_failed(job: Obj) -> bool:
    """True if terminating pods count until their end."""
    return bool(job["spec"].get("podReplacementPolicy") == "Failed")


def counts_as_failed(pod: Obj, job: Obj) -> bool:
    """True for a failed pod, and for a terminating one unless the Job replaces only failed pods."""
    phase = (pod.get("status") or {}).get("phase")
    if phase == "Failed":
        return True
    return not replaces_only_failed(job) and is_terminating(pod) and phase != "Succeeded"


def policy_action(job: Obj, pod: Obj) -> str:
    """The action of the first rule of podFailurePolicy to match a failed pod; "Count" if none does."""
    for rule in (job["spec"].get("podFailurePolicy") or {}).get("rules") or []:
        if _matches_codes(rule.get("onExitCodes"), pod) or _matches_conditions(rule.get("onPodConditions"), pod):
            return str(rule["action"])
    return "Count"


def _matches_codes(wanted: Obj | None, pod: Obj) -> bool:
    if not wanted:
        return False
    for each in (pod.get("status") or {}).get("containerStatuses") or []:
        code = (each.get("state") or {}).get("terminated", {}).get("exitCode", 0)
        named = wanted.get("containerName") in {None, each["name"]}
        if named and code and (code in wanted["values"]) is (wanted["operator"] == "In"):
            return True
    return False


def _matches_conditions(wanted: Sequence[Obj] | None, pod: Obj) -> bool:
    return any(condition(pod, each["type"]).get("status") == each.get("status", "True") for each in wanted or ())


def policy_failure(job: Obj, pods: Iterable[Obj]) -> End | None:
    """The end of a Job by the action FailJob of its podFailurePolicy for one of its pods."""
    for pod in pods:
        if (pod.get("status") or {}).get("phase") == "Failed" and policy_action(job, pod) == "FailJob":
            where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            return failure("PodFailurePolicy", f"Pod {where} failed with a FailJob rule of the pod failure policy")
    return None


def failure(reason: str, message: str) -> End:
    """The end of a failing Job."""
    return End("FailureTarget", "Failed", reason, message)


def success() -> End:
    """The end of a successful Job."""
    return End("SuccessCriteriaMet", "Complete", "CompletionsReached", REACHED_TEXT)


def announced_end(job: Obj) -> End | None:
    """The end announced by the status."""
    for target, final in (("FailureTarget", "Failed"), ("SuccessCriteriaMet", "Complete")):
        found = condition(job, target)
        if found.get("status") == "True":
            return End(target, final, found.get("reason", ""), found.get("message", ""))
    return None


def index_of(pod: Obj) -> int:
    """Completion index; -1 if it has none."""
    text = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
    return int(text) if text.isdigit() else -1


def parse_indexes(text: str) -> set[int]:
    """`1,3-5` as a set."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def indexes_text(indexes: Iterable[int]) -> str:
    """A set as `1,3-5`."""
    runs: list[list[int]] = []
    for each in sorted(indexes):
        if runs and runs[-1][1] == each - 1:
            runs[-1][1] = each
        else:
            runs.append([each, each])
    return ",".join(str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a},{b}" for a, b in runs)


def missing_indexes(job: Obj, taken: set[int], count: int) -> list[int]:
    """The first `count` indexes outside `taken` (succeeded or running)."""
    completions = job["spec"].get("completions") or 0
    return [each for each in range(completions) if each not in taken][:count]


def removal_order(pod: Obj) -> tuple[object, ...]:
    """Order of removal of surplus pods: not bound, not running, not ready, then the youngest."""
    phase = (pod.get("status") or {}).get("phase", "")
    ready = condition(pod, "Ready").get("status") == "True"
    bound = bool(pod["spec"].get("nodeName"))
    age = tuple(-ord(char) for char in pod["metadata"]["creationTimestamp"])
    return bound, {"Pending": 0, "Unknown": 1}.get(phase, 2), ready, age, pod["metadata"]["name"]


def pod_of(job: Obj, index: int | None) -> Obj:
    """A pod from the template, with its owner and the tracking finalizer. `index` is that of an indexed Job."""
    template, metadata = job["spec"]["template"], job["metadata"]
    made = dict(template.get("metadata") or {})
    spec = dict(template["spec"])
    prefix = f"{metadata['name']}-"
    if index is not None:
        prefix = f"{metadata['name']}-{index}-"
        made["labels"] = dict(made.get("labels") or {}) | {INDEX: str(index)}
        made["annotations"] = dict(made.get("annotations") or {}) | {INDEX: str(index)}
        spec.setdefault("hostname", f"{metadata['name']}-{index}")
        spec["containers"] = [_with_index_env(each) for each in spec["containers"]]
    finalizers = list(made.get("finalizers") or [])
    made["finalizers"] = finalizers if TRACKING in finalizers else [*finalizers, TRACKING]
    made |= {"generateName": prefix, "namespace": metadata["namespace"]}
    made["ownerReferences"] = [owner_reference("batch/v1", "Job", job)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": spec}


def _with_index_env(container: Obj) -> Obj:
    name, path = "JOB_COMPLETION_INDEX", f"metadata.labels['{INDEX}']"
    env = container.get("env") or []
    if any(each["name"] == name for each in env):
        return container
    return container | {"env": [*env, {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}]}


def owner_reference(api_version: str, kind: str, owner: Obj) -> Obj:
    """The reference of an object to its controller."""
    metadata = owner["metadata"]
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
