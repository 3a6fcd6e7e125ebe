"""Notify the owner of idle work by an Event on its object, and on the controller that created it.

It is done once the server has the Event on the object itself: no later step is taken without it.
"""

from __future__ import annotations

from actuators.kubernetes.api import KINDS, Ref
from actuators.kubernetes.levers.base import Effect, Ended, Lever, Progress, Rule, Tools, Waiting, ended_by, gone
from actuators.kubernetes.levers.check_state import KUEUE
from actuators.kubernetes.objects import Target
from autopilot.contract.tree import PREFIX
from autopilot.core.idle.notify import Notify
from autopilot.core.model.records import Cause, Instruction, OutcomeKind
from autopilot.core.model.units import counted, format_duration
from autopilot.core.model.verb import asked

REASON, ACTION = "GpusIdle", "Notify"


def suits(_instruction: Instruction, target: Target) -> str:
    """Work with a main object for people."""
    return "" if target.main is not None else "the view has no object of it"


def step(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:
    """One Event on the object, then one on its controller."""
    operation, main = asked(effect.instruction.operation, Notify), target.main
    if main is None:
        return gone("its object is gone")
    read = tools.api.read(main)
    if not read.ok:
        return ended_by(read, main.shown)
    text = words(operation)
    said = tools.events.say(main, REASON, ACTION, text, now_s, effect=effect.id, warning=True)
    if not said.ok:
        what = f"the Event on {main.shown} could not be written"
        waits = ended_by(said, what)
        if isinstance(waits, Waiting):
            return waits  # an outage is no attempt
        return Ended(OutcomeKind.FAILED, f"{what}: {said.message}", retryable=True, cause=Cause.SERVER)
    for owner in read.body["metadata"].get("ownerReferences") or ():
        if owner.get("controller") and owner["kind"] in KINDS:
            about = Ref(owner["kind"], main.namespace, owner["name"], owner["uid"])
            tools.events.say(about, REASON, ACTION, f"{main.shown}: {text}", now_s, effect=effect.id, warning=True)
    return Ended(OutcomeKind.DONE, f"the owner of {main.shown} has the notice as an Event")


def words(operation: Notify) -> str:
    """The notice. It states the possible suspension, its time, and its prevention by the owner."""
    return (
        f"it has done nothing for {format_duration(operation.idle_s)} on {counted(round(operation.gpus, 2), 'GPU')}; "
        f"it may be suspended with a checkpoint from {format_duration(operation.grace_s)} after this notice on. "
        f'Use the GPUs, end the work, or annotate it with {PREFIX}exclude: "true"'
    )


LEVER = Lever(
    "notice",
    frozenset({"notify"}),
    "write an Event on the work and on its controller",
    (Rule("batch", "jobs", ("get",)), Rule("", "pods", ("get",)), Rule(KUEUE, "workloads", ("get",))),
    suits,
    step,
)
