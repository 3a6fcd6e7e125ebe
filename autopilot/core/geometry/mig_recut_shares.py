"""The assignment of requests for MIG instances to nodes: greedy, then improved by a bounded search.

The price of a plan is the sum of the prices of its nodes (`mig_recut_cover`): GPUs changed, then free instances
destroyed. The price of a node never falls when it takes another request; the searches prune by that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import add, sub

import numpy as np

from autopilot.core.geometry.mig_recut_cover import CHANGED, NEVER, Cover, Vector

# Bounds on the searches, in steps of about 0.3 us: one for a node looked at, CHOICE_STEPS for a choice among
# nodes, PRICE_STEPS for a price not known yet. For the place of one request, for those of all requests, and to
# make the whole plan cheaper. Where more requests than SEARCHED_REQUESTS are placed, no search goes in depth.
CHOICE_STEPS = 100
PRICE_STEPS = 1000
REPAIR_STEPS = 100_000
ALL_REPAIR_STEPS = 400_000
IMPROVE_STEPS = 400_000
SEARCHED_REQUESTS = 200

State = frozenset[tuple[tuple[int, Vector], int]]


class Shares:
    """The demand assigned to each node, and the node of each request.

    `kind_of` is each node's row in `cover`; `demands` are the requests, earlier ones first. `home` is the
    node of each placed request, `load` and `price` are each node's; `steps` is the work done so far.
    """

    def __init__(self, cover: Cover, kind_of: Sequence[int], demands: Sequence[Vector]) -> None:
        self.cover = cover
        self.kind_of = list(kind_of)
        self.demands = list(demands)
        self.home: dict[int, int] = {}
        self.load: list[Vector] = [(0,) * cover.width] * len(kind_of)
        self.price = [0] * len(kind_of)
        self.steps = 0
        self._prices: dict[tuple[int, Vector], int] = {}
        self._alone: dict[Vector, list[tuple[int, int]]] = {}

    def alone(self, request: int) -> list[tuple[int, int]]:
        """(price, node) of the request alone, for each node on which it fits, in the order of nodes."""
        demand = self.demands[request]
        if demand not in self._alone:
            prices = self.cover.prices(np.arange(self.cover.size), demand).tolist()
            self._prices |= {(kind, demand): price for kind, price in enumerate(prices)}
            self._alone[demand] = [
                (prices[kind], node) for node, kind in enumerate(self.kind_of) if prices[kind] < NEVER
            ]
        return self._alone[demand]

    def candidates(self, request: int) -> list[tuple[int, int]]:
        """(least added price, node), cheapest first; of equal nodes only the first."""
        bounds: dict[tuple[int, Vector], tuple[int, int]] = {}
        alone = self.alone(request)
        self.steps += CHOICE_STEPS + len(alone)
        for price, node in alone:
            scheduling_signatures = self.kind_of[node], self.load[node]
            if scheduling_signatures not in bounds:
                bounds[scheduling_signatures] = max(price - self.price[node], 0), node
        return sorted(bounds.values())

    def added(self, request: int, node: int) -> int | None:
        """What the request adds to the price of `node`; None if it does not fit there."""
        self.steps += 1
        price = self._price(node, tuple(map(add, self.load[node], self.demands[request])))
        return None if price >= NEVER else price - self.price[node]

    def put(self, request: int, node: int) -> None:
        """Assign the request to `node`. It must fit."""
        self.home[request] = node
        self._set(node, tuple(map(add, self.load[node], self.demands[request])))

    def target(self, request: int) -> None:
        """Remove the request from its node."""
        node = self.home.pop(request)
        self._set(node, tuple(map(sub, self.load[node], self.demands[request])))

    def state(self) -> State:
        """The number of nodes of each kind with each load. Searches from equal states proceed equally."""
        loaded = set(self.home.values())
        return frozenset(Counter((self.kind_of[node], self.load[node]) for node in loaded).items())

    def _set(self, node: int, load: Vector) -> None:
        self.load[node], self.price[node] = load, self._price(node, load)

    def _price(self, node: int, load: Vector) -> int:
        key = self.kind_of[node], load
        if key not in self._prices:
            self.steps += PRICE_STEPS
            self._prices[key] = int(self.cover.prices(np.array([key[0]]), load)[0])
        return self._prices[key]


@dataclass
class _Search:
    """A search for plans below `ceiling`. Each plan found lowers it. The search ends at `floor` or at the last step."""

    ceiling: int
    floor: int
    last_step: int
    home: dict[int, int] | None = None
    seen: set[tuple[int, State]] = field(default_factory=set)


def share_out(shares: Shares) -> bool:
    """Place as many requests as possible, earlier ones first, at the least price.

    False if a bound on work ended a search; a better plan may then exist.
    """
    exact = True
    repair_steps = ALL_REPAIR_STEPS
    for request, demand in enumerate(shares.demands):
        if not any(demand) or not shares.alone(request) or _greedy(shares, request):
            continue
        before = shares.steps
        last_step = before + min(REPAIR_STEPS, repair_steps)
        if not _displace(shares, request, last_step):
            order = [request, *shares.home]
            exact &= _search(shares, order, _Search(NEVER, NEVER - 1, last_step))
        repair_steps -= min(shares.steps - before, repair_steps)
    if shares.home:
        exact &= _improve(shares)
    return exact


def _greedy(shares: Shares, request: int) -> bool:
    """Place the request on the first node where it adds least to the price; False if no node fits."""
    best: tuple[int, int] | None = None
    for bound, node in shares.candidates(request):
        if best is not None and (bound, node) > best:
            break
        added = shares.added(request, node)
        if added is not None and (best is None or (added, node) < best):
            best = added, node
    if best is not None:
        shares.put(request, best[1])
    return best is not None


def _displace(shares: Shares, request: int, last_step: int) -> bool:
    """Place the request on a node whose other requests can move elsewhere; False if there is none."""
    for _bound, node in shares.candidates(request):
        if shares.steps >= last_step:
            break
        if _again(shares, _guests(shares, node), NEVER, (request, node)):
            return True
    return False


def _improve(shares: Shares) -> bool:
    """Make the plan cheaper; False if a bound on work ended the search."""
    least_changed = shares.cover.least_changed(shares.kind_of, tuple(map(sum, zip(*shares.load, strict=True))))
    floor = max(CHANGED * least_changed, *(min(shares.alone(request))[0] for request in shares.home))
    last_step = shares.steps + IMPROVE_STEPS
    cheaper = sum(shares.price) > floor
    while cheaper and shares.steps < last_step:
        groups = [[request] for request in sorted(shares.home)]
        groups += [_guests(shares, node) for node, price in enumerate(shares.price) if price]
        cheaper = False
        for guests in groups:
            if shares.steps < last_step:
                cheaper |= _again(shares, guests, sum(shares.price))
    return _search(shares, sorted(shares.home), _Search(sum(shares.price), floor, last_step))


def _guests(shares: Shares, node: int) -> list[int]:
    return sorted(request for request, home in shares.home.items() if home == node)


def _again(shares: Shares, guests: Sequence[int], ceiling: int, newcomer: tuple[int, int] | None = None) -> bool:
    """Remove `guests` from their nodes and place each where it adds least, after the newcomer (request, node).

    If a guest finds no place, or the price of the plan is not below `ceiling`, nothing changes and the result is
    False.
    """
    before = {guest: shares.home[guest] for guest in guests}
    for guest in guests:
        shares.target(guest)
    if newcomer is None or shares.added(*newcomer) is not None:
        if newcomer is not None:
            shares.put(*newcomer)
        if all(_greedy(shares, guest) for guest in guests) and sum(shares.price) < ceiling:
            return True
        if newcomer is not None:
            shares.target(newcomer[0])
    for guest in guests:
        if guest in shares.home:
            shares.target(guest)
    for guest, node in before.items():
        shares.put(guest, node)
    return False


def _search(shares: Shares, order: Sequence[int], search: _Search) -> bool:
    """Place the requests of `order` as the search finds best, or leave the plan as it is.

    False if a bound on work ended the search.
    """
    if search.ceiling <= search.floor:
        return True
    if len(order) > SEARCHED_REQUESTS or shares.steps >= search.last_step:
        return False
    before = dict(shares.home)
    for request in before:
        shares.target(request)
    _descend(shares, order, 0, search)
    for request, node in (before if search.home is None else search.home).items():
        shares.put(request, node)
    return shares.steps < search.last_step or search.ceiling <= search.floor


def _descend(shares: Shares, order: Sequence[int], total: int, search: _Search) -> None:
    """Depth-first, cheapest node first. A state seen with the same number of requests left is not entered again."""
    if not order:
        search.home, search.ceiling = dict(shares.home), total
        return
    request = order[0]
    for bound, node in shares.candidates(request):
        ended = shares.steps >= search.last_step or search.ceiling <= search.floor
        if ended or total + bound >= search.ceiling:
            return
        added = shares.added(request, node)
        if added is None or total + added >= search.ceiling:
            continue
        shares.put(request, node)
        state = len(order), shares.state()
        if state not in search.seen:
            search.seen.add(state)
            _descend(shares, order[1:], total + added, search)
        shares.target(request)
