"""A lower bound on the cost of freeing nodes for members of one size, and the gangs taken for it on each node.

The cost of a gang on several nodes is split among them by the GPUs that it frees on each; then every node is a small
knapsack of its own, and one more puts the nodes together. If the nodes agree on the gangs taken, the bound is the cost
itself. (Lagrangean decomposition with fixed multipliers: Guignard and Kim, Mathematical Programming 39, 1987.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Levels = tuple[int, ...]
"""How much is taken of each candidate: 0 nothing, its last level all that it offers."""

Picks = tuple[Any, int, int] | None
"""A chain of (picks before, candidate, level)."""

Gain = tuple[int, bool, int]
"""Members that fit more than now, room for the tail beside them, GPUs taken as far as some are owed."""

Ways = dict[Gain, tuple[int, Any]]
"""The cheapest way to each gain: its cost and a chain of (chain before, node, picks)."""

NOWHERE = -1
"""Stands for a node: there a candidate pays what it frees outside the region."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The members to fit: `members` of `size` GPUs, each on one node, at most `most` on a node; one of `tail` GPUs."""

    members: int
    size: int
    tail: int
    most: int

    def on(self, free: int) -> tuple[int, bool]:
        """Members that fit on a node with `free` GPUs; True if the tail fits beside them."""
        members = min(free // self.size, self.most)
        return members, 0 < self.tail <= free - members * self.size


@dataclass(frozen=True, slots=True)
class Candidate:
    """The offer of one gang, level by level; level 0 is nothing. `frees`: GPUs by node.

    `pays`: GPUs counted towards the owed ones; `bound`: it may be taken only once the owed GPUs are paid.
    """

    costs: tuple[int, ...]
    frees: tuple[Mapping[int, int], ...]
    pays: tuple[int, ...]
    bound: bool = False


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes for all members: `free` GPUs on those that may be cleared.

    On the others, `members` fit now, and the tail `beside` them.
    """

    free: Mapping[int, int]
    members: int = 0
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """One node: members that fit now, the tail beside them, and the possible gains with their costs and picks."""

    members: int
    beside: bool
    gains: list[tuple[Gain, int, Picks]]


@dataclass(slots=True)
class State:
    """A part of the search in one region: each candidate is taken from level `low` to level `high`.

    `owed`: GPUs to come from candidates that pay.
    """

    region: int
    owed: int
    low: Levels
    high: Levels
    curves: dict[int, Curve]  # by node
    bound: int = 0
    picked: dict[int, dict[int, int]] = field(default_factory=dict)  # by candidate: the level of each node


class Relaxation:
    """The bound of one search. `steps` counts the rounds of its inner loops."""

    def __init__(self, candidates: Sequence[Candidate], regions: Sequence[Region], demand: Demand) -> None:
        self.candidates, self.regions, self.demand = candidates, regions, demand
        self.steps = 0
        # by region, candidate and level: GPUs and cost by node
        self.frees = [[_inside(each, region) for each in candidates] for region in regions]
        self.shares = [
            [_shares(each.costs, here) for each, here in zip(candidates, some, strict=True)] for some in self.frees
        ]
        self.on_node: list[dict[int, list[int]]] = []
        for region, frees in zip(regions, self.frees, strict=True):
            on_node: dict[int, list[int]] = {node: [] for node in region.free}
            for index, levels in enumerate(frees):
                for node in levels[-1]:
                    on_node.setdefault(node, []).append(index)
            self.on_node.append(on_node)

    def roots(self, owed: int) -> list[State]:
        """States before any decision: one a region with the `owed` GPUs paid, and one more without owed GPUs."""
        low = (0,) * len(self.candidates)
        full = tuple(len(each.costs) - 1 for each in self.candidates)
        kinds = [(owed, full)]
        if owed:
            kinds.append((0, tuple(0 if each.bound else len(each.costs) - 1 for each in self.candidates)))
        states = [State(at, due, low, high, {}) for at in range(len(self.regions)) for due, high in kinds]
        for state in states:
            state.curves = {node: self.curve(state, node) for node in self.on_node[state.region]}
        return states

    def curve(self, state: State, node: int) -> Curve:
        """The cheapest way to each number of GPUs freed on one node: exact, for a node is small."""
        demand, owed, frees = self.demand, state.owed, self.frees[state.region]
        here, free, cap = self.on_node[state.region][node], 0, 0
        if node != NOWHERE:
            free = self.regions[state.region].free[node]
            free += sum(frees[index][state.low[index]].get(node, 0) for index in here)
            cap = max(demand.size * min(demand.members + 1, demand.most) + demand.tail - free, 0)
        best: dict[tuple[int, int], tuple[int, Picks]] = {(0, 0): (0, None)}  # by GPUs freed and paid
        for index in here if cap or owed else ():
            options = self._options(state, node, index)
            pays = self.candidates[index].pays[-1] > 0
            self.steps += len(options) * len(best)
            for (done, given), (spent, picks) in list(best.items()):
                for gpus, cost, level in options:
                    reached = (min(done + gpus, cap), min(given + gpus, owed) if pays else given)
                    total = spent + cost
                    if reached not in best or total < best[reached][0]:
                        best[reached] = (total, (picks, index, level))
        members, beside = demand.on(free)
        gains: dict[Gain, tuple[int, Picks]] = {}
        for (gpus, given), (spent, picks) in best.items():
            now, tail = demand.on(free + gpus)
            key = (now - members, tail, given)
            if key not in gains or spent < gains[key][0]:
                gains[key] = (spent, picks)
        found = [(key, *gains[key]) for key in sorted(gains) if gains[key][1] is not None]
        return Curve(members, beside, found)

    def _options(self, state: State, node: int, index: int) -> list[tuple[int, int, int]]:
        """(GPUs more, share of the cost, level) of a candidate on one node, above its lowest level."""
        frees, shares = self.frees[state.region][index], self.shares[state.region][index]
        low = state.low[index]
        had, paid = frees[low].get(node, 0), shares[low].get(node, 0)
        return [
            (frees[level][node] - had, shares[level][node] - paid, level)
            for level in range(low + 1, state.high[index] + 1)
            if frees[level].get(node, 0) > had
        ]

    def relax(self, state: State) -> bool:
        """Put the nodes together: the bound of a state, and the picks of each node. False if nothing suffices."""
        region = self.regions[state.region]
        missing, beside = self.demand.members - region.members, self.demand.tail == 0 or region.beside
        for curve in state.curves.values():
            missing -= curve.members
            beside |= curve.beside
        last = missing + (self.demand.tail > 0)  # members that suffice without room for the tail beside them
        taken = [(each, level) for each, level in zip(self.candidates, state.low, strict=True) if level]
        owed = max(state.owed - sum(each.pays[level] for each, level in taken), 0)
        state.bound = sum(each.costs[level] for each, level in taken)
        state.picked = {}
        self.steps += 2 * len(state.curves) + len(state.low)
        if not owed and (last <= 0 or (missing <= 0 and beside)):
            return True
        end = self._together(state, missing, max(last, 0), owed)
        if end is None:
            return False
        spent, chain = end
        state.bound += spent
        while chain is not None:
            chain, node, picks = chain
            while picks is not None:
                picks, index, level = picks
                state.picked.setdefault(index, {})[node] = level
        return True

    def _together(self, state: State, missing: int, last: int, owed: int) -> tuple[int, Any] | None:
        """The cheapest way over all nodes to `last` members more, or to `missing` and the tail; None without one."""
        fixed = self.demand.tail == 0 or self.regions[state.region].beside
        fixed |= any(curve.beside for curve in state.curves.values() if not curve.gains)
        ways: Ways = {(0, fixed, 0): (0, None)}
        for node, curve in state.curves.items():
            if not curve.gains:
                continue
            self.steps += len(curve.gains) * len(ways)
            before = list(ways.items())
            if curve.beside:  # as long as nothing is gained here
                ways = _with_tail(ways)
            for (done, had, given), (spent, chain) in before:
                for (gain, tail, gpus), cost, picks in curve.gains:
                    key, total = (min(done + gain, last), had or tail, min(given + gpus, owed)), spent + cost
                    if key not in ways or total < ways[key][0]:
                        ways[key] = (total, (chain, node, picks))
        ends = [
            way
            for (done, tail, given), way in ways.items()
            if given >= owed and (done >= last or (done >= missing and tail))
        ]
        return min(ends, key=lambda way: way[0], default=None)


def _with_tail(ways: Ways) -> Ways:
    """The same ways, each with room for the tail; the cheaper of two that become one."""
    found: Ways = {}
    for (done, _, given), way in ways.items():
        if (done, True, given) not in found or way[0] < found[done, True, given][0]:
            found[done, True, given] = way
    return found


def _inside(candidate: Candidate, region: Region) -> tuple[dict[int, int], ...]:
    """GPUs freed by each level on the nodes of a region; its payment elsewhere as one entry (`NOWHERE`)."""
    levels = []
    for freed, pays in zip(candidate.frees, candidate.pays, strict=True):
        here = {node: gpus for node, gpus in freed.items() if node in region.free}
        rest = pays - sum(here.values())
        if rest > 0:
            here[NOWHERE] = rest
        levels.append(here)
    return tuple(levels)


def _shares(costs: Sequence[int], frees: Sequence[Mapping[int, int]]) -> tuple[dict[int, int], ...]:
    """The cost of each level, split among nodes by the GPUs freed there; sums are exact."""
    shares = []
    for cost, freed in zip(costs, frees, strict=True):
        # a level that frees nothing: its cost stands where a later level does
        weight = freed or dict.fromkeys(frees[-1], 1)
        total, left = sum(weight.values()), cost
        split: dict[int, int] = {}
        for node, gpus in weight.items():
            split[node] = cost * gpus // total
            left -= split[node]
        for node in list(split)[:1]:
            split[node] += left
        shares.append(split)
    return tuple(shares)
