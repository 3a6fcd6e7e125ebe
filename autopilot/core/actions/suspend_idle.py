"""Suspend idle work with a checkpoint, so that a waiting gang starts on its GPUs. Its owner resumes it.

Work above the guarantee of its queue is due after the grace of its notice, other work after the grace of its mark.
Victims are chosen as for a preemption: the cheapest sufficient set of due work, for gangs in the order of service. The
budgets, the guaranteed run time and the margin bind. Work that cannot save keeps its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autopilot.core.actions.notify_idle import borrowed, idle_rungs, steps_under_way
from autopilot.core.idle.ladder import Rung
from autopilot.core.model.idle_memory import IdleStep
from autopilot.core.model.operations import StopReason
from autopilot.core.model.records import Code, Evidence
from autopilot.core.placement.shapes import shape_of
from autopilot.core.planning.action import Action
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import Case, Submit
from autopilot.core.planning.search_budget import within_steps
from autopilot.core.preemption.scenario import (
    Scenario,
    find_scenario,
    most_given_up,
    pipelined_draft,
    scheduling_signatures,
    worth_gpu_s,
)
from autopilot.core.quota.ledger import QuotaLedger
from autopilot.core.rules.base import Claim, RankedTarget, Refusal, Room, Takes, Target

NAME = "suspend_idle"
SUSPEND = Case(
    NAME,
    "pipeline",
    words="start on {where}{after}, when work that has done nothing for {idle_for} or longer is suspended with a "
    "checkpoint: {victims}; {owners} had a notice or a mark for {since} or longer, and can resume it at any time",
    takes=StopReason.IDLE,
    exempt=frozenset({Code.NOT_PREEMPTIBLE}),  # `notify_idle` notifies only what may go
    by_telemetry=True,
)


def propose(ctx: Context, submit: Submit) -> None:
    """Starts of waiting gangs in place of idle work, in the order of service."""
    due = {rung.row: rung for rung in idle_rungs(ctx) if _due(ctx, rung)}
    if not due:
        return
    refused: set[int] = set()
    keys = scheduling_signatures(ctx)
    for at in within_steps(ctx, ctx.waiting()):
        if keys[at] in refused or ctx.too_early(at):
            continue
        found = find_scenario(ctx, at, _takes(ctx, at, due), moves=False)
        if not isinstance(found, Scenario) or not found.evictions or not _submit(ctx, at, found, due, submit):
            refused.add(keys[at])
            continue
        for give in found.evictions:
            del due[give.row]
        keys = scheduling_signatures(ctx)


def _due(ctx: Context, rung: Rung) -> bool:
    """Whether the ladder allows to suspend this work now."""
    if ctx.observation.snapshot.workloads.service[rung.row] >= 0:
        return False  # `shrink_idle` scales its service down
    if rung.advice or ctx.now_s < rung.suspend_s or rung.uid in steps_under_way(ctx) or rung.row in ctx.plan.leaving:
        return False
    marked = rung.record.step == IdleStep.MARKED
    return marked or (rung.record.step == IdleStep.NOTIFIED and borrowed(ctx, rung))


def _takes(ctx: Context, at: int, due: Mapping[int, Rung]) -> Takes:
    """The rule of this action: any due work, as far as the gang may start by its quota."""
    row = int(ctx.pending[at])

    def takes(_: QuotaLedger, claim: Claim, _running: Sequence[Claim], room: Room) -> tuple[Target, ...] | Refusal:
        refusal = ctx.quota.may_start(row, round(claim.gpus))
        if refusal is not None:
            return refusal
        most = most_given_up(ctx, shape_of(ctx.observation.snapshot, row, ctx.pending_table.least_gpus[at]))
        targets = [
            RankedTarget(
                Target(rung.row, rung.record.gpus, whole=True),
                0,
                float(ctx.losses.price_gpu_s[rung.row]),
                int(ctx.observation.snapshot.workloads.queue[rung.row]),
            )
            for rung in due.values()
        ]
        found = room.cheapest(targets, lambda chosen: sum(each.gpus for each in chosen) <= most)
        return found if found is not None else Refusal(Code.CAPACITY, 0.0, claim.gpus)

    return takes


def _submit(ctx: Context, at: int, found: Scenario, due: Mapping[int, Rung], submit: Submit) -> bool:
    """Propose one start; True when it is accepted."""
    victims = [due[give.row] for give in found.evictions]
    draft = pipelined_draft(ctx, SUSPEND, at, found, worth_gpu_s(ctx, at, found), net_of_waiting=True)
    owners = sorted({rung.record.owner for rung in victims})
    evidence = (
        Evidence("idle_for", round(ctx.now_s - max(rung.record.since_s for rung in victims), 3), "s"),
        Evidence("since", round(ctx.now_s - max(rung.record.step_s for rung in victims), 3), "s"),
        Evidence("owners", ", ".join(owners[:3]) + (", ..." if len(owners) > 3 else "")),
    )
    accepted = submit(replace(draft, evidence=(*draft.evidence, *evidence)))
    ctx.plan.decide(at, accepted)
    return accepted


ACTION = Action(NAME, "suspend idle work so that waiting work starts", propose, (SUSPEND,))
