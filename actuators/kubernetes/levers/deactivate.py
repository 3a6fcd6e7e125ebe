"""Stop a gang of Kueue that stays out: `spec.active` false gives its quota to others, and true queues it again."""

from __future__ import annotations

from actuators.kubernetes.api import Obj, Refusal
from actuators.kubernetes.changes import ACTIVE as ACTIVATION
from actuators.kubernetes.effects import record_of
from actuators.kubernetes.levers.base import Effect, Lever, Progress, Rule, Tools, Waiting, ended_by, gone
from actuators.kubernetes.levers.check_state import KUEUE
from actuators.kubernetes.levers.evicting import after_saving, take_back
from actuators.kubernetes.levers.saving import ASKED
from actuators.kubernetes.levers.stopped import Mark, mark_for, mark_of
from actuators.kubernetes.objects import Target, holds
from actuators.kubernetes.writing import Stop
from autopilot.contract.annotations import EFFECT, STOPPED
from autopilot.contract.written import ACTIVE, only_ours
from autopilot.core.effects.evict import EvictOperation
from autopilot.core.model.records import Instruction
from autopilot.core.model.verb import asked

RULES = (Rule(KUEUE, "workloads", ("get", "patch"), changes=(EFFECT, STOPPED, ACTIVATION)),)


def of_pods(workload: Obj) -> bool:
    """True for a Workload of plain pods: Kueue would delete them, and no controller would recreate them."""
    owners = workload["metadata"].get("ownerReferences") or ()
    return any(owner["kind"] == "Pod" for owner in owners)


def _suits_stop(instruction: Instruction, target: Target) -> str:
    if not target.workload:
        return "it is not in a queue of Kueue"
    if of_pods(target.workload):
        return "its Workload belongs to plain pods, which Kueue would delete"
    reason = instruction.operation.takes
    if reason is not None and reason.continues_elsewhere:
        return "it is moved, and only our admission check keeps its quota meanwhile"
    return ""


def _stop(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:  # noqa: ARG001 - as every step
    operation, ref = asked(effect.instruction.operation, EvictOperation), target.first("Workload")
    if ref is None:
        return gone("its Workload is gone")

    def decide(found: Obj) -> Obj | Stop:
        if found["spec"].get("active", True) is False:
            mark = mark_of(found)
            if mark is not None and mark.id == effect.id:
                return Stop("it is on its way", done=True)
            return Stop("somebody else has deactivated it", refusal=Refusal.TAKEN)
        if holds(found, "Finished"):
            return Stop("it has ended", refusal=Refusal.TAKEN)
        return {"metadata": {"annotations": mark_for(found, effect.id, operation.reason)}, "spec": {"active": False}}

    answer = tools.writer.change(ref, decide, effect.epoch)
    return Waiting("Kueue stops it") if answer.ok else ended_by(answer, f"{ref.shown}: active false")


def our_mark(workload: Obj) -> Mark | None:
    """The mark of our stop, while we were the last to write `active`.

    The mark stays after a person brings the work back, and does not count any more: a later stop is that person's.
    """
    ours = only_ours(workload["metadata"].get("managedFields") or (), ACTIVE)
    return mark_of(workload) if ours else None


def _suits_resume(_instruction: Instruction, target: Target) -> str:
    workload = target.workload
    if not workload:
        return "it is not in a queue of Kueue"
    if workload["spec"].get("active", True) is not False:
        return "its Workload is active"
    mark = our_mark(workload)
    if mark is None:
        return "a person has deactivated it"
    return "" if mark.returns else "it waits until its owner lets it continue"


def _resume(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:  # noqa: ARG001 - as every step
    ref = target.first("Workload")
    if ref is None:
        return gone("its Workload is gone")

    def decide(found: Obj) -> Obj | Stop:
        if found["spec"].get("active", True) is not False:
            return Stop("it is active", done=True)
        mark = our_mark(found)
        if mark is None or not mark.returns:
            return Stop("a person keeps it out", refusal=Refusal.TAKEN)
        notes = {**record_of(effect, "reactivated"), STOPPED: None}
        return {"metadata": {"annotations": notes}, "spec": {"active": True}}

    answer = tools.writer.change(ref, decide, effect.epoch)
    return Waiting("Kueue puts it back in its queue") if answer.ok else ended_by(answer, f"{ref.shown}: active true")


STOP = Lever(
    "deactivate",
    frozenset({"evict"}),
    "set active to false on the Workload; Kueue stops the gang, and it stays out",
    (*RULES, ASKED),
    _suits_stop,
    after_saving(_stop),
    take_back,
)
RESUME = Lever(
    "reactivate",
    frozenset({"admit"}),
    "set active to true on a Workload that the controller deactivated",
    RULES,
    _suits_resume,
    _resume,
)
