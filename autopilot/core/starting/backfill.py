"""Start work in the gap before a reservation, and evict it once the reserved gang can start.

A gang without room beside the reservations may still start on reserved GPUs if its run time, at the quantile of the
policy, ends before the planned start. Preemptible work without a forecast may do so too. Such work is marked. Once the
reserved gang would fit without some of the marked work, the smallest sufficient set is evicted. This is the contract of
backfill: the eviction is neither weighed nor budgeted.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.effects import admit, evict
from autopilot.core.effects.action import Action
from autopilot.core.effects.admit import AdmitDraft
from autopilot.core.effects.draft import Case, Eviction, Submit
from autopilot.core.effects.evict import EvictDraft
from autopilot.core.model.records import Evidence
from autopilot.core.model.stops import StopReason
from autopilot.core.model.work import active_mask
from autopilot.core.placement.kinds.whole import fits_on
from autopilot.core.placement.shapes import Fit, suitable_nodes
from autopilot.core.planning.context import Context
from autopilot.core.planning.plan_state import Held
from autopilot.core.search.scenario import free_of

NAME = "backfill"
_PROMISE = "backfilled work starts on the condition that it leaves when the reservation is due"
GAP = Case(
    NAME,
    admit.KIND,
    words="start on {where}{after}, in the gap before a reservation; it is evicted when the reserved gang can start",
    fills_gap=True,
)
DUE = Case(
    NAME,
    evict.KIND,
    "due",
    words="evict backfilled work so that {workload} can start on the room reserved for it: {victims}",
    takes=StopReason.BACKFILL,
    contract=_PROMISE,
)
ADVANCE = Case(
    NAME,
    evict.KIND,
    "advance",
    words="evict it ({taken}): it was backfilled on nodes that are reserved in advance, and the reservation is due",
    takes=StopReason.BACKFILL,
    contract=_PROMISE,
)


def propose(ctx: Context, submit: Submit) -> None:
    """Evict marked work so that a reserved gang can start. (Starts in gaps are part of the pass of admit_gang.)"""
    if ctx.policy.backfill.evict_when_due:
        for held in ctx.plan.held:
            if held.queue >= 0:
                _clear(ctx, held, submit)
            elif held.record.firm:  # nothing is lost for a plan that may be another at the next tick
                _make_way(ctx, held, submit)


def uses_gap(ctx: Context, fit: Fit, row: int) -> bool:
    """True if a placement of the gang of `row` takes GPUs held by reservations of other gangs for their start."""
    if not ctx.plan.held or not fit.layout.plain.all():
        return False
    nodes, counts = np.unique(ctx.observation.snapshot.gpus.node[fit.layout.gpu], return_counts=True)
    return bool((counts > ctx.room(np.inf, row)[nodes]).any())


def gap_draft(ctx: Context, at: int, fit: Fit) -> AdmitDraft:
    """The proposal to start one gang in the gap, with the expected price of its eviction."""
    gpus, gap_s = len(fit.layout), min(held.start_s for held in ctx.plan.held) - ctx.now_s
    known = bool(ctx.known[at])
    run_s = float(ctx.run_high_s[at]) if known else gap_s
    overrun = 1.0 - ctx.policy.backfill.level if known else 1.0
    return AdmitDraft(
        case=GAP,
        row=int(ctx.pending[at]),
        fit=fit,
        benefit_gpu_s=gpus * max(min(gap_s, run_s, ctx.policy.horizon_s), 0.0),
        cost_gpu_s=overrun * gpus * max(gap_s, 0.0),
        evidence=(
            Evidence("gpus", gpus, "GPUs"),
            Evidence("first_reservation_in", round(gap_s, 3), "s"),
            Evidence("run_time_at_quantile", round(run_s, 3) if known else "unknown, but preemptible", "s"),
            Evidence("quantile", ctx.policy.backfill.level, "probability"),
            Evidence("chance_of_eviction", round(overrun, 4), "probability"),
        ),
    )


def _make_way(ctx: Context, held: Held, submit: Submit) -> None:
    """Evict the smallest sufficient set of backfilled work, if that lets the gang start at once.

    Leaving work counts as gone: nothing more is evicted while its GPUs come free.
    """
    work = ctx.observation.snapshot.workloads
    leaving = np.flatnonzero(ctx.leaving_mask())
    stays = np.ones(len(work.id), np.bool_)
    stays[leaving] = False
    marked = np.flatnonzero(work.backfilled & stays & active_mask(work))
    if not len(marked) or _fits(ctx, held, leaving) or not _fits(ctx, held, np.concatenate([leaving, marked])):
        return
    lost = ctx.losses.price_gpu_s[marked]
    needed = set(marked.tolist())
    for row in marked[np.argsort(-lost, kind="stable")].tolist():
        trial = np.array([*leaving.tolist(), *sorted(needed - {row})], np.int32)
        if _fits(ctx, held, trial):
            needed.discard(row)
    price = float(lost[np.isin(marked, list(needed))].sum())
    submit(
        EvictDraft(
            case=DUE,
            row=held.row,
            nodes=held.record.nodes,
            benefit_gpu_s=held.shape.gpus * ctx.policy.review.batch_s,
            cost_gpu_s=price,
            evictions=tuple(
                Eviction(row, "evict", None, len(ctx.whatif.layout_of(row)), float(ctx.losses.price_gpu_s[row]))
                for row in sorted(needed)
            ),
            evidence=(
                Evidence("reserved_gang_gpus", held.shape.gpus, "GPUs"),
                Evidence("backfilled_gangs_evicted", len(needed), "gangs"),
                Evidence("lost", round(price, 3), "GPU-s"),
            ),
        )
    )


def _clear(ctx: Context, held: Held, submit: Submit) -> None:
    """Evict marked work from nodes reserved in advance, once the reservation is due: node by node, cheapest first."""
    if ctx.now_s < held.start_s:
        return
    snapshot = ctx.observation.snapshot
    work, placed = snapshot.workloads, snapshot.placements
    stays = work.backfilled & active_mask(work)
    stays &= ~ctx.leaving_mask()
    for node, count in zip(held.nodes.tolist(), held.counts.tolist(), strict=True):
        here = np.unique(placed.workload[(placed.node == node) & stays[placed.workload]])
        for row in here[np.argsort(ctx.losses.price_gpu_s[here], kind="stable")].tolist():
            gone = [*np.flatnonzero(ctx.leaving_mask()).tolist(), *ctx.quota.leaving]
            if int(free_of(ctx, gone)[node]) >= count:
                break
            gpus, price = len(ctx.whatif.layout_of(row)), float(ctx.losses.price_gpu_s[row])
            submit(
                EvictDraft(
                    case=ADVANCE,
                    row=row,
                    nodes=held.record.nodes,
                    benefit_gpu_s=gpus * ctx.policy.review.batch_s,
                    cost_gpu_s=price,
                    evictions=(Eviction(row, "evict", None, gpus, price),),
                    evidence=(
                        Evidence("reserved_gpus", held.record.gpus, f"GPUs of {held.record.workload}"),
                        Evidence("lost", round(price, 3), "GPU-s"),
                    ),
                )
            )


def _fits(ctx: Context, held: Held, without: np.ndarray) -> bool:
    """True if the reserved gang would fit now without the workloads `without`."""
    free = free_of(ctx, without.tolist())
    for other in ctx.plan.held:
        if other is not held:
            free[other.nodes] = np.minimum(free[other.nodes], np.maximum(other.spare, 0))
    suits = suitable_nodes(ctx.whatif, held.shape, ctx.gpu_memory_mib, empty=True)
    return fits_on(ctx.observation.snapshot.nodes, held.shape, np.where(suits, free, 0))


ACTION = Action(NAME, "start work in the gap before a reservation", propose, (GAP, DUE, ADVANCE), explains_waiting=True)
