"""Hierarchical fair share: guarantees, borrowing by weight, preemption inside a queue, reclaim across queues.

Without past use, with GPUs as the only resource and queues in submission order, these are the rules of KAI
(kai-scheduler, plugins proportion and reclaimer). Non-preemptible work starts only within guarantees. A gang may
preempt lower priorities of its own queue. It may preempt work of other queues that are above their fair share, while
its own queue stays within its fair share; the two are compared where their queue paths diverge.

The victim order is: the queue furthest above its share, in it the lowest priority, in that class the cheapest set that
suffices. The last step needs the nodes, so the caller does it (`Room.cheapest`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice

from autopilot.core.model.records import Code
from autopilot.core.quota.ledger import ALL, EPSILON, QuotaLedger
from autopilot.core.quota.rules.base import Claim, RankedTarget, Refusal, Room, Running, Step, Target, victim_order

NAME = "hierarchical-fair-share"

OFFERED = (256, 1024, 4096)
"""Numbers of candidates, in victim order, that are searched before all of them are."""


def may_start(ledger: QuotaLedger, claim: Claim) -> Refusal | None:
    """Check the hard limits along the path and, for non-preemptible work, the guarantees along the path."""
    room = ledger.limit_room(claim.queue, claim.kinds)
    if claim.gpus > room + EPSILON:
        return Refusal(Code.LIMIT, max(room, 0.0), claim.gpus)
    return _outside_guarantee(ledger, claim)


def _outside_guarantee(ledger: QuotaLedger, claim: Claim) -> Refusal | None:
    if claim.preemptible or not ledger.guarantee_binds:
        return None
    room = ledger.guarantee_room(claim.queue, claim.kinds)
    return Refusal(Code.GUARANTEE, max(room, 0.0), claim.gpus) if claim.gpus > room + EPSILON else None


def owed(ledger: QuotaLedger, claim: Claim) -> bool:
    """True if the gang may preempt by contract: with it, its queue is within its guarantee.

    A guarantee contains those below it, so what its ancestors use beyond theirs is borrowed, by others below them too.
    """
    return bool(ledger.paths[claim.queue]) and ledger.within_guarantee(claim.queue, claim.gpus, claim.kinds)


def within_queue(
    ledger: QuotaLedger, claim: Claim, running: Sequence[Claim], room: Room
) -> tuple[Target, ...] | Refusal:
    """Preempt gangs of strictly lower priority in the newcomer's own queue."""
    outside = _outside_guarantee(ledger, claim)
    if outside is not None:
        return outside
    lower = [other for other in running if other.queue == claim.queue and other.priority < claim.priority]
    victims = sorted((other for other in lower if other.preemptible), key=victim_order)
    if not victims:
        return Refusal(Code.PROTECTED if lower else Code.CAPACITY, 0.0, claim.gpus)
    rooms = {kind: ledger.limit_room(claim.queue, (kind,)) for kind in claim.kinds}
    kinds_of = {other.row: other.kinds for other in victims}

    def allowed(targets: Sequence[Target]) -> bool:
        return all(
            claim.gpus <= room + sum(target.gpus for target in targets if kind in kinds_of[target.row]) + EPSILON
            for kind, room in rooms.items()
        )

    ranks = {priority: 2 * rank for rank, priority in enumerate(sorted({other.priority for other in victims}))}
    steps = Running(victims).steps
    ranked_targets = [
        ranked_target
        for line in steps.values()
        for step in line
        for ranked_target in _offers(step, ranks[step.claim.priority] + step.whole)
    ]
    ranked_targets.sort(key=lambda ranked_target: ranked_target.rank)
    found = room.cheapest(ranked_targets, allowed)
    return found if found is not None else Refusal(Code.CAPACITY, sum(v.gpus for v in victims), claim.gpus)


def across_queues(
    ledger: QuotaLedger, claim: Claim, running: Sequence[Claim], room: Room
) -> tuple[Target, ...] | Refusal:
    """Preempt gangs of queues that use more than their share, the queue furthest above it first."""
    refusal = _outside_guarantee(ledger, claim)
    if refusal is not None:
        return refusal
    steps = (running if isinstance(running, Running) else Running(running)).steps
    lines = [line for (queue, _), line in steps.items() if queue != claim.queue]
    limit = _beyond_limit(ledger, claim, lines)
    if limit is not None:
        return limit
    if claim.preemptible and not _fair_at_best(ledger, claim):
        return Refusal(Code.FAIRNESS, ledger.fair[ALL][claim.queue], ledger.use[ALL][claim.queue] + claim.gpus)
    if not lines:
        others = any(other.queue != claim.queue for other in running)
        return Refusal(Code.PROTECTED if others else Code.CAPACITY, 0.0, claim.gpus)
    trial_ledger = _Ledger(ledger, claim)
    order, ranked_targets = _in_order(trial_ledger, lines), list[RankedTarget]()
    for most in (*OFFERED, None):
        before = len(ranked_targets)
        ranked_targets += islice(order, None if most is None else most - before)
        if before == len(ranked_targets):
            break
        found = room.cheapest(ranked_targets, trial_ledger.allowed)
        if found is not None:
            return found
    if not ranked_targets:
        return Refusal(Code.FAIRNESS, ledger.use[ALL][claim.queue] + claim.gpus, ledger.fair[ALL][claim.queue])
    return Refusal(Code.CAPACITY, sum(ranked_target.target.gpus for ranked_target in ranked_targets), claim.gpus)


def _beyond_limit(ledger: QuotaLedger, claim: Claim, lines: Sequence[Sequence[Step]]) -> Refusal | None:
    """A refusal if the newcomer exceeds a hard limit on its path even after every preemption below that limit."""
    for kind in claim.kinds:
        for queue in ledger.paths[claim.queue]:
            room = ledger.limit[kind][queue] - ledger.use[kind][queue]
            if claim.gpus > room + EPSILON:
                below = sum(
                    step.gpus
                    for line in lines
                    for step in line
                    if kind in step.claim.kinds and queue in ledger.paths[step.claim.queue]
                )
                if claim.gpus > room + below + EPSILON:
                    return Refusal(Code.LIMIT, max(room, 0.0), claim.gpus)
    return None


def _offers(step: Step, rank: int) -> Iterator[RankedTarget]:
    """The candidates of one step: members above the minimum one by one, or the whole gang."""
    claim = step.claim
    if step.whole:
        yield RankedTarget(Target(claim.row, claim.gpus, whole=True), rank, claim.price_gpu_s, claim.queue)
        return
    part = claim.price_gpu_s * claim.member_gpus / max(claim.gpus, EPSILON)
    for _ in range(round(claim.spare_gpus / claim.member_gpus)):
        yield RankedTarget(Target(claim.row, claim.member_gpus, whole=False), rank, part, claim.queue)


def _fair_at_best(ledger: QuotaLedger, claim: Claim) -> bool:
    """True if the newcomer alone fits the fair share or guarantee of each queue on its path, and of its queue now."""
    kinds = claim.kinds
    return all(
        claim.gpus <= max(ledger.fair[kind][queue], ledger.guarantee[kind][queue]) + EPSILON
        for kind in kinds
        for queue in ledger.paths[claim.queue]
    ) and ledger.within_fair(claim.queue, claim.gpus, kinds)


class _Ledger:
    """The ledger after some preemptions, and whether each of them is allowed."""

    def __init__(self, ledger: QuotaLedger, claim: Claim) -> None:
        self.ledger, self.claim = ledger, claim
        self.offered: dict[int, Claim] = {}
        self._parting: dict[int, tuple[int, int]] = {}

    def note(self, other: Claim) -> Claim:
        """Record a candidate."""
        self.offered[other.row] = other
        return other

    def parting(self, queue: int) -> tuple[int, int]:
        """Where the newcomer's path and that of `queue` diverge: (newcomer's side, side of `queue`)."""
        if queue not in self._parting:
            self._parting[queue] = self.ledger.parting(self.claim.queue, queue)
        return self._parting[queue]

    def over(self, queue: int, taken: dict[tuple[int, int], float], kinds: Iterable[int]) -> bool:
        """True if one more gang of `queue` may be preempted after `taken` ((kind, queue) -> GPUs).

        Its side must be above its fair share, or above its guarantee while the newcomer's side stays within its own
        guarantee. Both are judged in the most specific kind that they share. Work within the guarantee of `queue` for
        one GPU model is never preempted.
        """
        ledger, claim = self.ledger, self.claim
        mine, theirs = self.parting(queue)
        if mine == theirs:
            return False
        special = max(kinds)
        shared = special if kinds == claim.kinds else max(kind for kind in kinds if kind in claim.kinds)
        if self._left(theirs, special, taken) <= ledger.guarantee[special][theirs] + EPSILON:
            return False
        if self._left(theirs, shared, taken) > ledger.fair[shared][theirs] + EPSILON:
            return True
        return all(
            self._left(mine, kind, taken) + claim.gpus <= ledger.guarantee[kind][mine] + EPSILON for kind in claim.kinds
        )

    def _left(self, queue: int, kind: int, taken: dict[tuple[int, int], float]) -> float:
        """Use of a queue in a kind after `taken`."""
        return self.ledger.use[kind][queue] - taken.get((kind, queue), 0.0)

    def book(self, other: Claim, gpus: float, taken: dict[tuple[int, int], float]) -> None:
        """Add a preemption to `taken`, along the path of its queue."""
        for kind in other.kinds:
            for queue in self.ledger.paths[other.queue]:
                taken[kind, queue] = taken.get((kind, queue), 0.0) + gpus

    def allowed(self, targets: Sequence[Target]) -> bool:
        """True if these preemptions are allowed one after the other, and the newcomer ends within its share.

        They are checked smallest first. An elastic gang loses its spare members before the rest.
        """
        parts = [(gpus, self.offered[target.row]) for target in targets for gpus in self._parts(target)]
        taken: dict[tuple[int, int], float] = {}
        for gpus, other in sorted(parts, key=lambda part: part[0]):
            if not self.over(other.queue, taken, other.kinds):
                return False
            self.book(other, gpus, taken)
        return self._newcomer_fair(targets, taken) and self._within_limits(taken)

    def _parts(self, target: Target) -> tuple[float, ...]:
        """GPUs of each step: each member that leaves alone, then the rest of a gang that leaves as a whole."""
        other = self.offered[target.row]
        members = round((other.spare_gpus if target.whole else target.gpus) / max(other.member_gpus, EPSILON))
        rest = (target.gpus - members * other.member_gpus,) if target.whole else ()
        return (other.member_gpus,) * members + rest

    def _newcomer_fair(self, targets: Sequence[Target], taken: dict[tuple[int, int], float]) -> bool:
        """True if the newcomer's side ends within its fair share at each level at which it preempts."""
        ledger, claim = self.ledger, self.claim
        sides = {self.parting(self.offered[target.row].queue)[0] for target in targets}
        return all(
            self._left(side, kind, taken) + claim.gpus <= ledger.fair[kind][side] + EPSILON
            for side in sides
            for kind in claim.kinds
        )

    def _within_limits(self, taken: dict[tuple[int, int], float]) -> bool:
        """True if the newcomer ends within each hard limit on its path."""
        return all(
            self._left(queue, kind, taken) + self.claim.gpus <= self.ledger.limit[kind][queue] + EPSILON
            for kind in self.claim.kinds
            for queue in self.ledger.paths[self.claim.queue]
        )


def _in_order(trial_ledger: _Ledger, lines: Sequence[Sequence[Step]]) -> Iterator[RankedTarget]:
    """Candidates in victim order: of the queue furthest above its share at the time, the cheapest of lowest priority.

    A queue has candidates as long as `over` allows. Ranks are assigned in order of first use, one for the spare
    members and one for the whole gangs of each class. `lines`: steps in victim order, by queue and kinds.
    """
    taken: dict[tuple[int, int], float] = {}
    ranks: dict[tuple[int, int, int, bool], int] = {}

    def ranked_targets(step: Step) -> Iterator[RankedTarget]:
        other = trial_ledger.note(step.claim)
        rank = ranks.setdefault((other.queue, other.shelter, other.priority, step.whole), len(ranks))
        return _offers(step, rank)

    heap = [(_turn(trial_ledger, line[0].claim, taken), line, 0) for line in lines]
    spared: list[Sequence[Step]] = []
    heapify(heap)
    while heap:
        _, line, at = heappop(heap)
        other = line[at].claim
        turn = _turn(trial_ledger, other, taken)
        if heap and turn > heap[0][0]:  # other preemptions on its side reduced its saturation
            heappush(heap, (turn, line, at))
            continue
        if not trial_ledger.over(other.queue, taken, other.kinds):
            spared.append(line[at:])  # its queue has lost enough; last, for the case that only these clear a node
            continue
        yield from ranked_targets(line[at])
        trial_ledger.book(other, line[at].gpus, taken)
        if at + 1 < len(line):
            heappush(heap, (_turn(trial_ledger, line[at + 1].claim, taken), line, at + 1))
    for rest in spared:
        other = rest[0].claim
        if trial_ledger.over(other.queue, {}, other.kinds):
            for step in rest:
                yield from ranked_targets(step)


def _turn(trial_ledger: _Ledger, other: Claim, taken: dict[tuple[int, int], float]) -> tuple[float, ...]:
    """Sort key of a candidate: highest saturation, level by level from where the paths diverge, then victim order."""
    ledger = trial_ledger.ledger
    _, theirs = trial_ledger.parting(other.queue)
    path = ledger.paths[other.queue]
    levels = path[: path.index(theirs) + 1] if theirs in path else path
    return (
        *(-_saturated(ledger, each, taken) for each in reversed(levels)),
        float(other.queue),
        *victim_order(other),
    )


def _saturated(ledger: QuotaLedger, queue: int, taken: dict[tuple[int, int], float]) -> float:
    use = ledger.use[ALL][queue] - taken.get((ALL, queue), 0.0)
    fair = ledger.fair[ALL][queue]
    return use / fair if fair > EPSILON else 1e9 + use
