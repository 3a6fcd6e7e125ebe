"""Set the floor of a service by one of three ways: a metric of its autoscaler, its HPA's minimum, or its scale.

The floor is recorded in an annotation of the service first, with the owner's number of replicas. A number that is ours
to change is changed afterwards, and only our own raise is ever taken back: a number set by somebody else in between
stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actuators.kubernetes.api import Answer, Obj, Ref, Refusal
from actuators.kubernetes.changes import CEILING_NOTE, FLOOR_NOTE, MIN_REPLICAS, REPLICAS
from actuators.kubernetes.levers import service_ceiling
from actuators.kubernetes.levers.base import Effect, Ended, Lever, Progress, Rule, Tools, changed, ended_by, gone
from actuators.kubernetes.objects import Target, annotation
from actuators.kubernetes.writing import Stop
from autopilot.contract.scaling import (
    CEILING,
    FLOOR,
    KEDA,
    Floor,
    Scaling,
    Way,
    follows_floor,
    read_floor,
    read_scaling,
)
from autopilot.contract.tree import PREFIX
from autopilot.contract.written import MIN_REPLICAS as MINIMUM
from autopilot.contract.written import ours
from autopilot.core.model.records import Cause, Instruction, OutcomeKind
from autopilot.core.model.verb import asked
from autopilot.core.replicas.scale import Scale


@dataclass(frozen=True, slots=True)
class Lift:
    """The way to raise the replicas of one service.

    `held` is the object with the number to change; None: only the record.

    `raised`: the number may be our raise. A writer of the record of a service may have no right to write its HPA, so a
    record counts for the minimum of an HPA only while we are a manager of that field.
    """

    way: Way
    held: Ref | None = None
    number: int = 1  # of that object now
    most: int | None = None
    raised: bool = True

    @property
    def subresource(self) -> str:
        """Subresource of the write: the scale subresource can change nothing else of a service."""
        return "scale" if self.way == Way.SCALE else ""

    def patch(self, number: int) -> Obj:
        """The write of a number."""
        return {"spec": {"minReplicas" if self.way == Way.HPA else "replicas": number}}


def suits(_instruction: Instruction, target: Target) -> str:
    """A Deployment or a StatefulSet."""
    return service_ceiling.suits(_instruction, target)


def step(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:
    """Record the floor, then change the number of replicas, if there is one to change."""
    operation, ref = asked(effect.instruction.operation, Scale), service_ceiling.service_of(target)
    if ref is None:
        return gone("its service is gone")
    read = tools.api.read(ref)
    if read.ok and annotation(read.body, PREFIX + CEILING) and operation.replicas > 0:  # the load counts more
        lifted = service_ceiling.give_back(tools, ref, effect.epoch)
        if not lifted.ok:
            return ended_by(lifted, f"ceiling of {ref.shown}")
        read = tools.api.read(ref)
    if not read.ok:
        return ended_by(read, ref.shown)
    lift = _lift(tools, ref, read.body)
    if isinstance(lift, Answer):
        return ended_by(lift, f"autoscalers of {ref.namespace}")
    record = read_floor(annotation(read.body, PREFIX + FLOOR))
    if operation.replicas == 0:
        return _give_back(tools, effect, ref, record, lift)
    if isinstance(lift, str):
        return Ended(OutcomeKind.FAILED, f"{ref.shown}: {lift}", cause=Cause.LEVER)
    wanted = settle(effect.id, operation, record, lift, now_s)
    if isinstance(wanted, str):
        return changed(f"{ref.shown}: {wanted}")
    if wanted.until_s <= now_s:
        return Ended(OutcomeKind.CONFLICT, f"{ref.shown}: its floor would have ended already", cause=Cause.LATE)
    answer = _record(tools, effect, ref, record, wanted)
    if answer.ok and lift.held is not None and wanted.ours is not None:
        answer = _write(tools, effect, lift, wanted.ours)
    if not answer.ok:
        return ended_by(answer, f"floor of {ref.shown}")
    return Ended(OutcomeKind.DONE, _said(lift, wanted))


def settle(id_: str, operation: Scale, record: Floor | None, lift: Lift, now_s: float) -> Floor | str:
    """The floor to record; or the reason against it."""
    floor = Floor(id_, operation.replicas, operation.until_s, lift.way)
    if lift.held is None:
        return floor
    if lift.most is not None and operation.replicas > lift.most:
        return f"its owner allows at most {lift.most} replicas, and the floor is {operation.replicas}"
    owner = lift.number
    known = record is not None and record.way == lift.way and lift.raised
    if record is not None and known and record.ours is not None and record.owner is not None:
        begun = record.id == id_ and lift.number == record.owner  # recorded, and then interrupted
        if lift.number == record.ours or begun:
            owner = record.owner
        elif lift.number < record.ours and now_s < record.until_s:
            return (
                f"somebody set {lift.number} replicas while our floor of {record.replicas} stood; that number counts "
                "until the floor ends"
            )
    if operation.replicas <= owner:  # the owner's own number suffices; the rest of our raise goes
        return Floor(id_, operation.replicas, operation.until_s, lift.way, owner, owner)
    return Floor(id_, operation.replicas, operation.until_s, lift.way, owner, operation.replicas)


def _give_back(tools: Tools, effect: Effect, ref: Ref, record: Floor | None, lift: Lift | str) -> Progress:
    """Set the owner's number, if the present one is ours; then remove the record."""
    if record is None:
        return Ended(OutcomeKind.DONE, f"{ref.shown} has no floor")
    number = f"{ref.shown} follows its owner again"
    if not isinstance(lift, str) and lift.held is not None and record.ours is not None and record.owner is not None:
        if lift.raised and lift.way == record.way and lift.number == record.ours != record.owner:
            answer = _write(tools, effect, lift, record.owner)
            if not answer.ok:
                return ended_by(answer, f"replicas of {ref.shown}")
            number = f"{ref.shown} has the {record.owner} replicas of its owner again"
        else:
            number = f"{ref.shown} keeps its {lift.number} replicas: that number is not ours"

    def decide(found: Obj) -> Obj | Stop:
        if annotation(found, PREFIX + FLOOR) == "":
            return Stop("its record is gone", done=True)
        return {"metadata": {"annotations": {PREFIX + FLOOR: None}}}

    answer = tools.writer.change(ref, decide, effect.epoch)
    return Ended(OutcomeKind.DONE, f"floor given back: {number}") if answer.ok else ended_by(answer, ref.shown)


def _record(tools: Tools, effect: Effect, ref: Ref, before: Floor | None, wanted: Floor) -> Answer:
    """Write the record, unless somebody changed it since it was read."""

    def decide(found: Obj) -> Obj | Stop:
        now = read_floor(annotation(found, PREFIX + FLOOR))
        if now == wanted:
            return Stop("it is recorded already", done=True)
        if now != before:
            return Stop("its record changed meanwhile", refusal=Refusal.BUSY)
        return {"metadata": {"annotations": {PREFIX + FLOOR: wanted.text()}}}

    return tools.writer.change(ref, decide, effect.epoch)


def _write(tools: Tools, effect: Effect, lift: Lift, number: int) -> Answer:
    """Write a number of replicas, unless somebody wrote another one since it was read."""
    held = lift.held
    if held is None or lift.number == number:
        return Answer()

    def decide(found: Obj) -> Obj | Stop:
        if _number(found, lift.way) != lift.number:
            return Stop("its replicas changed meanwhile", refusal=Refusal.BUSY)
        return lift.patch(number)

    return tools.writer.change(held, decide, effect.epoch, subresource=lift.subresource)


# --- the present state ----------------------------------------------------------------------------


def _lift(tools: Tools, ref: Ref, service: Obj) -> Lift | str | Answer:
    """The way of the floor to the replicas; or the reason against it, or the failed request."""
    allowed = read_scaling((service.get("metadata") or {}).get("annotations") or {})
    if allowed.problem:
        return allowed.problem
    found = service_ceiling.autoscaler_of(tools, ref)
    if isinstance(found, Answer):
        return found
    if found is not None:
        return _by_autoscaler(found, allowed)
    if not allowed.may_scale:
        return f"it has no autoscaler, and its owner does not allow to scale it ({PREFIX}scale is not true)"
    most = allowed.max_replicas
    return Lift(Way.SCALE, ref, _number(service, Way.SCALE), _number(service, Way.SCALE) if most is None else most)


def _by_autoscaler(found: Obj, allowed: Scaling) -> Lift | str:
    """An HPA owns the replicas: it follows our metric, or its minimum is raised; its target is left alone."""
    meta, spec = found["metadata"], found["spec"]
    ref = Ref(service_ceiling.AUTOSCALER, meta["namespace"], meta["name"], meta["uid"])
    if any(follows_floor(_metric(each)) for each in spec.get("metrics") or ()):
        return Lift(Way.METRIC)
    if any(owner["kind"] == KEDA for owner in meta.get("ownerReferences") or ()):
        return (
            f"{ref.shown} is managed by KEDA, which would undo a change; add our external scaler to its triggers "
            "(docs/scaling.md)"
        )
    if not allowed.may_scale:
        return (
            f"{ref.shown} does not follow our metric, and its owner does not allow to raise its minimum "
            f"({PREFIX}scale is not true); docs/scaling.md has both"
        )
    most = int(spec["maxReplicas"])
    most = most if allowed.max_replicas is None else allowed.max_replicas
    return Lift(Way.HPA, ref, _number(found, Way.HPA), most, ours(meta.get("managedFields") or (), MINIMUM))


def _number(found: Obj, way: Way) -> int:
    """The number changed by a way; 1 is the server's own default."""
    value: Any = (found.get("spec") or {}).get("minReplicas" if way == Way.HPA else "replicas")
    return 1 if value is None else int(value)


def _metric(found: Obj) -> str:
    return str(((found.get("external") or {}).get("metric") or {}).get("name", ""))


def _said(lift: Lift, floor: Floor) -> str:
    if lift.held is None:
        return f"a floor of {floor.replicas} replicas is published; its autoscaler follows it"
    if floor.ours == floor.owner:
        return f"its owner's {floor.owner} replicas are enough for a floor of {floor.replicas}"
    what = "minReplicas" if lift.way == Way.HPA else "replicas"
    return f"{what} of {lift.held.shown} raised from {floor.owner} to {floor.ours}"


LEVER = Lever(
    "service-scale",
    frozenset({"scale"}),
    "set the floor of a service: as a metric, as minReplicas of its HPA, or by its scale subresource",
    (
        Rule("apps", "deployments", ("get", "patch"), changes=(FLOOR_NOTE, CEILING_NOTE)),
        Rule("apps", "statefulsets", ("get", "patch"), changes=(FLOOR_NOTE, CEILING_NOTE)),
        Rule("apps", "deployments/scale", ("patch",), changes=(REPLICAS,)),
        Rule("apps", "statefulsets/scale", ("patch",), changes=(REPLICAS,)),
        Rule("autoscaling", "horizontalpodautoscalers", ("get", "list", "patch"), changes=(MIN_REPLICAS,)),
    ),
    suits,
    step,
)
