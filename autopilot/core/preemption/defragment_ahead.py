"""Move running gangs so that a gang expected by the demand mix fits on arrival.

For each kind of gang that is expected and does not fit now, it looks for the cheapest moves with room for one gang
(core/preemption/moves_ahead.py). They are worth the saved waiting: the time between the arrival, which is uncertain,
and the moment at which the gang would fit without them. That is the predicted end of running work or, if `defragment`
acts by itself, the end of its moves. Of the moves worth their cost by the margin of hysteresis, the fewest are
proposed.

It proposes nothing while work waits: free capacity is for that work first. It abstains if the mix does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import expm1, inf

import numpy as np

from autopilot.core.effects import move
from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, Submit
from autopilot.core.effects.move import MoveDraft
from autopilot.core.intake.usage.activity import idle_mask
from autopilot.core.model.forecast import ExpectedMix
from autopilot.core.model.hours import Hours, next_edge_s, parse_hours, within_hours
from autopilot.core.model.policy import Mode
from autopilot.core.model.records import Evidence
from autopilot.core.model.snapshot import Bools, State
from autopilot.core.model.stops import StopReason
from autopilot.core.model.work import running_since
from autopilot.core.placement.shapes import Shape
from autopilot.core.planning.context import Context
from autopilot.core.planning.expected_room import MIX_AGE_S, expected_gangs, usable_mix
from autopilot.core.preemption import defragment
from autopilot.core.preemption.moves_ahead import Cleared, clear_for, fits_from_s

NAME = "defragment_ahead"
CLEAR = Case(
    NAME,
    move.KIND,
    words="make room for a gang of {expected} ({arrivals:gang is|gangs are} expected within {ahead}; without moves "
    "none fits for {by_itself}): {victims}",
    takes=StopReason.MOVE_AHEAD,
    by_telemetry=True,
)


@dataclass(frozen=True, slots=True)
class _Want:
    """A kind of gang that is expected and does not fit now."""

    shape: Shape
    words: str
    arrivals: float  # expected within `ahead_s`
    by_itself_s: float  # until one fits without moves, at most `ahead_s`


def propose(ctx: Context, submit: Submit) -> None:
    """The fewest moves that pay, for one kind of gang."""
    mix = usable_mix(ctx)
    under_way = any(each.action == NAME for each in ctx.memory.starts.pipelined_starts)
    if mix is None or under_way or ctx.waiting() or within_hours(_peak_hours(ctx), ctx.now_s):
        return
    rules, bound = ctx.policy.defragment_ahead, ctx.plan.steps + ctx.policy.limits.search_steps
    wants = _wants(ctx, mix, bound)
    if not wants:
        return
    may_move = _may_move(ctx)
    soon = np.flatnonzero(ctx.end_s <= ctx.review_now_s + rules.drain_s).astype(np.int32)
    best: MoveDraft | None = None
    for want in wants:
        if ctx.plan.steps >= bound:
            break
        cleared = clear_for(ctx, want.shape, may_move, soon)
        draft = None if cleared is None else _draft(ctx, want, cleared)
        if draft is not None and (best is None or _size(draft) < _size(best)):
            best = draft
    if best is not None:
        submit(best)


def _peak_hours(ctx: Context) -> Hours | None:
    return parse_hours(ctx.policy.defragment_ahead.peak_hours, "defragment_ahead.peak_hours")


def _wants(ctx: Context, mix: ExpectedMix, bound: int) -> list[_Want]:
    """Expected gangs of whole GPUs without a fit now, those with most expected GPUs first."""
    wants = []
    for gang in expected_gangs(ctx, mix):
        if ctx.plan.steps >= bound:
            break
        by_itself_s = min(fits_from_s(ctx, gang.shape) - ctx.review_now_s, ctx.policy.defragment_ahead.ahead_s)
        if by_itself_s > 0.0:
            wants.append(_Want(gang.shape, gang.words, gang.arrivals, by_itself_s))
    return wants


def _may_move(ctx: Context) -> Bools:
    """Work that may be moved ahead: single jobs of whole GPUs, at work and settled. Shape [workloads]."""
    snapshot, rules, at_s = ctx.observation.snapshot, ctx.policy.defragment_ahead, ctx.review_now_s
    work = snapshot.workloads
    may = (work.state == State.RUNNING) & (work.service < 0) & (work.gpu_milli == 0) & (work.mig_profile < 0)
    may &= ctx.end_s > at_s + rules.drain_s
    may &= at_s >= running_since(work) + np.where(work.incarnation > 0, rules.dwell_s, 0.0)
    may &= ~idle_mask(ctx.holdings.activity)
    may[list(ctx.members)] = False
    return np.asarray(may)


def _draft(ctx: Context, want: _Want, cleared: Cleared) -> MoveDraft | None:
    """The moves with their worth; None if it does not exceed their cost by the margin."""
    policy, gpus = ctx.policy, want.shape.gpus
    weight = ctx.price_weight(cleared.node)
    moved_s = policy.hysteresis.dwell_s + policy.preemption.grace_s if defragment.acts(ctx) else inf
    saved_s = _saved_s(want, policy.defragment_ahead.ahead_s, moved_s)
    saved_s -= _saved_s(
        replace(want, by_itself_s=cleared.ready_s - ctx.review_now_s), policy.defragment_ahead.ahead_s, moved_s
    )
    benefit_gpu_s = gpus * weight * saved_s * (1.0 + policy.preemption.priority_weight)
    cost_gpu_s = sum(
        move.price_gpu_s * ctx.priced_gpus(ctx.whatif.layout_of(move.row)) / move.gpus for move in cleared.moves
    )
    if benefit_gpu_s <= cost_gpu_s * (1.0 + policy.hysteresis.margin_ratio):
        return None
    return MoveDraft(
        case=CLEAR,
        row=cleared.moves[0].row,
        benefit_gpu_s=benefit_gpu_s,
        cost_gpu_s=cost_gpu_s,
        evidence=(
            Evidence("expected", want.words),
            Evidence("arrivals", round(want.arrivals, 3), "gangs"),
            Evidence("ahead", policy.defragment_ahead.ahead_s, "s"),
            Evidence("by_itself", round(want.by_itself_s, 3), "s"),
            Evidence("saved", round(saved_s, 3), "s of waiting, as a mean"),
            Evidence("gpus", gpus, "GPUs cleared"),
            Evidence("moved", len(cleared.moves), "gangs"),
            Evidence("stopping_at_review", round(cost_gpu_s, 3), "GPU-s"),
        ),
        moves=cleared.moves,
        cleared_gpus=gpus,
    )


def _saved_s(want: _Want, ahead_s: float, moved_s: float) -> float:
    """Mean waiting saved for the first gang of this kind (s).

    It fits from the start instead of from `by_itself_s` on, or `moved_s` after its arrival. Gangs come at random
    (Poisson), so that the first comes after an exponential time A: the mean of min(moved_s, by_itself_s - A), counted
    if positive.
    """
    rate = want.arrivals / ahead_s

    def early_s(until_s: float) -> float:
        return until_s + expm1(-rate * until_s) / rate  # the mean of (until - A) where it is positive

    return early_s(want.by_itself_s) - early_s(max(want.by_itself_s - moved_s, 0.0))


def _size(draft: MoveDraft) -> tuple[int, float]:
    return len(draft.moves), draft.cost_gpu_s


def timers(ctx: Context) -> list[float]:
    """The next review, the next edge of the peak hours, and the end of the mix."""
    mix = usable_mix(ctx)
    if ctx.policy.modes.defragment_ahead == Mode.OFF or mix is None:
        return []
    review_s = ctx.review_now_s + ctx.policy.review.batch_s
    return [review_s, next_edge_s(_peak_hours(ctx), ctx.now_s), mix.made_s + MIX_AGE_S]


ACTION = Action(NAME, "move running work before a gang comes that would not fit", propose, (CLEAR,), timers=timers)
