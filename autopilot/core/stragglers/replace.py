"""Move a gang away from the member that holds it up, where that pays; else tell what holds it up.

The members are found by a forecaster (models/stragglers.py). The gang stops with a checkpoint, and continues on other
nodes: the node of the slow member, and those of other slow members and of suspects, are left out. A verdict on one kind
of evidence moves nothing. What the gang loses where it is, for as long again as it lasted, must exceed the price of the
stop by the margin of hysteresis (core/stragglers/price.py).

A GPU that was slow in several gangs is suspected itself: it is named, with the advice to test it or to drain its node.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from autopilot.core.effects import move
from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, Eviction, NoteCase, Submit
from autopilot.core.effects.move import MoveDraft
from autopilot.core.model.modes import Mode
from autopilot.core.model.neighbours import SlowGpu, Straggler
from autopilot.core.model.records import About, Evidence, Note
from autopilot.core.model.snapshot import State
from autopilot.core.model.stops import StopReason
from autopilot.core.placement.fit import find_fit
from autopilot.core.placement.shapes import Fit
from autopilot.core.planning.context import Context
from autopilot.core.planning.places import within_limits
from autopilot.core.stragglers.price import worth_gpu_s

NAME = "replace"

SURE = 0.85
"""Confidence of a verdict on two kinds of evidence (models/stragglers.py), less the doubt of unknown stages."""

AWAY = Case(
    NAME,
    move.KIND,
    "away",
    words="move it away from {member}, which holds it up ({evidence}): it has computed {slow} times as long as its "
    "peers for {lasted}, which costs {lost} an hour; {victims}",
    takes=StopReason.AWAY,
    by_telemetry=True,
)
HELD_UP = NoteCase(
    "straggler",
    "{subject} is held up by {member} ({evidence}, confidence {confidence}): it computes {value} times as long as its "
    "peers, which costs {lost} an hour; {why}",
    stands_s=1800.0,
)
SUSPECT = NoteCase(
    "slow_gpu",
    "GPU {subject} on {node} was slow in {gangs:gang} ({evidence}, {value} times as long as its peers): test it, or "
    "drain its node",
    stands_s=3600.0,
)

UNSURE = "one kind of evidence moves nothing: look at the member"
CHEAP = "a move does not pay yet"
NO_PLACE = "no other place is free"
BUSY = "it is about to leave, or may not be stopped"
WIDE = "members that differ are placed at a start only: restart it elsewhere by hand"


def propose(ctx: Context, submit: Submit) -> None:
    """One move for each gang that is held up, the one with the most to lose first, or a note."""
    forecasts = ctx.observation.forecasts
    for suspect in forecasts.slow_gpus:
        ctx.plan.note(_suspected(suspect))
    if not forecasts.stragglers:
        return
    work = ctx.observation.snapshot.workloads
    rows = {uid: row for row, uid in enumerate(work.uid.tolist())}
    seen = set[str]()
    for each in sorted(forecasts.stragglers, key=lambda one: (-one.cost_gpu_s_per_h, one.gang_uid, one.node)):
        row = rows.get(each.gang_uid, -1)
        if row < 0 or work.state[row] != State.RUNNING or each.gang_uid in seen:
            continue
        seen.add(each.gang_uid)
        draft = _draft(ctx, row, each)
        if isinstance(draft, str):
            ctx.plan.note(_held_up(each, draft))
        else:
            submit(draft)


def _draft(ctx: Context, row: int, found: Straggler) -> MoveDraft | str:
    """The move, or why there is none."""
    work = ctx.observation.snapshot.workloads
    if found.confidence < SURE:
        return UNSURE
    if row in ctx.busy or row in ctx.quota.leaving or not work.preemptible[row] or work.excluded[row]:
        return BUSY
    if row in ctx.members:
        return WIDE
    lasted_s, remaining_s = ctx.now_s - found.since_s, float(ctx.end_s[row]) - ctx.now_s
    benefit = worth_gpu_s(found.cost_gpu_s_per_h, found.confidence, lasted_s, remaining_s)
    cost = float(ctx.losses.price_gpu_s[row])
    if benefit <= cost * (1.0 + ctx.policy.hysteresis.margin_ratio):
        return CHEAP
    layout = ctx.whatif.layout_of(row)
    fit = _elsewhere(ctx, row, len(layout))
    if fit is None:
        return NO_PLACE
    return MoveDraft(
        case=AWAY,
        row=row,
        benefit_gpu_s=benefit,
        cost_gpu_s=cost,
        evidence=(
            *_facts(found),
            Evidence("slow", round(found.slow_ratio, 3), "times"),
            Evidence("lasted", round(lasted_s, 3), "s"),
            Evidence("gpus", len(layout), "GPUs moved"),
            Evidence("stopping_at_review", round(cost, 3), "GPU-s"),
        ),
        moves=(Eviction(row, "move", fit.layout, len(layout), cost),),
        cleared_gpus=len(layout),
    )


def _elsewhere(ctx: Context, row: int, gpus: int) -> Fit | None:
    """A place without the nodes of slow members and suspects. The what-if is left as it was."""
    forecasts = ctx.observation.forecasts
    avoided = _nodes_of(forecasts.stragglers) | _nodes_of(forecasts.slow_gpus)
    mark, ledger, held = ctx.whatif.checkpoint(), ctx.quota.ledger.saved(), ctx.whatif.layout_of(row)
    ctx.whatif.evict(row)
    ctx.quota.book(row, held, -1)
    room = ctx.room(np.inf).copy()
    room[np.isin(ctx.observation.snapshot.nodes.id, list(avoided))] = 0
    shape = within_limits(ctx, row, ctx.shape(row, gpus))
    found = find_fit(ctx.whatif, shape, room, ctx.policy.placement, ctx.gpu_memory_mib)
    fits = isinstance(found, Fit) and ctx.quota.may_start(row, gpus) is None
    ctx.quota.ledger.restore(ledger)
    ctx.whatif.rollback(mark)
    return found if isinstance(found, Fit) and fits else None


def _nodes_of(found: Iterable[Straggler | SlowGpu]) -> set[str]:
    return {each.node for each in found}


def _facts(found: Straggler) -> tuple[Evidence, ...]:
    rank = "" if found.rank < 0 else f"rank {found.rank} on "
    gpu = f", GPU {found.gpu}" if found.gpu else ""
    return (
        Evidence("member", f"{rank}{found.node}{gpu}"),
        Evidence("evidence", ", ".join(found.evidence)),
        Evidence("confidence", round(found.confidence, 3)),
        Evidence("lost", round(found.cost_gpu_s_per_h, 3), "GPU-s an hour"),
    )


def _held_up(found: Straggler, why: str) -> Note:
    facts = (*_facts(found), Evidence("why", why))
    return Note(HELD_UP.code, About.WORKLOAD, found.gang, round(found.slow_ratio, 2), "times", facts)


def _suspected(found: SlowGpu) -> Note:
    facts = (
        Evidence("node", found.node),
        Evidence("gangs", found.gangs, "gangs"),
        Evidence("evidence", ", ".join(found.evidence)),
    )
    return Note(SUSPECT.code, About.GPU, found.gpu, round(found.slow_ratio, 2), "times", facts)


def timers(ctx: Context) -> list[float]:
    """The next review, while a gang is held up: the worth of a move grows with time."""
    if ctx.policy.modes.replace == Mode.OFF or not ctx.observation.forecasts.stragglers:
        return []
    return [ctx.review_now_s + ctx.policy.review.batch_s]


ACTION = Action(NAME, "move gangs away from slow members", propose, (AWAY,), (HELD_UP, SUSPECT), timers=timers)
