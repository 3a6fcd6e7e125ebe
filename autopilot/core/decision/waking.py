"""The time of the next decision without a new event."""

from __future__ import annotations

import numpy as np

from autopilot.core.capabilities.memory import CAPABILITIES
from autopilot.core.decision.planner import Planner
from autopilot.core.effects.action import Action
from autopilot.core.model.capability import Planned
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Code, Plan
from autopilot.core.model.work import named, progress_s, running_since
from autopilot.core.planning.context import Context
from autopilot.core.planning.ordering.predicted_ends import review_start


def wake_at(memory: ControllerMemory, planned: Planned, planner: Planner, actions: tuple[Action, ...]) -> float:
    """The earliest time at which this decision could change without a new event; inf if it could not.

    Timers are those of capabilities and actions, the guaranteed run time that delays a proposal, and the next review
    while work waits. The shell adds the deadlines of open effects (lifecycle.next_deadline_s).
    """
    now_s = planned.now_s
    if planner.bound_hit:
        return now_s + 1.0
    timers = [timer for each in CAPABILITIES if each.timers is not None for timer in each.timers(memory, planned)]
    timers += planner.ctx.plan.wake_s
    timers += _guaranteed_until_s(planner.ctx, planned.plan)
    timers += [timer for each in actions if each.timers is not None for timer in each.timers(planner.ctx)]
    timers.append(_next_review_s(planned.plan, planner, planned.policy))
    return min((timer for timer in timers if timer > now_s), default=float("inf"))


def _guaranteed_until_s(ctx: Context, chosen: Plan) -> list[float]:
    """Ends of the guaranteed run time of victims held by it alone."""
    sheltered = {
        victim.workload
        for proposal in chosen.proposals
        if not proposal.accepted and any(verdict.code == Code.MIN_RUNTIME for verdict in proposal.verdicts)
        for victim in proposal.victims
    }
    if not sheltered:
        return []
    work = ctx.observation.snapshot.workloads
    rows, starts_s = named(work.id, sheltered), running_since(work)
    lengths_s = (ctx.stops.guaranteed_s, ctx.policy.protection.min_runtime_s)  # earlier stops do not count for all
    return [until_s for length_s in lengths_s for until_s in (starts_s + length_s)[rows].tolist()]


def _next_review_s(chosen: Plan, planner: Planner, policy: Policy) -> float:
    """The next review at which time alone could change this decision; inf for never.

    It is the next review while the order ages, a guard holds a proposal, or room is held on forecasts that change with
    time. Otherwise it is the first review after a gang becomes overdue, its reservation becomes firm, or a running gang
    outlives its forecast.
    """
    ctx = planner.ctx
    if not len(ctx.pending):
        return float("inf")
    period_s = policy.review.batch_s
    next_s = review_start(ctx.now_s, policy) + period_s
    gated = any(not proposal.change.only_holds and not proposal.accepted for proposal in chosen.proposals)
    if gated or _past_moves(ctx) or policy.order.aging_exponent > 0 or (ctx.plan.held and _forecasts_move(ctx)):
        return next_s
    submit_s = ctx.observation.snapshot.workloads.submit_s[ctx.pending]
    crossings = [submit_s + policy.order.max_wait_s, submit_s + policy.reservation.firm_after_s]
    if ctx.plan.held:
        ends_s = ctx.end_s[np.isfinite(ctx.end_s)]
        crossings += [ends_s, ends_s - period_s]  # an end set by a declared limit moves one period before it
    later = np.concatenate(crossings)
    later = later[later >= ctx.review_now_s]  # `overdue` begins only after its instant: one more review
    if not len(later):
        return float("inf")
    return max(float(np.ceil(later.min() / period_s) * period_s), next_s)


def _past_moves(ctx: Context) -> bool:
    """True if the past use of queues changes their shares with time."""
    rules, memory = ctx.policy.tenancy, ctx.memory
    return bool(rules.usage_half_life_s and rules.usage_weight and (memory.use.usage_gpu_s or memory.use.held_gpus))


def _forecasts_move(ctx: Context) -> bool:
    """True if a running gang's predicted end changes with time: its forecast has a spread, or was outlived."""
    forecast, work = ctx.observation.forecasts.runtimes, ctx.observation.snapshot.workloads
    rows = np.flatnonzero(np.isfinite(ctx.end_s))
    if forecast is None or not len(rows):
        return False
    low, high = forecast.total_s[rows, 0], forecast.total_s[rows, -1]
    outlived_s = progress_s(work, rows.astype(np.int32), ctx.review_now_s)[1]
    return bool(((high > low) | (outlived_s >= high)).any())
