"""Offer an idle node back by an annotation, and take it back. The node itself is never changed or removed."""

from __future__ import annotations

from datetime import UTC, datetime

from actuators.kubernetes.api import Obj, Ref
from actuators.kubernetes.levers.base import Effect, Ended, Lever, Progress, Rule, Tools, ended_by
from actuators.kubernetes.objects import Target, annotation
from actuators.kubernetes.writing import Stop
from autopilot.contract.annotations import OFFERED
from autopilot.core.model.records import Instruction, OutcomeKind
from autopilot.core.model.verb import asked
from autopilot.core.nodes.offer import Offer


def suits(_instruction: Instruction, target: Target) -> str:
    """A node."""
    return "" if target.first("Node") is not None else "it is not a node"


def step(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:
    """One write: the annotation with the time, or without it."""
    operation, ref = asked(effect.instruction.operation, Offer), target.first("Node")
    if ref is None:
        return Ended(OutcomeKind.CONFLICT, "its node is gone")

    def decide(found: Obj) -> Obj | Stop:
        if bool(annotation(found, OFFERED)) == operation.on:
            return Stop("it is offered already" if operation.on else "it is not offered", done=True)
        stamp = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"metadata": {"annotations": {OFFERED: stamp if operation.on else None}}}

    answer = tools.writer.change(ref, decide, effect.epoch)
    if not answer.ok:
        return ended_by(answer, f"annotate {ref.shown}")
    done = f"{OFFERED} is {'set' if operation.on else 'removed'}: {operation.reason}"
    return Ended(OutcomeKind.DONE, answer.message or done)


def withdraw(tools: Tools, ref: Ref, epoch: int) -> bool:
    """Take back an offer that no instruction keeps any more; True if there was one."""

    def decide(found: Obj) -> Obj | Stop:
        if not annotation(found, OFFERED):
            return Stop("it is not offered", done=True)
        return {"metadata": {"annotations": {OFFERED: None}}}

    answer = tools.writer.change(ref, decide, epoch)
    return answer.ok and not answer.message


LEVER = Lever(
    "offer-back",
    frozenset({"offer"}),
    "annotate a node that may be removed, or take that back",
    (Rule("", "nodes", ("get", "patch"), changes=(OFFERED,)),),
    suits,
    step,
)
