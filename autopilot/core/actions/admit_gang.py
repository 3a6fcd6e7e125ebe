"""Start pending gangs that fit whole, and hold room for those at the head that do not.

One pass in the order of service on one what-if. A gang starts beside the reservations made so far in
the pass, so that what stands before a gang in the order (latency-critical work, overdue gangs, short
ones) is never held back by room held for it. The first gangs in order that find no room get a
reservation, up to `reservation.depth` (more under conservative backfill): tentative while they are
young, a promise once they have waited `firm_after_s`. A promise that slips by `timeout_s` is released,
and its gang cools down before it may hold another.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

import numpy as np
from numpy.typing import NDArray

from autopilot.core.context import Context, Held
from autopilot.core.draft import Draft, Submit
from autopilot.core.placement import Miss, Shape, Spot, find_spot, shape_of
from autopilot.core.policy import BackfillKind
from autopilot.core.records import Code, Evidence
from autopilot.core.reservation import StartPlan, hold, plan_start
from autopilot.core.snapshot import I32

NAME = "admit_gang"
Rows = NDArray[np.integer]


def propose(ctx: Context, submit: Submit) -> None:
    """Admissions and reservations of this tick, in the order of service."""
    _admit_in_order(ctx, np.arange(len(ctx.pending)), submit)


def _admit_in_order(ctx: Context, positions: Rows, submit: Submit) -> None:
    """Try the positions in order; a shape that found no room is not searched again in this tick.

    Positions of one shape class form a line, and the lines are merged by position: when a class
    fails, its whole line is refused at once, which is what makes a long queue cheap.
    """
    lines = _lines(ctx, _not_held_back(ctx, positions))
    heads = [(int(line[0]), code, 0) for code, line in lines.items()]
    heapify(heads)
    failed: dict[int, Miss] = {}
    depth = _depth(ctx)
    while heads:
        at, code, place = heads[0]
        line = lines[code]
        reservable = len(ctx.held) < depth
        miss = failed.get(code) or _try(ctx, at, submit)
        if miss is not None:
            failed[code] = miss
            if not reservable:
                heappop(heads)
                ctx.refuse(line[place:], _beside_reservation(ctx, at, miss))
                continue
            ctx.refuse(at, _beside_reservation(ctx, at, miss))
            if ctx.may_reserve[at]:
                _reserve(ctx, at, submit)
        if place + 1 < len(line):
            heapreplace(heads, (int(line[place + 1]), code, place + 1))
        else:
            heappop(heads)


def _lines(ctx: Context, positions: Rows) -> dict[int, Rows]:
    """Positions by shape class, each ascending."""
    if not len(positions):
        return {}
    codes = ctx.classes[positions]
    order = np.argsort(codes, kind="stable")
    edges = np.flatnonzero(np.diff(codes[order])) + 1
    return {int(ctx.classes[line[0]]): line for line in np.split(positions[order], edges)}


def _not_held_back(ctx: Context, positions: Rows) -> Rows:
    """Positions that may start where there is room; the others are refused with their reason."""
    excluded = ctx.observation.snapshot.workloads.excluded[ctx.pending[positions]]
    if excluded.any():
        ctx.refuse(positions[excluded], Miss(Code.EXCLUDED, 1.0, 0.0))
        positions = positions[~excluded]
    return positions


def _try(ctx: Context, at: int, submit: Submit) -> Miss | None:
    """Place and propose one gang; None when it was decided (either way), the miss when nothing has room.

    An elastic gang whose full width finds no room, or exceeds its queue's limit, is tried at its minimum.
    """
    row = int(ctx.pending[at])
    work = ctx.observation.snapshot.workloads
    room = ctx.room(np.inf)
    wide, least = int(work.gpus[row]), int(work.min_gpus[row])
    first: Miss | None = None
    for gpus in (wide,) if least in (0, wide) else (wide, least):
        over_limit = ctx.over_limit(at, gpus)
        if over_limit is not None:
            continue
        shape = shape_of(ctx.observation.snapshot, row, gpus)
        found = _find(ctx, at, shape, room)
        if isinstance(found, Spot):
            ctx.taken[at] = _submit_admission(ctx, submit, at, found, shape)
            return None
        first = first or found
    if first is None:
        ctx.refuse(at, ctx.over_limit(at, least or wide) or Miss(Code.LIMIT, 0.0, float(wide)))
    return first


def _find(ctx: Context, at: int, shape: Shape, room: I32) -> Spot | Miss:
    """Room for a gang of this shape on what `room` leaves."""
    drain = ctx.node_end_s() if ctx.policy.placement.drain else None
    return find_spot(ctx.whatif, shape, room, ctx.policy.placement, ctx.gpu_memory_mib, drain,
                     ctx.now_s + float(ctx.run_low_s[at]))  # fmt: skip


def _beside_reservation(ctx: Context, at: int, miss: Miss) -> Miss:
    """Say `reserved` where the gang would have room, were it not held for another."""
    if not ctx.held or miss.code not in (Code.CAPACITY, Code.FRAGMENTED):
        return miss
    shape = shape_of(ctx.observation.snapshot, int(ctx.pending[at]))
    alone = _find(ctx, at, shape, ctx.whatif.node_free)
    return Miss(Code.RESERVED, miss.value, miss.threshold) if isinstance(alone, Spot) else miss


def _depth(ctx: Context) -> int:
    """How many gangs may hold a reservation at once."""
    rules = ctx.policy.reservation
    conservative = ctx.policy.backfill.kind == BackfillKind.CONSERVATIVE
    return rules.conservative_depth if conservative and rules.depth else rules.depth


def _reserve(ctx: Context, at: int, submit: Submit) -> None:
    """Hold room for the gang at `at`, if it can ever start here.

    Tentative room is planned in silence; a new promise is a proposal that the guards judge, a standing
    one is kept until it slips too far.
    """
    row = int(ctx.pending[at])
    shape = shape_of(ctx.observation.snapshot, row)
    plan = plan_start(ctx, shape)
    before, firm = ctx.standing.get(row), bool(ctx.firm[at])
    if plan is None:
        if before is not None and before.firm:
            ctx.released.append(before.workload)
        return
    held = hold(ctx, row, shape, plan, before, firm=firm)
    if before is not None and before.firm:
        latest_s = before.promised_s + ctx.policy.reservation.timeout_s
        if max(plan.start_s, ctx.now_s) >= latest_s:
            ctx.released.append(before.workload)
            return
    elif firm and not submit(_promise(ctx, at, row, shape, plan, held)):
        return
    ctx.held.append(held)


def _promise(ctx: Context, at: int, row: int, shape: Shape, plan: StartPlan, held: Held) -> Draft:
    """The wish to make a reservation firm."""
    return Draft(
        action=NAME, kind="reserve", at=at, row=row, spot=None, start_s=plan.start_s, nodes=held.record.nodes,
        benefit_gpu_s=0.0, cost_gpu_s=0.0,
        evidence=(
            Evidence("planned_start_in", round(max(plan.start_s - ctx.now_s, 0.0), 3), "s"),
            Evidence("quantile_of_remaining_run_times", ctx.policy.reservation.level, "probability"),
            Evidence("gpus", shape.gpus, "GPUs"),
            Evidence("nodes", len(held.nodes), "nodes"),
        ),
    )  # fmt: skip


def _submit_admission(ctx: Context, submit: Submit, at: int, spot: Spot, shape: Shape) -> bool:
    """Propose one admission; True when it stands on the what-if."""
    row = int(ctx.pending[at])
    run_s = float(ctx.run_low_s[at])
    gpus = len(spot.layout.gpu)
    idle_s = min(run_s, ctx.policy.review.batch_s, ctx.policy.horizon_s)
    weight = ctx.price_weight(int(spot.nodes[0]))
    milli = (
        float(spot.layout.milli.sum()) / 1000
        if shape.profile < 0
        else ctx.instance_share(spot.layout.instance)
    )
    draft = Draft(
        action=NAME, kind="admit", at=at, row=row, spot=spot, start_s=ctx.now_s, nodes=(),
        benefit_gpu_s=milli * idle_s * weight, cost_gpu_s=0.0,
        evidence=(
            Evidence("gpus", gpus, "GPUs"),
            Evidence("waited", round(ctx.now_s - float(ctx.observation.snapshot.workloads.submit_s[row]), 3), "s"),
            Evidence("position", at, "gangs ahead in order of service"),
            Evidence("expected_run_time", run_s if np.isfinite(run_s) else "unknown", "s"),
            Evidence("idle_avoided", idle_s, "s until the next review at the latest"),
        ),
    )  # fmt: skip
    return submit(draft)
