"""Start pending gangs that fit as a whole, and reserve room for those at the head that do not.

Theory of operation. One pass visits the gangs in the order of service, on one what-if. Every start can change the order
of those behind it. A gang starts beside the reservations made so far in the pass, or in the gap before them
(starting/backfill.py). Reserved room therefore delays no gang ahead of its owner in the order.

The first gangs without room get a reservation, up to `reservation.depth` (more with conservative backfill). A
reservation is tentative at first and becomes a promise after the gang has waited `firm_after_s`. A promise that slips
by `timeout_s` is released; its gang cools down before it can hold another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autopilot.core.effects import admit
from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, Submit
from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.memory.plan import Condition
from autopilot.core.model.policy import BackfillKind
from autopilot.core.model.records import Code, Evidence
from autopilot.core.model.snapshot import GPU_MILLI, Gate, State
from autopilot.core.placement.fit import find_fit
from autopilot.core.placement.shapes import Fit, Miss, Shape, shape_of
from autopilot.core.planning.context import Context
from autopilot.core.planning.places import place, short
from autopilot.core.planning.plan_state import Held
from autopilot.core.planning.queue_turns import queue_turns
from autopilot.core.planning.start_plan import StartPlan, plan_start, promised_start_s
from autopilot.core.preemption.defragment import SHAPES, moves_draft
from autopilot.core.preemption.defragment import acts as defragment_acts
from autopilot.core.preemption.reclaim_borrowed import keep_quota, release_quota, take_at_once
from autopilot.core.recovery.recover import give_back, may_stop
from autopilot.core.recovery.recover import runs as recover_runs
from autopilot.core.reserving import reserve
from autopilot.core.reserving.fair_share_hold import hold_fair_share
from autopilot.core.reserving.hold import hold
from autopilot.core.reserving.quota_hold import keep_room, overdue_positions, sure_to_end
from autopilot.core.search.moves import moves_only
from autopilot.core.search.scenario import (
    Scenario,
    after_leaving,
    alike_at,
    cases_without_victims,
    pipelined_draft,
    submitted,
    worth_gpu_s,
)
from autopilot.core.sharing.share import seat_first, turn_first
from autopilot.core.sharing_time.elastic import running, share, waiting
from autopilot.core.sharing_time.resize import acts as resize_acts
from autopilot.core.starting.backfill import gap_draft, uses_gap

NAME = "admit_gang"
NO_PODS = Miss(Code.NO_PODS, 1.0, 0.0)
LEAVING, ADMIT = cases_without_victims(NAME)
RESERVE = Case(NAME, reserve.KIND, words="no room yet: hold {gpus:GPU} for it, planned to start in {planned_start_in}")
Rows = NDArray[np.integer]


@dataclass(slots=True)
class _Pass:
    """State of one pass over the pending gangs. Gangs of one shape under the same reservations fail together."""

    codes: list[int]
    idle: list[bool]  # by position: where its number has failed and nothing leaves, it waits without a search
    failed: dict[int, Miss] = field(default_factory=dict)
    in_vain: set[tuple[int, int]] = field(default_factory=set)  # (code, sort) with no room where others leave
    unmovable: set[tuple[int, int]] = field(default_factory=set)  # (code, sort) for which no moves make room
    refused: dict[int, list[int]] = field(default_factory=dict)  # code -> positions that wait for its reason
    elastic: list[int] = field(default_factory=list)  # placed at their minimum, not yet proposed
    # by queue: whether room is held for its first gang that waits; a key for each queue that was looked at
    fair_share_held: dict[int, bool] = field(default_factory=dict)
    # by queue: its first gang that waits (position), and the GPUs of idle quota that are kept for it
    idle_held_for: dict[int, tuple[int, float]] = field(default_factory=dict)

    def reason(self, code: int) -> Miss:
        """The reason for the wait of the gangs of a number; capacity, if it was forgotten since."""
        return self.failed.get(code, Miss(Code.CAPACITY, 0.0, 0.0))

    def forget(self) -> None:
        """Drop the misses: a failed gang may fit now."""
        self.failed.clear()
        self.in_vain.clear()
        self.unmovable.clear()


def propose(ctx: Context, submit: Submit) -> None:
    """Admissions and reservations of this tick, in the order of service."""
    if recover_runs(ctx):
        give_back(ctx, may_stop(ctx), submit)
    turn_first(ctx, submit)
    plain = not ctx.quota.rules.at_once and ctx.policy.reservation.share_hold_s <= 0
    run = _Pass(_codes(ctx), (~(ctx.may_reserve | ctx.ahead)).tolist() if plain else [False] * len(ctx.pending))
    positions = _not_held_back(ctx, np.arange(len(ctx.pending)))
    turns = queue_turns(ctx, positions)
    strict = ctx.observation.snapshot.queues.strict.tolist()
    queue_of, ahead, keeps = ctx.pending_table.queue, ctx.ahead.tolist(), ctx.quota.rules.keeps is not None
    overdue = overdue_positions(ctx)
    while (at := turns.next()) is not None:
        ctx.plan.take_turn(at)
        if ctx.plan.quota_holds and _kept_from(ctx, at):
            continue
        uses = len(ctx.quota.leaving)
        kept = release_quota(ctx, at, run.idle_held_for) if keeps else None  # it is kept from other queues
        served = _serve(ctx, at, run, submit)
        if kept is not None:
            keep_quota(ctx, kept, run.idle_held_for)
        if served:
            if len(ctx.quota.leaving) > uses:
                turns.rebuild()
                run.forget()
            continue
        if ahead[at]:
            continue
        if at in overdue:
            keep_room(ctx, at)
        if keeps and queue_of[at] not in run.idle_held_for:
            keep_quota(ctx, at, run.idle_held_for)
        if strict[queue_of[at]]:
            for behind in turns.drop(queue_of[at]):
                ctx.plan.take_turn(behind)
                ctx.plan.refuse(behind, Miss(Code.ORDER, 1.0, 0.0))
    for code, refused in run.refused.items():
        _refuse(ctx, np.array(refused), run.reason(code))
    _widen(ctx, run.elastic, submit)


def _kept_from(ctx: Context, at: int) -> bool:
    """True if the quota for the gang is held for an overdue gang; noted as its reason."""
    row = int(ctx.pending[at])
    kept = ctx.quota_hold_against(row)
    if kept is None or sure_to_end(ctx, at, kept):
        return False
    claim, ledger = ctx.quota.claim(row, ctx.pending_table.least_gpus[at]), ctx.quota.ledger
    left = (
        ledger.guarantee_room(claim.queue, claim.kinds)
        if kept.sheltered
        else ledger.limit_room(claim.queue, claim.kinds)
    )
    ctx.plan.refuse(at, Miss(Code.KEPT, max(left, 0.0), claim.gpus))
    return True


def _codes(ctx: Context) -> list[int]:
    """A number for each position. Positions with equal numbers fit or fail together."""
    codes: list[int] = (ctx.classes.astype(np.int64) << 32 | ctx.binding_sets(np.arange(len(ctx.pending)))).tolist()
    if any(held.lent.any() for held in ctx.plan.held):
        pending, queue, given = ctx.pending.tolist(), ctx.pending_table.queue, dict[int, bool]()
        for at, alike in enumerate(ctx.pending_table.signature):
            if alike not in given:
                given[alike] = ctx.overrules_any(pending[at])
            if given[alike]:  # until the guarantee of its queue is used up
                codes[at] |= (queue[at] + 1) << 64
    return codes


def _serve(ctx: Context, at: int, run: _Pass, submit: Submit) -> bool:
    """Try one gang. True once it was decided, False if it waits (with its reason noted)."""
    code = run.codes[at]
    if run.idle[at] and code in run.failed and not ctx.plan.leaving:
        run.refused.setdefault(code, []).append(at)
        return False
    if code not in run.failed:
        miss = _try(ctx, at, run, submit)
        if miss is None:
            return True
        ctx.plan.refuse(at, miss)
        if miss.code in _SHAPE_CODES:
            run.failed[code] = _reason(ctx, at, miss)
        elif not ctx.quota.rules.at_once or miss.code == Code.CHECK:
            return False
    if ctx.ahead[at]:  # what others give up, quota that is taken at once and room that is held are for needs
        if code in run.failed:
            run.refused.setdefault(code, []).append(at)
        return False
    if ctx.plan.leaving and _await(ctx, at, run, submit):
        return True
    if ctx.quota.rules.at_once:
        return take_at_once(ctx, at, submit)
    miss_code = run.failed[code].code
    if miss_code in SHAPES and _by_moves(ctx, at, run, submit):
        return True
    if ctx.may_reserve[at] and sum(held.row >= 0 for held in ctx.plan.held) < _depth(ctx) and _reserve(ctx, at, submit):
        _refuse(ctx, np.array([at]), run.failed[code])
        _redraw(ctx, run)
        return False
    if ctx.pending_table.queue[at] not in run.fair_share_held and hold_fair_share(ctx, at, run.fair_share_held):
        _refuse(ctx, np.array([at]), run.failed[code])
        _redraw(ctx, run)
        return False
    run.refused.setdefault(code, []).append(at)
    return False


def _await(ctx: Context, at: int, run: _Pass, submit: Submit) -> bool:
    """Book room of work that leaves already. The gang starts there once it is free; nothing more is evicted."""
    kind = (run.codes[at], ctx.pending_table.signature[at])
    if kind in run.in_vain or not ctx.pending_table.may_ask[at]:
        return False
    found = None if ctx.may_start(at, ctx.pending_table.least_gpus[at]) is not None else after_leaving(ctx, at)
    if not isinstance(found, Scenario):
        run.in_vain.add(kind)
        return False
    worth = worth_gpu_s(ctx, at, found)
    return ctx.plan.decide(at, submit(pipelined_draft(ctx, LEAVING, at, found, worth)))


def _by_moves(ctx: Context, at: int, run: _Pass, submit: Submit) -> bool:
    """Move other gangs for the gang at its turn, before a later one starts on the GPUs needed for this."""
    kind = (run.codes[at], ctx.pending_table.signature[at])
    tried = kind in run.unmovable or ctx.plan.steps >= ctx.policy.limits.search_steps // 2
    if tried or not defragment_acts(ctx) or not ctx.pending_table.may_ask[at] or ctx.pending_table.early[at]:
        return False
    found = moves_only(ctx, at, alike_at(ctx, at))
    if found is None:
        run.unmovable.add(kind)
        return False
    ctx.plan.try_moves(at)
    return ctx.plan.decide(at, submit(moves_draft(ctx, at, found)))


_SHAPE_CODES = frozenset(
    {Code.CAPACITY, Code.FRAGMENTED, Code.TOPOLOGY, Code.MIG_GEOMETRY, Code.RESERVED, Code.TOO_WIDE}
)
"""Reasons that hold for every gang of the same shape."""


def _redraw(ctx: Context, run: _Pass) -> None:
    """Forget earlier misses: a new reservation changes the room of the remaining gangs."""
    for code, refused in run.refused.items():
        _refuse(ctx, np.array(refused), run.reason(code))
    run.refused.clear()
    run.forget()
    run.codes = _codes(ctx)


def _not_held_back(ctx: Context, positions: Rows) -> Rows:
    """Positions that may start, given room. The others are refused with their reason."""
    work = ctx.observation.snapshot.workloads
    rows = ctx.pending[positions]
    excluded, checked = work.excluded[rows], (work.gate[rows] >= Gate.REJECTED) & (work.gate[rows] != Gate.NO_PODS)
    if not ctx.quota.rules.at_once:
        checked = checked | (work.gate[rows] == Gate.WAITING) | (work.gate[rows] == Gate.NO_PODS)
    behind = _after_their_workers(ctx, rows)
    if behind.any():
        ctx.plan.refuse(positions[behind], Miss(Code.WORKERS, 1.0, 0.0))
    if excluded.any():
        ctx.plan.refuse(positions[excluded], Miss(Code.EXCLUDED, 1.0, 0.0))
    if checked.any():
        ctx.plan.refuse(positions[checked], Miss(Code.CHECK, 1.0, 0.0))
    suspended = checked & (work.gate[rows] == Gate.SUSPENDED)
    if suspended.any():
        ctx.plan.refuse(positions[suspended], Miss(Code.SUSPENDED, 1.0, 0.0))
    without = checked & (work.gate[rows] == Gate.NO_PODS)
    if without.any():
        ctx.plan.refuse(positions[without], NO_PODS)
    free: Rows = positions[~excluded & ~checked & ~behind]
    return free


def _after_their_workers(ctx: Context, rows: Rows) -> NDArray[np.bool_]:
    """Coordinators that already held GPUs without their workers, and whose workers still wait. Shape [rows].

    The workers start first.
    """
    work, noted = ctx.observation.snapshot.workloads, ctx.noted_since_s
    behind = np.zeros(len(rows), np.bool_)
    for at in np.flatnonzero(work.coordinates[rows] != "").tolist() if noted else ():
        workers = work.job_group == work.coordinates[rows[at]]
        waits = Condition(ConditionKind.WAITED, str(work.uid[rows[at]])) in noted
        behind[at] = waits and bool((workers & (work.state == State.PENDING)).any())
    return behind


def _try(ctx: Context, at: int, run: _Pass, submit: Submit) -> Miss | None:
    """Place and propose one gang. None once it was decided (either way); the miss if it has no room.

    An elastic gang is first placed at its minimum. It is widened and proposed after all others had their turn.
    """
    row, work = int(ctx.pending[at]), ctx.observation.snapshot.workloads
    wide, least = int(work.gpus[row]), ctx.pending_table.least_gpus[at]
    refusal, admitted = ctx.may_start(at, least), work.gate[row] == Gate.NO_PODS
    if seat_first(ctx, at, submit):
        return None
    if refusal is not None:
        return NO_PODS if admitted else refusal
    shape = ctx.shape(row, least)
    found = place(ctx, at, shape)
    if isinstance(found, Miss):
        return NO_PODS if admitted else found
    if admitted:  # the room and the quota of its pods are held
        _hold(ctx, at, found)
        return NO_PODS
    if work.gate[row] == Gate.WAITING:  # quota and room are held, the start waits for the check
        _hold(ctx, at, found)
        return Miss(Code.CHECK, 1.0, 0.0)
    if least < wide and row not in ctx.members:
        if ctx.quota.rules.at_once:
            found, shape = _widest(ctx, at, found, shape)
        else:
            _hold(ctx, at, found)
            run.elastic.append(at)
            return None
    ctx.plan.decide(at, submit(_admission(ctx, at, found, shape)))
    return None


def _hold(ctx: Context, at: int, fit: Fit) -> None:
    """Put the gang on this tick's what-if and ledger, without a proposal."""
    ctx.whatif.place(int(ctx.pending[at]), fit.layout)
    ctx.occupy(int(ctx.pending[at]), fit.layout, ctx.now_s + float(ctx.run_low_s[at]))


def _widen(ctx: Context, positions: Sequence[int], submit: Submit) -> None:
    """Propose elastic gangs with their minimum on the what-if, together with their share of the remaining members."""
    if not positions:
        return
    starting = [waiting(ctx, at) for at in positions]
    share(ctx, starting + (running(ctx) if resize_acts(ctx) else []))
    for gang in starting:
        ctx.vacate(gang.at)
    for gang in sorted(starting, key=lambda each: each.fit is None):  # the others find their places free
        shape = ctx.shape(gang.row, gang.least_gpus)
        fit = gang.fit or place(ctx, gang.at, shape)
        if isinstance(fit, Fit):
            ctx.plan.decide(gang.at, submit(_admission(ctx, gang.at, fit, gang.shape or shape)))


def _widest(ctx: Context, at: int, fit: Fit, shape: Shape) -> tuple[Fit, Shape]:
    """The widest start of an elastic gang with its minimum at `fit`: more members never fit better."""
    row, work = int(ctx.pending[at]), ctx.observation.snapshot.workloads
    member, wide = max(int(work.gpus_per_member[row]), 1), int(work.gpus[row])
    low, high = shape.gpus // member, -(-wide // member)
    while low < high:
        middle = (low + high + 1) // 2
        trial = ctx.shape(row, min(middle * member, wide))
        free = ctx.may_start(at, trial.gpus) is None and ctx.quota_hold_against(row) is None
        found = place(ctx, at, trial) if free else None
        if isinstance(found, Fit):
            low, fit, shape = middle, found, trial
        else:
            high = middle - 1
    return fit, shape


def _reason(ctx: Context, at: int, miss: Miss) -> Miss:
    """`reserved` if the gang would have room without the holds for other gangs."""
    if not ctx.plan.held or miss.code not in (Code.CAPACITY, Code.FRAGMENTED):
        return miss
    shape = ctx.shape(int(ctx.pending[at]), ctx.pending_table.least_gpus[at])
    if short(ctx, shape, ctx.whatif.node_free) is not None:
        return miss
    alone = find_fit(ctx.whatif, shape, ctx.whatif.node_free, ctx.policy.placement, ctx.gpu_memory_mib)
    return Miss(Code.RESERVED, miss.value, miss.threshold) if isinstance(alone, Fit) else miss


def _refuse(ctx: Context, positions: Rows, miss: Miss) -> None:
    """Note why gangs of one shape wait; behind a reservation, an unknown run time is the reason."""
    ctx.plan.refuse(positions, miss)
    unknown = positions[~ctx.known[positions]] if miss.code == Code.RESERVED else positions[:0]
    if len(unknown):
        ctx.plan.refuse(unknown, Miss(Code.RUNTIME_UNKNOWN, float("nan"), ctx.policy.backfill.level))


def _depth(ctx: Context) -> int:
    """The number of gangs that may hold a reservation at once."""
    rules = ctx.policy.reservation
    conservative = ctx.policy.backfill.kind == BackfillKind.CONSERVATIVE
    return rules.conservative_depth if conservative and rules.depth else rules.depth


def _reserve(ctx: Context, at: int, submit: Submit) -> bool:
    """Reserve room for the gang at `at`, if it can ever start here. True if it does.

    Tentative room is planned without a proposal. A new promise is a proposal judged by the guards. A standing promise
    is kept until it slips too far, also while other work leaves no room for it (planner.kept_promises).
    """
    row = int(ctx.pending[at])
    shape = shape_of(ctx.observation.snapshot, row)
    plan = plan_start(ctx, at, shape)
    before, firm = ctx.standing.get(row), bool(ctx.firm[at])
    if plan is None:
        return False
    standing = before is not None and before.firm
    promised_s = promised_start_s(ctx, at, shape, plan) if firm and not standing else None
    held = hold(ctx, row, shape, plan, before, firm=firm, promised_s=promised_s)
    if before is not None and standing:
        latest_s = before.planned_s + ctx.policy.reservation.timeout_s
        if max(plan.start_s, ctx.now_s) >= latest_s:
            ctx.plan.release(before.workload)
            return False
    elif firm and not submit(_promise(ctx, row, shape, plan, held)):
        return False
    ctx.plan.hold(held)
    return True


def _promise(ctx: Context, row: int, shape: Shape, plan: StartPlan, held: Held) -> reserve.ReserveDraft:
    """The proposal to make a reservation firm."""
    rules = ctx.policy.reservation
    return reserve.ReserveDraft(
        case=RESERVE,
        row=row,
        start_s=held.record.promised_s,
        nodes=held.record.nodes,
        benefit_gpu_s=0.0,
        cost_gpu_s=0.0,
        evidence=(
            Evidence("planned_start_in", round(max(plan.start_s - ctx.now_s, 0.0), 3), "s"),
            Evidence("quantile_of_remaining_run_times", rules.level, "probability"),
            Evidence("promised_start_in", round(held.record.promised_s - ctx.now_s, 3), "s"),
            Evidence("quantile_behind_the_promise", rules.promise_level, "probability"),
            Evidence("gpus", shape.gpus, "GPUs"),
            Evidence("nodes", len(held.nodes), "nodes"),
        ),
    )


def _admission(ctx: Context, at: int, fit: Fit, shape: Shape) -> admit.AdmitDraft:
    """The proposal to start one gang; as backfill if it takes reserved GPUs."""
    if uses_gap(ctx, fit, int(ctx.pending[at])):
        return gap_draft(ctx, at, fit)
    row = int(ctx.pending[at])
    run_s = float(ctx.run_low_s[at])
    idle_s = min(run_s, ctx.policy.review.batch_s, ctx.policy.horizon_s)
    weight = ctx.price_weight(int(fit.nodes[0]))
    gpus = float(fit.layout.milli.sum()) / GPU_MILLI if shape.profile < 0 else ctx.instance_share(fit.layout.instance)
    return admit.AdmitDraft(
        case=ADMIT,
        row=row,
        fit=fit,
        benefit_gpu_s=gpus * idle_s * weight,
        cost_gpu_s=0.0,
        evidence=(
            Evidence("gpus", len(fit.layout), "GPUs"),
            submitted(ctx, row),
            Evidence("position", int(ctx.plan.turn[at]), "gangs ahead in order of service"),
            Evidence("expected_run_time", run_s if np.isfinite(run_s) else "unknown", "s"),
            Evidence("idle_avoided", idle_s, "s until the next review at the latest"),
        ),
    )


ACTION = Action(NAME, "start waiting work that fits whole", propose, (ADMIT, LEAVING, RESERVE), explains_waiting=True)
