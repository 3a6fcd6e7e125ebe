"""The conditions of a Workload and of a Job through their life, in the sequences of Kueue and Kubernetes.

Reasons and texts were recorded on real servers with Kueue 0.19.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autopilot.playground.times import stamp

Obj = dict[str, Any]
PREEMPTED_WHY = {
    "InClusterQueue": "prioritization in the ClusterQueue",
    "InCohortReclamation": "reclamation within the cohort",
}


@dataclass(slots=True)
class Conditions:
    """Conditions by type, in the order of their first appearance."""

    held: dict[str, Obj] = field(default_factory=dict)

    def put(self, kind: str, status: str, reason: str, message: str, at_s: float) -> None:
        """Set one; its transition time changes with its status only."""
        before = self.held.get(kind)
        moved = before is None or before["status"] != status
        at = stamp(at_s) if before is None or moved else before["lastTransitionTime"]
        self.held[kind] = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": at,
        }

    def true(self, kind: str) -> bool:
        """True if a condition is there and true."""
        return kind in self.held and self.held[kind]["status"] == "True"

    def rows(self, **more: Any) -> list[Obj]:
        """The list as the API shows it; `more` is added to each."""
        return [each | more for each in self.held.values()]


def waits(of: Conditions, why: str, at_s: float) -> None:
    """It waits in its queue."""
    of.put("QuotaReserved", "False", "Pending", why, at_s)


def admitted(of: Conditions, queue: str, at_s: float) -> None:
    """Its quota is reserved, and it is admitted in the same update."""
    reserved(of, queue, at_s)
    checked(of, at_s)


def reserved(of: Conditions, queue: str, at_s: float) -> None:
    """Its quota is reserved, and its checks are asked."""
    of.put("QuotaReserved", "True", "QuotaReserved", f"Quota reserved in ClusterQueue {queue}", at_s)
    for kind in ("Evicted", "Preempted"):
        if of.true(kind):
            before = of.held[kind]["message"]
            of.put(kind, "False", "QuotaReserved", f"Previously: {before}", at_s)


def checked(of: Conditions, at_s: float) -> None:
    """Its checks are ready, and it is admitted."""
    of.put("Admitted", "True", "Admitted", "The workload is admitted", at_s)
    of.put("PodsReady", "False", "WaitForStart", "Not all pods are ready or succeeded", at_s)


def gated(of: Conditions, gates: str, at_s: float) -> None:
    """Gates of its annotation hold it back; "": they are gone."""
    if gates:
        of.put("QuotaReserved", "False", "AdmissionGated", f"Admission is gated by: {gates}", at_s)
    else:
        of.put("QuotaReserved", "False", "Pending", "AdmissionGatedBy cleared, waiting for quota reservation", at_s)


def told(of: Conditions, reason: str, message: str, at_s: float) -> None:
    """It is evicted for a reason of its own."""
    of.put("Evicted", "True", reason, message, at_s)


def left(of: Conditions, reason: str, at_s: float, *, checks: bool) -> None:
    """Its pods are gone and its quota is free; a deactivated one stays out. `checks`: it has checks of its queue."""
    text = of.held["Evicted"]["message"] if "Evicted" in of.held else "The workload was stopped"
    of.put("QuotaReserved", "False", "Pending", text, at_s)
    if "Admitted" in of.held:
        why = ("NoReservation", "The workload has no reservation")
        if checks:
            why = (
                "NoReservationUnsatisfiedChecks",
                "The workload has no reservation and not all checks ready",
            )
        of.put("Admitted", "False", *why, at_s)
        of.put("PodsReady", "False", "WaitForStart", "Not all pods are ready or succeeded", at_s)
    if reason.startswith("Deactivated"):
        of.put("Requeued", "False", reason, text, at_s)
    elif reason == "AdmissionCheck":
        of.put("Requeued", "False", reason, text, at_s)
        of.put("Requeued", "True", "BackoffFinished", "The workload backoff was finished", at_s)
    else:
        of.put("Requeued", "True", reason, text, at_s)


def reactivated(of: Conditions, at_s: float) -> None:
    """A deactivated one may wait in its queue again."""
    if "Requeued" in of.held:
        of.put("Requeued", "True", "Reactivated", "The workload was reactivated", at_s)


def misplaced(of: Conditions, message: str, at_s: float) -> None:
    """A check contradicts its flavor or template: Kueue ends it for good."""
    of.put("QuotaReserved", "False", "Pending", message, at_s)
    of.put("Finished", "True", "FailedToStart", message, at_s)


def ready(of: Conditions, at_s: float) -> None:
    """All of its pods are ready."""
    of.put("PodsReady", "True", "Started", "All pods reached readiness and the workload is running", at_s)


def unready(of: Conditions, at_s: float) -> None:
    """Its pods go on with another number of them."""
    of.put("PodsReady", "False", "WaitForRecovery", "At least one pod has failed, waiting for recovery", at_s)


def preempted(of: Conditions, why: str, by: tuple[str, str], at_s: float) -> None:
    """It is evicted for another Workload: `by` has the uids of that Workload and its owner, "" if unknown."""
    workload, job = (each or "UNKNOWN" for each in by)
    text = f"Preempted to accommodate a workload (UID: {workload}, JobUID: {job}) due to {PREEMPTED_WHY[why]}"
    of.put("Evicted", "True", "Preempted", text, at_s)
    of.put("Preempted", "True", why, text, at_s)


def interrupted(of: Conditions, at_s: float) -> None:
    """Its hardware failed, and it is evicted."""
    of.put("Evicted", "True", "NodeFailures", "Workload was evicted because its hardware failed", at_s)


def requeued(of: Conditions, reason: str, at_s: float) -> None:
    """It has left its GPUs and waits again."""
    text = of.held["Evicted"]["message"] if "Evicted" in of.held else "The workload was stopped"
    of.put("QuotaReserved", "False", "Pending", text, at_s)
    of.put("Admitted", "False", "NoReservation", "The workload has no reservation", at_s)
    of.put("PodsReady", "False", "WaitForStart", "Not all pods are ready or succeeded", at_s)
    of.put("Requeued", "True", reason, text, at_s)


def finished(of: Conditions, *, failed: bool, at_s: float) -> None:
    """It has ended."""
    reason, text = ("Failed", "Job has failed") if failed else ("Succeeded", "Job finished successfully")
    of.put("Finished", "True", reason, text, at_s)


def job_suspended(of: Conditions, at_s: float) -> None:
    """The Job is suspended."""
    of.put("Suspended", "True", "JobSuspended", "Job suspended", at_s)


def job_resumed(of: Conditions, at_s: float) -> None:
    """The Job runs, for the first time or again."""
    of.put("Suspended", "False", "JobResumed", "Job resumed", at_s)


def job_ended(of: Conditions, *, failed: bool, at_s: float) -> None:
    """The Job has ended."""
    if failed:
        text = "Job has reached the specified backoff limit"
        of.put("FailureTarget", "True", "BackoffLimitExceeded", text, at_s)
        of.put("Failed", "True", "BackoffLimitExceeded", text, at_s)
        return
    text = "Reached expected number of succeeded pods"
    of.put("SuccessCriteriaMet", "True", "CompletionsReached", text, at_s)
    of.put("Complete", "True", "CompletionsReached", text, at_s)
