"""Sources of room for a replica: where the GPUs for it can come from, one row each.

A source answers with a start on the what-if, or with None. It decides nothing: the action `make_room` prices the
answers and takes the cheapest. Between equal prices the earlier row is taken. A source with victims offers only what
the rule set allows its queue to take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.model.snapshot import Bools, SloClass, State
from autopilot.core.model.work import named
from autopilot.core.planning.context import Context
from autopilot.core.preemption.moves import search_moves
from autopilot.core.preemption.scenario import Scenario, after_leaving, find_scenario, let_leave
from autopilot.core.quota.ledger import QuotaLedger
from autopilot.core.rules.base import Claim, Refusal, Room, Running, Takes, Target

Find = Callable[[Context, int], Scenario | None]
"""A start of the pending gang at a position, on room from one source; None where the source has none."""


@dataclass(frozen=True, slots=True)
class Source:
    """One source: its name in evidence, the words for it, and the search."""

    name: str
    words: str
    find: Find


def _free(ctx: Context, at: int) -> Scenario | None:
    """GPUs that are free, or that others leave already, inside the guarantee of its queue."""
    return _without_victims(ctx, at) if _within_guarantee(ctx, at) else None


def _borrowed(ctx: Context, at: int) -> Scenario | None:
    """The same above the guarantee: GPUs that other queues do not use and may ask back."""
    return None if _within_guarantee(ctx, at) else _without_victims(ctx, at)


def _within_guarantee(ctx: Context, at: int) -> bool:
    claim = ctx.quota.claim(int(ctx.pending[at]), ctx.pending_table.least_gpus[at])
    return ctx.quota.rules.owed(ctx.quota.ledger, claim)


def _without_victims(ctx: Context, at: int) -> Scenario | None:
    found = after_leaving(ctx, at)
    return found if isinstance(found, Scenario) else None


def _backfilled(ctx: Context, at: int) -> Scenario | None:
    """Work that was started in a gap, on the condition that it leaves."""
    return _victims(ctx, at, np.asarray(ctx.observation.snapshot.workloads.backfilled))


def _moved(ctx: Context, at: int) -> Scenario | None:
    """Running gangs that continue elsewhere."""
    if not ctx.policy.preemption.move_victims:
        return None
    mark = let_leave(ctx)
    shape = ctx.shape(int(ctx.pending[at]), ctx.pending_table.least_gpus[at])
    found = search_moves(ctx, at, shape, without=np.flatnonzero(_stopped_lately(ctx)).tolist())
    ctx.whatif.rollback(mark)
    return found


def _preempted(ctx: Context, at: int) -> Scenario | None:
    """Batch work that saves a checkpoint and continues later."""
    work = ctx.observation.snapshot.workloads
    batch = (work.slo_class == SloClass.BATCH) & (work.service < 0) & (work.state == State.RUNNING)
    return _victims(ctx, at, np.asarray(batch & work.checkpoint_on_request))


def _victims(ctx: Context, at: int, may: Bools) -> Scenario | None:
    """The cheapest victims among the gangs that `may` go, by the rules across queues, else by those inside its own."""
    may = may & ~_stopped_lately(ctx)
    if not may.any():
        return None
    for takes in (ctx.quota.rules.across, ctx.quota.rules.within):
        found = None if takes is None else find_scenario(ctx, at, _among(takes, may))
        if isinstance(found, Scenario) and found.evictions:
            return found
    return None


def _stopped_lately(ctx: Context) -> Bools:
    """Work that was disrupted within `room.reversal_s`: it is not stopped for room again. Shape [workloads]."""
    within_s = ctx.policy.room.reversal_s
    uids = [entry.uid for entry in ctx.memory.disrupted if entry.at_s + within_s > ctx.now_s]
    return named(ctx.observation.snapshot.workloads.uid, uids)


def _among(takes: Takes, may: Bools) -> Takes:
    """The same rules, offered only some of the running gangs."""

    def some(ledger: QuotaLedger, claim: Claim, running: Sequence[Claim], room: Room) -> tuple[Target, ...] | Refusal:
        return takes(ledger, claim, Running(each for each in running if may[each.row]), room)

    return some


SOURCES: tuple[Source, ...] = (
    Source("free", "free GPUs", _free),
    Source("borrowed", "GPUs that other queues do not use", _borrowed),
    Source("backfill", "work in gaps before reservations", _backfilled),
    Source("moves", "work that continues elsewhere", _moved),
    Source("preemption", "batch work that saves a checkpoint", _preempted),
)
"""In order of preference between equal prices."""
