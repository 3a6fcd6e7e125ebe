"""The life of a gang: its state, its obstacles and its times, read from its Workload, its Job and its pods."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

from autopilot.contract.annotations import CONTROLLER
from autopilot.contract.notes import shown
from autopilot.core.model.codes import NOT_STARTED
from autopilot.core.model.objects import SchedulerQuota
from autopilot.core.model.snapshot import Gate, State
from collectors.kubernetes.gangs import Gang, PodFacts, placed_by_us
from collectors.kubernetes.job_wire import JOB_CONTROLLER
from collectors.kubernetes.wire import condition, is_true, seconds_of
from collectors.kueue import state as kueue


@dataclass(frozen=True, slots=True)
class End:
    """End of a gang. `at_s`: None before it."""

    at_s: float | None = None
    failed: bool = False


NOT_STARTED_S = 1800.0
"""Time with quota for work of another cluster to start there."""

NOT_ENDED = End()
ENDS = (("Complete", False), ("Failed", True), ("SuccessCriteriaMet", False), ("FailureTarget", True))
"""Conditions of an ended Job, and True if it failed. The controller of a Job that was suspended while it had
one of the last two never states its end (measured on Kubernetes 1.36).
"""
FOREGROUND = "foregroundDeletion"
"""Finalizer of an object to be deleted after its dependents; with the finalizer `orphan` they stay."""


def life_of(
    gang: Gang,
    members: int,
    holding: Sequence[PodFacts],
    end: End,
    *,
    stopped: Callable[[Gang], bool],
    acts: bool = False,
) -> dict[str, Any]:
    """State, gate and times. `holding`: its pods with GPUs; `stopped`: True if its queue admits nothing.

    `acts`: any work not waiting for the controller waits for its scheduler or queue.
    """
    state, gate = int(State.PENDING), int(Gate.OPEN)
    if holding:
        if end.at_s is not None or all(each.leaving for each in holding) or stops(gang):
            state = int(State.CHECKPOINTING)
        else:
            whole = len(holding) >= min(members, sum(not each.over for each in gang.pods.values()))
            state = int(State.RUNNING if whole and all(each.ready for each in holding) else State.STARTING)
    elif end.at_s is not None:
        state = int(State.FAILED if end.failed else State.SUCCEEDED)
    else:
        gate = _gate(gang, stopped)
        if gate == Gate.OPEN and not _waits_for_us(gang):
            gate = int(Gate.NO_PODS if _has_quota_only(gang) else Gate.WAITING if acts else gate)
    return {
        "state": state,
        "pausing": min((each.noted.pausing for each in holding), default=0),
        "gate": gate,
        "scheduler_quota": _scheduler_quota(gang, state),
        "incarnation": incarnation_of(gang),
        "submit_s": _submit_s(gang),
        "start_s": min((each.bound_s for each in holding), default=nan),
        "ended_s": end.at_s if end.at_s is not None and not holding else nan,
    }


def elsewhere(gang: Gang, checks: Collection[str], now_s: float) -> tuple[str, str, float]:
    """Signal and reason for a gang without pods here, and the time of their next change by time alone (0: never).

    ("", "", 0) if its pods are made here. `checks`: names of the checks of MultiKueue.

    A Job of another controller that is not suspended has been started, wherever its pods are.
    """
    spec = gang.job.spec if gang.job is not None else None
    manager = (spec.managed_by or "") if spec is not None else ""
    why = kueue.elsewhere(gang.workload, checks) if gang.workload is not None else ""
    if why or manager == kueue.MULTIKUEUE:
        why, late_s = why or "MultiKueue chooses another cluster for it", _given_since_s(gang) + NOT_STARTED_S
        if now_s >= late_s:
            return NOT_STARTED, f"{why}, and its status has shown no start for {NOT_STARTED_S / 60:.0f} min", 0.0
        return "multikueue", why, 0.0 if isnan(late_s) else late_s
    here = spec is None or manager in {"", JOB_CONTROLLER} or bool(spec.suspend)
    if here or any(not each.over for each in gang.pods.values()):
        return "", "", 0.0
    return "managed-by", f"the controller {shown(manager)} runs it (spec.managedBy), and it has no pods here", 0.0


def _given_since_s(gang: Gang) -> float:
    """Time from which MultiKueue has had work with no start in its status; NaN if it has one, or can have none.

    The status of a Job is that of its copy in the other cluster. Of other kinds only the choice of a cluster is read.
    """
    workload, job = gang.workload, gang.job
    reserved = condition(workload.status.conditions, "QuotaReserved") if workload is not None else None
    if workload is None or reserved is None or reserved.status != "True" or reserved.last_transition_time is None:
        return nan
    started = job.status.start_time is not None if job is not None else bool(workload.status.cluster_name)
    return nan if started else seconds_of(reserved.last_transition_time)


def lacking_pods(gang: Gang, members: int, least: int, holding: Sequence[PodFacts]) -> int:
    """Pods without a node, of a gang that holds GPUs with fewer than `least` pods. Finished pods count as placed.

    0 for Jobs with more completions than pods: they go on with fewer.
    """
    if not holding or len(holding) >= least:
        return 0
    there = len(holding) + _finished(gang)
    return max(members - there, 0) if there < least and _together(gang) else 0


def _finished(gang: Gang) -> int:
    """Pods that ended well. Deleted ones are only in the counts of its Job and of Kueue."""
    seen = sum(each.pod.status.phase == "Succeeded" for each in gang.pods.values())
    counted = (gang.job.status.succeeded or 0) if gang.job is not None else 0
    freed = sum(each.count for each in gang.workload.status.reclaimable_pods or ()) if gang.workload is not None else 0
    return max(seen, counted, freed)


def _together(gang: Gang) -> bool:
    """True unless its owner is a Job with more completions than parallel pods."""
    spec = gang.job.spec if gang.job is not None else None
    return spec is None or spec.completions is None or spec.completions <= (spec.parallelism or 1)


def stops(gang: Gang) -> bool:
    """True if all its pods are to go, by any decision: it needs no eviction, and its GPUs come free.

    Its Workload or its Job shows this before its pods do. The time between depends on Kueue and on the Job controller,
    and has no bound: the pods run on meanwhile, without a deletionTimestamp.
    """
    job = gang.job
    if gang.workload is not None and kueue.stops(gang.workload):
        return True
    if job is None:
        return False
    deleted = job.metadata.deletion_timestamp is not None and FOREGROUND in (job.metadata.finalizers or ())
    found = job.status.conditions
    return bool(job.spec.suspend) or deleted or (bool(found) and any(is_true(found, kind) for kind, _ in ENDS))


def short_since_s(gang: Gang, least: int, holding: Sequence[PodFacts], now_s: float) -> float:
    """Time since a gang, once whole, has had fewer than `least` pods because some were taken from it; else NaN.

    Also the time since the rest of a gang started by us has found no room at its place, lost to a faster one. Finished
    pods count. A pod that fails by itself was not taken: its Job makes another one. Only Jobs with all pods running
    together are judged; other owners, and Jobs with more completions than pods, may go on with fewer.
    """
    together = least > 1 and gang.job is not None and _together(gang)
    living = len([each for each in holding if not each.leaving]) if together else 0
    if not living:
        gang.whole, gang.lost, gang.short_since_s = False, False, None
    elif living >= least or living + _finished(gang) >= least:
        gang.whole, gang.lost, gang.short_since_s = True, False, None
    elif gang.whole and (gang.lost or any(each.leaving for each in gang.pods.values())):
        gang.lost = True
        gang.short_since_s = now_s if gang.short_since_s is None else gang.short_since_s
    elif not gang.whole:
        since_s = now_s if gang.short_since_s is None else gang.short_since_s
        gang.short_since_s = since_s if _started_by_us(gang) and _no_room_for_the_rest(gang) else None
    return nan if gang.short_since_s is None else gang.short_since_s


def incarnation_of(gang: Gang) -> int:
    """Number of stops of the gang, as seen here or counted by Kueue."""
    return max(gang.incarnation, kueue.evictions(gang.workload))


def end_of(gang: Gang) -> End:
    """End of the gang, and its failure."""
    if gang.workload is not None:
        done = condition(gang.workload.status.conditions, "Finished")
        if done is not None and done.status == "True":
            return End(seconds_of(done.last_transition_time), done.reason != "Succeeded")
    if gang.job is not None:
        for kind, failed in ENDS if gang.job.spec.suspend else ENDS[:2]:
            done = condition(gang.job.status.conditions, kind)
            if done is not None and done.status == "True":
                return End(seconds_of(done.last_transition_time), failed)
        return _completed(gang, gang.job.spec.completions)
    if gang.workload is None and gang.pods and all(each.over for each in gang.pods.values()):
        ends = [_pod_end_s(each) for each in gang.pods.values()]
        return End(max(ends), any(each.pod.status.phase == "Failed" for each in gang.pods.values()))
    return NOT_ENDED


def _completed(gang: Gang, completions: int | None) -> End:
    """End of a Job whose pods have all ended well.

    Its controller shows it a moment later; until then the gang would seem to wait for a start.
    """
    well = [each for each in gang.pods.values() if each.pod.status.phase == "Succeeded"]
    if not completions or len(well) < completions:
        return NOT_ENDED
    return End(max(_pod_end_s(each) for each in well), failed=False)


def _pod_end_s(found: PodFacts) -> float:
    """End of the containers of a pod: its last change of readiness."""
    times = [
        seconds_of(each.last_transition_time) for each in found.pod.status.conditions or () if each.type == "Ready"
    ]
    return max([*times, seconds_of(found.pod.metadata.creation_timestamp)])


def _gate(gang: Gang, stopped: Callable[[Gang], bool]) -> int:
    """Gate of a waiting gang: OPEN if only room keeps it from starting."""
    if gang.workload is not None:
        gate = kueue.gate(gang.workload)
        held = stopped(gang) or (is_true(gang.workload.status.conditions, "Admitted") and _gated_by_others(gang))
        return int(Gate.WAITING) if gate == Gate.OPEN and held else gate
    if gang.job is not None and gang.job.spec.suspend:
        return int(Gate.SUSPENDED if gang.job.kept else Gate.OPEN)  # by a person, or left to the autopilot
    return int(Gate.WAITING if _gated_by_others(gang) else Gate.OPEN)


def _scheduler_quota(gang: Gang, state: int) -> int:
    """Kueue's reserved quota for a waiting gang."""
    if gang.workload is None or state != State.PENDING:
        return int(SchedulerQuota.NOT_ASKED)
    return int(kueue.quota_of(gang.workload))


def _gated_by_others(gang: Gang) -> bool:
    """True if a scheduling gate of another controller holds one of its pods. Kueue opens its gates with the admission
    of the pod, and under topology-aware scheduling with the choice of the node.
    """
    return any(
        not gate.name.startswith("gpu-autopilot.io/")
        for each in gang.pods.values()
        for gate in each.pod.spec.scheduling_gates or ()
    )


def _has_quota_only(gang: Gang) -> bool:
    """True for a gang admitted by Kueue without pods from its controller: a start here would not change that."""
    admitted = gang.workload is not None and is_true(gang.workload.status.conditions, "Admitted")
    return admitted and all(each.over for each in gang.pods.values())


def _waits_for_us(gang: Gang) -> bool:
    """True if only the controller starts the gang: its check, its gate, its suspension, or its lost place."""
    if gang.workload is not None:
        return kueue.waits_for_us(gang.workload)
    if gang.job is not None:
        return bool(gang.job.spec.suspend) or _shut_out(gang)
    gates = [
        {gate.name for gate in each.pod.spec.scheduling_gates or ()} for each in gang.pods.values() if not each.over
    ]
    return bool(gates) and all(CONTROLLER in names for names in gates)


def _shut_out(gang: Gang) -> bool:
    """True if the scheduler finds no room for any pod at the controller's place for its Job."""
    if gang.job is None or not placed_by_us(gang.job):
        return False
    return _unschedulable(each for each in gang.pods.values() if not each.over)


def _started_by_us(gang: Gang) -> bool:
    """True for a started Job at a place chosen by the controller."""
    if gang.workload is not None:
        return kueue.let_start(gang.workload)
    return gang.job is not None and not gang.job.spec.suspend and bool(placed_by_us(gang.job))


def _no_room_for_the_rest(gang: Gang) -> bool:
    """True if the scheduler has looked for a node for each pod without one, and found none."""
    return _unschedulable(each for each in gang.pods.values() if not (each.over or each.holds or each.leaving))


def _unschedulable(pods: Iterable[PodFacts]) -> bool:
    waiting = [each.pod.status.conditions or () for each in pods]
    return bool(waiting) and all(
        any(row.type == "PodScheduled" and row.reason == "Unschedulable" for row in rows) for rows in waiting
    )


def _submit_s(gang: Gang) -> float:
    """Creation time of the gang: of its own object, else of its first pod."""
    times = [gang.job.metadata.creation_timestamp] if gang.job is not None else []
    times += [gang.workload.metadata.creation_timestamp] if gang.workload is not None else []
    times += [each.pod.metadata.creation_timestamp for each in gang.pods.values()] if not times else []
    return min((seconds_of(each) for each in times if each is not None), default=0.0)
