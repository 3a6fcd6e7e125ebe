"""Change the number of running pods of an elastic Job, by `spec.parallelism`: before it starts, and while it runs.

A shrinking Job loses the pods named by the decision: they are evicted under disruption budgets, and the lower number
then keeps the Job controller from making others. A growing Job gets its new nodes marked first. Kueue makes another
Workload for a growing width, and our check of that Workload is set to Ready without a placement, since the pods select
the marked nodes already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from actuators.kubernetes import placement
from actuators.kubernetes.api import CONFLICTS, Answer, Obj, Ref, Refusal
from actuators.kubernetes.changes import OUR_STATE, PLACEMENT_LABEL, WIDTH
from actuators.kubernetes.effects import fields_of, record_of, wrote
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
    not_set_up,
)
from actuators.kubernetes.levers.check_state import KUEUE, PENDING, READY, message, our_check, state_of
from actuators.kubernetes.levers.evict_pods import job_fails
from actuators.kubernetes.levers.evicting import evict_all
from actuators.kubernetes.levers.width import bounds, rigid, units_of, width_of
from actuators.kubernetes.objects import Target, annotation, holds
from actuators.kubernetes.writing import CHECK_MANAGER, Stop
from autopilot.contract.annotations import EFFECT
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.model.records import Cause, Instruction, OutcomeKind
from autopilot.core.model.verb import asked
from autopilot.core.sharing_time.resize_members import ResizeOperation

JOB_UID = "kueue.x-k8s.io/job-uid"
REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"


# --- before it starts -----------------------------------------------------------------------------


def _suits_start(instruction: Instruction, target: Target) -> str:
    """A suspended elastic Job to be started with another number of pods."""
    why_not = rigid(target)
    if why_not:
        return why_not
    if not target.job["spec"].get("suspend"):
        return "its Job runs"
    wide = len(instruction.operation.slots) // units_of(target.job)
    asked = [each.get("count", 1) for each in target.workload["spec"]["podSets"]] if target.workload else [wide]
    return "it has the width that it is to start with" if width_of(target.job) == wide == asked[0] else ""


def _set_width(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:  # noqa: ARG001 - as every step
    """Change the number of pods of a Job that does not run; its Workload follows."""
    operation, ref = asked(effect.instruction.operation, AdmitOperation), target.first("Job")
    if ref is None:
        return gone("its Job is gone")
    wide = len(operation.slots) // units_of(target.job)
    refused = _outside(target.job, wide)
    if refused is not None:
        return refused

    def decide(found: Obj) -> Obj | Stop:
        if not found["spec"].get("suspend"):
            return Stop("somebody else has started it", refusal=Refusal.GONE)
        if width_of(found) == wide:
            return Stop("it is so already", done=True)
        return {"spec": {"parallelism": wide}, "metadata": {"annotations": record_of(effect, "width")}}

    answer = tools.writer.change(ref, decide, effect.epoch)
    if not answer.ok:
        return ended_by(answer, f"{ref.shown}: {wide} pods")
    return Waiting(f"it is to start with {wide} pods, and Kueue follows")


# --- while it runs --------------------------------------------------------------------------------


def _suits(_instruction: Instruction, target: Target) -> str:
    return rigid(target)


def _step(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:
    """Begin, or go on with, a change of the width."""
    operation, ref, job = asked(effect.instruction.operation, ResizeOperation), target.first("Job"), target.job
    if ref is None:
        return gone("its Job is gone")
    if job["spec"].get("suspend"):
        return changed("its Job does not run any more")
    wide = len(operation.slots) // units_of(job)
    refused = _outside(job, wide)
    if refused is not None:
        return refused
    bound, failed = placement.bound_pods(tools.api, target)
    if failed is not None:
        return ended_by(failed, "its pods")  # a pod that is not counted here would be stopped, or kept, by mistake
    before = _before(job, effect)
    if width_of(job) == wide and before is None:
        return changed(f"somebody else gave it {wide} pods")
    if wide < (before or width_of(job)):
        return _shrink(tools, effect, target, operation, bound)
    if width_of(job) != wide:
        begun = _grow(tools, effect, target, operation, wide)
        if begun is not None:
            return begun
    if target.workload:
        refusal = _ready_slices(tools, effect, target, ref, now_s)
        if refusal is not None:
            return ended_by(refusal, "its new Workload")
    if sum(_stays(pod) for pod in bound) < wide:
        return Waiting(f"its pods start: {len(bound)} of {wide} are on their nodes")
    return Ended(OutcomeKind.DONE, f"it has {wide} pods")


def _shrink(tools: Tools, effect: Effect, target: Target, operation: ResizeOperation, bound: list[Obj]) -> Progress:
    """Evict the pods that are not kept, then ask for fewer."""
    job, ref, units = target.job, target.first("Job"), units_of(target.job)
    wide = len(operation.slots) // units
    leaving = _leaving(bound, operation, units)
    if isinstance(leaving, str):
        return no_place(leaving)
    if ref is None:
        return gone("its Job is gone")
    why_not = job_fails(job, [*(pod for pod in bound if not _stays(pod)), *leaving]) if leaving else ""
    if why_not:
        return Ended(OutcomeKind.DECLINED, why_not, cause=Cause.HARM)

    def record() -> Progress | None:
        if wrote(job, effect.id):
            return None
        notes = record_of(effect, "leaving", before=width_of(job))
        answer = tools.writer.change(ref, lambda _: {"metadata": {"annotations": notes}}, effect.epoch)
        return None if answer.ok else ended_by(answer, f"{ref.shown}: record")

    stay = sum(_stays(pod) for pod in bound)
    begun = stay < len(bound) or width_of(job) < (_before(job, effect) or 0)
    evicted, held = evict_all(tools, effect, leaving, None, begun=begun, first=record)
    if held is not None and not (begun or evicted):
        return held
    left = wide if held is None else min(stay - evicted, width_of(job))
    if width_of(job) != left:  # even if a budget holds the rest: the Job controller must not replace the leavers
        answer = _ask_for(tools, effect, ref, width_of(job), left)
        return (held or Waiting("its pods stop")) if answer.ok else ended_by(answer, f"{ref.shown}: {left} pods")
    if held is not None:
        return held
    if len(bound) > wide:
        return Waiting("its pods stop")
    place = placement.place_of(tools.api, target.uid, operation.slots, labelled=True)
    if not isinstance(place, Answer) and _selects(job, place.label):
        placement.mark(tools.writer, place, effect.epoch)  # else its label goes with the gang
    return Ended(OutcomeKind.DONE, f"it has {wide} pods")


def _grow(tools: Tools, effect: Effect, target: Target, operation: ResizeOperation, wide: int) -> Progress | None:
    """Mark the nodes and ask for more pods; None after a successful write."""
    job, ref = target.job, target.first("Job")
    place = placement.place_of(tools.api, target.uid, operation.slots, labelled=True)
    if isinstance(place, Answer):
        if place.refusal in CONFLICTS:
            return no_place(f"its place is gone: {place.message}")
        return ended_by(place, "its nodes")
    if ref is None:
        return gone("its Job is gone")
    if not _selects(job, place.label):
        return not_set_up("its pods do not select the nodes of a placement: more of them start anywhere")
    marked = placement.mark(tools.writer, place, effect.epoch)
    if not marked.ok:
        return ended_by(marked, f"label {place.label} of its nodes")
    answer = _ask_for(tools, effect, ref, width_of(job), wide)
    return None if answer.ok else ended_by(answer, f"{ref.shown}: {wide} pods")


def _ask_for(tools: Tools, effect: Effect, ref: Ref, before: int, wide: int) -> Answer:
    """Write the number of pods, unless somebody wrote another one since it was read."""

    def decide(found: Obj) -> Obj | Stop:
        if found["spec"].get("suspend"):
            return Stop("its Job does not run any more", refusal=Refusal.GONE)
        if width_of(found) == wide:
            return Stop("it is so already", done=True)
        if width_of(found) != before:
            return Stop("somebody else changed its number of pods", refusal=Refusal.GONE)
        notes = record_of(effect, "resized", before=before)
        return {"spec": {"parallelism": wide}, "metadata": {"annotations": notes}}

    return tools.writer.change(ref, decide, effect.epoch)


def _ready_slices(tools: Tools, effect: Effect, target: Target, job: Ref, now_s: float) -> Answer | None:
    """Let Kueue's Workload for the wider Job pass our check; the failed request, or None."""
    if not our_check(target.workload):
        return None
    listed = tools.api.list("Workload", job.namespace, {"labelSelector": f"{JOB_UID}={job.uid}"})
    if isinstance(listed, Answer):
        return listed
    text = message(effect.epoch, effect.id, "it grows on the nodes of its placement")
    for found in listed.items:
        meta = found["metadata"]
        waits = holds(found, "QuotaReserved") and our_check(found).get("state") == PENDING
        if not annotation(found, REPLACES) or not waits or holds(found, "Finished"):
            continue

        def decide(now: Obj) -> Obj | Stop:
            if our_check(now).get("state") != PENDING or not holds(now, "QuotaReserved"):
                return Stop("its reservation changed meanwhile", refusal=Refusal.BUSY)
            return state_of(READY, text, now_s)

        ref = Ref("Workload", meta["namespace"], meta["name"], meta["uid"])
        answer = tools.writer.apply_status(ref, decide, CHECK_MANAGER)
        if not answer.ok:
            return answer
    return None


def _undo(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:  # noqa: ARG001 - as every undo
    """Ask for the pods on their nodes only, if more of them did not come in time."""
    over = f"not resized in time: {effect.waits_for or 'no progress'}"
    ref, before = target.first("Job"), _before(target.job, effect)
    if ref is None or before is None or width_of(target.job) <= before:
        return late(over)
    bound, failed = placement.bound_pods(tools.api, target)
    if failed is not None:
        return ended_by(failed, f"{over}; its pods")  # fewer than there are would stop some that run
    there = sum(_stays(pod) for pod in bound)
    if there >= width_of(target.job):
        return Ended(OutcomeKind.DONE, f"it has {there} pods")
    answer = _ask_for(tools, effect, ref, width_of(target.job), max(there, before, bounds(target.job)[0]))
    after = "its width was given back" if answer.ok else answer.message
    return Ended(OutcomeKind.CONFLICT, f"{over}; {after}", cause=Cause.LATE)


# --- the present state ----------------------------------------------------------------------------


def _outside(job: Obj, wide: int) -> Ended | None:
    """The end for a width that its owner does not allow."""
    least, most = bounds(job)
    if least <= wide <= most:
        return None
    why_not = f"its owner allows {least} to {most} pods, and {wide} are asked for"
    return Ended(OutcomeKind.DECLINED, why_not, cause=Cause.HARM)


def _before(job: Obj, effect: Effect) -> int | None:
    """Its width before the first write of this instruction; None: no write of it."""
    found = fields_of(annotation(job, EFFECT)).get("before") if wrote(job, effect.id) else None
    return found if isinstance(found, int) else None


def _stays(pod: Obj) -> bool:
    return not pod["metadata"].get("deletionTimestamp")


def _leaving(bound: Sequence[Obj], operation: ResizeOperation, units: int) -> list[Obj] | str:
    """The pods that are not kept, the youngest of each node; or their difference from the decision."""
    kept = {node: count // units for node, count in placement.by_node(operation.slots).items()}
    there = [pod for pod in bound if _stays(pod)]
    on = Counter(pod["spec"]["nodeName"] for pod in there)
    for node, count in kept.items():
        if on[node] < count:
            return f"node {node} has {on[node]} of its pods, and {count} are to stay there"
    ordered = sorted(there, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))
    leaving = []
    for pod in ordered:
        node = pod["spec"]["nodeName"]
        if kept.get(node, 0) > 0:
            kept[node] -= 1
        else:
            leaving.append(pod)
    return leaving


def _selects(job: Obj, key: str) -> bool:
    """True if its pods run on nodes with our label only."""
    return (job["spec"]["template"]["spec"].get("nodeSelector") or {}).get(key) == "true"


START = Lever(
    "job-width",
    frozenset({"admit"}),
    "set the number of pods with which an elastic Job is to start",
    (Rule("batch", "jobs", ("get", "patch"), changes=(EFFECT, WIDTH)),),
    _suits_start,
    _set_width,
)
RESIZE = Lever(
    "job-parallelism",
    frozenset({"resize"}),
    "change the number of pods of an elastic Job while it runs",
    (
        Rule("batch", "jobs", ("get", "patch"), changes=(EFFECT, WIDTH)),
        Rule("", "pods", ("get",)),
        Rule("", "pods/eviction", ("create",)),
        Rule("", "nodes", ("get", "list", "patch"), changes=(PLACEMENT_LABEL,)),
        Rule(KUEUE, "workloads", ("get", "list")),
        Rule(KUEUE, "workloads/status", ("patch",), changes=(OUR_STATE,)),
    ),
    _suits,
    _step,
    _undo,
)
