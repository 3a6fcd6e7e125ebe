"""Elastic width: free GPUs are shared among elastic gangs in turns, member by member, the oldest first.

Two kinds take part: gangs about to start with their minimum on the what-if, and running ones below their full width.
Between queues the turns are those of every start (core/planning/ordering/queue_order.py). Inside a queue a higher
priority first takes all that it can use; among equals, the gang with the fewest members above its minimum has the next
turn, then the older one. Nothing is decided here: the what-if and the ledger are left as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.model.snapshot import GPU_MILLI, I32, State
from autopilot.core.model.work import on_shares, whole_gpus
from autopilot.core.placement.fit import find_fit
from autopilot.core.placement.shapes import Fit, Shape, shape_of
from autopilot.core.planning.context import Context
from autopilot.core.planning.ordering.queue_order import Group, QueueRotation
from autopilot.core.planning.places import place, room_beside, within_limits
from autopilot.core.quota.ledger import claim_kinds


@dataclass(slots=True)
class Elastic:
    """An elastic gang in the round. `at`: its position among the pending, -1 for a running one. Widths in GPUs."""

    row: int
    at: int
    member_gpus: int
    least_gpus: int
    most_gpus: int
    width_gpus: int
    most_members: int  # that it tries for in one turn; fewer once that was too many
    fit: Fit | None = None  # all of it when it starts; what it gains when it runs
    shape: Shape | None = None

    @property
    def gained(self) -> int:
        """Members above its minimum."""
        return (self.width_gpus - self.least_gpus) // self.member_gpus


def waiting(ctx: Context, at: int) -> Elastic:
    """The gang at a position among the pending, to start at its minimum at least."""
    work, row, least = ctx.observation.snapshot.workloads, int(ctx.pending[at]), ctx.pending_table.least_gpus[at]
    member, most = max(int(work.gpus_per_member[row]), 1), int(work.gpus[row])
    return Elastic(row, at, member, least, most, least, most)


def running(ctx: Context) -> list[Elastic]:
    """Running gangs below their full width that may grow."""
    whatif, work = ctx.whatif, ctx.observation.snapshot.workloads
    whole = whole_gpus(work) & ~on_shares(ctx.observation.snapshot) & np.isnan(work.stale_since_s)
    elastic = np.flatnonzero(
        (work.state == State.RUNNING) & (work.min_gpus < work.gpus) & whole & ~work.excluded & ~work.stuck
    )
    cooling, found = ctx.cooling(), []
    settled = ctx.quota.leaving | ctx.busy | ctx.plan.leaving.keys() | ctx.members.keys()
    for row in elastic.tolist():
        held, most = len(whatif.layout_of(row)), int(work.gpus[row])
        free = row not in settled and str(work.uid[row]) not in cooling and ctx.quota_hold_against(row) is None
        if free and 0 < held < most:
            member = max(int(work.gpus_per_member[row]), 1)
            found.append(Elastic(row, -1, member, int(work.min_gpus[row]), most, held, most))
    return found


def share(ctx: Context, gangs: Sequence[Elastic]) -> None:
    """Widen the gangs in turns as far as there is room; each gets its `spot` and `shape`."""
    mark, ledger, spares = ctx.whatif.checkpoint(), ctx.quota.ledger.saved(), ctx.plan.spares()
    turns = _turns(ctx, gangs)
    open_gpus = sum(gang.member_gpus for gang in gangs)

    def rank(each: int) -> tuple[float, ...]:
        work, gang = ctx.observation.snapshot.workloads, gangs[each]
        return (float(work.priority[gang.row]), -float(gang.gained), -float(work.submit_s[gang.row]))

    while (at := turns.next()) is not None:
        gang = gangs[at]
        free = int(ctx.whatif.node_free.sum())
        members = min(
            max(free // max(4 * open_gpus, 1), 1),
            gang.most_members,
            -(-(gang.most_gpus - gang.width_gpus) // gang.member_gpus),
        )
        if members and _widen(ctx, gang, members):
            turns.again(at, rank)
        elif members > 1:
            gang.most_members = members // 2
            turns.again(at, rank)
        else:
            open_gpus -= gang.member_gpus
    ctx.whatif.rollback(mark)
    ctx.quota.ledger.restore(ledger)
    ctx.plan.restore_spares(spares)


def _turns(ctx: Context, gangs: Sequence[Elastic]) -> QueueRotation:
    """The turns of these gangs by their place in the sequence."""
    work, ledger = ctx.observation.snapshot.workloads, ctx.quota.ledger
    queues = [int(work.queue[gang.row]) for gang in gangs]
    submit_s = [float(work.submit_s[gang.row]) for gang in gangs]
    order = sorted(
        range(len(gangs)),
        key=lambda each: (-int(work.priority[gangs[each].row]), gangs[each].gained, submit_s[each], each),
    )
    groups: list[Group] = []
    for tier in sorted({int(work.slo_class[gang.row]) for gang in gangs}):
        lines: dict[int, list[int]] = {}
        for each in order:
            if int(work.slo_class[gangs[each].row]) == tier:
                lines.setdefault(queues[each], []).append(each)
        groups.append(([], lines))

    def extra(each: int) -> tuple[float, tuple[int, ...]]:
        gang = gangs[each]
        milli = int(work.gpu_milli[gang.row]) or GPU_MILLI
        return gang.member_gpus * milli / GPU_MILLI, claim_kinds(ledger.kind_of_model, int(work.gpu_models[gang.row]))

    return QueueRotation(ledger, groups, submit_s, queues, extra)


def _widen(ctx: Context, gang: Elastic, members: int) -> bool:
    """Try a gang with this many more members on the what-if; False, with nothing changed, if they do not fit."""
    more = min(members * gang.member_gpus, gang.most_gpus - gang.width_gpus)
    if ctx.quota_hold_against(gang.row) is not None:
        return False
    found = _wider_start(ctx, gang, more) if gang.at >= 0 else _growth(ctx, gang, more)
    if found is None:
        return False
    gang.fit, gang.shape = found
    gang.width_gpus += more
    return True


def _wider_start(ctx: Context, gang: Elastic, more: int) -> tuple[Fit, Shape] | None:
    row, whatif = gang.row, ctx.whatif
    mark, ledger, spares = whatif.checkpoint(), ctx.quota.ledger.saved(), ctx.plan.spares()
    ctx.vacate(gang.at)
    shape = shape_of(ctx.observation.snapshot, row, gang.width_gpus + more)
    found = place(ctx, gang.at, shape) if ctx.may_start(gang.at, shape.gpus) is None else None
    if not isinstance(found, Fit):
        whatif.rollback(mark)
        ctx.quota.ledger.restore(ledger)
        ctx.plan.restore_spares(spares)
        return None
    whatif.place(row, found.layout)
    ctx.quota.book(row, found.layout)
    ctx.use_held(found.layout, ctx.now_s + float(ctx.run_low_s[gang.at]), row)
    return found, shape


def _growth(ctx: Context, gang: Elastic, more: int) -> tuple[Fit, Shape] | None:
    row, whatif = gang.row, ctx.whatif
    shape = within_limits(ctx, row, shape_of(ctx.observation.snapshot, row, more))
    if ctx.quota.may_start(row, more) is not None:
        return None
    found = find_fit(whatif, shape, room_beside(ctx, row, _unwanted(ctx)), ctx.policy.placement, ctx.gpu_memory_mib)
    if not isinstance(found, Fit):
        return None
    whatif.move(row, whatif.layout_of(row).joined(found.layout))
    ctx.quota.book(row, found.layout)
    ctx.use_held(found.layout, np.inf, row)
    if gang.fit is None or gang.shape is None:
        return found, shape
    whole = Fit(
        gang.fit.layout.joined(found.layout), np.concatenate([gang.fit.nodes, found.nodes]), found.score, found.terms
    )
    return whole, shape_of(ctx.observation.snapshot, row, gang.shape.gpus + more)


def _unwanted(ctx: Context) -> I32:
    """Whole free GPUs per node, neither reserved nor needed by a preemption that a guard holds for now. [nodes]."""
    room, whatif = ctx.room(np.inf), ctx.whatif
    if not ctx.plan.wanted:
        return room
    wanted = np.unique(np.concatenate([layout.gpu for layout in ctx.plan.wanted]))
    idle = wanted[whatif.gpu_whole[wanted] & (whatif.gpu_used[wanted] == 0)]
    taken = np.bincount(ctx.observation.snapshot.gpus.node[idle], minlength=len(room))
    left: I32 = np.maximum(room - taken, 0).astype(np.int32)
    return left
