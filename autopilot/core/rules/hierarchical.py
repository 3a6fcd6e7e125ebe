"""Hierarchical fair share: guarantees, borrowing by weight, preemption inside a queue, reclaim across queues.

With decayed usage off, GPUs the only resource and queues in the order of submission these are the rules of
KAI (kai-scheduler, plugins proportion and reclaimer): work that may not be preempted starts inside guarantees
only; a gang may displace lower priorities of its own queue; it may take from other queues what they use above
their fair share while its own queue stays within its own, compared where the two queue paths part.

Who gives way first: the most over-served queue, in it the lowest priority, in that class the cheapest set that
suffices. The last step needs the nodes and is the caller's (`Room.cheapest`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice

from autopilot.core.model.records import Code
from autopilot.core.quota.ledger import ALL, EPSILON, Books
from autopilot.core.rules.base import Claim, Offer, Refusal, Room, Running, Step, Take, mercy

NAME = "hierarchical-fair-share"

OFFERED = (256, 1024, 4096)
"""So many offers in the order of mercy are looked at first, then so many more, before all are."""


def may_start(books: Books, claim: Claim) -> Refusal | None:
    """Hard limits along the path; guarantees along the path for work that may not be preempted."""
    room = books.limit_room(claim.queue, claim.kinds)
    if claim.gpus > room + EPSILON:
        return Refusal(Code.LIMIT, max(room, 0.0), claim.gpus)
    return _outside_guarantee(books, claim)


def _outside_guarantee(books: Books, claim: Claim) -> Refusal | None:
    if claim.preemptible or not books.guarantee_binds:
        return None
    room = books.guarantee_room(claim.queue, claim.kinds)
    return Refusal(Code.GUARANTEE, max(room, 0.0), claim.gpus) if claim.gpus > room + EPSILON else None


def owed(books: Books, claim: Claim) -> bool:
    """Does the gang's queue, and every one above it, stay within its guarantee with it? Then it takes by contract."""
    path = books.paths[claim.queue]
    return bool(path) and all(books.within_guarantee(queue, claim.gpus, claim.kinds) for queue in path)


def within_queue(books: Books, claim: Claim, running: Sequence[Claim], room: Room) -> tuple[Take, ...] | Refusal:
    """Displace preemptible gangs of strictly lower priority in the newcomer's own queue."""
    outside = _outside_guarantee(books, claim)
    if outside is not None:
        return outside
    lower = [other for other in running if other.queue == claim.queue and other.priority < claim.priority]
    victims = sorted((other for other in lower if other.preemptible), key=mercy)
    if not victims:
        return Refusal(Code.PROTECTED if lower else Code.CAPACITY, 0.0, claim.gpus)
    rooms = {kind: books.limit_room(claim.queue, (kind,)) for kind in claim.kinds}
    kinds_of = {other.row: other.kinds for other in victims}

    def allowed(takes: Sequence[Take]) -> bool:
        return all(
            claim.gpus <= room + sum(take.gpus for take in takes if kind in kinds_of[take.row]) + EPSILON
            for kind, room in rooms.items()
        )

    ranks = {priority: 2 * rank for rank, priority in enumerate(sorted({other.priority for other in victims}))}
    steps = Running(victims).steps
    offers = [
        offer
        for line in steps.values()
        for step in line
        for offer in _offers(step, ranks[step.claim.priority] + step.whole)
    ]
    offers.sort(key=lambda offer: offer.rank)
    found = room.cheapest(offers, allowed)
    return found if found is not None else Refusal(Code.CAPACITY, sum(v.gpus for v in victims), claim.gpus)


def across_queues(books: Books, claim: Claim, running: Sequence[Claim], room: Room) -> tuple[Take, ...] | Refusal:
    """Take from queues that use more than is theirs, most over-served first."""
    refusal = _outside_guarantee(books, claim)
    if refusal is not None:
        return refusal
    steps = (running if isinstance(running, Running) else Running(running)).steps
    donors = [line for (queue, _), line in steps.items() if queue != claim.queue]
    limit = _beyond_limit(books, claim, donors)
    if limit is not None:
        return limit
    if claim.preemptible and not _fair_at_best(books, claim):
        return Refusal(Code.FAIRNESS, books.fair[ALL][claim.queue], books.use[ALL][claim.queue] + claim.gpus)
    if not donors:
        others = any(other.queue != claim.queue for other in running)
        return Refusal(Code.PROTECTED if others else Code.CAPACITY, 0.0, claim.gpus)
    ledger = _Ledger(books, claim)
    order, offers = _in_order(ledger, donors), list[Offer]()
    for most in (*OFFERED, None):
        before = len(offers)
        offers += islice(order, None if most is None else most - before)
        if before == len(offers):
            break
        found = room.cheapest(offers, ledger.allowed)
        if found is not None:
            return found
    if not offers:
        return Refusal(Code.FAIRNESS, books.use[ALL][claim.queue] + claim.gpus, books.fair[ALL][claim.queue])
    return Refusal(Code.CAPACITY, sum(offer.take.gpus for offer in offers), claim.gpus)


def _beyond_limit(books: Books, claim: Claim, donors: Sequence[Sequence[Step]]) -> Refusal | None:
    """Set when the newcomer would exceed a hard limit on its path, whoever below that limit gave way."""
    for kind in claim.kinds:
        for queue in books.paths[claim.queue]:
            room = books.limit[kind][queue] - books.use[kind][queue]
            if claim.gpus > room + EPSILON:
                below = sum(
                    step.gpus
                    for line in donors
                    for step in line
                    if kind in step.claim.kinds and queue in books.paths[step.claim.queue]
                )
                if claim.gpus > room + below + EPSILON:
                    return Refusal(Code.LIMIT, max(room, 0.0), claim.gpus)
    return None


def _offers(step: Step, rank: int) -> Iterator[Offer]:
    """What one step can give up: members above the minimum one by one, or the whole gang."""
    claim = step.claim
    if step.whole:
        yield Offer(Take(claim.row, claim.gpus, whole=True), rank, claim.price_gpu_s, claim.queue)
        return
    part = claim.price_gpu_s * claim.member_gpus / max(claim.gpus, EPSILON)
    for _ in range(round(claim.spare_gpus / claim.member_gpus)):
        yield Offer(Take(claim.row, claim.member_gpus, whole=False), rank, part, claim.queue)


def _fair_at_best(books: Books, claim: Claim) -> bool:
    """Could the newcomer's queue, and each above it, be within its fair share if all others in it gave way?"""
    kinds = claim.kinds
    return all(
        claim.gpus <= max(books.fair[kind][queue], books.guarantee[kind][queue]) + EPSILON
        for kind in kinds
        for queue in books.paths[claim.queue]
    ) and books.within_fair(claim.queue, claim.gpus, kinds)


class _Ledger:
    """What the books would be after some takings, and whether each of them is allowed."""

    def __init__(self, books: Books, claim: Claim) -> None:
        self.books, self.claim = books, claim
        self.offered: dict[int, Claim] = {}
        self._parting: dict[int, tuple[int, int]] = {}

    def note(self, other: Claim) -> Claim:
        """One who is offered."""
        self.offered[other.row] = other
        return other

    def parting(self, queue: int) -> tuple[int, int]:
        """Where the newcomer's path and a donor's part: (newcomer's side, donor's side)."""
        if queue not in self._parting:
            self._parting[queue] = self.books.parting(self.claim.queue, queue)
        return self._parting[queue]

    def over(self, queue: int, taken: dict[tuple[int, int], float], kinds: Iterable[int]) -> bool:
        """May one more gang be taken from `queue`, after `taken` ((kind, queue) -> GPUs) was?

        Its side is above its fair share; or above its guarantee, while the newcomer's side stays within its own. Both
        in the most special kind that they share; what the donor holds inside its guarantee of one GPU model stays.
        """
        books, claim = self.books, self.claim
        mine, theirs = self.parting(queue)
        if mine == theirs:
            return False
        special = max(kinds)
        shared = max(kind for kind in kinds if kind in claim.kinds)
        if self._left(theirs, special, taken) <= books.guarantee[special][theirs] + EPSILON:
            return False
        if self._left(theirs, shared, taken) > books.fair[shared][theirs] + EPSILON:
            return True
        return all(
            self._left(mine, kind, taken) + claim.gpus <= books.guarantee[kind][mine] + EPSILON for kind in claim.kinds
        )

    def _left(self, queue: int, kind: int, taken: dict[tuple[int, int], float]) -> float:
        """What a queue uses of a kind after some takings."""
        return self.books.use[kind][queue] - taken.get((kind, queue), 0.0)

    def book(self, other: Claim, gpus: float, taken: dict[tuple[int, int], float]) -> None:
        """Note a taking along the donor's path."""
        for kind in other.kinds:
            for queue in self.books.paths[other.queue]:
                taken[kind, queue] = taken.get((kind, queue), 0.0) + gpus

    def allowed(self, takes: Sequence[Take]) -> bool:
        """May these be taken, in the order in which they stand, largest last, and is the newcomer then within its
        share?

        Each must be allowed when its turn comes. An elastic gang gives its spare members before the rest of it.
        """
        parts = [(gpus, self.offered[take.row]) for take in takes for gpus in self._parts(take)]
        taken: dict[tuple[int, int], float] = {}
        for gpus, other in sorted(parts, key=lambda part: part[0]):
            if not self.over(other.queue, taken, other.kinds):
                return False
            self.book(other, gpus, taken)
        return self._newcomer_fair(takes, taken) and self._within_limits(taken)

    def _parts(self, take: Take) -> tuple[float, ...]:
        """GPUs of each step: of every member that goes by itself, then of the rest of a gang that goes as a whole."""
        other = self.offered[take.row]
        members = round((other.spare_gpus if take.whole else take.gpus) / max(other.member_gpus, EPSILON))
        rest = (take.gpus - members * other.member_gpus,) if take.whole else ()
        return (other.member_gpus,) * members + rest

    def _newcomer_fair(self, takes: Sequence[Take], taken: dict[tuple[int, int], float]) -> bool:
        """At each level where it took from others, the newcomer's side ends within its fair share."""
        books, claim = self.books, self.claim
        sides = {self.parting(self.offered[take.row].queue)[0] for take in takes}
        return all(
            self._left(side, kind, taken) + claim.gpus <= books.fair[kind][side] + EPSILON
            for side in sides
            for kind in claim.kinds
        )

    def _within_limits(self, taken: dict[tuple[int, int], float]) -> bool:
        """The newcomer ends within every hard limit on its path."""
        return all(
            self._left(queue, kind, taken) + self.claim.gpus <= self.books.limit[kind][queue] + EPSILON
            for kind in self.claim.kinds
            for queue in self.books.paths[self.claim.queue]
        )


def _in_order(ledger: _Ledger, donors: Sequence[Sequence[Step]]) -> Iterator[Offer]:
    """Offers in the order of mercy: from the queue that is most over-served at the time, its cheapest of the
    lowest priority; as long as its queue may still be taken from. Rank: one for the spare members of each class and
    one for its whole gangs, when they first give. `donors`: steps in the order of mercy for each queue and kinds.
    """
    taken: dict[tuple[int, int], float] = {}
    ranks: dict[tuple[int, int, bool], int] = {}

    def offers(step: Step) -> Iterator[Offer]:
        other = ledger.note(step.claim)
        return _offers(step, ranks.setdefault((other.queue, other.priority, step.whole), len(ranks)))

    heap = [(_turn(ledger, line[0].claim, taken), line, 0) for line in donors]
    spared: list[Step] = []
    heapify(heap)
    while heap:
        _, line, at = heappop(heap)
        other = line[at].claim
        turn = _turn(ledger, other, taken)
        if heap and turn > heap[0][0]:  # what was taken beside it made its side less over-served
            heappush(heap, (turn, line, at))
            continue
        if not ledger.over(other.queue, taken, other.kinds):
            spared += line[at:]  # others of its queue went before; these may go where only they clear a node
            continue
        yield from offers(line[at])
        ledger.book(other, line[at].gpus, taken)
        if at + 1 < len(line):
            heappush(heap, (_turn(ledger, line[at + 1].claim, taken), line, at + 1))
    for step in spared:
        if ledger.over(step.claim.queue, {}, step.claim.kinds):
            yield from offers(step)


def _turn(ledger: _Ledger, other: Claim, taken: dict[tuple[int, int], float]) -> tuple[float, ...]:
    """Sort key of a donor: the most over-served first, level by level from where the paths part; then by mercy."""
    books = ledger.books
    _, theirs = ledger.parting(other.queue)
    path = books.paths[other.queue]
    levels = path[: path.index(theirs) + 1] if theirs in path else path
    return (
        *(-_saturated(books, each, taken) for each in reversed(levels)),
        float(other.queue),
        *mercy(other),
    )


def _saturated(books: Books, queue: int, taken: dict[tuple[int, int], float]) -> float:
    use = books.use[ALL][queue] - taken.get((ALL, queue), 0.0)
    fair = books.fair[ALL][queue]
    return use / fair if fair > EPSILON else 1e9 + use
