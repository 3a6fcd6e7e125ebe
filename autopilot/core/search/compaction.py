"""Compaction: the GPUs owed to a gang are free, or lent, but scattered; others move together to make room.

Lent work is taken back first, on any node, for the missing number of GPUs. Then the nodes cheapest to clear are cleared
of narrower gangs for the new one. These are placed again, the widest first; a gang without a place clears a node of
still narrower gangs. No gang moves twice, so that this ends. The moves of moves.py are the simple case: each gang moved
there has another place at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autopilot.core.effects.draft import Eviction
from autopilot.core.model.snapshot import I32, Bools
from autopilot.core.placement.shapes import Fit, Shape, suitable_nodes
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.planning.places import elsewhere, place
from autopilot.core.quota.rules.base import Allowed, RankedTarget, Refusal, Takes, Target
from autopilot.core.search.candidates import Movers
from autopilot.core.search.moves import all_movers
from autopilot.core.search.scenario import STEPS_A_PLACE, Scenario, let_leave, most_given_up


def compact(ctx: Context, at: int, across: Takes) -> Scenario | None:
    """A start of the gang of whole GPUs at `at` if lent work left and others moved together; None without one.

    `across`: the rule for taking work of other queues. The moved GPUs are bounded as for weighed moves
    (`preemption.blast_ratio`).
    """
    row, gpus = int(ctx.pending[at]), ctx.pending_table.least_gpus[at]
    shape = ctx.shape(row, gpus)
    if not shape.whole_gpus or row in ctx.members or not ctx.policy.preemption.move_victims:
        return None
    mark, ledger = let_leave(ctx), ctx.quota.ledger.saved()
    found = _packed(ctx, at, shape, across)
    ctx.quota.ledger.restore(ledger)
    ctx.whatif.rollback(mark)
    return found


def _packed(ctx: Context, at: int, shape: Shape, across: Takes) -> Scenario | None:
    """The same on the what-if and in the ledger, without undoing the changes."""
    row = int(ctx.pending[at])
    suits = suitable_nodes(ctx.whatif, shape, ctx.gpu_memory_mib, empty=True)
    missing = shape.gpus - int(_room(ctx, at)[suits].sum())
    lent = _lent(ctx, at, across, missing) if missing > 0 else ()
    if lent is None:
        return None
    work = _Packing(ctx, most_given_up(ctx, shape), _by_node(ctx))
    evictions = []
    for target in lent:
        held = ctx.whatif.layout_of(target.row)
        evictions.append(Eviction(target.row, "evict", None, len(held), float(ctx.lost_gpu_s[target.row])))
        work.take_off(target.row, again=False)
    if ctx.may_start(at, shape.gpus) is not None:
        return None
    while not isinstance(fit := place(ctx, at, shape, displacing=True), Fit):
        if not work.clear(_room(ctx, at), suits, shape.unit_gpus, shape.gpus):
            return None
    ctx.whatif.place(row, fit.layout)
    ctx.quota.book(row, fit.layout)
    moved = work.place_again()
    if moved is None or not (evictions or moved):  # a start that needs no victim is another action's
        return None
    return Scenario(shape, fit, (*evictions, *moved))


def _room(ctx: Context, at: int) -> I32:
    """Free GPUs per node for the gang at `at`. Room held tentatively for others counts as free. Shape [nodes]."""
    return ctx.room(float(ctx.gap_end_s[at]), int(ctx.pending[at]), promises_only=True)


Gang = tuple[float, int, float, int]
"""On one node: what its move costs, its row, its GPUs in all and those on the node."""


def _by_node(ctx: Context) -> dict[int, list[Gang]]:
    """Movable gangs of whole GPUs on each node, the cheapest first."""
    movers, held = ctx.once(Movers, lambda: all_movers(ctx)), ctx.observation.snapshot.placements
    gpus = {
        row: width
        for row, width, member in zip(
            movers.rows.tolist(), movers.gpus.tolist(), movers.member_gpus.tolist(), strict=True
        )
        if member > 0 and row not in ctx.quota.leaving and row not in ctx.members
    }
    nodes = len(ctx.whatif.node_free)
    there, counts = np.unique(held.workload.astype(np.int64) * nodes + held.node, return_counts=True)
    ctx.plan.spend(len(there))
    found: dict[int, list[Gang]] = {}
    for pair, count in zip(there.tolist(), counts.tolist(), strict=True):
        row, node = divmod(pair, nodes)
        if row in gpus:
            price_gpu_s = gpus[row] + float(ctx.lost_gpu_s[row])  # of equal losses the fewest GPUs move
            found.setdefault(node, []).append((price_gpu_s, row, gpus[row], count))
    return {node: sorted(gangs) for node, gangs in found.items()}


@dataclass(slots=True)
class _Packing:
    """Gangs taken off their nodes, waiting for another place."""

    ctx: Context
    most_gpus: float  # that may move in all
    by_node: dict[int, list[Gang]]
    held: dict[int, Layout] = field(default_factory=dict)  # by row: where it was; it is not taken off twice
    waiting: list[int] = field(default_factory=list)
    moved_gpus: float = 0.0

    def take_off(self, row: int, *, again: bool = True) -> None:
        """Off the what-if and the ledger. `again`: it is to find another place."""
        self.held[row] = self.ctx.whatif.layout_of(row)
        self.ctx.quota.book(row, self.held[row], -1)
        self.ctx.whatif.evict(row)
        if again:
            self.waiting.append(row)
            self.moved_gpus += len(self.held[row])

    def clear(self, room: I32, suits: Bools, need: int, width: int) -> bool:
        """Clear the node cheapest to clear of gangs narrower than `width`, so that it has `need` GPUs free.

        False without such a node, or if the moved GPUs then exceed `most_gpus`.
        """
        options = []
        for node, gangs in self.by_node.items():
            if not suits[node] or room[node] >= need:
                continue
            cost, taken, free = 0.0, [], int(room[node])
            for price, row, gpus, count in gangs:
                if free >= need:
                    break
                if gpus < width and row not in self.held:
                    cost, free = cost + price, free + count
                    taken.append(row)
            if free >= need:
                options.append((cost, node, taken))
        self.ctx.plan.spend(STEPS_A_PLACE + len(self.by_node))
        if not options:
            return False
        for row in min(options)[2]:
            self.take_off(row)
        return self.moved_gpus <= self.most_gpus

    def place_again(self) -> list[Eviction] | None:
        """The moves of all gangs taken off, the widest first; None if one finds no place."""
        ctx, moved = self.ctx, list[Eviction]()
        while self.waiting:
            row = max(self.waiting, key=lambda each: (len(self.held[each]), -each))
            width = len(self.held[row])
            if ctx.quota.may_start(row, width) is not None:
                return None
            ctx.plan.spend(STEPS_A_PLACE)
            fit = elsewhere(ctx, row, width)
            if fit is None:
                shape = ctx.shape(row, width)
                suits = suitable_nodes(ctx.whatif, shape, ctx.gpu_memory_mib, empty=True)
                if not self.clear(ctx.room(np.inf), suits, shape.unit_gpus, width):
                    return None
                continue
            self.waiting.remove(row)
            ctx.whatif.place(row, fit.layout)
            ctx.quota.book(row, fit.layout)
            if not fit.layout.is_at(self.held[row]):
                moved.append(Eviction(row, "move", fit.layout, width, float(ctx.lost_gpu_s[row])))
        return moved


def _lent(ctx: Context, at: int, across: Takes, missing: int) -> tuple[Target, ...] | None:
    """Whole gangs of other queues that may be taken and hold the missing GPUs, on any nodes; None: too few."""
    claim = ctx.quota.claim(int(ctx.pending[at]), ctx.pending_table.least_gpus[at])
    answer = across(ctx.quota.ledger, claim, ctx.quota.running(owed=True), _ByCount(missing))
    if isinstance(answer, Refusal) or not all(target.whole for target in answer):
        return None
    return answer


@dataclass(frozen=True, slots=True)
class _ByCount:
    """A cluster seen as a sum: its GPUs need not be on one node."""

    missing: int

    def __call__(self, targets: Sequence[Target]) -> bool:
        """True if these hold the number of missing GPUs."""
        return sum(target.gpus for target in targets) >= self.missing

    def cheapest(self, ranked_targets: Sequence[RankedTarget], allowed: Allowed) -> tuple[Target, ...] | None:
        """The first in victim order that may be taken together and hold enough."""
        taken: list[Target] = []
        for each in ranked_targets:
            if each.target.whole and allowed([*taken, each.target]):
                taken.append(each.target)
                if self(taken):
                    needless = sum(target.gpus for target in taken) - self.missing
                    for target in sorted(taken, key=lambda one: -one.gpus):
                        if target.gpus <= needless:
                            taken.remove(target)
                            needless -= target.gpus
                    return tuple(taken)
        return None
