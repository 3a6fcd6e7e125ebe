"""Take back a Retry that Kueue does not act on any more, and bring its Workload back into the queue.

Kueue resets every check at the start of an eviction. A later Retry of our check stays: no quota is reserved for the
Workload again, its Job stays suspended, and no condition says so (measured on Kueue 0.19.2). No lever sets it, but an
earlier version or a person may have.

The check is set to Pending. During an eviction, that is all. After it, Kueue has put the Workload aside, and Pending
alone does not bring it back: then `spec.active` is set to false and to true, as an owner may do. It is the mildest cure
seen to work. It needs only the right to stop work, and nothing of the Workload runs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from actuators.kubernetes.api import Obj, Ref, Refusal
from actuators.kubernetes.levers.base import Tools
from actuators.kubernetes.levers.check_state import PENDING, RETRY, message, our_check, said_by, state_of
from actuators.kubernetes.levers.deactivate import of_pods, our_mark
from actuators.kubernetes.levers.stopped import Mark
from actuators.kubernetes.objects import holds, moment_s
from actuators.kubernetes.writing import CHECK_MANAGER, Stop
from autopilot.contract.annotations import REPAIR, STOPPED

PATIENCE_S = 5.0
"""Time for Kueue to reserve quota after Pending. It needs 0.2 s just after an eviction."""


@dataclass(slots=True)
class LeftoverRetries:
    """Repairs the Workloads of the view with a left-over Retry, one step of each at a time.

    The progress of a repair is read from its Workload, so that any process goes on with it.
    """

    def run(self, tools: Tools, epoch: int, now_s: float, _under_way: Collection[str] = ()) -> None:
        """Take the next step of each."""
        for each in list(tools.objects.left_over()):
            ref = Ref(each.kind, each.namespace, each.name, each.uid)
            read = tools.api.read(ref)
            if not read.ok:
                continue
            if _stays(read.body):
                _take_back(tools, ref, epoch, now_s)
            elif _taken_out(read.body):
                _bring_back(tools, ref, epoch, now_s)
            elif _put_aside(read.body, now_s):
                _take_out(tools, ref, epoch, now_s)


def _stays(workload: Obj) -> bool:
    """True if our check says Retry, and no eviction begins for it: one runs, or there is no quota to give back."""
    if our_check(workload).get("state") != RETRY or holds(workload, "Finished"):
        return False
    return holds(workload, "Evicted") or not holds(workload, "QuotaReserved")


def _put_aside(workload: Obj, now_s: float) -> bool:
    """True if Kueue still does not reserve quota for it. Kueue would delete plain pods."""
    check = our_check(workload)
    waits = check.get("state") == PENDING and said_by(check, REPAIR) and not holds(workload, "QuotaReserved")
    if not waits or of_pods(workload) or workload["spec"].get("active", True) is False:
        return False
    return now_s - moment_s(check) >= PATIENCE_S


def _taken_out(workload: Obj) -> bool:
    """True if it was deactivated for its repair, and `active` is still of that write."""
    mark = our_mark(workload)
    return workload["spec"].get("active", True) is False and mark is not None and mark.id == REPAIR


def _take_back(tools: Tools, ref: Ref, epoch: int, now_s: float) -> None:
    def decide(found: Obj) -> Obj | Stop:
        if not _stays(found):
            return Stop("its check changed meanwhile", refusal=Refusal.TAKEN)
        return state_of(PENDING, message(epoch, REPAIR, "it said Retry during an eviction"), now_s)

    if tools.writer.apply_status(ref, decide, CHECK_MANAGER).ok:
        note = "its check said Retry although its eviction had begun: taken back, else Kueue would never start it again"
        tools.events.say(ref, "RetryTakenBack", "Evict", note, now_s, effect=f"{REPAIR}/{epoch}", warning=True)


def _take_out(tools: Tools, ref: Ref, epoch: int, now_s: float) -> None:
    def decide(found: Obj) -> Obj | Stop:
        if not _put_aside(found, now_s):
            return Stop("it changed meanwhile", refusal=Refusal.TAKEN)
        mark = Mark(found["metadata"]["uid"], REPAIR, REPAIR, returns=True)
        return {"metadata": {"annotations": {STOPPED: mark.text}}, "spec": {"active": False}}

    tools.writer.change(ref, decide, epoch)


def _bring_back(tools: Tools, ref: Ref, epoch: int, now_s: float) -> None:
    def decide(found: Obj) -> Obj | Stop:
        if not _taken_out(found):
            return Stop("somebody else wrote it", refusal=Refusal.TAKEN)
        return {"metadata": {"annotations": {STOPPED: None}}, "spec": {"active": True}}

    def close(found: Obj) -> Obj | Stop:
        if not said_by(our_check(found), REPAIR):
            return Stop("its check changed meanwhile", done=True)
        return state_of(PENDING, message(epoch, "repaired", "it is in its queue again"), now_s)

    if tools.writer.change(ref, decide, epoch).ok:
        tools.writer.apply_status(ref, close, CHECK_MANAGER)
