"""Losses of waiting work to a start.

- Quota reserved for it by its scheduler. A scheduler such as Kueue reserves quota in an order of its own, and keeps it
  while the work waits for the autopilot. A gang to be started without any gets it if it fits beside all reservations.
  If not, the start takes the reservations of the least important work that suffice; if none suffice it takes none.
- Room or quota held for it above the guarantee of its queue, if the start is inside the guarantee of its own.
- Its turn. A start approved by a person is planned before those that wait for an approval.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from autopilot.core.effects.draft import Eviction
from autopilot.core.model.modes import Mode
from autopilot.core.model.objects import SchedulerQuota, SideEffect, Taken
from autopilot.core.model.snapshot import I32, State
from autopilot.core.placement.shapes import Fit
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.planning.places import place
from autopilot.core.planning.plan_state import Held
from autopilot.core.planning.queue_turns import approved_starts
from autopilot.core.quota.rules.base import Claim
from autopilot.core.quota.rules.cohort import Quotas

MOST_PASSED = 16
"""Starts that a recommendation names as those that it passes: the last ones before it."""


def side_effects(ctx: Context, row: int, layout: Layout, taken: Sequence[Eviction] = ()) -> tuple[SideEffect, ...]:
    """Losses to the start of a gang on `layout`, once its victims have left. The gang itself is not booked."""
    given_back_s = ctx.policy.limits.deadline_s  # once the start is over
    found = [
        _effect(ctx, each.row, each.gpus, given_back_s, Taken.QUOTA)
        for each in _reserved_for_others(ctx, row, layout, taken)
    ]
    return (*found, *_held_for_others(ctx, row, layout, taken))


def _effect(ctx: Context, row: int, gpus: float, wait_s: float, what: Taken) -> SideEffect:
    work, queues = ctx.observation.snapshot.workloads, ctx.observation.snapshot.queues
    name, uid, queue = str(work.id[row]), str(work.uid[row]), str(queues.id[work.queue[row]])
    return SideEffect(name, uid, queue, gpus, gpus * wait_s, what)


# --- the turn of others --------------------------------------------------------------------------------


def passed(ctx: Context, action: str, row: int, layout: Layout) -> tuple[SideEffect, ...]:
    """Earlier starts of its class still waiting for an approval; the start of `row` passes them once it is approved.

    The last ones; once it is approved, only those without room beside it.
    """
    if getattr(ctx.policy.modes, action) != Mode.APPROVE:
        return ()
    approved = bool(ctx.memory.people.approvals) and approved_starts(ctx, np.array([row]))[0]
    gpus, classes = ctx.observation.snapshot.workloads.gpus, ctx.observation.snapshot.workloads.slo_class
    asked = [each for each in ctx.plan.asked if classes[each] == classes[row]]
    rows = _displaced(ctx, row, layout) if approved else asked[-MOST_PASSED:]
    return tuple(_effect(ctx, each, float(gpus[each]), 0.0, Taken.TURN) for each in rows)


def _displaced(ctx: Context, row: int, layout: Layout) -> list[int]:
    """Shown starts that wait for an approval and have room only without the start of `row`."""
    classes = ctx.observation.snapshot.workloads.slo_class[ctx.pending]
    after = ~ctx.plan.taken & ~approved_starts(ctx, ctx.pending) & (classes == classes[ctx.position_of(row)])
    open_starts = [
        (ctx.position_of(each), each)
        for each in ctx.pending[after].tolist()
        if each != row and (shown := ctx.shown_start(each)) is not None and shown.change.starts_now
    ]
    beside = _with_room(ctx, open_starts, row, layout) if open_starts else set()
    if len(beside) == len(open_starts):
        return []
    return sorted(_with_room(ctx, open_starts, row, layout.only(np.zeros(len(layout), np.bool_))) - beside)


def _with_room(ctx: Context, starts: Sequence[tuple[int, int]], row: int, layout: Layout) -> set[int]:
    """Rows of these starts (position, row) with room in their order, with the gang of `row` on `layout`."""
    whatif, found = ctx.whatif, set[int]()
    mark, ledger, spares = whatif.checkpoint(), ctx.quota.ledger.saved(), ctx.plan.spares()

    def take(row: int, layout: Layout) -> None:
        whatif.place(row, layout)
        ctx.quota.book(row, layout)
        ctx.use_held(layout, ctx.now_s + float(ctx.run_low_s[ctx.position_of(row)]), row)

    if whatif.fits(layout):  # else it waits for victims
        take(row, layout)
    for at, other in starts:
        shape = ctx.shape(other, ctx.pending_table.least_gpus[at])
        fit = place(ctx, at, shape) if ctx.may_start(at, shape.gpus) is None else None
        if isinstance(fit, Fit):
            take(other, fit.layout)
            found.add(other)
    whatif.rollback(mark)
    ctx.quota.ledger.restore(ledger)
    ctx.plan.restore_spares(spares)
    return found


# --- room that is held for others ----------------------------------------------------------------------


def _held_for_others(ctx: Context, row: int, layout: Layout, taken: Sequence[Eviction]) -> Iterator[SideEffect]:
    """Losses of holds above the guarantees of their queues, until the expected end of the start, within the horizon."""
    if not (ctx.plan.held or ctx.plan.quota_holds):
        return
    at = ctx.position_of(row)
    until_s, lasts_s = ctx.now_s + min(float(ctx.run_low_s[at]), ctx.policy.horizon_s), float(ctx.gap_end_s[at])
    losing = dict[str, SideEffect]()  # by name: a gang may have room and quota held for it
    used = layout.per_node(ctx.observation.snapshot)
    own, own_instances = np.zeros_like(used), 0  # what it may use before, held for it or taken from an earlier hold
    for held in ctx.plan.held:
        if ctx.is_for(held, row):
            own[held.nodes] += held.counts
            own_instances += held.record.gpus if len(held.instances) else 0
        elif held.start_s < lasts_s and ctx.overruled(held, row):
            if len(held.instances):
                more = np.isin(layout.instance, held.instances).sum() - own_instances - max(held.left[0], 0)
            else:
                free = np.maximum(held.spare, 0) + own[held.nodes] + _freed(ctx, taken, held.start_s)[held.nodes]
                more = used[held.nodes] - free
            lost = np.clip(more, 0, held.lent)
            own[held.nodes] += lost if not len(held.instances) else 0
            wait_s = max(until_s - max(held.start_s, ctx.now_s), 0.0)
            if gpus := float(lost.sum()):
                losing[held.record.workload] = _loss(ctx, held, gpus, wait_s)
    for kept in ctx.quota_holds_on(row):
        if kept.ready_s < lasts_s and ctx.overruled(kept, row):
            gpus = min(
                ctx.quota.claim(each, int(ctx.observation.snapshot.workloads.gpus[each])).gpus
                for each in (row, kept.row)
            )
            wait_s = max(until_s - max(kept.ready_s, ctx.now_s), 0.0)
            loss = _effect(ctx, kept.row, gpus, wait_s, Taken.ROOM)
            losing.setdefault(loss.workload, loss)
    yield from losing.values()


def _loss(ctx: Context, held: Held, gpus: float, wait_s: float) -> SideEffect:
    """The loss of a hold of room; a hold for a queue, or for expected replicas, is of no workload."""
    if held.row >= 0:
        return _effect(ctx, held.row, gpus, wait_s, Taken.ROOM)
    queue = str(ctx.observation.snapshot.queues.id[held.queue])
    return SideEffect(held.record.workload, "", queue, gpus, gpus * wait_s, Taken.ROOM)


def _freed(ctx: Context, taken: Sequence[Eviction], start_s: float) -> I32:
    """GPUs on each node given up by victims and not counted on by a hold at `start_s`. Shape [nodes]."""
    freed = np.zeros(len(ctx.whatif.node_free), np.int32)
    for give in taken:
        layout = ctx.whatif.layout_of(give.row)
        gone = layout if give.keeps is None else layout.minus(give.keeps)
        freed += gone.only(ctx.plan.gpu_free_at_s[gone.gpu] > start_s).per_node(ctx.observation.snapshot)
    return freed


# --- quota that a scheduler has reserved ---------------------------------------------------------------


def _reserved_for_others(ctx: Context, row: int, layout: Layout, taken: Sequence[Eviction]) -> list[Claim]:
    """Gangs with reserved quota needed by the start, the least important and youngest first."""
    if ctx.observation.snapshot.workloads.scheduler_quota[row] != SchedulerQuota.LACKING:
        return []
    waiting = list(_waiting_with_quota(ctx, row))
    if not waiting:
        return []
    quota, saved = ctx.quota, ctx.quota.ledger.saved()
    for give in taken:
        quota.book(give.row, ctx.whatif.layout_of(give.row), -1)
        if give.keeps is not None:
            quota.book(give.row, give.keeps)
    books = Quotas(quota.ledger, quota.claim(row, len(layout)))
    quota.ledger.restore(saved)
    for claim in waiting:
        books.book(claim, 1)
    return _fewest(books, _may_lose(ctx, row, waiting))


def _waiting_with_quota(ctx: Context, row: int) -> Iterator[Claim]:
    """Other gangs waiting with reserved quota, neither started nor already deprived of it by the plan of this tick."""
    work = ctx.observation.snapshot.workloads
    reserved = (work.scheduler_quota >= SchedulerQuota.TAKEABLE) & (work.state == State.PENDING)
    for each in np.flatnonzero(reserved).tolist():
        if each != row and work.uid[each] not in ctx.plan.quota_taken and not len(ctx.whatif.layout_of(each)):
            yield ctx.quota.claim(each, int(work.gpus[each]))


def _may_lose(ctx: Context, row: int, waiting: Sequence[Claim]) -> list[Claim]:
    """Those of them with takeable quota of use to the gang of `row`, the least important first."""
    work, paths = ctx.observation.snapshot.workloads, ctx.quota.ledger.paths
    top = paths[int(work.queue[row])][-1:]
    found = [
        claim
        for claim in waiting
        if paths[claim.queue][-1:] == top
        and work.scheduler_quota[claim.row] == SchedulerQuota.TAKEABLE
        and not work.excluded[claim.row]
        and claim.row not in ctx.busy
        and work.mig_profile[claim.row] == work.mig_profile[row]
    ]
    return sorted(found, key=lambda each: (each.priority, -each.submit_s, each.row))


def _fewest(books: Quotas, order: Sequence[Claim]) -> list[Claim]:
    """The first in `order` that must give up their quota, without needless ones; [] if all do not suffice."""
    given: list[Claim] = []
    for claim in order:
        if books.allows():
            break
        books.book(claim, -1)
        given.append(claim)
    if not books.allows():
        return []
    for claim in given[-2::-1]:  # the last one is needed
        books.book(claim, 1)
        if books.allows():
            given.remove(claim)
        else:
            books.book(claim, -1)
    return given
