"""Let a training program wait at its next step boundary, and go on, by the port that its pods name.

All members are asked: one that waits keeps the others in a collective. The helper ends a pause by itself, so nothing
stays paused by a controller that is gone. A program that does not answer within `ANSWER_S` is let go on.
"""

from __future__ import annotations

from actuators.kubernetes.api import Answer, Obj
from actuators.kubernetes.hook import declares_hook
from actuators.kubernetes.levers.base import (
    Effect,
    Ended,
    Lever,
    Progress,
    Rule,
    Tools,
    Waiting,
    ended_by,
    gone,
    late,
    not_set_up,
)
from actuators.kubernetes.levers.check_state import KUEUE
from actuators.kubernetes.levers.saving import running_pods
from actuators.kubernetes.objects import Target
from autopilot.contract.annotations import CHECKPOINT_PORT
from autopilot.core.model.records import Instruction, OutcomeKind
from autopilot.core.model.verb import asked
from autopilot.core.neighbours.pausing import PAUSE, RESUME, Pause

ANSWER_S = 10.0
"""A program that has not answered after this long takes no pauses."""


def suits(_instruction: Instruction, target: Target) -> str:
    """Work with pods."""
    return "" if target.of("Pod") else "the view has no pod of it"


def step(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:
    """Ask every pod; a second request takes the place of the first."""
    pods = _pods(tools, target)
    if not isinstance(pods, list):
        return pods
    if effect.instruction.kind == RESUME:
        failed = [why for why in map(tools.hooks.resume, pods) if why]
        return Waiting(failed[0]) if failed else Ended(OutcomeKind.DONE, "it goes on")
    seconds = asked(effect.instruction.operation, Pause).seconds
    failed = [why for pod in pods if (why := tools.hooks.pause(pod, seconds))]
    if not failed:
        return Ended(OutcomeKind.DONE, f"it waits at its next step boundary, for at most {seconds:g} s")
    if now_s < effect.begun_s + ANSWER_S:
        return Waiting(failed[0])
    _let_go(tools, pods)
    return not_set_up(f"it takes no pause: {failed[0]}")


def undo(tools: Tools, effect: Effect, target: Target, _now_s: float) -> Progress:
    """What was asked to wait goes on."""
    pods = _pods(tools, target)
    if isinstance(pods, list):
        _let_go(tools, pods)
    return late(f"not done in time: {effect.waits_for or 'no progress'}")


def _pods(tools: Tools, target: Target) -> list[Obj] | Progress:
    """The running pods of the work, if all of them take requests; else the reason against a request."""
    if not tools.hooks.secret():
        return not_set_up("no secret for pauses: set kubernetes.pause_secret_file (docs/checkpoints.md#pauses)")
    pods = running_pods(tools.api, target)
    if isinstance(pods, Answer):
        return ended_by(pods, "its pods")
    if not pods:
        return gone("none of its pods runs")
    silent = [pod["metadata"]["name"] for pod in pods if not declares_hook(pod)]
    if silent:
        return not_set_up(f"pod {silent[0]} takes no pauses: serve the helper, and name its port by {CHECKPOINT_PORT}")
    return pods


def _let_go(tools: Tools, pods: list[Obj]) -> None:
    for pod in pods:
        tools.hooks.resume(pod)


LEVER = Lever(
    "step-pause",
    frozenset({PAUSE, RESUME}),
    "ask the program of each pod to wait at its next step boundary, or to go on",
    (Rule("batch", "jobs", ("get",)), Rule("", "pods", ("get",)), Rule(KUEUE, "workloads", ("get",))),
    suits,
    step,
    undo,
)
