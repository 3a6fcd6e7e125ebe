"""Move running gangs so that a waiting gang fits. Every moved gang continues elsewhere; protected work is never moved.

Enough GPUs are free, but not in a shape of use to the gang (core/search/moves.py).
"""

from __future__ import annotations

from autopilot.core.effects import pipeline
from autopilot.core.effects.action import Action
from autopilot.core.effects.admit import AdmitDraft
from autopilot.core.effects.draft import Case, Submit
from autopilot.core.effects.pipeline import PipelineDraft
from autopilot.core.model.policy import Mode
from autopilot.core.model.records import Code
from autopilot.core.planning.context import Context
from autopilot.core.planning.restraint import is_capped, is_paused
from autopilot.core.planning.search_budget import within_steps
from autopilot.core.search.displacing import displacing_timers_s
from autopilot.core.search.moves import moves_only
from autopilot.core.search.scenario import (
    Scenario,
    cases_without_victims,
    pipelined_draft,
    scheduling_signatures,
    worth_gpu_s,
)

NAME = "defragment"
MOVES = Case(NAME, pipeline.KIND, words="start on {where}{after} by moving others: {victims}")

SHAPES = frozenset({Code.FRAGMENTED, Code.TOPOLOGY, Code.MIG_GEOMETRY})
"""Reasons of waiting that moves can end."""


def propose(ctx: Context, submit: Submit) -> None:
    """Moves for gangs waiting although enough GPUs are free, in the order of service."""
    keys, paused = scheduling_signatures(ctx), is_paused(ctx.memory, NAME)
    for at in within_steps(ctx, ctx.waiting(SHAPES)):
        if at in ctx.plan.moves_tried:
            continue
        found = moves_only(ctx, at, keys[at]) if ctx.too_early(at) is None else None
        if found is not None:
            ctx.plan.decide(at, submit(moves_draft(ctx, at, found)))
            if paused:  # none can happen: one says what would
                return
            keys = scheduling_signatures(ctx)


def moves_draft(ctx: Context, at: int, found: Scenario) -> AdmitDraft | PipelineDraft:
    """The proposal of moves, weighed."""
    return pipelined_draft(ctx, MOVES, at, found, worth_gpu_s(ctx, at, found))


def acts(ctx: Context) -> bool:
    """True if the mode lets it act without a person, and it is neither capped nor paused by a storm."""
    able = not is_capped(ctx.memory, NAME) and not is_paused(ctx.memory, NAME)
    return ctx.policy.modes.defragment == Mode.AUTO and able


def timers(ctx: Context) -> list[float]:
    """Times at which running work becomes movable."""
    return displacing_timers_s(ctx, on=ctx.policy.modes.defragment != Mode.OFF)


ACTION = Action(
    NAME,
    "move running work so that a waiting gang fits",
    propose,
    (MOVES, *cases_without_victims(NAME)),
    displaces=True,
    timers=timers,
)
