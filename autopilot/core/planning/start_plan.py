"""Predicted time and nodes of the start of a gang that does not fit yet.

The plan reads the predicted free times of GPUs as a step function of capacity per node. It finds, by bisection over the
distinct times, the first fit of the gang's members (inside one domain if required). Inside one review period the plan
depends on events alone, not on the clock, so that skipping a tick changes nothing; a planned start may therefore lie in
the past if predictions ran late. Backfilled work of unknown length is expected to be evicted for the gang, once its
reservation is firm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autopilot.core.model.policy import BackfillKind, Effect
from autopilot.core.model.snapshot import F64, I32, Topology
from autopilot.core.model.work import holding_mask
from autopilot.core.placement.kinds.whole import best_domain, fits_on, seat, tail_room
from autopilot.core.placement.shapes import Shape, level_of, members_on, suitable_nodes
from autopilot.core.planning.context import Context
from autopilot.core.planning.ordering.predicted_ends import gpu_free_at, predicted_ends


@dataclass(frozen=True, slots=True)
class StartPlan:
    """Earliest start by prediction; GPUs taken and spare on each chosen node."""

    start_s: float
    nodes: I32
    counts: I32
    spare: I32


def plan_start(ctx: Context, at: int, shape: Shape, gpu_free_at_s: F64 | None = None) -> StartPlan | None:
    """Time and nodes of the start of the gang of whole GPUs at `at` if nothing else were admitted; None for never.

    `gpu_free_at_s` [gpus]: free times of GPUs for it, if not by prediction alone.
    """
    suits = suitable_nodes(ctx.whatif, shape, ctx.gpu_memory_mib, empty=True)
    free_at = _free_matrix(ctx, _free_at(ctx, at, ctx.plan.gpu_free_at_s) if gpu_free_at_s is None else gpu_free_at_s)
    free_at[~suits] = np.inf
    start_s = _earliest_s(ctx, shape, free_at)
    return None if start_s is None else _choose_nodes(ctx, shape, free_at, start_s)


def promised_start_s(ctx: Context, at: int, shape: Shape, plan: StartPlan) -> float:
    """The latest start that the gang at `at` can be promised: as `plan`, with all work running as long as it may.

    "As long as it may" is `reservation.promise_level`. The plan is for a likely start, so that little room idles before
    it; a promise is for a start that few gangs miss.
    """
    late = plan_start(ctx, at, shape, _free_at(ctx, at, _free_late(ctx)))
    return max(plan.start_s, ctx.now_s, late.start_s if late is not None else -np.inf)


def _free_late(ctx: Context) -> F64:
    """Free times of GPUs at the promise level, starts of this tick included. Shape [gpus]."""
    level = ctx.policy.reservation.promise_level
    ends_s = predicted_ends(ctx.observation.snapshot.workloads, ctx.policy, ctx.outlook, ctx.review_now_s, level)
    by_work = gpu_free_at(ctx.whatif, ends_s)
    limit_s = ctx.observation.snapshot.workloads.limit_s
    for row, layout in ctx.whatif.layouts.items():
        left_s = ctx.outlook.quantile_s(np.array([row], np.int32), level)
        by_work[layout.gpu] = ctx.now_s + np.fmin(left_s, limit_s[row])
    taken = np.isfinite(ctx.plan.gpu_free_at_s)
    return np.where(taken, np.maximum(ctx.plan.gpu_free_at_s, by_work), ctx.plan.gpu_free_at_s)


def _earliest_s(ctx: Context, shape: Shape, free_at: F64) -> float | None:
    """The first time with a fit of the gang; None for never."""
    if _one_member_a_node(ctx, shape):
        ready_s = np.sort(free_at[:, shape.per_member - 1])
        if len(ready_s) < shape.members or not ready_s[shape.members - 1] < np.inf:
            return None
        start_s = float(ready_s[shape.members - 1])
        return start_s if start_s > ctx.review_now_s else -np.inf
    times = np.unique(free_at[np.isfinite(free_at)])
    times = np.concatenate([[-np.inf], times[times > ctx.review_now_s]])
    low, high = 0, len(times) - 1
    by_gpu = np.ascontiguousarray(free_at.T)  # counted ten times: the long side last
    if not _fits_at(ctx, shape, by_gpu, float(times[high])):
        return None
    while low < high:
        middle = (low + high) // 2
        if _fits_at(ctx, shape, by_gpu, float(times[middle])):
            high = middle
        else:
            low = middle + 1
    return float(times[low])


def _one_member_a_node(ctx: Context, shape: Shape) -> bool:
    """No node holds two members, nothing must share a domain, and there is no tail: sorting is enough."""
    widest = int(ctx.observation.snapshot.nodes.gpus.max(initial=0))
    return shape.tail == 0 and shape.topology == Topology.NONE and shape.per_member <= widest < 2 * shape.per_member


def _free_at(ctx: Context, at: int, gpu_free_at_s: F64) -> F64:
    """Free time of each GPU for the gang at `at`, from `gpu_free_at_s` [gpus] for all gangs. Shape [gpus].

    The end of backfilled work without a forecast is unknown; it is evicted for the gang once the gang's reservation is
    a promise (starting/backfill.py).
    """
    snapshot = ctx.observation.snapshot
    held, work = snapshot.placements, snapshot.workloads
    endless = work.backfilled & holding_mask(work) & np.isinf(ctx.end_s)
    if not ctx.policy.backfill.evict_when_due or not ctx.policy.modes.on(Effect.FILL) or not endless.any():
        return gpu_free_at_s
    firm_s = float(work.submit_s[ctx.pending[at]]) + ctx.policy.reservation.firm_after_s
    free_at = gpu_free_at_s.copy()
    evictable = held.gpu[endless[held.workload]]
    evictable = evictable[ctx.whatif.gpu_whole[evictable] & np.isinf(free_at[evictable])]
    free_at[evictable] = -np.inf if ctx.firm[at] else firm_s
    return free_at


def _free_matrix(ctx: Context, gpu_free_at_s: F64) -> F64:
    """Predicted free times per node, ascending: [nodes, GPUs of the largest node], inf for a missing GPU.

    GPUs held for one reservation are missing for another, except under conservative backfill: there they come free
    again at the predicted end of their gang.
    """
    nodes = ctx.observation.snapshot.nodes
    width = int(nodes.gpus.max(initial=0))
    columns = np.arange(width)
    rows = np.minimum(nodes.first_gpu[:, None] + columns, max(len(gpu_free_at_s) - 1, 0))
    free_at = np.where(columns < nodes.gpus[:, None], gpu_free_at_s[rows], np.inf)
    free_at.sort(axis=1)
    stacked = ctx.policy.backfill.kind == BackfillKind.CONSERVATIVE
    for held in ctx.plan.held:
        end_s = held.start_s + _run_time(ctx, held.row) if stacked else np.inf
        for node, count in zip(held.nodes.tolist(), held.counts.tolist(), strict=True):
            free_at[node, :count] = end_s
        free_at[held.nodes] = np.sort(free_at[held.nodes], axis=1)
    return free_at


def _run_time(ctx: Context, row: int) -> float:
    """Run time of a pending gang at the reservation level."""
    at = np.flatnonzero(ctx.pending == row)
    return float(ctx.run_low_s[at[0]]) if len(at) else np.inf


def _capacity_at(free_at: F64, shape: Shape, time_s: float) -> tuple[I32, I32]:
    """Free GPUs at a time on each node, and the number of members they make."""
    free = (free_at <= time_s).sum(axis=1).astype(np.int32)
    return free, members_on(shape, free)


def _fits_at(ctx: Context, shape: Shape, by_gpu: F64, time_s: float) -> bool:
    """True if the gang's members fit on the free GPUs at `time_s`. `by_gpu`: free times, [GPUs of a node, nodes]."""
    return fits_on(ctx.observation.snapshot.nodes, shape, (by_gpu <= time_s).sum(axis=0, dtype=np.int32))


def _choose_nodes(ctx: Context, shape: Shape, free_at: F64, start_s: float) -> StartPlan | None:
    """The nodes to hold at `start_s`: fullest first, as placement would choose."""
    free, capacity = _capacity_at(free_at, shape, start_s)
    nodes = ctx.observation.snapshot.nodes
    level = level_of(nodes, shape.topology)
    if level is not None and not shape.is_single:
        domain = best_domain(level, shape, free, capacity, tail_room(shape, free, capacity))
        if domain is not None:
            free, capacity = np.where(domain, free, 0), np.where(domain, capacity, 0)
    if shape.is_single:
        chosen = np.array([int(np.argmin(np.where(free >= shape.gpus, free, np.iinfo(np.int32).max)))], np.int32)
        counts = np.array([shape.gpus], np.int32)
    else:  # members on the nodes that have room earliest
        ready_s = free_at[:, shape.per_member - 1]
        chosen, taken = seat(shape, np.argsort(np.where(capacity > 0, ready_s, np.inf), kind="stable"), free, capacity)
        by_node = np.argsort(chosen)
        chosen, counts = chosen[by_node], taken[by_node].astype(np.int32)
    return StartPlan(start_s, chosen, counts, (free[chosen] - counts).astype(np.int32))
