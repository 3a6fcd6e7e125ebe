"""Sources of room for a replica: the possible origins of its GPUs, one row each.

A source answers with a start on the what-if, or with the reason for having none. It decides nothing: the action
`make_room` prices the answers and takes the cheapest. Between equal prices the earlier row is taken. A source with busy
victims offers only victims open to its queue by the rule set, and a source with idle ones only those allowed by the
ladder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.idle.idle_victims import takes_idle
from autopilot.core.idle.idle_work import borrowed, may_suspend, suspends_for
from autopilot.core.model.policy import Mode
from autopilot.core.model.snapshot import Bools, SloClass, State
from autopilot.core.model.work import named
from autopilot.core.planning.context import Context
from autopilot.core.quota.ledger import QuotaLedger
from autopilot.core.quota.rules.base import Claim, Refusal, Room, Running, Takes, Target
from autopilot.core.search.moves import search_moves
from autopilot.core.search.scenario import Scenario, after_leaving, find_scenario, let_leave

NONE, TOO_LITTLE = "none", "too little"
"""Why a source has no room: nothing of its kind may go, or all of it together is not enough."""

Find = Callable[[Context, int, Mode], Scenario | str]
"""A start of the pending gang at a position, on room from one source, for an action in a mode; or why it has none, ""
where it does not concern this gang."""


@dataclass(frozen=True, slots=True)
class Source:
    """One source: its name in evidence, the words for it, and the search."""

    name: str
    words: str
    find: Find
    idle: bool = False  # its victims do nothing: they are suspended until their owners resume them


def _free(ctx: Context, at: int, _: Mode) -> Scenario | str:
    """GPUs that are free, or that others leave already, inside the guarantee of its queue."""
    return _without_victims(ctx, at) if _within_guarantee(ctx, at) else ""


def _borrowed(ctx: Context, at: int, _: Mode) -> Scenario | str:
    """The same above the guarantee: GPUs unused by other queues, which may ask them back."""
    return "" if _within_guarantee(ctx, at) else _without_victims(ctx, at)


def _within_guarantee(ctx: Context, at: int) -> bool:
    claim = ctx.quota.claim(int(ctx.pending[at]), ctx.pending_table.least_gpus[at])
    return ctx.quota.inside(claim)


def _without_victims(ctx: Context, at: int) -> Scenario | str:
    found = after_leaving(ctx, at)
    return found if isinstance(found, Scenario) else TOO_LITTLE


def _idle_above(ctx: Context, at: int, mode: Mode) -> Scenario | str:
    """Idle work of queues above their guarantee, after a notice to its owner."""
    return _idle(ctx, at, mode, inside=False)


def _idle_inside(ctx: Context, at: int, mode: Mode) -> Scenario | str:
    """Any idle work that may be suspended, also inside a guarantee after its mark."""
    return _idle(ctx, at, mode, inside=True)


def _idle(ctx: Context, at: int, mode: Mode, *, inside: bool) -> Scenario | str:
    if not suspends_for(ctx, mode):
        return "nothing may suspend it"
    spared = _stopped_lately(ctx)
    due = {row: rung for row, rung in may_suspend(ctx).items() if not spared[row]}
    due = due if inside else {row: rung for row, rung in due.items() if borrowed(ctx, rung)}
    if not due:
        return "none may be suspended now"
    found = find_scenario(ctx, at, takes_idle(ctx, at, due), moves=False)
    return found if isinstance(found, Scenario) and found.evictions else TOO_LITTLE


def _backfilled(ctx: Context, at: int, _: Mode) -> Scenario | str:
    """Work started in a gap, on the condition that it leaves."""
    return _victims(ctx, at, np.asarray(ctx.observation.snapshot.workloads.backfilled))


def _moved(ctx: Context, at: int, _: Mode) -> Scenario | str:
    """Running gangs that continue elsewhere."""
    if not ctx.policy.preemption.move_victims:
        return NONE
    mark = let_leave(ctx)
    shape = ctx.shape(int(ctx.pending[at]), ctx.pending_table.least_gpus[at])
    found = search_moves(ctx, at, shape, without=np.flatnonzero(_stopped_lately(ctx)).tolist())
    ctx.whatif.rollback(mark)
    return found or NONE


def _preempted(ctx: Context, at: int, _: Mode) -> Scenario | str:
    """Batch work that saves a checkpoint and continues later."""
    work = ctx.observation.snapshot.workloads
    batch = (work.slo_class == SloClass.BATCH) & (work.service < 0) & (work.state == State.RUNNING)
    return _victims(ctx, at, np.asarray(batch & work.checkpoint_on_request))


def _victims(ctx: Context, at: int, may: Bools) -> Scenario | str:
    """The cheapest victims among the gangs in `may`, by the rules across queues, else by those inside its own."""
    may = may & ~_stopped_lately(ctx)
    if not may.any():
        return NONE
    for takes in (ctx.quota.rules.across, ctx.quota.rules.within):
        found = None if takes is None else find_scenario(ctx, at, _among(takes, may))
        if isinstance(found, Scenario) and found.evictions:
            return found
    return TOO_LITTLE


def _stopped_lately(ctx: Context) -> Bools:
    """Work disrupted within `room.reversal_s`: it is not stopped for room again. Shape [workloads]."""
    within_s = ctx.policy.room.reversal_s
    uids = [entry.uid for entry in ctx.memory.budget.disrupted if entry.at_s + within_s > ctx.now_s]
    return named(ctx.observation.snapshot.workloads.uid, uids)


def _among(takes: Takes, may: Bools) -> Takes:
    """The same rules, offered only some of the running gangs."""

    def some(ledger: QuotaLedger, claim: Claim, running: Sequence[Claim], room: Room) -> tuple[Target, ...] | Refusal:
        return takes(ledger, claim, Running(each for each in running if may[each.row]), room)

    return some


SOURCES: tuple[Source, ...] = (
    Source("free", "free GPUs", _free),
    Source("borrowed", "GPUs that other queues do not use", _borrowed),
    Source("idle_above", "idle work above the guarantee of its queue", _idle_above, idle=True),
    Source("idle_inside", "idle work, also inside guarantees", _idle_inside, idle=True),
    Source("backfill", "work in gaps before reservations", _backfilled),
    Source("moves", "work that continues elsewhere", _moved),
    Source("preemption", "batch work that saves a checkpoint", _preempted),
)
"""In order of preference between equal prices."""
