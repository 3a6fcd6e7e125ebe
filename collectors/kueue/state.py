"""The state of a Workload: held back, waiting for a check, admitted, evicted, finished.

An evicted Workload has given its quota back, but its pods may still run: they keep their GPUs until they end.
"""

from __future__ import annotations

from collections.abc import Collection

from autopilot.contract.annotations import CHECK, CONTROLLER
from autopilot.contract.notes import shown
from autopilot.core.model.objects import SchedulerQuota
from autopilot.core.model.snapshot import Gate
from collectors.kubernetes.wire import condition, is_true
from collectors.kueue.wire import Workload

MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""Controller of a check for work that other clusters run. Of a Job that it manages, Kueue copies only the status."""
GATED_BY = "kueue.x-k8s.io/admission-gated-by"
BY_KUEUE = "DeactivatedDueTo"
"""Beginning of the reason of an eviction after a deactivation by a check or a limit of Kueue."""
_OUT = {
    "PodsReadyTimeout": Gate.BACKOFF,
    "LocalQueueStopped": Gate.WAITING,
    "ClusterQueueStopped": Gate.WAITING,
}


def gate(workload: Workload) -> int:
    """The obstacle to its start (`snapshot.Gate`). A group lacks pods until somebody makes others."""
    reserved = condition(workload.status.conditions, "QuotaReserved")
    at_zero = reserved is not None and reserved.reason == "OnHold"
    if at_zero or is_true(workload.status.conditions, "WaitingForReplacementPods"):
        return int(Gate.SUSPENDED)
    if not workload.spec.active:
        return int(_kept_out(workload) if workload.kept else Gate.OPEN)
    checks = {each.name: each.state for each in workload.status.admission_checks or ()}
    states = set(checks.values())
    if "Rejected" in states:
        return int(Gate.REJECTED)
    if "Retry" in states:
        return int(Gate.RETRY)
    out = _out_of_its_queue(workload)
    if out is not None:
        return int(out)
    if _waits_for_checks(workload):
        others = [state for name, state in checks.items() if name != CHECK and state != "Ready"]
        return int(Gate.OPEN if checks.get(CHECK) == "Pending" and not others else Gate.WAITING)
    gates = {each.strip() for each in workload.metadata.note(GATED_BY).split(",")}
    return int(Gate.WAITING if gates - {"", CONTROLLER} else Gate.OPEN)


def _kept_out(workload: Workload) -> Gate:
    """Cause of an inactive Workload: a check or a limit of Kueue (REJECTED), or a person (SUSPENDED)."""
    ended = condition(workload.status.conditions, "Evicted")
    by_kueue = ended is not None and ended.reason.startswith(BY_KUEUE)
    return Gate.REJECTED if by_kueue else Gate.SUSPENDED


def waits_for_us(workload: Workload) -> bool:
    """True if our check or our gate keeps it from starting, or we have deactivated it.

    An admission without a start is taken back, but not that of plain pods: Kueue would delete them.
    """
    owners = workload.metadata.owner_references or ()
    if is_true(workload.status.conditions, "Admitted") and any(each.kind == "Pod" for each in owners):
        return False
    checks = {each.name for each in workload.status.admission_checks or ()}
    gates = {each.strip() for each in workload.metadata.note(GATED_BY).split(",")}
    return CHECK in checks or CONTROLLER in gates or not workload.spec.active


def elsewhere(workload: Workload, checks: Collection[str]) -> str:
    """The reason for a gang without pods in this cluster; "" if they are made here. `checks`: names of the checks of
    MultiKueue.
    """
    asked = workload.status.admission_checks or ()
    if workload.status.cluster_name:
        why = f"MultiKueue has it run in the cluster {shown(workload.status.cluster_name)}"
    elif any(each.name in checks for each in asked):
        why = "MultiKueue chooses another cluster for it"
    else:
        return ""
    ours = any(each.name == CHECK and each.state != "Ready" for each in asked)
    return f"{why}, and the check {CHECK} is not answered for it: take it out of the queue" if ours else why


def let_start(workload: Workload) -> bool:
    """True if our check has let it start."""
    ready = any(each.name == CHECK and each.state == "Ready" for each in workload.status.admission_checks or ())
    return ready and is_true(workload.status.conditions, "Admitted")


def waits_with_quota(workload: Workload) -> bool:
    """True if Kueue has reserved its quota, and our check has not let it start."""
    pending = any(each.name == CHECK and each.state == "Pending" for each in workload.status.admission_checks or ())
    return pending and workload.spec.active and _waits_for_checks(workload)


def quota_of(workload: Workload) -> SchedulerQuota:
    """Kueue's reserved quota for waiting work. That of plain pods stays: Kueue would delete them."""
    if workload.spec.active and is_true(workload.status.conditions, "QuotaReserved"):
        owners = workload.metadata.owner_references or ()
        stays = not waits_with_quota(workload) or any(each.kind == "Pod" for each in owners)
        return SchedulerQuota.STAYS if stays else SchedulerQuota.TAKEABLE
    checked = any(each.name == CHECK for each in workload.status.admission_checks or ())
    return SchedulerQuota.LACKING if checked else SchedulerQuota.NOT_ASKED


def stops(workload: Workload) -> bool:
    """True while its pods are to go: it is evicted, deactivated, finished, or a check of it takes its admission back.

    Kueue resets every check at the start of an eviction, and states Evicted=False at the next reservation of quota.
    """
    known = workload.status.conditions
    if is_true(known, "Evicted") or is_true(known, "Finished") or not workload.spec.active:
        return True
    taken_back = any(each.state in {"Retry", "Rejected"} for each in workload.status.admission_checks or ())
    return taken_back and is_true(known, "Admitted")


def left_over(workload: Workload) -> bool:
    """True if a Retry of our check may be left over, or was taken back and Kueue has not reserved quota since."""
    retries = any(each.name == CHECK and each.state == "Retry" for each in workload.status.admission_checks or ())
    if not retries and (workload.kept or not workload.repairs):
        return False
    known = workload.status.conditions
    return is_true(known, "Evicted") or not is_true(known, "QuotaReserved")


def evictions(workload: Workload | None) -> int:
    """Number of its evictions, as counted by Kueue."""
    stats = workload.status.scheduling_stats if workload is not None else None
    return sum(each.count for each in stats.evictions or ()) if stats is not None else 0


def replaced(workload: Workload, other: Workload) -> bool:
    """True if another Workload of the same Job counts: a growing elastic Job has two for a while."""
    return workload.metadata.uid != other.metadata.uid and _progress(workload) < _progress(other)


def _progress(workload: Workload) -> int:
    """Its progress; an ended one counts less than a waiting one."""
    known = workload.status.conditions
    if is_true(known, "Finished"):
        return 0
    return 3 if is_true(known, "Admitted") else 2 if is_true(known, "QuotaReserved") else 1


def _waits_for_checks(workload: Workload) -> bool:
    known = workload.status.conditions
    return is_true(known, "QuotaReserved") and not is_true(known, "Admitted")


def _out_of_its_queue(workload: Workload) -> Gate | None:
    """The gate by which Kueue itself keeps it out of its queue after an eviction; None: it does not.

    Activation brings back work deactivated by a person. A deactivation by a check or a limit stays for good: Kueue 0.19
    looks at the reason of the deactivation (recording 23).
    """
    requeued = condition(workload.status.conditions, "Requeued")
    if requeued is None or requeued.status != "False" or requeued.reason == "Deactivated":
        return None
    if requeued.reason.startswith(BY_KUEUE):
        return Gate.REJECTED
    return _OUT.get(requeued.reason, Gate.RETRY)
