"""What every eviction does: save first, then stop; and what is taken back where it was not stopped in time."""

from __future__ import annotations

from actuators.kubernetes.levers import saving
from actuators.kubernetes.levers.base import Effect, Ended, Progress, Step, Tools, late
from actuators.kubernetes.objects import Target


def after_saving(stop: Step) -> Step:
    """A step that stops work with `stop` once it has saved, or its time to save is over."""

    def step(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:
        first = saving.save_first(tools, effect, target, now_s)
        return first if first is not None else stop(tools, effect, target, now_s)

    return step


def take_back(tools: Tools, effect: Effect, target: Target, now_s: float) -> Ended:  # noqa: ARG001 - as every `undo`
    """Take the request for a checkpoint back. A stop that was written stays: the work is on its way out."""
    saving.forget(tools, effect, target)
    return late(f"not stopped in time: {effect.waits_for or 'no progress'}")
