"""Whom to take so that a gang fits: the cheapest of the takings that a rule set allows.

A rule set offers takings in the order of mercy (rules/base.py); this search knows the nodes. It finds the
lowest ranks that suffice, then a cheap set inside them: one that takes the offers in order until the gang fits,
and one that clears the cheapest nodes; from each it puts back whoever is not needed, the most sheltered and
the dearest first, and keeps the cheaper. Nothing is placed or evicted here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autopilot.core.rules.base import Allowed, Offer, Take
from autopilot.core.snapshot import GPU_MILLI, I32
from autopilot.core.whatif import WhatIf

Price = tuple[float, ...]
"""Lost GPU-seconds by rank, the highest rank first: compared as tuples."""


def leave_order(whatif: WhatIf, row: int) -> tuple[tuple[int, ...], ...]:
    """Entries of the layout of `row`, member by member, in the order in which members would leave.

    Lower rank first, then members on nodes with more free GPUs, then the last entries first.
    """
    layout = whatif.layout_of(row)
    snapshot = whatif.snapshot
    size = max(int(snapshot.workloads.gpus_per_member[row]), 1)
    held = snapshot.placements
    mine = held.workload == row
    ranks = dict(zip(held.gpu[mine].tolist(), held.rank[mine].tolist(), strict=True))
    nodes = snapshot.gpus.node[layout.gpu].tolist()
    members: list[tuple[int, ...]] = []
    by_node: dict[tuple[int, int], list[int]] = {}
    for entry, (gpu, node) in enumerate(zip(layout.gpu.tolist(), nodes, strict=True)):
        by_node.setdefault((node, ranks.get(gpu, 0)), []).append(entry)
    for entries in by_node.values():
        members += [tuple(entries[at : at + size]) for at in range(0, len(entries), size)]
    free = whatif.node_free
    members.sort(
        key=lambda part: (ranks.get(int(layout.gpu[part[0]]), 0), -int(free[nodes[part[0]]]), -part[0])
    )
    return tuple(members)


@dataclass(slots=True)
class Search:
    """Room for one gang on one what-if. `fits_on(free)`: does it fit on these whole free GPUs per node?

    `room` [nodes]: whole free GPUs that it may use now. `fits_slowly(takes)`: asked instead where whole GPUs
    on nodes do not tell (shares, instances, members that differ).
    """

    whatif: WhatIf
    room: I32
    need_gpus: int
    member_gpus: int
    fits_on: Callable[[I32], bool]
    fits_slowly: Callable[[Sequence[Take]], bool] | None = None
    _members: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    _freed: dict[tuple[int, float, bool], tuple[tuple[int, int], ...]] = field(default_factory=dict)

    def __call__(self, takes: Sequence[Take]) -> bool:
        """Is there room for the gang once these were taken?"""
        if self.fits_slowly is not None:
            return self.fits_slowly(takes)
        return self.fits_on(self._free(takes))

    def _free(self, takes: Sequence[Take]) -> I32:
        free = self.room.copy()
        for take in takes:
            for node, gpus in self.freed(take):
                free[node] += gpus
        return free

    def freed(self, take: Take) -> tuple[tuple[int, int], ...]:
        """(node, whole GPUs) that a taking leaves entirely free."""
        key = (take.row, take.gpus, take.whole)
        if key not in self._freed:
            whatif = self.whatif
            layout = whatif.layout_of(take.row)
            rows = layout.gpu if take.whole else layout.gpu[list(self.entries(take))]
            alone = whatif.gpu_usable[rows] & (whatif.gpu_used[rows] == GPU_MILLI)
            nodes, counts = np.unique(whatif.snapshot.gpus.node[rows[alone]], return_counts=True)
            self._freed[key] = tuple(zip(nodes.tolist(), counts.tolist(), strict=True))
        return self._freed[key]

    def entries(self, take: Take) -> tuple[int, ...]:
        """Entries of the victim's layout that a partial taking removes."""
        if take.row not in self._members:
            self._members[take.row] = leave_order(self.whatif, take.row)
        chosen: list[int] = []
        for member in self._members[take.row]:
            if len(chosen) >= take.gpus - 1e-9:
                break
            chosen += member
        return tuple(chosen)

    # --- the search -----------------------------------------------------------------------

    def cheapest(self, offers: Sequence[Offer], allowed: Allowed) -> tuple[Take, ...] | None:
        """The cheapest allowed takings that make room, of the lowest ranks that suffice; None when none do."""
        upto = self._first_sufficient(offers, allowed)
        if upto is None:
            return None
        top = offers[upto - 1].rank
        inside = [offer for offer in offers if offer.rank <= top]
        found = self._without_needless(list(offers[:upto]), allowed, top)
        if self.fits_slowly is None:
            cleared = self._clear_nodes(inside, allowed)
            if cleared is not None:
                other = self._without_needless(cleared, allowed, top)
                found = min(found, other, key=lambda chosen: price(chosen, top))
        return merged(found)

    def _first_sufficient(self, offers: Sequence[Offer], allowed: Allowed) -> int | None:
        """How many offers, in order, it takes; by doubling and halving, for more never fit worse."""

        def enough(count: int) -> bool:
            takes = merged(offers[:count])
            return self(takes) and allowed(takes)

        high = 1
        while not enough(min(high, len(offers))):
            if high >= len(offers):
                return self._by_steps(offers, allowed)
            high *= 2
        low, high = high // 2 + 1, min(high, len(offers))
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle + 1, high)
        return low

    def _by_steps(self, offers: Sequence[Offer], allowed: Allowed) -> int | None:
        """The same one by one: quotas may allow some takings that they do not allow together with more."""
        for count in range(1, len(offers) + 1):
            takes = merged(offers[:count])
            if allowed(takes) and self(takes):
                return count
        return None

    def _without_needless(self, chosen: list[Offer], allowed: Allowed, top: int) -> list[Offer]:
        """Put back whoever is not needed: the highest rank first, in it the dearest; members before whole gangs."""
        for offer in sorted(chosen, key=lambda each: (-each.rank, -each.price_gpu_s, not each.take.whole)):
            trial = list(chosen)
            trial.remove(offer)
            takes = merged(trial)
            if allowed(takes) and self(takes):
                chosen = trial
        return chosen

    def _clear_nodes(self, offers: Sequence[Offer], allowed: Allowed) -> list[Offer] | None:
        """Clear the node that gains a member at the least price, until the gang fits."""
        by_node: dict[int, list[Offer]] = {}
        for offer in offers:
            for node, _ in self.freed(offer.take):
                by_node.setdefault(node, []).append(offer)
        weight = _weights(offers)
        chosen: list[Offer] = []
        free = self.room.copy()
        step = max(min(self.member_gpus, self.need_gpus), 1)
        while not self.fits_on(free):
            best: tuple[float, int, list[Offer]] | None = None
            for node, here in by_node.items():
                found = self._clear(node, here, chosen, int(free[node]), step, weight)
                if found is not None and (best is None or found[0] < best[0]):
                    best = (found[0], node, found[1])
            if best is None:
                return None
            chosen += best[2]
            free = self._free(merged(chosen))
        return chosen if allowed(merged(chosen)) else None

    def _clear(self, node: int, offers: Sequence[Offer], chosen: Sequence[Offer], free: int, step: int,
               weight: Sequence[float]) -> tuple[float, list[Offer]] | None:  # fmt: skip
        """The cheapest offers that let one more member fit on `node`, by price for each GPU that they free there."""
        missing = (free // step + 1) * step - free
        taken = [id(offer) for offer in chosen]
        options = []
        for offer in offers:
            if id(offer) not in taken:
                freed = self.freed(offer.take)
                gpus = dict(freed)[node]
                share = gpus / sum(count for _, count in freed)
                options.append(
                    (weight[offer.rank] * (offer.price_gpu_s + offer.take.gpus) * share, gpus, offer)
                )
        return _least(options, missing)


def _least(options: list[tuple[float, int, Offer]], missing: int) -> tuple[float, list[Offer]] | None:
    """The cheapest options that free at least `missing` GPUs: exact, by the GPUs freed so far (a node is small)."""
    best: dict[int, tuple[float, list[Offer]]] = {0: (0.0, [])}
    for cost, gpus, offer in options:
        for done, (spent, used) in list(best.items()):
            reached = min(done + gpus, missing)
            if reached not in best or spent + cost < best[reached][0]:
                best[reached] = (spent + cost, [*used, offer])
    return best.get(missing)


def _weights(offers: Sequence[Offer]) -> list[float]:
    """A factor for each rank, so large that no saving in lower ranks is worth anything in a higher one."""
    ranks = max(offer.rank for offer in offers) + 1
    totals = [1.0] * ranks
    for offer in offers:
        totals[offer.rank] += offer.price_gpu_s + offer.take.gpus
    weights, factor = [], 1.0
    for total in totals:
        weights.append(factor)
        factor *= max(total, 2.0)
    return weights


def price(chosen: Sequence[Offer], top: int) -> Price:
    """What a choice costs, highest rank first; a GPU counts at least one GPU-second."""
    spent = [0.0] * (top + 1)
    gone = {offer.take.row for offer in chosen if offer.take.whole}
    for offer in chosen:
        if not offer.take.whole and offer.take.row in gone:
            continue
        spent[top - offer.rank] += offer.price_gpu_s + offer.take.gpus
    return tuple(spent)


def merged(offers: Sequence[Offer]) -> tuple[Take, ...]:
    """One taking a gang: the members together, or all of it."""
    takes: dict[int, Take] = {}
    for offer in offers:
        take, before = offer.take, takes.get(offer.take.row)
        if before is None or take.whole:
            takes[take.row] = take
        elif not before.whole:
            takes[take.row] = Take(take.row, before.gpus + take.gpus, whole=False)
    return tuple(takes.values())
