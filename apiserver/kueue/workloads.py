"""The state of a Workload, and the steps of its life as edits of its status."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

from apiserver.kueue import conditions
from apiserver.kueue.names import GATED_BY, PRIORITY_BOOST, annotations_of, spec_of
from apiserver.timeline import parse_stamp, stamp

Obj = dict[str, Any]

QUOTA_RESERVED = "QuotaReserved"
ADMITTED = "Admitted"
EVICTED = "Evicted"
PREEMPTED = "Preempted"
REQUEUED = "Requeued"
FINISHED = "Finished"
PODS_READY = "PodsReady"
DEACTIVATION = "DeactivationTarget"
REPLACEMENT = "WaitingForReplacementPods"
# the conditions that the manager of admissions writes, in its order
ADMISSION_CONDITIONS = (QUOTA_RESERVED, EVICTED, ADMITTED, PREEMPTED, REQUEUED, DEACTIVATION, FINISHED, PODS_READY)


def status_of(workload: Obj) -> Obj:
    """The status; not to be changed."""
    found: Obj = workload.get("status") or {}
    return found


def copied(workload: Obj) -> Obj:
    """A status to edit: the lists and the fields changed by edits are copies."""
    status = dict(status_of(workload))
    for name in ("conditions", "admissionChecks"):
        if name in status:
            status[name] = [dict(each) for each in status[name]]
    for name in ("requeueState",):
        if name in status:
            status[name] = dict(status[name])
    if "schedulingStats" in status:
        stats = dict(status["schedulingStats"])
        stats["evictions"] = [dict(each) for each in stats.get("evictions") or []]
        status["schedulingStats"] = stats
    return status


def generation(workload: Obj) -> int:
    """Of its spec."""
    return int(workload["metadata"].get("generation", 0))


def has_reservation(workload: Obj) -> bool:
    """It holds quota."""
    return conditions.is_true(workload, QUOTA_RESERVED)


def is_admitted(workload: Obj) -> bool:
    """It holds quota and all checks are ready."""
    return conditions.is_true(workload, ADMITTED)


def is_finished(workload: Obj) -> bool:
    """It is over."""
    return conditions.is_true(workload, FINISHED)


def is_evicted(workload: Obj) -> bool:
    """It was told to leave, and has no quota again since."""
    return conditions.is_true(workload, EVICTED)


def is_active(workload: Obj) -> bool:
    """spec.active, true by default."""
    return bool(spec_of(workload).get("active", True))


def is_gated(workload: Obj) -> bool:
    """An admission gate holds it back."""
    return bool(annotations_of(workload).get(GATED_BY))


def is_on_hold(workload: Obj) -> bool:
    """Its owner is scaled to zero."""
    found = conditions.find(workload, QUOTA_RESERVED)
    return found is not None and found["status"] == "False" and found["reason"] == "OnHold"


def phase(workload: Obj) -> str:
    """`finished`, `admitted`, `quotaReserved` or `pending`."""
    if is_finished(workload):
        return "finished"
    if is_admitted(workload):
        return "admitted"
    return "quotaReserved" if has_reservation(workload) else "pending"


def lacks_pods(workload: Obj) -> bool:
    """Pods of its group failed or were evicted, and none came in their place: it is not admitted again before."""
    return conditions.is_true(workload, REPLACEMENT)


def is_admissible(workload: Obj) -> bool:
    """It belongs into a queue: pending, active, not held back."""
    return (
        not is_finished(workload)
        and is_active(workload)
        and not has_reservation(workload)
        and not is_gated(workload)
        and not is_on_hold(workload)
        and not lacks_pods(workload)
    )


def priority(workload: Obj) -> int:
    """spec.priority."""
    return int(spec_of(workload).get("priority") or 0)


def boost(workload: Obj) -> int:
    """The annotation priority-boost; 0 if it is absent or no number."""
    try:
        return int(annotations_of(workload).get(PRIORITY_BOOST, "0"))
    except ValueError:
        return 0


def queued_at(workload: Obj) -> datetime:
    """Start of its wait, for the order of its queue."""
    evicted = conditions.find(workload, EVICTED)
    if (
        evicted is not None
        and evicted["status"] == "True"
        and evicted["reason"] in {"PodsReadyTimeout", "AdmissionCheck"}
    ):
        return conditions.since(evicted)
    return parse_stamp(workload["metadata"]["creationTimestamp"])


def waited_s(workload: Obj, now: datetime) -> float:
    """Seconds since it was queued (again)."""
    requeued = conditions.find(workload, REQUEUED)
    start = conditions.since(requeued) if requeued else parse_stamp(workload["metadata"]["creationTimestamp"])
    return (now - start).total_seconds()


def whole_seconds(seconds: float) -> str:
    """Seconds as Go's %.0f writes them: a half goes to the even neighbour."""
    return str(round(seconds))


def checks(workload: Obj, state: str) -> list[Obj]:
    """Its admission checks in a state."""
    return [each for each in status_of(workload).get("admissionChecks") or [] if each["state"] == state]


def all_checks_ready(status: Obj) -> bool:
    """True if all checks are Ready."""
    return all(each["state"] == "Ready" for each in status.get("admissionChecks") or [])


def checks_message(found: list[Obj], state: str) -> str:
    """`AdmissionCheck in Retry state: "name" (message)`."""
    parts = [
        f'"{each["name"]}" ({each["message"]})' if each.get("message") else f'"{each["name"]}"'
        for each in sorted(found, key=lambda each: str(each["name"]))
    ]
    noun = "AdmissionChecks" if len(found) > 1 else "AdmissionCheck"
    return f"{noun} in {state} state: {'; '.join(parts)}"


def sync_admitted(status: Obj, now: datetime, of_generation: int) -> bool:
    """Let Admitted follow QuotaReserved and the checks; add up the time of admission. True if it changed."""
    holder = {"status": status}
    reserved, ready = has_reservation(holder), all_checks_ready(status)
    was = is_admitted(holder)
    if was == (reserved and ready):
        return False
    if reserved and ready:
        return conditions.put(status, ADMITTED, True, "Admitted", "The workload is admitted", now, of_generation)
    if not reserved and not ready:
        reason, message = (
            "NoReservationUnsatisfiedChecks",
            "The workload has no reservation and not all checks ready",
        )
    elif not reserved:
        reason, message = "NoReservation", "The workload has no reservation"
    else:
        reason, message = "UnsatisfiedChecks", "The workload has not all checks ready"
    old = conditions.find(holder, ADMITTED)
    if was and old is not None:
        past_s = int((now - conditions.since(old)).total_seconds())
        status["accumulatedPastExecutionTimeSeconds"] = status.get("accumulatedPastExecutionTimeSeconds", 0) + past_s
    return conditions.put(status, ADMITTED, False, reason, message, now, of_generation)


def unset_reservation(status: Obj, reason: str, message: str, now: datetime, of_generation: int) -> bool:
    """QuotaReserved=False for a reason; the admission is gone. True if anything changed."""
    changed = conditions.put(status, QUOTA_RESERVED, False, reason, message, now, of_generation)
    if status.pop("admission", None) is not None:
        changed = True
    return sync_admitted(status, now, of_generation) or changed


def reserve(status: Obj, admission: Obj, now: datetime, of_generation: int) -> None:
    """Give quota: QuotaReserved=True, and the texts about an eviction go into the past."""
    status["admission"] = admission
    message = f"Quota reserved in ClusterQueue {admission['clusterQueue']}"
    conditions.put(status, QUOTA_RESERVED, True, QUOTA_RESERVED, message, now, of_generation)
    for kind in (EVICTED, PREEMPTED):
        old = conditions.find({"status": status}, kind)
        if old is not None and old["status"] == "True":
            past = f"Previously: {old['message']}"
            conditions.put(status, kind, False, QUOTA_RESERVED, past, now, of_generation)
    status.pop("resourceRequests", None)


def evict(status: Obj, reason: str, message: str, cause: str, now: datetime, of_generation: int) -> None:
    """Evicted=True; checks go back to Pending; the eviction is counted."""
    told = f"{reason}DueTo{cause}" if reason == "Deactivated" and cause else reason
    conditions.put(status, EVICTED, True, told, message, now, of_generation)
    for number, check in enumerate(status.get("admissionChecks") or []):
        if check["state"] == "Pending":
            continue
        fresh: Obj = {
            "lastTransitionTime": stamp(now),
            "message": f"Reset to Pending after eviction. Previously: {check['state']}",
            "name": check["name"],
            "state": "Pending",
        }
        if "requeueAfterSeconds" in check:
            fresh["requeueAfterSeconds"] = check["requeueAfterSeconds"]
        if check["state"] == "Retry":
            fresh["retryCount"] = check.get("retryCount", 0) + 1
        status["admissionChecks"][number] = fresh
    status.pop("unhealthyNodes", None)
    evictions = status.setdefault("schedulingStats", {}).setdefault("evictions", [])
    for each in evictions:
        if (each["reason"], each.get("underlyingCause", "")) == (reason, cause):
            each["count"] += 1
            return
    evictions.append({"count": 1, "reason": reason, "underlyingCause": cause})


def retry_at(workload: Obj, now: datetime) -> datetime | None:
    """The end of the delay by checks in Retry, if the status does not state it (or a later one) yet."""
    latest: datetime | None = None
    for check in checks(workload, "Retry"):
        if "requeueAfterSeconds" in check and check.get("lastTransitionTime"):
            moment = parse_stamp(check["lastTransitionTime"]) + timedelta(seconds=check["requeueAfterSeconds"])
            latest = moment if latest is None else max(latest, moment)
    if latest is None or latest <= now:
        return None
    stated = requeue_at(workload)
    return None if stated is not None and stated >= latest else latest


def requeue_at(workload: Obj) -> datetime | None:
    """status.requeueState.requeueAt."""
    text = (status_of(workload).get("requeueState") or {}).get("requeueAt")
    return parse_stamp(text) if text else None


def count_requeue(status: Obj, now: datetime, base_s: float, limit_s: float) -> None:
    """One more backoff after the pods were not ready in time: base * 2^(n-1), at most the limit."""
    state = status.setdefault("requeueState", {})
    count = state.get("count", 0) + 1
    wait_s = min(limit_s, base_s * math.pow(2, count - 1))
    moment = stamp(now + timedelta(seconds=wait_s))
    if state.get("requeueAt", "") < moment:
        state["requeueAt"] = moment
    state["count"] = count


def applied(status: Obj) -> Obj:
    """The part of a status applied by the manager of admissions."""
    keys = (
        "accumulatedPastExecutionTimeSeconds",
        "admission",
        "admissionChecks",
        "resourceRequests",
        "schedulingStats",
        "unhealthyNodes",
    )
    found: Obj = {key: status[key] for key in keys if status.get(key) is not None}
    if "admission" in found:
        found.pop("resourceRequests", None)
    if any((status.get("requeueState") or {}).get(key) is not None for key in ("count", "requeueAt")):
        found["requeueState"] = status["requeueState"]
    by_type = {each["type"]: each for each in status.get("conditions") or []}
    found["conditions"] = [by_type[kind] for kind in ADMISSION_CONDITIONS if kind in by_type]
    return found
