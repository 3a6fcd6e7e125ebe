"""The search for victims: the cheapest sufficient set among those allowed by a rule set.

Theory of operation. A rule set offers candidates in victim order (quota/rules/base.py); this search knows the nodes.
`Search` answers one question: does the gang have room once these targets are evicted? Its work is counted in steps, not
in time. `Search.cheapest` goes through four stages:

1. The candidates become columns (`Market`): GPUs freed by each gang on each node, its rank and its cost. Without room
   at the last rank there is no answer.
2. By halving, the lowest sufficient rank is found. The nodes cheapest to clear by estimate are kept, and clearing.py
   chooses among the gangs on them. If quotas refuse single gangs, a second search takes GPUs owed beforehand.
3. If whole GPUs on nodes do not decide the fit (shares, instances, unequal members), or stage 2 finds nothing,
   candidates are taken in victim order until the gang fits (victim_order.py).
4. Every needless victim is dropped. The victims of an open proposal are kept, unless others are clearly better.

It places and evicts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.snapshot import F64, I32, Bools
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.quota.rules.base import Allowed, RankedTarget, Target
from autopilot.core.search.candidates import Columns, columns_of
from autopilot.core.search.clearing import Clearing
from autopilot.core.search.holdings import I64, Takings, cheapest_groups
from autopilot.core.search.relaxation import Candidate, Demand, Region
from autopilot.core.search.victim_order import in_order, one_wide, taken, without_needless

Places = tuple[tuple[int, ...], ...]
"""Candidates that each level takes, by their place in the sequence."""

Unit = tuple[Places, Candidate]
"""A gang, or gangs that free a GPU only together."""

STEPS = 200_000
"""Steps of the inner loops after which a search accepts the best answer so far."""

STEPS_OF_MANY = 5_000
"""The same where the nodes were chosen by estimate, which is not exact anyway."""

PATIENCE = 1_000_000
"""Steps after which a search without an answer gives up: a quarter of a second."""

EXACT = 64
"""Up to this many nodes, domains of a topology, or gangs, all are searched."""

NODES = 24
"""Beyond EXACT, the cheapest nodes by estimate are searched: this many, and two for each member."""

DOMAINS = 8
"""The same for domains."""

HELPERS = 64
"""Gangs that are considered although they free nothing useful, where quotas ask for more victims."""

PARTS = 1024
"""Costs are integers: parts of a GPU-second."""


@dataclass(slots=True)
class Search:
    """Room for one gang on one what-if. `fits_on(free)`: does it fit on these whole free GPUs per node?

    `room` [nodes]: whole free GPUs open to it now. `suits` [nodes]: nodes open to it at all. `domain` [nodes]: its
    members must stay inside one of these. `spread`: at most one member on a node. `hosted(cpu, memory)`: GPUs of its
    members that so much free milli-CPU and MiB per node can host. `fits_slowly(takes)`: asked instead of `fits_on` if
    whole GPUs on nodes are not all (shares, unequal members). `by_gpus`: whole GPUs on nodes are needed at least, so
    that a choice by them is worth asking about.
    """

    whatif: WhatIf
    room: I32
    need_gpus: int
    member_gpus: int
    fits_on: Callable[[I32], bool]
    hosted: Callable[[I64, I64], I64] | None = None
    fits_slowly: Callable[[Sequence[Target]], bool] | None = None
    suits: Bools | None = None
    domain: I32 | None = None
    spread: bool = False
    by_gpus: bool = True
    patience: int = PATIENCE
    first: int = -1  # of a gang that gives members up, those on this node leave first
    shown: frozenset[int] = frozenset()  # rows of the victims that people were shown
    margin_ratio: float = 0.0  # other victims must cost less by this part
    steps: int = 0  # of work so far
    takings: Takings = field(init=False)

    def __post_init__(self) -> None:
        self.takings = Takings(self.whatif, self.first)

    def __call__(self, targets: Sequence[Target]) -> bool:
        """True if the gang has room once these are evicted."""
        self.steps += (20 + len(self.room) // 100) * (1 if self.fits_slowly is None else 5 + len(targets))
        if self.fits_slowly is not None:
            return self.fits_slowly(targets)
        free = self.takings.free_after(self.room, targets)
        if self.hosted is not None:
            free = np.minimum(free, self.hosted(*self.takings.host_after(targets)))
        return self.fits_on(free)

    def entries(self, target: Target) -> tuple[int, ...]:
        """Entries of the victim's layout removed by a partial eviction."""
        return self.takings.entries(target)

    def freed(self, target: Target) -> tuple[tuple[int, int], ...]:
        """(node, whole GPUs) left entirely free by an eviction alone."""
        return self.takings.cleared(target)[0]

    def cheapest(self, ranked_targets: Sequence[RankedTarget], allowed: Allowed) -> tuple[Target, ...] | None:
        """The cheapest allowed set of victims with room for the gang, of the lowest sufficient ranks; None without one.

        Cheapest means least lost work in the highest needed rank, then in the one below it, and so on; a GPU counts at
        least one GPU-second. The answer is exact by GPUs if up to EXACT nodes or gangs are searched and the steps
        suffice; otherwise it is close to it. If GPUs do not decide the fit, it is the victim order without needless
        victims.
        """

        def enough(targets: Sequence[Target]) -> bool:
            return allowed(targets) and self(targets)

        if enough(()):
            return ()
        found = None
        if self.by_gpus and ranked_targets:
            self.steps += 3 * len(ranked_targets)
            market = Market(self, ranked_targets, columns_of(self.whatif, ranked_targets))
            if not market.room_at(market.last_rank):
                return None
            found = market.cheapest(allowed)
            self.steps += market.steps
        if found is None or not enough(taken(ranked_targets, found)):
            found = in_order(ranked_targets, enough)
        if found is None and len(ranked_targets) <= EXACT:
            found = one_wide(ranked_targets, allowed, enough)
        if found is None:
            return None
        chosen = taken(ranked_targets, without_needless(ranked_targets, found, enough))
        shown = tuple(each for each in ranked_targets if each.target.row in self.shown and each.target.whole)
        if len(shown) < max(len(self.shown), 1) or self._clearly_better(chosen, shown, ranked_targets):
            return chosen
        again = tuple(each.target for each in shown)
        return again if enough(again) else chosen

    def _clearly_better(
        self, chosen: Sequence[Target], shown: Sequence[RankedTarget], ranked_targets: Sequence[RankedTarget]
    ) -> bool:
        """True for victims of a lower rank than the shown ones, or cheaper by the margin."""
        found = [each for each in ranked_targets if each.target in chosen]
        if max(each.rank for each in found) < max(each.rank for each in shown):
            return True
        costs_gpu_s = [sum(each.price_gpu_s for each in some) for some in (found, shown)]
        return costs_gpu_s[0] < (1.0 - self.margin_ratio) * costs_gpu_s[1]

    def near(self, columns: Columns, may: Bools) -> list[int]:
        """Places, among thousands of gangs, of the gangs on the nodes cheapest to clear by estimate.

        `may` [gangs]: the gangs to consider.
        """
        self.steps += len(columns.held.gang) // 10
        return Market(self, (), columns).near(may)


class Market:
    """The candidates of one search, in columns: the GPUs freed by each gang on each node, its rank and its cost.

    Gangs are in victim order. Gangs that free a GPU only together are one unit; `leader` [gangs] is the first of them.
    """

    def __init__(self, search: Search, ranked_targets: Sequence[RankedTarget], columns: Columns) -> None:
        self.search, self.ranked_targets, self.rows = search, ranked_targets, columns.rows
        held, rank, cost = columns.held, columns.rank, columns.cost
        self.leader, self.rank = held.leader, rank.copy()
        np.maximum.at(self.rank, held.leader, rank)
        counts = cost * (rank == self.rank[held.leader])
        self.cost = np.bincount(held.leader, counts, minlength=len(rank)).astype(np.float64)
        keep = slice(None) if search.suits is None else search.suits[held.node]
        self.gang, self.node, self.gpus = held.gang[keep], held.node[keep], held.gpus[keep]
        self.last_rank = int(rank.max())
        self.steps = 0  # that searches took so far

    def room_at(self, rank: int) -> bool:
        """True if there is room once every candidate up to `rank` is evicted."""
        room = self.search.room
        gpus = np.where(self.rank[self.gang] <= rank, self.gpus, 0)
        return self.search.fits_on(room + np.bincount(self.node, gpus, minlength=len(room)).astype(np.int32))

    def cheapest(self, allowed: Allowed) -> list[int] | None:
        """Places of the cheapest allowed candidates with room for the gang, of the lowest sufficient ranks."""
        ranks = np.unique(self.rank).tolist()
        low, high = 0, len(ranks) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.room_at(ranks[middle]) else (middle + 1, high)
        for top in dict.fromkeys((ranks[low], ranks[-1])):
            found = self._clear(top, allowed)
            if found is not None:
                return found
        return None

    def near(self, may: Bools) -> list[int]:
        """Places of the gangs on the nodes cheapest to clear, among those in `may` [gangs]."""
        open_ = np.flatnonzero(may[self.gang])
        kept = np.zeros(len(self.search.room), np.bool_)
        for region, _ in self._regions(open_, self._demand()):
            kept[list(region.free)] = True
        chosen = np.zeros(len(self.rows), np.bool_)
        chosen[self.gang[open_[kept[self.node[open_]]]]] = True
        places: list[int] = np.flatnonzero(chosen[self.leader] & may).tolist()
        return places

    def _demand(self) -> Demand:
        search = self.search
        members, tail = divmod(search.need_gpus, search.member_gpus)
        return Demand(members, search.member_gpus, tail, 1 if search.spread else search.need_gpus)

    def _regions(self, open_: I64, demand: Demand) -> list[tuple[Region, bool]]:
        """Regions to search, by domain; True with a region of all the nodes of its domain."""
        domains = self._domains(open_, demand.members + (demand.tail > 0))
        return [self._region(nodes, open_, demand) for nodes in domains]

    def _clear(self, top: int, allowed: Allowed) -> list[int] | None:
        """The cheapest up to the rank `top`, as far as the steps allow."""
        search, demand = self.search, self._demand()
        open_ = np.flatnonzero(self.rank[self.gang] <= top)
        found = self._regions(open_, demand)
        if not found:
            return None
        regions = [region for region, _ in found]
        steps = STEPS if all(exact for _, exact in found) else STEPS_OF_MANY
        kept = np.zeros(len(search.room), np.bool_)
        kept[[node for region in regions for node in region.free]] = True
        near = open_[kept[self.node[open_]]]
        levels, lonely = self._solve(self._units(near, top, helpers=0), regions, demand, allowed, steps)
        if lonely:
            units, owed = self._owing(self._units(near, top, HELPERS), allowed)
            better, _ = self._solve(units, regions, demand, allowed, steps, owed)
            return levels if better is None else better
        return levels

    def _solve(
        self,
        units: Sequence[Unit],
        regions: Sequence[Region],
        demand: Demand,
        allowed: Allowed,
        steps: int,
        owed: int = 0,
    ) -> tuple[list[int] | None, frozenset[int]]:
        """Places among the candidates of the cheapest, and the units that are not allowed alone."""

        def places(levels: Mapping[int, int]) -> list[int]:
            return sorted(place for unit, level in levels.items() for place in units[unit][0][level])

        clearing = Clearing(
            [candidate for _, candidate in units],
            regions,
            demand,
            lambda levels: allowed(taken(self.ranked_targets, places(levels))),
            owed,
        )
        found = clearing.solve(steps, self.search.patience - self.steps)
        self.steps += clearing.steps
        return None if found is None else places(dict(enumerate(found))), clearing.lonely

    def _owing(self, units: Sequence[Unit], allowed: Allowed) -> tuple[list[Unit], int]:
        """The units with their payments, and the GPUs owed; if none can pay, the units allowed by themselves, and 0.

        GPUs are owed if they must be taken before quotas allow anything, or before they allow certain units. They are
        asked for as if one gang held them all.
        """
        ranked_targets, total = (
            self.ranked_targets,
            float(sum(ranked_target.target.gpus for ranked_target in self.ranked_targets)),
        )
        bound = [not allowed(taken(ranked_targets, places[1])) for places, _ in units]
        first = taken(ranked_targets, units[bound.index(True)][0][1]) if allowed(()) else ()

        def pays(unit: Unit, gpus: float) -> bool:
            row = ranked_targets[unit[0][1][0]].target.row
            return all(target.row != row for target in first) and allowed((*first, Target(row, gpus, whole=False)))

        payers = [pays(unit, total) for unit in units]
        if not any(payers):
            return [unit for unit, needy in zip(units, bound, strict=True) if not needy], 0
        low, high = 1, ceil(total)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if pays(units[payers.index(True)], float(middle)) else (middle + 1, high)
        paying = []
        for (places, candidate), payer, needy in zip(units, payers, bound, strict=True):
            gpus = tuple(ceil(sum(ranked_targets[place].target.gpus for place in level)) * payer for level in places)
            paying.append((places, replace(candidate, pays=gpus, bound=needy or not first)))
        return paying, low

    def _domains(self, open_: I64, parts: int) -> list[Bools]:
        """Nodes of each searched domain; all nodes in one if the gang may spread over them."""
        search, level = self.search, self.search.domain
        if level is None or parts == 1:
            return [np.ones(len(search.room), np.bool_)]
        missing = search.need_gpus - np.bincount(level, search.room)
        found = self._cheapest(open_, level[self.node[open_]], np.maximum(missing, 1), parts)
        return [level == domain for domain in found[: DOMAINS if len(found) > EXACT else EXACT].tolist()]

    def _region(self, inside: Bools, open_: I64, demand: Demand) -> tuple[Region, bool]:
        """The clearable nodes of a domain, in victim order, and the fit on its others; True if these are all nodes."""
        room = self.search.room
        here = open_[inside[self.node[open_]]]
        nodes: NDArray[Any] = np.flatnonzero(np.bincount(self.node[here], minlength=len(room)))
        exact = min(len(nodes), len(self.rows)) <= EXACT
        if not exact:
            members = np.minimum(room // demand.size, demand.most)
            missing = np.where(members < demand.most, (members + 1) * demand.size - room, 1 << 30)
            nodes = self._cheapest(here, self.node[here], missing, demand.members)[: NODES + 2 * demand.members]
            kept = np.zeros(len(room), np.bool_)
            kept[nodes] = True
            here = here[kept[self.node[here]]]
        first = np.full(len(room), len(self.rows), np.int64)
        np.minimum.at(first, self.node[here], self.gang[here])
        nodes = nodes[np.argsort(first[nodes], kind="stable")]
        others = inside.copy()
        others[nodes] = False
        free = room[others]
        now = np.minimum(free // demand.size, demand.most)
        beside = demand.tail > 0 and bool((free - now * demand.size >= demand.tail).any())
        return Region({node: int(room[node]) for node in nodes.tolist()}, int(now.sum()), beside), exact

    def _cheapest(self, entries: I64, group: I32, missing: NDArray[Any], members: int) -> I32:
        """Groups of entries (nodes, domains) that can free the GPUs `missing` in them, the cheapest first.

        An entry costs the part of its gang that it frees, for the rest may serve other members; with few members it
        costs more.
        """
        gang, gpus = self.gang[entries], self.gpus[entries]
        part = gpus / np.bincount(gang, gpus, minlength=len(self.rank))[gang]
        cost: F64 = self.cost[gang] * np.maximum(part, 1.0 / max(members, 1))
        return cheapest_groups(group, gpus, self.rank[gang], cost, missing)

    def _units(self, near: I64, top: int, helpers: int) -> list[Unit]:
        """Offers of the gangs of these entries, and of the first `helpers` gangs, up to the rank `top`."""
        frees: dict[int, dict[int, int]] = {}
        for gang, node, gpus in zip(
            self.gang[near].tolist(), self.node[near].tolist(), self.gpus[near].tolist(), strict=True
        ):
            here = frees.setdefault(gang, {})
            here[node] = here.get(node, 0) + gpus
        chosen = np.zeros(len(self.rows), np.bool_)
        chosen[list(frees)] = True
        chosen[self.leader[np.flatnonzero(self.rank[self.leader] <= top)[:helpers]]] = True
        leader_of = {self.rows[gang]: int(self.leader[gang]) for gang in np.flatnonzero(chosen[self.leader]).tolist()}
        places: dict[int, list[int]] = {}
        for place, ranked_target in enumerate(self.ranked_targets):
            row = ranked_target.target.row
            if row in leader_of and ranked_target.rank <= top:
                places.setdefault(leader_of[row], []).append(place)
        costs = self._costs([place for some in places.values() for place in some])
        units = [self._unit(some, costs, frees.get(gang, {})) for gang, some in places.items()]
        return [unit for unit in units if len(unit[0]) > 1]

    def _costs(self, places: Sequence[int]) -> dict[int, int]:
        """The cost of each candidate as one integer, with enough bits for each rank to hold the sum of all costs."""
        ranked_targets = self.ranked_targets
        parts = {
            place: round((ranked_targets[place].price_gpu_s + ranked_targets[place].target.gpus) * PARTS)
            + 1  # of equals the fewest
            for place in places
        }
        bits = sum(parts.values()).bit_length()
        shift = {
            rank: bits * above for above, rank in enumerate(sorted({ranked_targets[place].rank for place in places}))
        }
        return {place: part << shift[ranked_targets[place].rank] for place, part in parts.items()}

    def _unit(self, places: Sequence[int], costs: Mapping[int, int], frees: dict[int, int]) -> Unit:
        """Levels of one gang: one more member at each level, the whole gang last.

        Gangs that share a GPU: all or nothing.
        """
        ranked_targets = self.ranked_targets
        if len(places) == 1 and ranked_targets[places[0]].target.whole:  # most gangs
            return ((), tuple(places)), Candidate((0, costs[places[0]]), ({}, frees), (0, 0))
        whole = tuple(place for place in places if ranked_targets[place].target.whole)
        parts = [place for place in places if not ranked_targets[place].target.whole]
        levels: list[tuple[int, ...]] = [()]
        freed: list[dict[int, int]] = [{}]
        if len({ranked_targets[place].target.row for place in places}) == 1:
            for count in range(1, len(parts) + 1):
                levels.append(tuple(parts[:count]))
                freed.append(dict(self.search.freed(taken(ranked_targets, levels[-1])[0])))
            whole = whole[:1]
        if whole:
            levels.append(whole)
            freed.append(frees)
        cost = tuple(sum(costs[place] for place in level) for level in levels)
        return tuple(levels), Candidate(cost, tuple(freed), (0,) * len(cost))
