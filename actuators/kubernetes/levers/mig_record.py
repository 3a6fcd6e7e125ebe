"""The record of a change of MIG geometry on its node, and the undoing of a change that did not come about."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from actuators.kubernetes.api import Obj, Ref
from actuators.kubernetes.levers import node_record
from actuators.kubernetes.levers.base import Ended, Tools
from actuators.kubernetes.mig_node import CONFIG, DEPLOY, STATE, paused_clients
from actuators.kubernetes.objects import label
from actuators.kubernetes.writing import Stop
from autopilot.contract.annotations import EFFECT
from autopilot.core.model.records import Cause, OutcomeKind

NAME = "mig-config"
"""The lever of these records."""


@dataclass(frozen=True, slots=True)
class Record:
    """An effect on a node, as its annotation holds it."""

    id: str
    kind: str
    lever: str
    step: str  # cordoned | set
    deadline: float
    epoch: int
    at: float  # start of the step
    config: str  # the requested entry
    before: str  # value of the label before
    cordoned: bool  # the node was open before
    gpus: dict[str, str]  # instruction by index of the GPU


def record_of(node: Obj) -> Record | None:
    """Our effect on the node; None for none, for a record of another lever, and for any other text."""
    return node_record.read(node, Record, NAME)


def back(tools: Tools, epoch: int, ref: Ref, record: Record, why: str, cause: Cause = Cause.CONFIG) -> Ended:
    """Ask for the geometry of before by another value, bring paused clients back, and end."""
    before = record.before

    def decide(found: Obj) -> Obj | Stop:
        known = record_of(found)
        if known is None:
            return Stop("ended", done=True)
        patch: Obj = {"metadata": {"annotations": {EFFECT: None}}}
        if known.step == "set" and label(found, CONFIG) == known.config:
            patch["metadata"]["labels"] = {CONFIG: before, STATE: None}
            # with the geometry of before, the manager reports success and leaves its clients paused
            patch["metadata"]["labels"] |= {DEPLOY + client: "true" for client in paused_clients(found)}
        if known.cordoned:
            patch["spec"] = {"unschedulable": None}
        return patch

    answer = tools.writer.change(ref, decide, epoch)
    if not answer.ok:
        return Ended(OutcomeKind.FAILED, f"{why}; and {ref.shown} stays cordoned: {answer.message}", True, cause)
    after = f"its node is asked to return to {before}" if record.step == "set" else "nothing was changed"
    return Ended(OutcomeKind.FAILED, f"{why}; {after}", cause=cause)


def unclaimed(text: str, under_way: Collection[str]) -> Record | None:
    """The record of a change without an instruction any more; None for every other text."""
    record = record_of({"metadata": {"annotations": {EFFECT: text}}})
    return None if record is None or set(record.gpus.values()) & set(under_way) else record
