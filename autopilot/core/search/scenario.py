"""Scenarios: a gang starts on GPUs freed by victims, and some victims move; the cost and the worth of that.

Theory of operation. A question first takes the leaving work off the what-if (`let_leave`): its GPUs come free without
victims. `search_for` describes the room: free GPUs on suitable nodes, and a test of fit. The rule set chooses victims
with that search, or refuses. `on_paper` tries the choice: victims off, the gang on, then each whole victim elsewhere if
it fits, the widest first. Victims without another place are evicted; an elastic gang goes on without the members taken.
All of it happens on the what-if, and a mark rolls it back. The planner applies a scenario once the guards allow it.

A scenario is weighed in GPU-seconds by the price of the GPUs: the worth of the earlier start (`worth_gpu_s`), against
the cost of stopping the victims and of their renewed wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.effects import admit, pipeline
from autopilot.core.effects.admit import AdmitDraft
from autopilot.core.effects.draft import Case, Eviction
from autopilot.core.effects.pipeline import PipelineDraft
from autopilot.core.model.records import Evidence
from autopilot.core.model.snapshot import GPU_MILLI, I32, Topology
from autopilot.core.model.work import named
from autopilot.core.placement.fit import find_fit
from autopilot.core.placement.kinds.whole import fits_on
from autopilot.core.placement.shapes import (
    Fit,
    Miss,
    Shape,
    host_members,
    level_of,
    suitable_nodes,
)
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.planning.places import elsewhere, held_for_others, place, room_beside, within_limits
from autopilot.core.planning.start_plan import plan_start
from autopilot.core.quota.rules.base import Refusal, Takes, Target
from autopilot.core.search.victims import Search

STEPS_A_QUEUE = 10
"""Steps to find the victims that a rule set allows, for each queue; a step is about a microsecond."""

STEPS_A_PLACE = 200
"""Steps to find a place for a gang, without the look at each node."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A gang that would start on GPUs freed by victims: its place, the GPUs given up by each victim, and their loss."""

    shape: Shape
    fit: Fit
    evictions: tuple[Eviction, ...]
    needed_gpus: int | None = None  # of all gangs that start on what is taken; None: this one alone

    @property
    def cost_gpu_s(self) -> float:
        """Cost of stopping all victims."""
        return sum(give.price_gpu_s for give in self.evictions)


def scheduling_signatures(ctx: Context) -> list[int]:
    """Numbers of gangs with equal answers on preemption, by position.

    If one gang may not preempt, no gang with the same number may.
    """
    count, bits = len(ctx.plan.held), ctx.binding_sets(np.arange(len(ctx.pending)))
    return [
        signature << count | held_back
        for signature, held_back in zip(ctx.pending_table.signature, bits.tolist(), strict=True)
    ]


def alike_at(ctx: Context, at: int) -> int:
    """The scheduling signature of one position."""
    return ctx.pending_table.signature[at] << len(ctx.plan.held) | int(ctx.binding_sets(np.array([at]))[0])


def search_for(ctx: Context, at: int, shape: Shape, first: int = -1) -> Search:
    """The nodes' side of the search for victims. `first`: node on which gangs give up members first, -1 for none."""
    shape = within_limits(ctx, int(ctx.pending[at]), shape)
    suits = suitable_nodes(ctx.whatif, shape, ctx.gpu_memory_mib, empty=True)
    free = ctx.room(float(ctx.gap_end_s[at]), int(ctx.pending[at]), promises_only=True)
    room = np.where(suits, free, 0).astype(np.int32)
    by_gpus = shape.whole_gpus and int(ctx.pending[at]) not in ctx.members
    search = Search(
        ctx.whatif,
        room,
        shape.gpus,
        shape.unit_gpus,
        lambda free: fits_on(ctx.observation.snapshot.nodes, shape, np.where(suits, free, 0).astype(np.int32)),
        suits=suits,
        domain=level_of(ctx.observation.snapshot.nodes, shape.topology),
        spread=shape.topology == Topology.SPREAD,
        by_gpus=by_gpus,
        first=first,
        shown=_shown_victims(ctx, int(ctx.pending[at])),
        margin_ratio=ctx.policy.approval.margin_ratio,
    )
    if by_gpus and shape.asks_hosts:
        search.hosted = lambda cpu, memory: host_members(shape, cpu, memory).astype(np.int64) * shape.per_member
    elif not by_gpus:
        search.fits_slowly = lambda targets: _fits_slowly(ctx, at, shape, search, targets)
    return search


def _shown_victims(ctx: Context, row: int) -> frozenset[int]:
    """Rows of the victims of a start as shown to people.

    None if one of them is gone, has a new incarnation, or shrinks.
    """
    shown = ctx.shown_start(row)
    if shown is None or any(each.how == "shrink" for each in shown.victims):
        return frozenset()
    work, names = ctx.observation.snapshot.workloads, {each.uid: each.incarnation for each in shown.victims}
    rows = np.flatnonzero(named(work.uid, names)).tolist()
    same = [at for at in rows if int(work.incarnation[at]) == names[str(work.uid[at])]]
    return frozenset(same) if len(same) == len(names) else frozenset()


def _fits_slowly(ctx: Context, at: int, shape: Shape, search: Search, targets: Sequence[Target]) -> bool:
    mark = ctx.whatif.checkpoint()
    for target in targets:
        _apply(ctx, search, target)
    found = isinstance(place(ctx, at, shape, displacing=True), Fit)
    ctx.whatif.rollback(mark)
    return found


def _apply(ctx: Context, search: Search, target: Target) -> Layout | None:
    """Evict it on the what-if; the layout kept by the victim, None for a loss of everything."""
    if target.whole:
        ctx.whatif.evict(target.row)
        return None
    keeps = ctx.whatif.layout_of(target.row).without(search.entries(target))
    ctx.whatif.move(target.row, keeps)
    return keeps


def find_scenario(
    ctx: Context, at: int, targets: Takes, *, contract: bool = False, moves: bool = True
) -> Scenario | Refusal | Miss:
    """A start of the gang at `at` at its least width if victims leave as `targets` allows.

    GPUs of leaving work count as free: no victim is chosen for GPUs that come free by themselves. `moves`: victims
    continue elsewhere if they fit and the policy allows it.
    """
    row = int(ctx.pending[at])
    gpus = ctx.pending_table.least_gpus[at]
    shape = ctx.shape(row, gpus)
    mark = let_leave(ctx)
    search = search_for(ctx, at, shape)
    quota = ctx.quota
    running = quota.running(owed=True) if contract else ctx.settled(most_given_up(ctx, shape))
    answer = targets(quota.ledger, quota.claim(row, gpus), running, search)
    found = answer if isinstance(answer, Refusal) else on_paper(ctx, at, shape, search, answer, moves=moves)
    ctx.whatif.rollback(mark)
    ctx.plan.spend(search.steps + len(quota.snapshot.queues.id) * STEPS_A_QUEUE)
    return found


def most_given_up(ctx: Context, shape: Shape) -> float:
    """GPUs of the widest gang for a weighed preemption or a move; the guard blast_radius refuses wider ones.

    inf if GPUs do not decide (shares, instances).
    """
    return ctx.policy.preemption.blast_ratio * shape.gpus if shape.whole_gpus else np.inf


def let_leave(ctx: Context) -> int:
    """Take leaving work off the what-if; the mark to roll back to."""
    mark = ctx.whatif.checkpoint()
    for row, keeps in ctx.plan.leaving.items():
        if len(ctx.whatif.layout_of(row)):
            ctx.whatif.evict(row)
            if keeps is not None:
                ctx.whatif.place(row, keeps)
    return mark


def after_leaving(ctx: Context, at: int) -> Scenario | Miss:
    """A start of the gang at `at` after the leaving work has left, without victims."""
    shape = ctx.shape(int(ctx.pending[at]), ctx.pending_table.least_gpus[at])
    ctx.plan.spend(STEPS_A_PLACE + len(ctx.whatif.node_free) // 50)
    mark = let_leave(ctx)
    fit = place(ctx, at, shape)
    ctx.whatif.rollback(mark)
    return Scenario(shape, fit, ()) if isinstance(fit, Fit) else fit


def on_paper(
    ctx: Context,
    at: int,
    shape: Shape,
    search: Search,
    targets: Sequence[Target],
    *,
    parts_move: bool = False,
    moves: bool = True,
) -> Scenario | Miss:
    """Try it on the what-if: victims off, the gang on, victims elsewhere if they fit; then undo it all.

    `parts_move`: members taken from a gang are placed elsewhere too; otherwise the gang goes on without them. `moves`:
    victims may be placed elsewhere.
    """
    whatif = ctx.whatif
    search.steps += (len(targets) + 1) * (STEPS_A_PLACE + len(search.room) // 50)
    held = {target.row: whatif.layout_of(target.row) for target in targets}
    spared = held_for_others(ctx, at)
    mark = whatif.checkpoint()
    kept = {target.row: _apply(ctx, search, target) for target in targets}
    fit = place(ctx, at, shape, displacing=True, spared=spared)
    moved: dict[int, Layout] = {}
    if isinstance(fit, Fit) and moves and ctx.policy.preemption.move_victims:
        row = int(ctx.pending[at])
        whatif.place(row, fit.layout)
        ledger = ctx.quota.ledger.saved()
        for target in targets:
            ctx.quota.book(target.row, held[target.row], -1)
            keeps = kept[target.row]
            if keeps is not None:
                ctx.quota.book(target.row, keeps)
        ctx.quota.book(row, fit.layout)
        moved = _moves(ctx, targets, held)
        if parts_move:
            moved |= _moved_parts(ctx, targets)
        ctx.quota.ledger.restore(ledger)
    whatif.rollback(mark)
    if isinstance(fit, Miss):
        return fit
    evictions = []
    for target in targets:
        if target.row in moved and moved[target.row].is_at(held[target.row]):
            continue  # it is where it was: the others' going was enough
        part = target.gpus / max(held[target.row].gpus, 1e-9)
        price = float(ctx.lost_gpu_s[target.row]) * (1.0 if target.whole or target.row in moved else part)
        how = "move" if target.row in moved else "evict" if target.whole else "shrink"
        keeps = moved.get(target.row, kept[target.row])
        lost = len(held[target.row]) - (0 if target.whole or keeps is None else len(keeps))
        evictions.append(Eviction(target.row, how, keeps, lost, price))
    return Scenario(shape, fit, tuple(evictions))


def _moves(ctx: Context, targets: Sequence[Target], held: dict[int, Layout]) -> dict[int, Layout]:
    """Victims that fit elsewhere now, the widest first, as far as quotas allow; each is placed and booked.

    An elastic gang goes on with as many members as fit, from its minimum on.
    """
    moved, work = {}, ctx.observation.snapshot.workloads
    for target in sorted((target for target in targets if target.whole), key=lambda each: (-each.gpus, each.row)):
        wide, least = len(held[target.row]), int(work.min_gpus[target.row])
        member = max(int(work.gpus_per_member[target.row]), 1)
        for width in (wide, *range(wide - member, least - 1 if least else wide, -member)):
            fit = elsewhere(ctx, target.row, width) if ctx.quota.may_start(target.row, width) is None else None
            if fit is not None:
                ctx.whatif.place(target.row, fit.layout)
                ctx.quota.book(target.row, fit.layout)
                moved[target.row] = fit.layout
                break
    return moved


def _moved_parts(ctx: Context, targets: Sequence[Target]) -> dict[int, Layout]:
    """Gangs with a loss of some members, with these members elsewhere if they fit; each is placed and booked."""
    moved = {}
    for target in sorted((target for target in targets if not target.whole), key=lambda each: (-each.gpus, each.row)):
        shape = within_limits(ctx, target.row, ctx.shape(target.row, round(target.gpus)))
        fit = find_fit(
            ctx.whatif, shape, room_beside(ctx, target.row, ctx.room(np.inf)), ctx.policy.placement, ctx.gpu_memory_mib
        )
        if isinstance(fit, Fit) and ctx.quota.may_start(target.row, shape.gpus) is None:
            moved[target.row] = ctx.whatif.layout_of(target.row).joined(fit.layout)
            ctx.whatif.move(target.row, moved[target.row])
            ctx.quota.book(target.row, fit.layout)
    return moved


def worth_gpu_s(ctx: Context, at: int, found: Scenario) -> float:
    """Worth of starting the gang now, in GPU-seconds by price.

    It is the saved waiting, converted by `preemption.priority_weight`, and the use of GPUs that would idle as long.
    Without the scenario the gang starts at the predicted end of enough work, or after the horizon if that is unknown. A
    scenario without victims is not weighed: it is worth the use of its GPUs until the next review, like every
    admission.
    """
    row, horizon_s = int(ctx.pending[at]), ctx.policy.horizon_s
    if not found.evictions:
        idle_s = min(float(ctx.run_low_s[at]), ctx.policy.review.batch_s, horizon_s)
        return ctx.priced_gpus(found.fit.layout) * idle_s
    delay_s = horizon_s
    if found.shape.whole_gpus and row not in ctx.members:
        plan = plan_start(ctx, at, found.shape)
        later_s = np.inf if plan is None else plan.start_s - ctx.review_now_s
        delay_s = min(max(later_s, ctx.policy.review.batch_s), horizon_s)
    gpus = ctx.priced_gpus(found.fit.layout)
    given = sum(_loss(ctx, give) for give in found.evictions if give.how != "move")
    used_s = min(delay_s, float(ctx.run_low_s[at]))
    return gpus * delay_s * ctx.policy.preemption.priority_weight + max(gpus - given, 0.0) * used_s


def _loss(ctx: Context, give: Eviction) -> float:
    """GPUs given up by a victim, by price."""
    held = ctx.priced_gpus(ctx.whatif.layout_of(give.row))
    return held - ctx.priced_gpus(give.keeps) if give.how == "shrink" and give.keeps is not None else held


def _priced_cost_gpu_s(ctx: Context, found: Scenario) -> float:
    """Cost of stopping all victims, by the price of their GPUs."""
    cost = 0.0
    for give in found.evictions:
        held = ctx.whatif.layout_of(give.row)
        cost += give.price_gpu_s * ctx.priced_gpus(held) / max(held.gpus, 1e-9)
    return cost


def _waiting_gpu_s(ctx: Context, at: int, found: Scenario) -> float:
    """Cost of the renewed wait of stopped victims, until the end of the gang that starts in their place."""
    wait_s = min(float(ctx.run_low_s[at]), ctx.policy.horizon_s)
    gpus = sum(_loss(ctx, give) for give in found.evictions if give.how == "evict")
    return gpus * wait_s * ctx.policy.preemption.waiting_weight


def cases_without_victims(action: str) -> tuple[Case, Case]:
    """A start without a stop: after the leaving work is gone, or at once."""
    words = "start on {where}{after}"
    leaving = f"{words}, when work that already leaves is gone; nothing more is stopped for it"
    return Case(action, pipeline.KIND, "leaving", leaving), Case(action, admit.KIND, words=words)


def submitted(ctx: Context, row: int) -> Evidence:
    """Submission time of a gang: unlike its waiting time, this stays true while its start waits for a person."""
    return Evidence("submitted", float(ctx.observation.snapshot.workloads.submit_s[row]), "time")


def pipelined_draft(
    ctx: Context,
    case: Case,
    at: int,
    found: Scenario,
    benefit_gpu_s: float,
    *,
    net_of_waiting: bool = False,
) -> AdmitDraft | PipelineDraft:
    """The scenario as a draft, with its evidence. With no work to wait for it is a plain start, at this tick.

    `net_of_waiting`: the benefit already excludes the waiting of stopped victims.
    """
    row = int(ctx.pending[at])
    count = {how: sum(give.how == how for give in found.evictions) for how in ("evict", "shrink", "move")}
    stopping = _priced_cost_gpu_s(ctx, found)
    waiting = 0.0 if net_of_waiting else _waiting_gpu_s(ctx, at, found)
    leaving, at_once = cases_without_victims(case.action)
    cost_gpu_s = stopping + waiting
    evidence = (
        Evidence("gpus", found.shape.gpus, "GPUs"),
        submitted(ctx, row),
        Evidence("evicted", count["evict"], "gangs"),
        Evidence("shrunk", count["shrink"], "gangs"),
        Evidence("moved", count["move"], "gangs"),
        Evidence("stopping_at_review", round(stopping, 3), "GPU-s"),
        Evidence("waiting_again", round(waiting, 3), "GPU-s"),
    )
    if not found.evictions and not _awaits(ctx, found.fit.layout):
        return AdmitDraft(
            case=at_once, row=row, fit=found.fit, benefit_gpu_s=benefit_gpu_s, cost_gpu_s=cost_gpu_s, evidence=evidence
        )
    return PipelineDraft(
        case=case if found.evictions else leaving,
        row=row,
        fit=found.fit,
        evictions=found.evictions,
        needed_gpus=found.needed_gpus,
        benefit_gpu_s=benefit_gpu_s,
        cost_gpu_s=cost_gpu_s,
        evidence=evidence,
    )


def _awaits(ctx: Context, layout: Layout) -> bool:
    """True if leaving work is still on a node of the layout: its GPUs, CPU or memory may be in use."""
    held, node = ctx.observation.snapshot.placements, ctx.observation.snapshot.gpus.node
    theirs = held.node[np.isin(held.workload, list(ctx.plan.leaving))]
    return bool(np.isin(node[layout.gpu], theirs).any())


def free_of(ctx: Context, rows: Sequence[int]) -> I32:
    """Whole GPUs per node free once the gangs of these rows are gone. Shape [nodes]."""
    whatif, gpus = ctx.whatif, ctx.observation.snapshot.gpus
    free = whatif.node_free.copy()
    for row in rows:
        held = whatif.layout_of(row).gpu
        freed = held[whatif.gpu_whole[held] & (whatif.gpu_used[held] == GPU_MILLI)]
        free += np.bincount(gpus.node[freed], minlength=len(free)).astype(free.dtype)
    return free
