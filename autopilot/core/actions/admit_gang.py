"""Start pending gangs that fit whole, and hold room for those at the head that do not.

One pass in the order of service on one what-if. A gang starts beside the reservations made so far in
the pass, or in the gap before them (actions/backfill.py); so what stands before a gang in the order
(latency-critical work, overdue gangs, short ones) is never held back by room held for it. The first
gangs in order that find no room get a reservation, up to `reservation.depth` (more under conservative
backfill): tentative while they are young, a promise once they have waited `firm_after_s`. A promise
that slips by `timeout_s` is released, and its gang cools down before it may hold another.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

import numpy as np
from numpy.typing import NDArray

from autopilot.core.actions.backfill import gap_draft, uses_gap
from autopilot.core.context import Context, Held
from autopilot.core.draft import Draft, Submit
from autopilot.core.placement import Miss, Shape, Spot, find_spot, shape_of
from autopilot.core.policy import BackfillKind
from autopilot.core.records import Code, Evidence
from autopilot.core.reservation import StartPlan, hold, plan_start
from autopilot.core.snapshot import GPU_MILLI, I32

NAME = "admit_gang"
Rows = NDArray[np.integer]


def propose(ctx: Context, submit: Submit) -> None:
    """Admissions and reservations of this tick, in the order of service."""
    left: Rows = _not_held_back(ctx, np.arange(len(ctx.pending)))
    while len(left):
        left = left[left > _admit_until_reservation(ctx, left, submit)]


def _admit_until_reservation(ctx: Context, positions: Rows, submit: Submit) -> int:
    """Try the positions in order up to one that gets a reservation; returns that position (the last one else).

    Gangs of one shape that see the same reservations fit or fail together: they form a line, the lines
    are merged by position, and when one fails its whole line is refused at once. That is what makes a
    long queue cheap. A new reservation changes what the rest may see, so the lines are drawn anew.
    """
    lines = _lines(ctx, positions)
    heads = [(int(line[0]), code, 0) for code, line in enumerate(lines)]
    heapify(heads)
    failed: dict[int, Miss] = {}
    reservable = len(ctx.held) < _depth(ctx)
    while heads:
        at, code, place = heads[0]
        line, step = lines[code], place + 1
        if code not in failed:
            miss = _try(ctx, at, submit)
            if miss is not None:
                failed[code] = _reason(ctx, at, miss)
        if code in failed:
            held = reservable and bool(ctx.may_reserve[at]) and _reserve(ctx, at, submit)
            further = np.flatnonzero(ctx.may_reserve[line[step:]]) if reservable else line[:0]
            step = step + int(further[0]) if len(further) else len(line)
            _refuse(ctx, line[place : place + 1 if held else step], failed[code])
            if held:
                return at
        if step < len(line):
            heapreplace(heads, (int(line[step]), code, step))
        else:
            heappop(heads)
    return int(positions[-1])


def _lines(ctx: Context, positions: Rows) -> list[Rows]:
    """Positions by shape class and the reservations that bind them, each ascending."""
    codes = ctx.classes[positions].astype(np.int64) << 32 | ctx.binding_sets(ctx.gap_end_s[positions])
    order = np.argsort(codes, kind="stable")
    edges = np.flatnonzero(np.diff(codes[order])) + 1
    return np.split(positions[order], edges)


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
    room = ctx.room(float(ctx.gap_end_s[at]))
    wide, member = int(work.gpus[row]), max(int(work.gpus_per_member[row]), 1)
    least = min(-(-int(work.min_gpus[row]) // member) * member, wide)  # whole members
    first: Miss | None = None
    for gpus in (wide,) if least in (0, wide) else (wide, least):
        over_limit = ctx.over_limit(at, gpus)
        if over_limit is not None:
            continue
        shape = shape_of(ctx.observation.snapshot, row, gpus)
        found = _find(ctx, at, shape, room)
        if isinstance(found, Spot):
            ctx.taken[at] = submit(_admission(ctx, at, found, shape))
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


def _reason(ctx: Context, at: int, miss: Miss) -> Miss:
    """`reserved` where the gang would have room, were it not held for another."""
    if not ctx.held or miss.code not in (Code.CAPACITY, Code.FRAGMENTED):
        return miss
    shape = shape_of(ctx.observation.snapshot, int(ctx.pending[at]))
    alone = _find(ctx, at, shape, ctx.whatif.node_free)
    return Miss(Code.RESERVED, miss.value, miss.threshold) if isinstance(alone, Spot) else miss


def _refuse(ctx: Context, positions: Rows, miss: Miss) -> None:
    """Note why gangs of one line wait; where a reservation is in the way, a missing run time is said instead."""
    ctx.refuse(positions, miss)
    unknown = positions[~ctx.known[positions]] if miss.code == Code.RESERVED else positions[:0]
    if len(unknown):
        ctx.refuse(unknown, Miss(Code.RUNTIME_UNKNOWN, float("nan"), ctx.policy.backfill.level))


def _depth(ctx: Context) -> int:
    """How many gangs may hold a reservation at once."""
    rules = ctx.policy.reservation
    conservative = ctx.policy.backfill.kind == BackfillKind.CONSERVATIVE
    return rules.conservative_depth if conservative and rules.depth else rules.depth


def _reserve(ctx: Context, at: int, submit: Submit) -> bool:
    """Hold room for the gang at `at`, if it can ever start here; True when it does.

    Tentative room is planned in silence; a new promise is a proposal that the guards judge, a standing
    one is kept until it slips too far (also while others leave it no room: planner.kept_promises).
    """
    row = int(ctx.pending[at])
    shape = shape_of(ctx.observation.snapshot, row)
    plan = plan_start(ctx, shape)
    before, firm = ctx.standing.get(row), bool(ctx.firm[at])
    if plan is None:
        return False
    held = hold(ctx, row, shape, plan, before, firm=firm)
    if before is not None and before.firm:
        latest_s = before.promised_s + ctx.policy.reservation.timeout_s
        if max(plan.start_s, ctx.now_s) >= latest_s:
            ctx.released.append(before.workload)
            return False
    elif firm and not submit(_promise(ctx, at, row, shape, plan, held)):
        return False
    ctx.held.append(held)
    return True


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


def _admission(ctx: Context, at: int, spot: Spot, shape: Shape) -> Draft:
    """The wish to start one gang; in the gap before a reservation where it takes GPUs that are held."""
    if uses_gap(ctx, spot):
        return gap_draft(ctx, at, spot)
    row = int(ctx.pending[at])
    run_s = float(ctx.run_low_s[at])
    idle_s = min(run_s, ctx.policy.review.batch_s, ctx.policy.horizon_s)
    weight = ctx.price_weight(int(spot.nodes[0]))
    gpus = (
        float(spot.layout.milli.sum()) / GPU_MILLI
        if shape.profile < 0
        else ctx.instance_share(spot.layout.instance)
    )
    return Draft(
        action=NAME, kind="admit", at=at, row=row, spot=spot, start_s=ctx.now_s, nodes=(),
        benefit_gpu_s=gpus * idle_s * weight, cost_gpu_s=0.0,
        evidence=(
            Evidence("gpus", len(spot.layout.gpu), "GPUs"),
            Evidence("waited", round(ctx.now_s - float(ctx.observation.snapshot.workloads.submit_s[row]), 3), "s"),
            Evidence("position", at, "gangs ahead in order of service"),
            Evidence("expected_run_time", run_s if np.isfinite(run_s) else "unknown", "s"),
            Evidence("idle_avoided", idle_s, "s until the next review at the latest"),
        ),
    )  # fmt: skip
