"""Moves that make room: running gangs go elsewhere so that a waiting gang fits.

Theory of operation. The cheapest gangs with enough room are taken off the what-if and the gang is placed. Each of them
must then find another place. A gang without one stays, and the search continues without it. If that finds nothing, the
search is repeated for a few nodes: members of elastic gangs on that node then leave first. A bound by counts
(`_too_few`) spares the search if moves can free too few GPUs on suitable nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.snapshot import GPU_MILLI, I32, I64, Bools, State
from autopilot.core.model.work import on_shares, whole_gpus
from autopilot.core.placement.shapes import Shape, saves_mask, suited_nodes
from autopilot.core.planning.context import Context
from autopilot.core.quota.rules.base import RankedTarget, Target
from autopilot.core.search.candidates import Columns, Movers
from autopilot.core.search.holdings import entries_of, holdings_of
from autopilot.core.search.scenario import Scenario, let_leave, most_given_up, on_paper, search_for
from autopilot.core.search.victims import Search

TRIES = 8
"""How often the search continues without a gang that found no other place."""

MANY = 512
"""Among more movable gangs than this, only those on the nodes that are cheapest to clear are considered."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The result of a search for moves for one gang: without a scenario, no moves make room."""

    at: int
    victims: tuple[Target, ...] = ()
    scenario: Scenario | None = None


@dataclass(frozen=True, slots=True)
class _Reach:
    """Nodes suitable for movable gangs: `nodes` [kinds, nodes], and the `kind` of each gang, [gangs]."""

    kind: NDArray[np.intp]
    nodes: Bools


class _Answers(dict[tuple[int, int, int, int], _Answer]):
    """Answers of this tick, by four keys.

    They are the state of the what-if, the number of leaving gangs, the scheduling signature, and the row of a gang with
    a hold of its own.
    """


def moves_only(ctx: Context, at: int, key: int, *, contract: bool = False) -> Scenario | None:
    """A start of the gang at `at` if others moved; None if it may not start, or no moves make room.

    `key`: its scheduling signature. Several actions ask in one tick, and for many gangs that are alike: one search
    answers them all, and only the places are chosen anew for each gang. Moves refused by a budget will be refused
    again, and their places stay as they are. Once the budget of the cluster is exhausted there are no moves.
    `contract`: budgets do not bind.
    """
    if not contract and ctx.plan.exhausted():
        return None
    row = int(ctx.pending[at])
    work = ctx.observation.snapshot.workloads
    gpus = ctx.pending_table.least_gpus[at]
    if not work.preemptible[row] or not ctx.policy.preemption.move_victims or ctx.may_start(at, gpus) is not None:
        return None
    known, own = ctx.once(_Answers, _Answers), any(held.row == row for held in ctx.plan.held)
    asked = (ctx.whatif.stamp, len(ctx.quota.leaving), key, row if own else -1)
    answer = known.get(asked)
    if answer is not None and (
        answer.scenario is None or answer.at == at or (not contract and _over_budget(ctx, answer.scenario))
    ):
        return _unless_refused(ctx, answer.scenario, contract)
    mark, shape = let_leave(ctx), ctx.shape(row, gpus)
    found = None if answer is None else _again(ctx, at, shape, answer)
    if found is None:
        answer = _searched(ctx, at, shape)
        found = answer.scenario
        known[asked] = answer
    ctx.whatif.rollback(mark)
    return _unless_refused(ctx, found, contract)


def _unless_refused(ctx: Context, found: Scenario | None, contract: bool) -> Scenario | None:
    """The moves, or None if the budget of the cluster would refuse this number of victims again in this tick."""
    if found is None or contract or not ctx.plan.exhausted(len(found.evictions)):
        return found
    return None


def _over_budget(ctx: Context, found: Scenario) -> bool:
    """True if a budget refused the same victims in this tick."""
    return frozenset(give.row for give in found.evictions) in ctx.plan.over_budget


def _again(ctx: Context, at: int, shape: Shape, answer: _Answer) -> Scenario | None:
    """The moves found for another gang, tried for this one; None if they do not serve it."""
    search = search_for(ctx, at, shape)
    found = on_paper(ctx, at, shape, search, answer.victims, parts_move=True)
    ctx.plan.spend(search.steps)
    return found if isinstance(found, Scenario) and not _stuck(ctx, found) else None


def search_moves(ctx: Context, at: int, shape: Shape, without: Collection[int] = ()) -> Scenario | None:
    """The cheapest gangs whose moves make room, without gangs that find no other place, and without these rows."""
    return _searched(ctx, at, shape, without).scenario


def _searched(ctx: Context, at: int, shape: Shape, without: Collection[int] = ()) -> _Answer:
    free = float(_free_milli(ctx).sum()) / GPU_MILLI
    if shape.whole_gpus and free < shape.gpus:
        return _Answer(at)
    most_gpus = np.inf if shape.profile >= 0 else min(free, most_given_up(ctx, shape))
    search = search_for(ctx, at, shape)
    if search.by_gpus and search.suits is not None and _too_few(ctx, shape, search.suits):
        return _Answer(at)
    search.patience = ctx.policy.limits.search_steps
    ranked_targets = movers(ctx, search, most_gpus, without, instances=shape.profile >= 0)
    found = _without_stuck(ctx, at, shape, search, ranked_targets)
    ctx.plan.spend(search.steps)
    parts = [ranked_target for ranked_target in ranked_targets if not ranked_target.target.whole]
    for node in _nodes_of(ctx, parts, shape) if found.scenario is None and parts else ():
        search = search_for(ctx, at, shape, first=node)
        search.patience = ctx.policy.limits.search_steps
        found = _without_stuck(ctx, at, shape, search, ranked_targets)
        ctx.plan.spend(search.steps)
        if found.scenario is not None:
            return _Answer(at, (), found.scenario)  # its members leave that node first: only a search says which
    return found


def _too_few(ctx: Context, shape: Shape, suits: Bools) -> bool:
    """True if no moves leave the gang enough GPUs on its suitable nodes. `suits` [nodes].

    Moves among these nodes free nothing in sum: gangs that suit other nodes must leave for free room there.
    """
    node, free = ctx.observation.snapshot.gpus.node, _free_milli(ctx)
    missing = shape.gpus * GPU_MILLI - int(free[suits].sum())
    if missing <= 0 or not len(node):
        return missing > 0
    rows, movers = ctx.once(Movers, lambda: all_movers(ctx)).rows, ctx.once(_Reach, lambda: _reach(ctx))
    reach = movers.nodes & ~suits
    leaves = rows[np.logical_or.reduce(reach, axis=1)[movers.kind]]
    if not len(leaves) or int(free[np.logical_or.reduce(reach, axis=0)].sum()) < missing:
        return True
    _, gpu, milli = entries_of(ctx.whatif, leaves)
    return int(milli[suits[node[gpu]]].sum()) < missing


def _free_milli(ctx: Context) -> I64:
    """Free milli of usable GPUs, parts included. Shape [nodes]. Computed once for a state of the what-if."""
    answers = ctx.cached()
    if answers.free_milli is None:
        whatif, node = ctx.whatif, ctx.observation.snapshot.gpus.node
        free = np.where(whatif.gpu_whole, np.maximum(GPU_MILLI - whatif.gpu_used, 0), 0)
        answers.free_milli = np.bincount(node, free, len(whatif.node_free)).astype(np.int64)
    return answers.free_milli


def _reach(ctx: Context) -> _Reach:
    """Nodes possible at all for each kind of movable gang."""
    work, rows = ctx.observation.snapshot.workloads, ctx.once(Movers, lambda: all_movers(ctx)).rows
    asks = np.stack([work.gpu_models, work.gpu_memory_mib, work.selector, saves_mask(work)], axis=1)[rows]
    kinds, kind = np.unique(asks, axis=0, return_inverse=True)
    nodes = np.zeros((len(kinds), len(ctx.whatif.node_free)), np.bool_)
    for each in range(len(kinds)):
        row = int(rows[np.argmax(kind.ravel() == each)])
        nodes[each] = suited_nodes(ctx.whatif, ctx.shape(row, int(work.gpus[row])), ctx.gpu_memory_mib)
    return _Reach(kind.ravel(), nodes)


def _nodes_of(ctx: Context, parts: Sequence[RankedTarget], shape: Shape) -> list[int]:
    """Nodes with room for a member of the new gang beside movable members, those with most free GPUs first."""
    held = np.zeros(len(ctx.whatif.node_free), np.int64)
    for row in dict.fromkeys(ranked_target.target.row for ranked_target in parts):
        np.add.at(held, ctx.observation.snapshot.gpus.node[ctx.whatif.layout_of(row).gpu], 1)
    free = np.where(held > 0, ctx.whatif.node_free + held, 0)
    fits = np.flatnonzero(free >= (shape.unit_gpus))
    found: list[int] = fits[np.argsort(-ctx.whatif.node_free[fits], kind="stable")][:TRIES].tolist()
    return found


def movers(
    ctx: Context, search: Search, most_gpus: float, without: Collection[int] = (), *, instances: bool = False
) -> list[RankedTarget]:
    """Movable gangs of at most `most_gpus`, without these rows; with `instances`, only gangs on instances."""
    every = ctx.once(Movers, lambda: all_movers(ctx))
    may = np.where(every.elastic, every.member_gpus, every.gpus) <= most_gpus
    may &= _could_go(every, ctx.room(np.inf))
    if instances:
        may &= ctx.observation.snapshot.workloads.mig_profile[every.rows] >= 0
    if ctx.quota.leaving or without:
        may &= ~np.isin(every.rows, [*ctx.quota.leaving, *without])
    if every.columns is not None and search.by_gpus:
        places = search.near(every.columns, may)
    else:
        places = np.flatnonzero(may).tolist()
    ranked_targets = []
    for place in places:
        claim, rank = every.claims[place], int(every.rank[place])
        if every.elastic[place]:  # one member may go and the rest stay
            count = round(claim.spare_gpus / claim.member_gpus)
            part = RankedTarget(
                Target(claim.row, claim.member_gpus, whole=False), rank, claim.price_gpu_s / count, claim.queue
            )
            ranked_targets += [part] * count
        if claim.gpus <= most_gpus:
            ranked_targets.append(
                RankedTarget(Target(claim.row, claim.gpus, whole=True), rank, claim.price_gpu_s, claim.queue)
            )
    return ranked_targets


def _could_go(movers: Movers, room: I32) -> Bools:
    """True if a node other than its own has room for a member. `room` [nodes]. Shape [gangs]."""
    most = np.full(len(movers.rows), room.max(initial=0))
    roomiest = int(room.argmax()) if len(room) else -1
    most[movers.node == roomiest] = np.delete(room, roomiest).max(initial=0) if len(room) else 0
    return movers.member_gpus <= most


def all_movers(ctx: Context) -> Movers:
    """All movable gangs, once in a tick: the cheapest of the lowest priority first."""
    work = ctx.observation.snapshot.workloads
    runs = (work.state == State.RUNNING).tolist()
    movable = [claim for claim in ctx.settled() if claim.preemptible and runs[claim.row]]
    rows = np.array([claim.row for claim in movable], np.int32)
    gpus = np.array([claim.gpus for claim in movable], np.float64)
    cost = gpus + ctx.quota.lost_gpu_s[rows]
    order = np.lexsort((rows, cost, work.priority[rows]))
    rows, gpus, cost = rows[order], gpus[order], cost[order]
    rank = np.unique(work.priority[rows], return_inverse=True)[1].astype(np.int32)
    columns = Columns(rows.tolist(), holdings_of(ctx.whatif, rows), rank, cost) if len(rows) > MANY else None
    whole = whole_gpus(work, rows) & ~on_shares(ctx.observation.snapshot)[rows]
    member_gpus = np.where(whole, np.minimum(np.maximum(work.gpus_per_member[rows], 1), gpus), 0.0)
    return Movers(
        [movable[place] for place in order.tolist()],
        rows,
        gpus,
        rank,
        member_gpus,
        whole & np.array([movable[place].elastic for place in order.tolist()], np.bool_),
        _only_nodes(ctx, rows),
        columns,
    )


def _only_nodes(ctx: Context, rows: I32) -> I32:
    """The node of each gang, -1 for a gang on several. Shape [gangs]."""
    held, count = ctx.observation.snapshot.placements, len(ctx.observation.snapshot.workloads.id)
    low, high = np.full(count, np.iinfo(np.int32).max, np.int32), np.full(count, -1, np.int32)
    np.minimum.at(low, held.workload, held.node)
    np.maximum.at(high, held.workload, held.node)
    return np.where(low[rows] == high[rows], low[rows], -1).astype(np.int32)


def _without_stuck(ctx: Context, at: int, shape: Shape, search: Search, ranked_targets: list[RankedTarget]) -> _Answer:
    for _ in range(TRIES):
        targets = search.cheapest(ranked_targets, lambda _: True) if ranked_targets else None
        if not targets:
            break
        found = on_paper(ctx, at, shape, search, targets, parts_move=True)
        if not isinstance(found, Scenario):
            break
        stuck = _stuck(ctx, found)
        if not stuck:
            return _Answer(at, targets, found)
        ranked_targets = [ranked_target for ranked_target in ranked_targets if ranked_target.target.row not in stuck]
        if search.steps > search.patience:
            break
    return _Answer(at)


def _stuck(ctx: Context, found: Scenario) -> set[int]:
    """Rows of victims without another place for all their GPUs."""
    return {
        give.row
        for give in found.evictions
        if give.keeps is None or give.how != "move" or len(give.keeps) < len(ctx.whatif.layout_of(give.row))
    }
