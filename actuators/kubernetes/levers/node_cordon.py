"""Cordon and taint a node in need of a restart, and take both back once it is sound again.

Only our own taint and our own cordon are removed. The annotation tells our cordon from another. Taints are one list,
replaced as a whole by a merge patch, so the write names the resourceVersion of its read.
"""

from __future__ import annotations

import json

from actuators.kubernetes.api import Obj, Refusal
from actuators.kubernetes.changes import TAINTS, UNSCHEDULABLE
from actuators.kubernetes.effects import fields_of
from actuators.kubernetes.levers.base import Effect, Ended, Lever, Progress, Rule, Tools, ended_by, gone
from actuators.kubernetes.objects import Target, annotation
from actuators.kubernetes.writing import Stop
from autopilot.contract.annotations import CONDEMNED, CORDONED
from autopilot.core.model.records import Instruction, OutcomeKind
from autopilot.core.model.verb import asked
from autopilot.core.recovery.cordon import Cordon


def suits(_instruction: Instruction, target: Target) -> str:
    """A node."""
    return "" if target.first("Node") is not None else "it is not a node"


def step(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:  # noqa: ARG001 - as every `step`
    """One write: cordon, taint and annotation, or their removal."""
    operation, ref = asked(effect.instruction.operation, Cordon), target.first("Node")
    if ref is None:
        return gone("its node is gone")

    def decide(found: Obj) -> Obj | Stop:
        return _close(found, effect.id, operation.reason) if operation.on else _open(found)

    answer = tools.writer.change(ref, decide, effect.epoch)
    if not answer.ok:
        return ended_by(answer, f"{'cordon' if operation.on else 'uncordon'} {ref.shown}")
    return Ended(OutcomeKind.DONE, answer.message or ("it is cordoned" if operation.on else "it takes work again"))


def _close(node: Obj, effect: str, reason: str) -> Obj | Stop:
    """The patch to close a node; nothing if we have closed it already, or a person opened it for this reason."""
    spec = node.get("spec") or {}
    if annotation(node, CORDONED) and spec.get("unschedulable"):
        return Stop("the autopilot has cordoned it already", done=True)
    if annotation(node, CORDONED) and fields_of(annotation(node, CORDONED)).get("reason") == reason:
        return Stop(f"somebody has uncordoned it although: {reason}", refusal=Refusal.TAKEN)
    mark = {"id": effect, "reason": reason, "cordoned": not spec.get("unschedulable", False)}
    taints = [*_others(spec), {"key": CONDEMNED, "value": "true", "effect": "NoSchedule"}]
    return {
        "metadata": {"annotations": {CORDONED: json.dumps(mark)}},
        "spec": {"unschedulable": True, "taints": taints},
    }


def _open(node: Obj) -> Obj | Stop:
    """The patch to take our cordon and our taint back."""
    mark, spec = fields_of(annotation(node, CORDONED)), node.get("spec") or {}
    if not annotation(node, CORDONED):
        return Stop("the autopilot has not cordoned it; it is left as it is", done=True)
    patch: Obj = {"metadata": {"annotations": {CORDONED: None}}, "spec": {"taints": _others(spec) or None}}
    if mark.get("cordoned") is True:
        patch["spec"]["unschedulable"] = None
    return patch


def _others(spec: Obj) -> list[Obj]:
    """The taints of others. The one of the cordon itself is kept by the node controller."""
    return [each for each in spec.get("taints") or () if each.get("key") != CONDEMNED]


LEVER = Lever(
    "node-cordon",
    frozenset({"cordon"}),
    "cordon and taint a node that must be restarted, or take that back",
    (Rule("", "nodes", ("get", "patch"), changes=(CORDONED, UNSCHEDULABLE, TAINTS)),),
    suits,
    step,
)
