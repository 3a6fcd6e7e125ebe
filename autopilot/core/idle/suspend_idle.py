"""Suspend idle work with a checkpoint, so that a waiting gang starts on its GPUs. Its owner resumes it.

Work above the guarantee of its queue is due after the grace of its notice, other work after the grace of its mark.
Victims are chosen as for a preemption: the cheapest sufficient set of due work, for gangs in the order of service. The
budgets, the guaranteed run time and the margin bind. Work that cannot save keeps its place.
"""

from __future__ import annotations

from dataclasses import replace

from autopilot.core.effects import pipeline
from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, Submit
from autopilot.core.idle.idle_victims import idle_facts, takes_idle
from autopilot.core.idle.idle_work import may_suspend
from autopilot.core.model.records import Code
from autopilot.core.model.stops import StopReason
from autopilot.core.planning.context import Context
from autopilot.core.planning.search_budget import within_steps
from autopilot.core.search.scenario import (
    Scenario,
    find_scenario,
    pipelined_draft,
    scheduling_signatures,
    worth_gpu_s,
)

NAME = "suspend_idle"
SUSPEND = Case(
    NAME,
    pipeline.KIND,
    words="start on {where}{after}, when work that has done nothing for {idle_for} or longer is suspended with a "
    "checkpoint: {victims}; {owners} had a notice or a mark for {since} or longer, and can resume it at any time",
    takes=StopReason.IDLE,
    exempt=frozenset({Code.NOT_PREEMPTIBLE}),  # `notify_idle` notifies only what may go
    by_telemetry=True,
)


def propose(ctx: Context, submit: Submit) -> None:
    """Starts of waiting gangs in place of idle work, in the order of service."""
    due = may_suspend(ctx)
    if not due:
        return
    refused: set[int] = set()
    keys = scheduling_signatures(ctx)
    for at in within_steps(ctx, ctx.waiting()):
        if keys[at] in refused or ctx.too_early(at):
            continue
        found = find_scenario(ctx, at, takes_idle(ctx, at, due), moves=False)
        if not isinstance(found, Scenario) or not found.evictions or not _submit(ctx, at, found, submit):
            refused.add(keys[at])
            continue
        due = may_suspend(ctx)  # without the victims, and without work whose queue is inside its guarantee now
        keys = scheduling_signatures(ctx)


def _submit(ctx: Context, at: int, found: Scenario, submit: Submit) -> bool:
    """Propose one start; True if it is accepted."""
    draft = pipelined_draft(ctx, SUSPEND, at, found, worth_gpu_s(ctx, at, found), net_of_waiting=True)
    facts = idle_facts(ctx, [give.row for give in found.evictions])
    accepted = submit(replace(draft, evidence=(*draft.evidence, *facts)))
    ctx.plan.decide(at, accepted)
    return accepted


ACTION = Action(NAME, "suspend idle work so that waiting work starts", propose, (SUSPEND,), displaces=True)
