"""Set the ceiling of an idle service: its replicas go down to it by the scale subresource, and come back.

The ceiling is recorded in an annotation of the service first, with the owner's number of replicas. Only our own number
is ever taken back: a number set by somebody else in between stands, and ends the ceiling. An autoscaler is not changed:
it leaves a service without a replica alone, and would undo any other number, so beside one only zero is set.
"""

from __future__ import annotations

from actuators.kubernetes.api import Answer, Obj, Ref, Refusal
from actuators.kubernetes.changes import CEILING_NOTE, REPLICAS
from actuators.kubernetes.levers.base import Effect, Ended, Lever, Progress, Rule, Tools, changed, ended_by, gone
from actuators.kubernetes.objects import Target, annotation
from actuators.kubernetes.writing import Stop
from autopilot.contract.scaling import (
    CEILING,
    FLOOR,
    KEDA,
    Ceiling,
    read_ceiling,
    read_floor,
    read_scaling,
    revision_of,
)
from autopilot.contract.tree import PREFIX
from autopilot.core.idle import ceiling
from autopilot.core.model.records import Cause, Instruction, OutcomeKind
from autopilot.core.model.verb import asked

AUTOSCALER = "HorizontalPodAutoscaler"
SERVICES = ("Deployment", "StatefulSet")
NOTE = PREFIX + CEILING


def suits(_instruction: Instruction, target: Target) -> str:
    """A Deployment or a StatefulSet."""
    return "" if service_of(target) is not None else "it is neither a Deployment nor a StatefulSet"


def step(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:
    """Record the ceiling, then lower the number of replicas; or give the number back."""
    operation, ref = asked(effect.instruction.operation, ceiling.Ceiling), service_of(target)
    if ref is None:
        return gone("its service is gone")
    if operation.replicas < 0:
        answer = give_back(tools, ref, effect.epoch)
        return Ended(OutcomeKind.DONE, answer.message) if answer.ok else ended_by(answer, f"ceiling of {ref.shown}")
    read = tools.api.read(ref)
    if not read.ok:
        return ended_by(read, ref.shown)
    if operation.until_s <= now_s:
        return Ended(OutcomeKind.CONFLICT, f"{ref.shown}: its ceiling would have ended already", cause=Cause.LATE)
    refused = _refused(tools, ref, read.body, operation.replicas)
    if isinstance(refused, Answer):
        return ended_by(refused, f"autoscalers of {ref.namespace}")
    if refused:
        return Ended(OutcomeKind.FAILED, f"{ref.shown}: {refused}", cause=Cause.LEVER)
    wanted = settle(effect.instruction, operation, read.body)
    if isinstance(wanted, str):
        return changed(f"{ref.shown}: {wanted}")
    answer = _record(tools, ref, annotation(read.body, NOTE), wanted, effect.epoch)
    if answer.ok:
        answer = _set(tools, ref, wanted.owner, wanted.ours, effect.epoch)
    if not answer.ok:
        return ended_by(answer, f"ceiling of {ref.shown}")
    had = f"it had {wanted.owner}, and has them back when it is used"
    return Ended(OutcomeKind.DONE, f"idle: at most {wanted.replicas} replicas of {ref.shown} while it is idle; {had}")


def settle(instruction: Instruction, operation: ceiling.Ceiling, service: Obj) -> Ceiling | str:
    """The ceiling to record; or the reason against it."""
    record, number, revision = read_ceiling(annotation(service, NOTE)), replicas_of(service), _revision(service)
    owner = number
    if record is not None:
        begun = record.id == instruction.id and number == record.owner  # recorded, and then interrupted
        if not begun and not record.unchanged(number, revision):
            return f"somebody changed it while our ceiling of {record.replicas} stood; that counts"
        owner, revision = record.owner, record.revision
    ours, generation = min(operation.replicas, owner), instruction.subject.revision
    return Ceiling(instruction.id, operation.replicas, operation.until_s, owner, ours, generation, revision)


def give_back(tools: Tools, ref: Ref, epoch: int) -> Answer:
    """Set the owner's number, if the present one is ours; then remove the record. The message reports the result."""
    read = tools.api.read(ref)
    text = annotation(read.body, NOTE) if read.ok else ""
    if not read.ok or not text:
        return read if not read.ok else Answer(read.body, None, f"{ref.shown} has no ceiling", 200)
    record, number = read_ceiling(text), replicas_of(read.body)
    said = f"{ref.shown} keeps its {number} replicas: that number is not ours"
    if record is not None and number == record.ours:
        answer = _set(tools, ref, number, record.owner, epoch)
        if not answer.ok:
            return answer
        said = f"{ref.shown} has the {record.owner} replicas of its owner again"

    def decide(found: Obj) -> Obj | Stop:
        now = annotation(found, NOTE)
        if now == "":
            return Stop("its record is gone", done=True)
        if now != text:
            return Stop("its record changed meanwhile", refusal=Refusal.BUSY)
        return {"metadata": {"annotations": {NOTE: None}}}

    answer = tools.writer.change(ref, decide, epoch)
    return Answer(answer.body, None, f"ceiling given back: {said}", 200) if answer.ok else answer


def _record(tools: Tools, ref: Ref, before: str, wanted: Ceiling, epoch: int) -> Answer:
    """Write the record, unless somebody changed it since it was read."""

    def decide(found: Obj) -> Obj | Stop:
        now = annotation(found, NOTE)
        if now == wanted.text():
            return Stop("it is recorded already", done=True)
        if now != before:
            return Stop("its record changed meanwhile", refusal=Refusal.BUSY)
        return {"metadata": {"annotations": {NOTE: wanted.text()}}}

    return tools.writer.change(ref, decide, epoch)


def _set(tools: Tools, ref: Ref, before: int, number: int, epoch: int) -> Answer:
    """Write the number of replicas, unless somebody wrote another one than `before`."""

    def decide(found: Obj) -> Obj | Stop:
        now = replicas_of(found)
        if now == number:
            return Stop("it has that number already", done=True)
        if now != before:
            return Stop("its replicas changed meanwhile", refusal=Refusal.BUSY)
        return {"spec": {"replicas": number}}

    return tools.writer.change(ref, decide, epoch, subresource="scale")


# --- the present state ----------------------------------------------------------------------------


def service_of(target: Target) -> Ref | None:
    """The Deployment or StatefulSet of an instruction; None without one."""
    return next((found for kind in SERVICES if (found := target.first(kind)) is not None), None)


def replicas_of(service: Obj) -> int:
    """Its number of replicas; 1 is the server's own default."""
    number = (service.get("spec") or {}).get("replicas")
    return 1 if number is None else int(number)


def _revision(service: Obj) -> str:
    notes = (service.get("metadata") or {}).get("annotations") or {}
    return revision_of(notes, str((service.get("status") or {}).get("updateRevision", "")))


def _refused(tools: Tools, ref: Ref, service: Obj, replicas: int) -> str | Answer:
    """Reason by the owner, a floor or an autoscaler against it; "" for none; or the failed request."""
    allowed = read_scaling((service.get("metadata") or {}).get("annotations") or {})
    floor = read_floor(annotation(service, PREFIX + FLOOR))
    if allowed.problem:
        return allowed.problem
    if not allowed.may_scale:
        return f"its owner does not allow to scale it ({PREFIX}scale is not true)"
    if allowed.min_replicas is not None and replicas < allowed.min_replicas:
        return f"its owner keeps {allowed.min_replicas} replicas, and the ceiling is {replicas}"
    if replicas == 0 and allowed.wake_signal is None:
        return f"its owner names no signal that would wake it ({PREFIX}wake-signal)"
    if floor is not None and floor.ours is not None:
        return f"a floor of {floor.replicas} replicas is still recorded"
    found = autoscaler_of(tools, ref)
    if isinstance(found, Answer):
        return found
    if found is not None:
        return _beside(found, replicas)
    return "" if allowed.min_replicas is not None else f"its owner states no {PREFIX}min-replicas"


def autoscaler_of(tools: Tools, ref: Ref) -> Obj | Answer | None:
    """The HPA of a service; the failed request if its existence is unknown."""
    listed = tools.api.list(AUTOSCALER, ref.namespace)
    if isinstance(listed, Answer):
        return None if listed.refusal == Refusal.GONE else listed
    for found in listed.items:
        aim = found["spec"]["scaleTargetRef"]
        if (aim["kind"], aim["name"]) == (ref.kind, ref.name):
            return found
    return next((Answer({}, Refusal.UNFIT, f"{why}; it may scale {ref.shown}") for why in listed.unread), None)


def _beside(autoscaler: Obj, replicas: int) -> str:
    """Reason against a number of replicas beside an autoscaler; "" for none."""
    meta = autoscaler["metadata"]
    shown = f"{AUTOSCALER} {meta['namespace']}/{meta['name']}"
    if any(owner["kind"] == KEDA for owner in meta.get("ownerReferences") or ()):
        return f"{shown} is managed by KEDA, which would undo a change; let its ScaledObject scale it down"
    return "" if replicas == 0 else f"{shown} would undo any number but 0; lower its minReplicas"


LEVER = Lever(
    "service-ceiling",
    frozenset({"ceiling"}),
    "scale an idle service down by its scale subresource, and give its replicas back",
    (
        Rule("apps", "deployments", ("get", "patch"), changes=(CEILING_NOTE,)),
        Rule("apps", "statefulsets", ("get", "patch"), changes=(CEILING_NOTE,)),
        Rule("apps", "deployments/scale", ("patch",), changes=(REPLICAS,)),
        Rule("apps", "statefulsets/scale", ("patch",), changes=(REPLICAS,)),
        Rule("autoscaling", "horizontalpodautoscalers", ("list",)),
    ),
    suits,
    step,
)
