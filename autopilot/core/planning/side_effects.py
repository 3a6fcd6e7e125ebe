"""What a start takes from work that waits: quota that its scheduler has reserved for it.

A scheduler such as Kueue reserves quota in an order of its own, and keeps it while the work waits for the autopilot. A
gang that is to start and has none gets it where it fits beside all reservations. Where it does not, the start takes the
reservations of the least important work that suffice; where none suffice it takes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from autopilot.core.model.objects import SchedulerQuota, SideEffect
from autopilot.core.model.snapshot import State
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import Eviction
from autopilot.core.rules.base import Claim
from autopilot.core.rules.cohort import Quotas


def side_effects(ctx: Context, row: int, layout: Layout, taken: Sequence[Eviction] = ()) -> tuple[SideEffect, ...]:
    """What the start of a gang on `layout` takes, once its victims have left. The gang itself is not booked."""
    found = [_effect(ctx, each.row, each.gpus) for each in _reserved_for_others(ctx, row, layout, taken)]
    return tuple(found)


def _effect(ctx: Context, row: int, gpus: float) -> SideEffect:
    """What is taken is given back once the start is over, at its deadline at the latest."""
    work, queues = ctx.observation.snapshot.workloads, ctx.observation.snapshot.queues
    name, uid, queue = str(work.id[row]), str(work.uid[row]), str(queues.id[work.queue[row]])
    return SideEffect(name, uid, queue, gpus, gpus * ctx.policy.limits.deadline_s)


def _reserved_for_others(ctx: Context, row: int, layout: Layout, taken: Sequence[Eviction]) -> list[Claim]:
    """Gangs whose reserved quota the start needs, the least important and youngest first."""
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
    """Other gangs that wait with reserved quota, and that the plan of this tick neither starts nor takes it from."""
    work = ctx.observation.snapshot.workloads
    reserved = (work.scheduler_quota >= SchedulerQuota.TAKEABLE) & (work.state == State.PENDING)
    for each in np.flatnonzero(reserved).tolist():
        if each != row and work.uid[each] not in ctx.plan.quota_taken and not len(ctx.whatif.layout_of(each)):
            yield ctx.quota.claim(each, int(work.gpus[each]))


def _may_lose(ctx: Context, row: int, waiting: Sequence[Claim]) -> list[Claim]:
    """Those of them whose quota is of use to the gang of `row` and can be taken, the least important first."""
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
    """The first in `order` that must give up their quota, without those that need not; [] where all do not suffice."""
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
