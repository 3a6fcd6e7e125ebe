"""The common part of every eviction: save first, then stop; and the undoing if the stop is late."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actuators.kubernetes.api import Obj, Ref, Refusal
from actuators.kubernetes.levers import saving
from actuators.kubernetes.levers.base import (
    Effect,
    Ended,
    Progress,
    Step,
    Tools,
    Waiting,
    changed,
    ended_by,
    late,
)
from actuators.kubernetes.objects import Target, holds, over


def after_saving(stop: Step) -> Step:
    """A step that stops work with `stop` once it has saved, or its time to save is over.

    A Job about to end is left alone: if it is suspended first, its controller never states the end (measured on
    Kubernetes 1.36).
    """

    def step(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:
        ends = over(target.job)
        if ends and not holds(target.workload, "Evicted"):
            saving.forget(tools, effect, target)
            return changed(f"its Job ends by itself: {ends}")
        first = saving.save_first(tools, effect, target, now_s)
        return first if first is not None else stop(tools, effect, target, now_s)

    return step


def take_back(tools: Tools, effect: Effect, target: Target, now_s: float) -> Ended:  # noqa: ARG001 - as every `undo`
    """Take the request for a checkpoint back. A written stop stays: the work is on its way out."""
    saving.forget(tools, effect, target)
    return late(f"not stopped in time: {effect.waits_for or 'no progress'}")


def evict_all(
    tools: Tools,
    effect: Effect,
    pods: Sequence[Obj],
    grace_s: float | None,
    *,
    begun: bool,
    first: Callable[[], Progress | None] = lambda: None,
) -> tuple[int, Progress | None]:
    """Evict pods by the Eviction API: the number on their way out, and the reason for less than all (None: all are).

    All evictions are tried before one is sent, and `first` runs in between; a progress returned by it ends the attempt.
    A trial does not use up a disruption budget, so a budget may still refuse the second pod. The rest then waits for
    it, and so it does after the start of an earlier step (`begun`): a gang that has lost a pod is of no use.

    `grace_s` never shortens the declared grace of a pod (None: that grace).
    """
    refs = [Ref("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in pods]
    for dry in (True, False):
        for sent, (ref, pod) in enumerate(zip(refs, pods, strict=True)):
            longer = grace_s is not None and grace_s > pod["spec"].get("terminationGracePeriodSeconds", saving.TERM_S)
            answer = tools.writer.evict(ref, grace_s if longer else None, effect.epoch, dry=dry)
            if answer.refusal == Refusal.BUDGET and begun:
                held = f"a part of it stops, and a PodDisruptionBudget holds {ref.shown}: {answer.message}"
                return 0 if dry else sent, Waiting(held)
            if not answer.ok and answer.refusal != Refusal.GONE:
                return 0 if dry else sent, ended_by(answer, f"{ref.shown}: evict")
            begun = begun or not dry
        ended = first() if dry else None
        if ended is not None:
            return 0, ended
    return len(refs), None
