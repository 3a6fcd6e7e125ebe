"""The quota hold: quota kept for an overdue gang, to bound its wait behind a hard limit.

Narrower gangs would pass a wide gang at a hard limit indefinitely, for they keep the limit full; the same holds at a
guarantee if the gang may not be preempted. Once it is overdue, nothing behind it starts or grows under that limit,
unless it is sure enough to end before the quota is free anyway. This is a reservation of quota. Like one of GPUs, it is
made only if forecasts or declared limits bound the work that runs there. Room under a limit held above the guarantee of
the gang's queue is open to work inside the guarantees of other queues.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isfinite

import numpy as np

from autopilot.core.model.snapshot import I32, Gate
from autopilot.core.model.work import overdue_mask
from autopilot.core.placement.kinds.whole import fits_on
from autopilot.core.placement.shapes import shape_of, suitable_nodes
from autopilot.core.planning.context import Context
from autopilot.core.planning.plan_state import QuotaHold
from autopilot.core.quota.ledger import EPSILON
from autopilot.core.quota.rules.base import Claim


def overdue_positions(ctx: Context) -> frozenset[int]:
    """Gangs with a wait beyond `order.max_wait_s`."""
    work = ctx.observation.snapshot.workloads
    overdue = overdue_mask(work, ctx.pending, ctx.review_now_s, ctx.policy.order)
    return frozenset(np.flatnonzero(overdue).tolist())


def keep_room(ctx: Context, at: int) -> None:
    """Keep the quota that the overdue gang at `at` waits for, if GPUs for it will come free."""
    row, work = int(ctx.pending[at]), ctx.observation.snapshot.workloads
    if not ctx.is_uniform(row) or work.gate[row] != Gate.OPEN:
        return
    gpus = ctx.pending_table.least_gpus[at]
    claim = ctx.quota.claim(row, gpus)
    found = list(_short(ctx, claim))
    if not found or not _shape_comes_free(ctx, row, gpus):
        return
    ready_s = [_ready_s(ctx, claim, *each) for each in found]
    if max(ready_s) < inf:
        lent = not ctx.quota.guaranteed(1, lambda _: claim)
        ctx.plan.hold_quota(
            QuotaHold(row, queue, kind, sheltered, when, lent and not sheltered)
            for (queue, kind, sheltered), when in zip(found, ready_s, strict=True)
        )


def _short(ctx: Context, claim: Claim) -> Iterator[tuple[int, int, bool]]:
    """Shortages of quota for a gang: (queue, kind, True for a guarantee and False for a limit)."""
    ledger = ctx.quota.ledger
    for kind in claim.kinds:
        for queue in (*ledger.paths[claim.queue], 0):
            if ledger.use[kind][queue] + claim.gpus > ledger.limit[kind][queue] + EPSILON:
                yield queue, kind, False
        for queue in ledger.paths[claim.queue] if ledger.guarantee_binds and not claim.preemptible else ():
            if ledger.sheltered[kind][queue] + claim.gpus > ledger.guarantee[kind][queue] + EPSILON:
                yield queue, kind, True


def _ready_s(ctx: Context, claim: Claim, queue: int, kind: int, sheltered: bool) -> float:
    """Predicted time with enough of a quota free, if nothing else starts under it; inf for never."""
    ledger = ctx.quota.ledger
    bound, use = (ledger.guarantee, ledger.sheltered) if sheltered else (ledger.limit, ledger.use)
    missing = claim.gpus - (bound[kind][queue] - use[kind][queue])
    ends = sorted(
        (float(ctx.end_s[other.row]), other.gpus)
        for other in ctx.quota.running()
        if kind in other.kinds
        and queue in (*ledger.paths[other.queue], 0)
        and not (sheltered and (other.preemptible or other.row in ctx.quota.lent))
    )
    for end_s, gpus in ends:
        missing -= gpus
        if missing <= EPSILON:
            return end_s
    return inf


def _shape_comes_free(ctx: Context, row: int, gpus: int) -> bool:
    """Could the gang ever start on free GPUs, or on GPUs of work with a predicted end?"""
    snapshot = ctx.observation.snapshot
    shape = shape_of(snapshot, row, gpus)
    suits = suitable_nodes(ctx.whatif, shape, ctx.gpu_memory_mib, empty=True)
    free = np.bincount(snapshot.gpus.node[ctx.plan.gpu_free_at_s < inf], minlength=len(suits))
    come: I32 = np.where(suits, free, 0).astype(np.int32)
    return fits_on(snapshot.nodes, shape, come)


def sure_to_end(ctx: Context, at: int, kept: QuotaHold) -> bool:
    """Is the gang at `at` sure enough to be gone before the kept quota is all there?"""
    return bool(ctx.known[at]) and isfinite(kept.ready_s) and float(ctx.gap_end_s[at]) <= kept.ready_s
