"""Start pending gangs that fit whole, and hold room for those at the head that do not.

In order of service, on one what-if: latency-critical work first and over any reservation of a lower
class; then gangs with a standing reservation; then everyone else, beside the reservations. The first
gangs in order that find no room get a reservation, up to `reservation.depth` (more under conservative
backfill). A reservation whose planned start slips by `reservation.timeout_s` past its promise is
released, and its gang cools down before it may hold another.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

import numpy as np
from numpy.typing import NDArray

from autopilot.core.context import Context
from autopilot.core.draft import Draft, Submit
from autopilot.core.placement import Miss, Shape, Spot, find_spot, shape_of
from autopilot.core.policy import BackfillKind
from autopilot.core.records import Code, Evidence, Reservation
from autopilot.core.reservation import StartPlan, hold, plan_start
from autopilot.core.snapshot import I32, SloClass

NAME = "admit_gang"
Rows = NDArray[np.integer]


def propose(ctx: Context, submit: Submit) -> None:
    """Admissions and reservations of this tick, most sheltered first."""
    work = ctx.observation.snapshot.workloads
    sheltered = work.slo_class[ctx.pending] == SloClass.LATENCY_CRITICAL
    _admit_in_order(ctx, np.flatnonzero(sheltered), submit, may_reserve=False, over_reservations=True)
    _keep_reservations(ctx, submit)
    holding = np.isin(ctx.pending, np.array([held.row for held in ctx.held], np.int32))
    _admit_in_order(ctx, np.flatnonzero(~sheltered & ~ctx.taken & ~holding), submit, may_reserve=True)


def _keep_reservations(ctx: Context, submit: Submit) -> None:
    """Land each reserved gang that fits now; plan the others anew on the state of this tick."""
    work = ctx.observation.snapshot.workloads
    for record in ctx.memory.reservations:
        found_at = np.flatnonzero(work.id[ctx.pending] == record.workload)
        if not len(found_at) or int(work.incarnation[ctx.pending[found_at[0]]]) != record.incarnation:
            continue  # started, cancelled or restarted meanwhile: nothing to hold
        at = int(found_at[0])
        miss = _try(ctx, at, submit, over_reservations=False)
        if miss is None:
            continue
        shape = shape_of(ctx.observation.snapshot, int(ctx.pending[at]))
        plan = _plan_on_standing_nodes(ctx, shape, record)
        latest_s = record.promised_s + ctx.policy.reservation.timeout_s
        if plan is None or max(plan.start_s, ctx.now_s) >= latest_s:
            ctx.released.append(record.workload)
        else:
            ctx.held.append(hold(ctx, int(ctx.pending[at]), shape, plan, record))
        ctx.refuse(at, miss)


def _plan_on_standing_nodes(ctx: Context, shape: Shape, record: Reservation) -> StartPlan | None:
    """The earliest start; on the nodes already held unless others are clearly earlier (hysteresis)."""
    nodes = ctx.observation.snapshot.nodes
    best = plan_start(ctx, shape)
    if best is None:
        return None
    standing = plan_start(ctx, shape, only=np.isin(nodes.id, np.array(record.nodes, object)))
    if standing is None:
        return best
    gained_s = standing.start_s - best.start_s
    worth_s = (
        ctx.policy.hysteresis.margin_ratio * max(standing.start_s - ctx.review_now_s, 0.0)
        + ctx.policy.review.batch_s
    )
    return best if gained_s > worth_s else standing


def _admit_in_order(ctx: Context, positions: Rows, submit: Submit, *, may_reserve: bool,
                    over_reservations: bool = False) -> None:  # fmt: skip
    """Try the positions in order; a shape that found no room is not searched again in this tick.

    Positions of one shape class form a line, and the lines are merged by position: when a class
    fails, its whole line is refused at once, which is what makes a long queue cheap.
    """
    lines = _lines(ctx, _not_held_back(ctx, positions))
    heads = [(int(line[0]), code, 0) for code, line in lines.items()]
    heapify(heads)
    failed: dict[int, Miss] = {}
    while heads:
        at, code, place = heads[0]
        line = lines[code]
        reservable = may_reserve and len(ctx.held) < _depth(ctx)
        miss = failed.get(code) or _try(ctx, at, submit, over_reservations=over_reservations)
        if miss is not None:
            failed[code] = miss
            if not reservable:
                heappop(heads)
                ctx.refuse(line[place:], _beside_reservation(ctx, at, miss))
                continue
            ctx.refuse(at, _beside_reservation(ctx, at, miss))
            if _may_reserve(ctx, at):
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


def _try(ctx: Context, at: int, submit: Submit, *, over_reservations: bool) -> Miss | None:
    """Place and propose one gang; None when it was decided (either way), the miss when nothing has room.

    An elastic gang whose full width finds no room, or exceeds its queue's limit, is tried at its minimum.
    """
    row = int(ctx.pending[at])
    work = ctx.observation.snapshot.workloads
    room = ctx.whatif.node_free if over_reservations else ctx.room(np.inf)
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


def _may_reserve(ctx: Context, at: int) -> bool:
    """True for a gang of whole GPUs that waited long enough and does not cool down."""
    work, row = ctx.observation.snapshot.workloads, int(ctx.pending[at])
    if work.gpu_milli[row] or work.mig_profile[row] >= 0:
        return False
    if ctx.review_now_s - float(work.submit_s[row]) < ctx.policy.reservation.min_wait_s:
        return False
    return ctx.memory.cooled_until_s.get(str(work.id[row]), -np.inf) <= ctx.now_s


def _reserve(ctx: Context, at: int, submit: Submit) -> None:
    """Hold room for the gang at `at`, if it can ever start here."""
    row = int(ctx.pending[at])
    shape = shape_of(ctx.observation.snapshot, row)
    plan = plan_start(ctx, shape)
    if plan is None:
        return
    held = hold(ctx, row, shape, plan, None)
    wait_s = max(plan.start_s - ctx.now_s, 0.0)
    draft = Draft(
        action=NAME, kind="reserve", at=at, row=row, spot=None, start_s=plan.start_s, nodes=held.record.nodes,
        benefit_gpu_s=0.0, cost_gpu_s=0.0,
        evidence=(
            Evidence("planned_start_in", round(wait_s, 3), "s"),
            Evidence("quantile_of_remaining_run_times", ctx.policy.reservation.level, "probability"),
            Evidence("gpus", shape.gpus, "GPUs"),
            Evidence("nodes", len(held.nodes), "nodes"),
        ),
    )  # fmt: skip
    if submit(draft):
        ctx.held.append(held)


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
