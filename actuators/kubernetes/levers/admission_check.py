"""Admit a gang of Kueue by our AdmissionCheck: Ready, with the placement as updates of its pod sets.

The check stays Pending, and the quota held, until the gang is to start. Kueue then starts it as a whole.
"""

from __future__ import annotations

from actuators.kubernetes import placement
from actuators.kubernetes.api import CONFLICTS, Answer, Obj, Refusal
from actuators.kubernetes.changes import ACTIVE, CONDITIONS, OUR_STATE, PLACEMENT_LABEL
from actuators.kubernetes.levers import reservations
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
from actuators.kubernetes.levers.check_state import KUEUE, PENDING, READY, RETRY, message, our_check, said_by, state_of
from actuators.kubernetes.levers.deactivate import of_pods
from actuators.kubernetes.levers.width import rigid
from actuators.kubernetes.merging import Contradiction, base_selectors, merge
from actuators.kubernetes.mig_node import holds_gpu
from actuators.kubernetes.objects import Target, holds, over
from actuators.kubernetes.writing import CHECK_MANAGER, Stop
from autopilot.contract.annotations import CHECK, STOPPED
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.model.records import Cause, Instruction, OutcomeKind
from autopilot.core.model.verb import asked

DELETED = "Kueue would delete plain pods whose admission is taken back"


def suits(_instruction: Instruction, target: Target) -> str:
    """Work of Kueue in a queue with our check."""
    if not target.workload:
        return "it is not in a queue of Kueue"
    if not our_check(target.workload):
        return f"its queue does not have the admission check {CHECK}"
    return ""


def step(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:
    """Wait for the reservation, then say Ready; afterwards wait until the view shows the gang."""
    operation = asked(effect.instruction.operation, AdmitOperation)
    workload, ref = target.workload, target.first("Workload")
    if ref is None:
        return gone("its Workload is gone")
    if workload["spec"].get("active", True) is False:
        return changed("its Workload was deactivated meanwhile")
    if holds(workload, "Finished"):
        return changed("its Workload has ended")
    if _evictions(workload) > effect.instruction.subject.revision:  # the view may not show it yet
        return changed("Kueue evicted it since the decision; it is decided again")
    if over(target.job):
        return changed(f"its Job ends: {over(target.job)}")
    check = our_check(workload)
    if check["state"] == READY:
        if said_by(check, effect.id):
            return Waiting("Kueue and the scheduler start it")
        return _give_back(tools, effect, target, now_s)
    if check["state"] != PENDING:
        return Waiting(f"its check {CHECK} is {check['state']}, and Kueue resets it")
    if not holds(workload, "QuotaReserved"):
        return reservations.make_way(tools, effect, target, operation, now_s)
    if holds(workload, "Evicted"):  # Ready would count for the next reservation, maybe of another flavor
        return Waiting("its eviction is not over, and its quota is that of the earlier admission")
    updates = _updates(tools, effect, target, operation)
    if not isinstance(updates, list):
        return updates
    where = f"placed on {placement.shown(operation.slots)}" if updates else "placed by Kueue"
    text = message(effect.epoch, effect.id, where)

    def decide(found: Obj) -> Obj | Stop:
        now = our_check(found)
        if now.get("state") == READY and said_by(now, effect.id):
            return Stop("it is Ready already", done=True)
        if found["metadata"]["resourceVersion"] != workload["metadata"]["resourceVersion"]:
            return Stop("it was written meanwhile; its place is checked again", refusal=Refusal.BUSY)
        return state_of(READY, text, now_s, podSetUpdates=updates)

    answer = tools.writer.apply_status(ref, decide, CHECK_MANAGER)
    if not answer.ok:
        return ended_by(answer, f"{ref.shown}: check {CHECK} Ready")
    return Waiting("Kueue and the scheduler start it")


def _evictions(workload: Obj) -> int:
    """Number of its evictions by Kueue, the incarnation in the view."""
    stats = (workload.get("status") or {}).get("schedulingStats") or {}
    return sum(int(each.get("count", 0)) for each in stats.get("evictions") or ())


def _updates(tools: Tools, effect: Effect, target: Target, operation: AdmitOperation) -> list[Obj] | Progress:
    """The updates of all pod sets, free of contradictions, with the nodes marked; or the reason for none."""
    place = placement.place_of(tools.api, target.uid, operation.slots, labelled=not rigid(target))
    if isinstance(place, Answer):
        if place.refusal in CONFLICTS:
            return no_place(f"its place is gone: {place.message}")
        return ended_by(place, "its nodes")
    bases = base_selectors(tools.api, target.workload)
    if isinstance(bases, str):
        return Waiting(bases)
    updates = []
    left = _placed_by_kueue(target.workload) | _without_gpus(target.workload)
    for name, parts in bases.items():
        if name in left:
            continue
        merged = merge([*parts, ("the placement", place.selector)])
        if isinstance(merged, Contradiction):
            why = f"pod set {name}: {merged}; nothing was written, since Kueue would end it"
            return Ended(OutcomeKind.FAILED, why, cause=Cause.PLACE)
        lacks = place.lacks({key: value for key, value in merged.selector.items() if key not in place.selector})
        if lacks:
            return no_place(f"pod set {name} cannot run there: {lacks}")
        updates.append({"name": name, "nodeSelector": dict(place.selector)})
    if not updates:
        return updates
    marked = placement.mark(tools.writer, place, effect.epoch)
    if not marked.ok:
        return ended_by(marked, f"label {place.label} of its nodes")
    return updates


def _placed_by_kueue(workload: Obj) -> set[str]:
    """Pod sets with nodes assigned by topology-aware scheduling: a selector of ours would contradict them."""
    admission = (workload.get("status") or {}).get("admission") or {}
    return {each["name"] for each in admission.get("podSetAssignments") or () if each.get("topologyAssignment")}


def _without_gpus(workload: Obj) -> set[str]:
    """Pod sets without requests for devices, such as a launcher: the placement names no node for them."""
    sets = workload["spec"].get("podSets") or ()
    return {each["name"] for each in sets if not holds_gpu({"spec": each["template"]["spec"]})}


def _give_back(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:
    """An earlier admission did not start at its place: its reservation is given back, and its gang decided again.

    Only the reservation seen by the decision may be made Ready. Else the next decision would find a Ready that is not
    its own, give that back as well, and so on.
    """
    bound = _bound(tools, target)
    if isinstance(bound, Answer):
        return ended_by(bound, "its pods")
    if bound:
        return changed(f"its check {CHECK} is Ready already, and its pods start")
    if of_pods(target.workload):
        return changed(f"its pods wait for room at their earlier place: {DELETED}")
    answer = _retry(tools, effect, target, now_s, "it did not start at its earlier place")
    return Waiting("Kueue takes its earlier admission back") if answer.ok else ended_by(answer, f"check {CHECK} Retry")


def _bound(tools: Tools, target: Target) -> bool | Answer:
    """True if pods of this admission have their nodes; during an eviction by Kueue, those are the leaving ones."""
    return False if holds(target.workload, "Evicted") else placement.bound(tools.api, target)


def _retry(tools: Tools, effect: Effect, target: Target, now_s: float, why: str) -> Answer:
    """Set Retry if our check is unchanged since it was read; Pending while an eviction does the rest already."""
    ref, before = target.first("Workload"), our_check(target.workload).get("message", "")

    def decide(found: Obj) -> Obj | Stop:
        check = our_check(found)
        if check.get("state") != READY or check.get("message", "") != before:
            return Stop("its check changed meanwhile", done=True)
        state = PENDING if holds(found, "Evicted") else RETRY
        return state_of(state, message(effect.epoch, effect.id, why), now_s)

    if ref is None:
        return Answer({}, Refusal.GONE, "its Workload is gone")
    return tools.writer.apply_status(ref, decide, CHECK_MANAGER)


def undo(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:
    """Take an admission back that did not come about: the node filled up, or the decision was withdrawn."""
    check, why = our_check(target.workload), "its pods did not start at their place in time"
    if check.get("state") != READY or not said_by(check, effect.id):
        return late(f"not admitted in time: {effect.waits_for or 'no progress'}")
    bound = _bound(tools, target)
    if isinstance(bound, Answer):
        return ended_by(bound, f"{why}; its pods")
    if bound:
        return late("some of its pods have not started in time")
    if of_pods(target.workload):
        return no_place(f"{why}, and wait for room there: {DELETED}")
    answer = _retry(tools, effect, target, now_s, why)
    after = "its reservation was given back" if answer.ok else f"and its reservation stays: {answer.message}"
    return no_place(f"{why}; {after}")


LEVER = Lever(
    "admission-check",
    frozenset({"admit"}),
    "set the AdmissionCheck to Ready, with the placement for each pod set",
    (
        Rule(KUEUE, "workloads", ("get", "patch"), changes=(STOPPED, ACTIVE)),
        Rule(KUEUE, "workloads/status", ("patch",), changes=(OUR_STATE,)),
        Rule(KUEUE, "admissionchecks", ("get",), (CHECK,)),
        Rule(KUEUE, "admissionchecks/status", ("patch",), (CHECK,), changes=(CONDITIONS,)),
        Rule(KUEUE, "resourceflavors", ("get",)),
        Rule("", "nodes", ("get", "list", "patch"), changes=(PLACEMENT_LABEL,)),
        Rule("", "pods", ("get",)),
    ),
    suits,
    step,
    undo,
)
