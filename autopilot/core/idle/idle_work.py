"""Idle work in one tick: the work that the ladder allows to take, by one rule for every action that takes it."""

from __future__ import annotations

from autopilot.core.idle.facts import ladder
from autopilot.core.idle.ladder import Rung
from autopilot.core.model.memory.idle import IdleStep
from autopilot.core.model.modes import ACTIONS_WITH
from autopilot.core.model.policy import Effect, Mode
from autopilot.core.model.work import on_shares
from autopilot.core.planning.context import Context
from autopilot.core.planning.restraint import is_capped, is_paused
from autopilot.core.quota.ledger import ALL


def steps_under_way(ctx: Context) -> set[str]:
    """Work with any effect under way, by uid."""
    return {entry.instruction.subject.uid for entry in ctx.memory.effects.in_flight.values()}


def borrowed(ctx: Context, rung: Rung) -> bool:
    """True if the queue of the work holds more than its guarantee."""
    queue = int(ctx.observation.snapshot.workloads.queue[rung.row])
    return not ctx.quota.ledger.within_guarantee(queue, 0.0, (ALL,))


def may_take(ctx: Context, rung: Rung) -> bool:
    """True if the ladder allows to take this work from its owner now.

    Above the guarantee of its queue that is after the grace of its notice, inside it after the grace of its mark.
    """
    if rung.advice or ctx.now_s < rung.suspend_s or rung.row in ctx.plan.leaving:
        return False
    if borrowed(ctx, rung):
        return rung.record.step in {IdleStep.NOTIFIED, IdleStep.MARKED}
    return rung.record.step == IdleStep.MARKED and bool(ctx.observation.snapshot.workloads.preemptible[rung.row])


def may_suspend(ctx: Context) -> dict[int, Rung]:
    """Work that may be suspended now, by row. Replicas are left to `shrink_idle`, which scales their service down.

    Work on shares keeps them: others use the GPU.
    """
    under_way, service = steps_under_way(ctx), ctx.observation.snapshot.workloads.service
    shares = on_shares(ctx.observation.snapshot)
    return {
        rung.row: rung
        for rung in ladder(ctx)
        if service[rung.row] < 0 and not shares[rung.row] and rung.uid not in under_way and may_take(ctx, rung)
    }


def suspends_for(ctx: Context, mode: Mode) -> bool:
    """True if an action in this mode may suspend idle work too.

    `suspend_idle` may then act with as little approval, and is neither paused nor capped.
    """
    modes, memory = ctx.policy.modes, ctx.memory
    if not (modes.auto(Effect.PARK) if mode == Mode.AUTO else modes.acts(Effect.PARK)):
        return False
    return not any(is_paused(memory, name) or is_capped(memory, name) for name in ACTIONS_WITH[Effect.PARK])
