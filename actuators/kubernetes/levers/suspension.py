"""Start and stop Jobs without Kueue by `spec.suspend`.

A suspended Job is started only if its owner asked for it at the creation of the Job (label `gpu-autopilot.io/manage`),
or if the controller suspended it. The last writer of `suspend` is read from the managed fields, so a later suspension
by a person wins.

A Job started by the controller whose pods all left its nodes (they were drained, or lost) waits for these nodes: its
template selects them. It is suspended first, and then started at its new place.
"""

from __future__ import annotations

from actuators.kubernetes import placement
from actuators.kubernetes.api import CONFLICTS, Answer, Obj, Refusal
from actuators.kubernetes.changes import PLACEMENT_LABEL, SUSPENDED, TEMPLATE_PLACE
from actuators.kubernetes.effects import record_of, wrote
from actuators.kubernetes.levers.base import (
    Effect,
    Ended,
    Lever,
    Progress,
    Rule,
    Tools,
    Waiting,
    changed,
    ended_by,
    gone,
    late,
    no_place,
)
from actuators.kubernetes.levers.evicting import after_saving, take_back
from actuators.kubernetes.levers.saving import ASKED
from actuators.kubernetes.levers.stopped import mark_for, mark_of
from actuators.kubernetes.merging import Contradiction, merge
from actuators.kubernetes.objects import Target, holds, label, over
from actuators.kubernetes.writing import Stop
from autopilot.contract.annotations import EFFECT, MANAGER, PLACEMENT, STOPPED
from autopilot.contract.written import SUSPEND, may_start, other_owner, writes
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.effects.evict import EvictOperation
from autopilot.core.model.records import Cause, Instruction, OutcomeKind
from autopilot.core.model.stops import StopReason
from autopilot.core.model.verb import asked

QUEUE = "kueue.x-k8s.io/queue-name"


def _own_job(target: Target) -> str:
    """Reason against our use of `suspend` of its Job; "" for none."""
    job = target.job
    if target.workload or label(job, QUEUE):
        return "Kueue manages it"
    if not job:
        return "it is no Job"
    return other_owner(job["metadata"])


def suits_start(_instruction: Instruction, target: Target) -> str:
    """A Job without Kueue that is suspended and may be started, or that was started here and lost its place."""
    return _own_job(target) or ("" if _placed(target.job) else startable(target.job))


def _placed(job: Obj) -> bool:
    """True if the controller started the Job at the place in its template, and nobody suspended it since."""
    spec = job["spec"]
    mine = any(key.startswith(PLACEMENT) for key in spec["template"]["spec"].get("nodeSelector") or {})
    by = writes(job["metadata"].get("managedFields") or (), SUSPEND)
    return mine and not spec.get("suspend") and MANAGER in {manager for manager, _ in by}


def startable(job: Obj) -> str:
    """Reason against the start of a suspended Job; "" for none."""
    return may_start(job["metadata"]) if job["spec"].get("suspend") else "its Job is not suspended"


def _start(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:  # noqa: ARG001 - as every step
    operation, ref = asked(effect.instruction.operation, AdmitOperation), target.first("Job")
    if ref is None:
        return gone("its Job is gone")
    if wrote(target.job, effect.id) and not target.job["spec"].get("suspend"):
        return Waiting("the scheduler binds its pods")
    if _placed(target.job):
        bound = placement.bound(tools.api, target)
        if isinstance(bound, Answer):
            return ended_by(bound, "its pods")
        if bound:
            return changed("its pods run where they are")
        return suspend(tools, effect, target, StopReason.MOVE)
    if mark_of(target.job) is not None and not holds(target.job, "Suspended"):
        return Waiting("its Job is not suspended yet, so its template cannot change")
    place = placement.place_of(tools.api, target.uid, operation.slots, labelled=True)
    if isinstance(place, Answer):
        if place.refusal in CONFLICTS:
            return no_place(f"its place is gone: {place.message}")
        return ended_by(place, "its nodes")
    selector = _foreign(target.job)
    merged = merge([("its template", selector), ("the placement", place.selector)])
    if isinstance(merged, Contradiction):
        return Ended(OutcomeKind.FAILED, f"{merged}; nothing was written", cause=Cause.PLACE)
    lacks = place.lacks(selector)
    if lacks:
        return no_place(f"it cannot run there: {lacks}")

    def decide(found: Obj) -> Obj | Stop:
        if not found["spec"].get("suspend"):
            if wrote(found, effect.id):
                return Stop("it is started", done=True)
            return Stop("somebody else has started it", refusal=Refusal.TAKEN)
        why_not = startable(found)
        if why_not:
            return Stop(why_not, refusal=Refusal.TAKEN)
        held = found["spec"]["template"]["spec"].get("nodeSelector") or {}
        ours = dict.fromkeys(held.keys() - _foreign(found).keys())
        notes = {**record_of(effect, "started"), STOPPED: None}
        return {
            "metadata": {"annotations": notes},
            "spec": {"suspend": False, "template": {"spec": {"nodeSelector": {**ours, **place.selector}}}},
        }

    tried = tools.writer.change(ref, decide, effect.epoch, dry=True)  # a refused start leaves no labels
    if not tried.ok:
        return ended_by(tried, f"{ref.shown}: start")
    marked = placement.mark(tools.writer, place, effect.epoch)
    if not marked.ok:
        return ended_by(marked, f"label {place.label} of its nodes")
    answer = tools.writer.change(ref, decide, effect.epoch)
    return Waiting("the scheduler binds its pods") if answer.ok else ended_by(answer, f"{ref.shown}: start")


def _foreign(job: Obj) -> dict[str, str]:
    """The node selector of the template without the labels of an earlier placement of ours: labels of our own only.

    Nothing on the Job is believed about it, so that nobody can get a selector removed that others have set.
    """
    held = job["spec"]["template"]["spec"].get("nodeSelector") or {}
    return {key: value for key, value in held.items() if not key.startswith(PLACEMENT)}


def _suits_stop(instruction: Instruction, target: Target) -> str:
    why_not = _own_job(target)
    if why_not:
        return why_not
    ends = over(target.job)
    return f"its Job is {ends}" if ends and instruction.operation.stops else ""


def _stop(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:  # noqa: ARG001 - as every step
    operation, ref = asked(effect.instruction.operation, EvictOperation), target.first("Job")
    if ref is None:
        return gone("its Job is gone")
    return suspend(tools, effect, target, operation.reason)


def suspend(tools: Tools, effect: Effect, target: Target, reason: StopReason) -> Progress:
    """Suspend a Job and mark it as suspended by the controller."""
    ref = target.first("Job")
    if ref is None:
        return gone("its Job is gone")

    def decide(found: Obj) -> Obj | Stop:
        if found["spec"].get("suspend"):
            mark = mark_of(found)
            if mark is not None and mark.id == effect.id:
                return Stop("it is suspended", done=True)
            return Stop("somebody else has suspended it", refusal=Refusal.TAKEN)
        return {"metadata": {"annotations": mark_for(found, effect.id, reason)}, "spec": {"suspend": True}}

    answer = tools.writer.change(ref, decide, effect.epoch)
    return Waiting("its pods stop") if answer.ok else ended_by(answer, f"{ref.shown}: suspend")


def _undo_start(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:  # noqa: ARG001 - as every undo
    """Suspend the Job again if none of its pods was bound: it did not start at its place."""
    why = f"not started in time: {effect.waits_for or 'no progress'}"
    begun = wrote(target.job, effect.id) and not target.job["spec"].get("suspend")
    bound = begun and placement.bound(tools.api, target)
    if isinstance(bound, Answer):
        return ended_by(bound, f"{why}; its pods")
    if not begun or bound:
        return late(why)
    done = suspend(tools, effect, target, StopReason.MOVE)
    return no_place(f"{why}; {'it waits again' if isinstance(done, Waiting) else done.reason}")


START = Lever(
    "unsuspend",
    frozenset({"admit"}),
    "start a suspended Job with its placement, in one write",
    (
        Rule("batch", "jobs", ("get", "patch"), changes=(EFFECT, STOPPED, SUSPENDED, TEMPLATE_PLACE)),
        Rule("", "nodes", ("get", "list", "patch"), changes=(PLACEMENT_LABEL,)),
        Rule("", "pods", ("get",)),
    ),
    suits_start,
    _start,
    _undo_start,
)
STOP = Lever(
    "suspend",
    frozenset({"evict"}),
    "suspend a Job; its pods get their grace",
    (Rule("batch", "jobs", ("get", "patch"), changes=(STOPPED, SUSPENDED)), ASKED),
    _suits_stop,
    after_saving(_stop),
    take_back,
)
