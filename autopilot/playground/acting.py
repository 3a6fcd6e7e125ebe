"""With the autopilot acting: the changes of Kueue's steps in the conditions and objects of a Workload."""

from __future__ import annotations

from collections.abc import Callable

from autopilot.playground import conditions, steps
from autopilot.playground.gangs import Gang
from autopilot.playground.steps import Checks, Step

Preempted = Callable[[Gang, int], tuple[str, tuple[str, str]]]
"""(gang, job in need of its room) -> Kueue's word for the reason, and the uids of that Workload and its owner."""


def take(gang: Gang, of: Checks, step: Step, real_s: float, preempted: Preempted) -> None:
    """Carry one step into the gang. `preempted` words an eviction for another gang."""
    life = gang.life
    if isinstance(step, steps.Gated):
        of.gates = step.gates
        conditions.gated(life, step.gates, real_s)
    elif isinstance(step, steps.Checked):
        of.rows = step.rows
    elif isinstance(step, steps.Reserved):
        of.reserved, of.model, of.reason = True, step.model, ""
        conditions.reserved(life, gang.queue, real_s)
    elif isinstance(step, steps.Admitted):
        of.admitted, of.selector, of.tolerations = True, dict(step.selector), step.tolerations
        of.since_s = real_s
        conditions.checked(life, real_s)
    elif isinstance(step, steps.Made):
        of.made = True
        conditions.job_resumed(gang.of_job, real_s)
    elif isinstance(step, steps.Told):
        _count(gang, of)
        of.admitted, of.reason = False, step.reason
        if step.by >= 0:
            conditions.preempted(life, *preempted(gang, step.by), real_s)
        else:
            conditions.told(life, step.reason, step.message, real_s)
    elif isinstance(step, steps.Left):
        left(gang, of, real_s)
    elif isinstance(step, steps.Switched):
        of.active = step.active
        if step.active:
            conditions.reactivated(life, real_s)
    elif isinstance(step, steps.Widened):
        of.gpus = step.gpus
    else:
        of.reserved = False
        conditions.misplaced(life, step.message, real_s)


def queued(gang: Gang, *, holds: bool) -> bool:
    """True if it waits in its queue for the first time: its condition then gives the reason."""
    of = gang.checks
    held_back = of is not None and (of.reserved or bool(of.gates) or not of.active)
    over = gang.end_s is not None or gang.life.true("Finished")
    return not holds and not over and not held_back and not gang.life.true("Requeued")


def _count(gang: Gang, of: Checks) -> None:
    """Kueue counts an eviction at its begin."""
    if of.reserved or gang.start_s is not None:
        gang.evictions += 1


def left(gang: Gang, of: Checks, real_s: float) -> None:
    """It holds nothing any more."""
    if not of.reason:
        _count(gang, of)
    gang.start_s, gang.leaving = None, False
    of.reserved = of.admitted = of.made = False
    of.model = -1
    conditions.left(gang.life, of.reason or "NodeFailures", real_s, checks=bool(of.rows))
    conditions.job_suspended(gang.of_job, real_s)
