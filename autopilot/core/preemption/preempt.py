"""Preempt lower priority in the same queue and, if the policy shares time, work of a lower index.

The preemption is weighed: the value of the saved waiting must exceed the lost work by the margin.
"""

from __future__ import annotations

from autopilot.core.effects import pipeline
from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, Submit
from autopilot.core.model.policy import Mode
from autopilot.core.model.work import holding_mask
from autopilot.core.placement.shapes import Miss
from autopilot.core.planning.context import Context
from autopilot.core.planning.ordering.predicted_ends import review_start
from autopilot.core.planning.search_budget import within_steps
from autopilot.core.quota.rules.base import Takes
from autopilot.core.search.displacing import displacing_timers_s
from autopilot.core.search.scenario import (
    Scenario,
    cases_without_victims,
    find_scenario,
    pipelined_draft,
    worth_gpu_s,
)
from autopilot.core.sharing_time.time_sharing import share_time

NAME = "preempt"
PRIORITY = Case(
    NAME,
    pipeline.KIND,
    "priority",
    words="start on {where}{after} by preempting work of lower priority: {victims}",
)
TIME_SHARING = Case(
    NAME,
    pipeline.KIND,
    "time_sharing",
    words="start on {where}{after} by preempting work that would keep others waiting for longer: {victims}",
)

SHARED_TIME = Case(
    NAME,
    pipeline.KIND,
    "shared_time",
    words="start on {where}{after} by preempting work of other queues that would keep others waiting for longer: "
    "{victims}",
)


def propose(ctx: Context, submit: Submit) -> None:
    """Preemptions inside queues, for gangs still waiting, in the order of service."""
    within = ctx.quota.rules.within
    if within is not None and _outranked(ctx):
        work = ctx.observation.snapshot.workloads
        lowest = _lowest_priorities(ctx)
        for at in within_steps(ctx, ctx.waiting()):
            row = int(ctx.pending[at])
            priority = int(work.priority[row])
            if lowest.get(int(work.queue[row]), priority) < priority:  # else there is nobody to displace
                _displace(ctx, at, within, submit)
    if ctx.policy.preemption.time_sharing:
        share_time(ctx, TIME_SHARING, SHARED_TIME, submit)


def _outranked(ctx: Context) -> bool:
    """True if some running work has a lower priority than a waiting gang, in any queue."""
    work = ctx.observation.snapshot.workloads
    running = work.priority[holding_mask(work)]
    waiting = work.priority[ctx.pending[~ctx.plan.taken]]
    return bool(len(running) and len(waiting) and running.min() < waiting.max())


def _lowest_priorities(ctx: Context) -> dict[int, int]:
    """The lowest running priority of each queue."""
    lowest: dict[int, int] = {}
    for claim in ctx.quota.running():
        lowest[claim.queue] = min(lowest.get(claim.queue, claim.priority), claim.priority)
    return lowest


def _displace(ctx: Context, at: int, within: Takes, submit: Submit) -> None:
    """Propose to start one gang in place of lower priorities, or note the reason against it."""
    found = ctx.too_early(at) or find_scenario(ctx, at, within)
    if isinstance(found, Scenario):
        worth = worth_gpu_s(ctx, at, found)
        ctx.plan.decide(at, submit(pipelined_draft(ctx, PRIORITY, at, found, worth)))
    else:
        ctx.answer(at, Miss(found.code, found.value, found.threshold))


def timers(ctx: Context) -> list[float]:
    """Times at which running work becomes preemptible.

    With time sharing, also each review: indices change as work runs.
    """
    on = ctx.policy.modes.preempt != Mode.OFF
    timers_s = displacing_timers_s(ctx, on=on)
    if on and ctx.policy.preemption.time_sharing and len(ctx.pending):
        timers_s.append(review_start(ctx.now_s, ctx.policy) + ctx.policy.review.batch_s)
    return timers_s


ACTION = Action(
    NAME,
    "stop work so that more urgent work starts",
    propose,
    (PRIORITY, TIME_SHARING, SHARED_TIME, *cases_without_victims(NAME)),
    displaces=True,
    timers=timers,
)
