"""Cohorts with fair sharing: borrowed quota is divided by weight, and reclaimed from the largest borrower.

The quota arithmetic is that of quota/rules/cohort.py. The share of a queue (or of a cohort) is the GPUs that it uses
above its own quota, divided by its weight; with weight zero, any borrowing is an infinite share. Two queues are
compared where their paths diverge. Kueue compares the same shares (pkg/cache/scheduler/fair_sharing.go,
pkg/scheduler/preemption/fairsharing), scaled by what can be lent at that level, which is equal for both.

The victim queue is the one with the largest share at the time, found level by level from the top of the tree. In it,
victims are ordered by lowest priority, then smallest gang (which leaves the queue as near to its share as possible),
then youngest. If the first victim does not suffice, a gang of the next victim queue that suffices alone comes before
smaller ones. A queue that no longer borrows, or that is in a cohort that no longer borrows, has no more victims.
 - A newcomer whose queue stays within its own quota may preempt work of any borrower.
 - `final_share`: the newcomer's share is then at most the share of the victim's queue after the preemption.
 - `initial_share`, tried second: the newcomer's share is then below the share of the victim's queue before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import Displace
from autopilot.core.quota.ledger import EPSILON, QuotaLedger
from autopilot.core.quota.rules import cohort
from autopilot.core.quota.rules.base import Claim, Fits, Refusal, Target
from autopilot.core.quota.rules.cohort import Quotas, barred, kept_gpus, victim_order, why_not
from autopilot.core.quota.rules.trial import Trial

NAME = "cohort-fair"

FINAL, INITIAL = "final_share", "initial_share"
RULES = (FINAL, INITIAL)
"""The comparisons of shares, in the order tried (Kueue: fairSharing.preemptionStrategies)."""

Share = tuple[bool, float]
"""(borrows with weight zero, GPUs above its quota / weight): the larger share borrows more."""

may_start = cohort.may_start


def targets(
    ledger: QuotaLedger, claim: Claim, running: Sequence[Claim], room: Fits, rules: Sequence[str] = RULES
) -> tuple[Target, ...] | Refusal:
    """The victims of the newcomer: by shares, and in its own queue by `within_queue`; () if it needs none.

    `rules`: one or both of RULES, tried in that order. Raises `InputError` for any other name.
    """
    if not rules or not set(rules) <= set(RULES):
        raise InputError(
            f"share rules {', '.join(rules) or '(none)'} are not known: write {' or '.join(RULES)}, or both"
        )
    quotas = Quotas(ledger, claim)
    trial = Trial(quotas, room)
    if trial.fits():
        return ()
    if quotas.most_gpus < claim.gpus - EPSILON:
        return Refusal(Code.QUOTA, quotas.most_gpus, claim.gpus)
    rivals = quotas.rivals(running)
    soft = [other for other in rivals if other.preemptible]
    if _search(trial, quotas, soft, rules):
        return trial.answer()
    lacked_room = trial.lacked_room
    if len(soft) < len(rivals) and _search(trial, quotas, rivals, rules):
        return Refusal(Code.PROTECTED, quotas.free_before(), claim.gpus)
    reasons = {code for other in soft if (code := barred(quotas, other))}
    reclaims = int(ledger.queues.reclaim[claim.queue]) != Displace.NEVER
    if reclaims and len(quotas.path) > 1 and quotas.borrows(claim.queue):
        reasons.add(Code.FAIRNESS)
    return why_not(quotas, reasons, lacked_room=lacked_room)


def keeps(ledger: QuotaLedger, claim: Claim) -> float:
    """As for classic cohorts; here a queue that may reclaim may also preempt while it borrows."""
    return kept_gpus(ledger, claim, in_cohort=Displace(int(ledger.queues.reclaim[claim.queue])))


def head_key(ledger: QuotaLedger, claim: Claim) -> tuple[float, ...]:
    """Order of the heads of all queues: shares after its start from the top down, then priority, then submit time."""
    quotas = Quotas(ledger, claim)
    shares = [share(quotas, queue) for queue in reversed(quotas.path[:-1])]
    depth = max((len(path) for path in ledger.paths), default=1) - 1
    shares += [(False, 0.0)] * (depth - len(shares))
    flat = [float(part) for each in shares for part in each]
    return (*flat, -float(claim.priority), claim.submit_s)


def share(quotas: Quotas, queue: int) -> Share:
    """The present share of a queue or cohort, in the kind where it is largest."""
    above = max((tree.over(queue) for tree in quotas.trees.values()), default=0.0)
    weight = float(quotas.ledger.queues.weight[queue])
    return (False, above / weight) if weight > 0 else (above > 0, above)


def _at_most(one: Share, other: Share) -> bool:
    return one[0] < other[0] or (one[0] == other[0] and one[1] <= other[1] + EPSILON)


def _below(one: Share, other: Share) -> bool:
    return not _at_most(other, one)


def _search(trial: Trial, quotas: Quotas, rivals: Sequence[Claim], rules: Sequence[str]) -> bool:
    """Find victims among `rivals` and leave them in `trial`; False, with `trial` unchanged, if there are none."""
    by_rule: dict[int, str] = {}
    candidates = [other for other in rivals if barred(quotas, other) is None]
    if not trial.fewest(_in_order(quotas, candidates, rules, by_rule)):
        return False
    # conditions that must still hold after victims are put back; by final_share, one for each victim's side
    statements: dict[int, tuple[int, ...]] = {}
    for other in trial.taken:
        rule = by_rule.get(other.row)
        if rule is not None and _holds(quotas, other, rule):
            sides = quotas.ledger.parting(quotas.claim.queue, other.queue)
            statements[other.row] = sides if rule == FINAL else (other.row,)

    def fair_still() -> bool:
        open_to = {statements[other.row]: other for other in trial.taken if other.row in statements}
        return all(_holds(quotas, other, by_rule[other.row]) for other in open_to.values())

    trial.spare(fair_still)
    return True


def _in_order(
    quotas: Quotas, candidates: Sequence[Claim], rules: Sequence[str], by_rule: dict[int, str]
) -> Iterator[Claim]:
    """Victims in order; each is judged on the quotas after the preemption of the earlier ones.

    `by_rule` records the rule that allowed each victim. Victims in the newcomer's own queue, and all victims of a
    newcomer within its own quota, need no rule.
    """
    entitled = not quotas.borrows(quotas.claim.queue)
    queues = _VictimQueues(quotas, candidates)
    refused: list[Claim] = []
    taken: list[Claim] = []
    while (queue := queues.next()) is not None:
        if queue == quotas.claim.queue or entitled:
            taken.append(queues.pop(queue, taken if queue != quotas.claim.queue else ()))
            yield taken[-1]
            continue
        while queues.waiting.get(queue):
            other = queues.pop(queue)
            if _would_hold(quotas, other, rules[0]):
                by_rule[other.row] = rules[0]
                yield other
                break
            refused.append(other)
    if INITIAL not in rules[1:]:
        return
    queues = _VictimQueues(quotas, refused)
    while (queue := queues.next()) is not None:
        other = queues.pop(queue)
        if _would_hold(quotas, other, INITIAL):
            by_rule[other.row] = INITIAL
            yield other


def _would_hold(quotas: Quotas, other: Claim, rule: str) -> bool:
    """True if a rule allows `other` as the next victim."""
    quotas.book(other, -1)
    holds = _holds(quotas, other, rule)
    quotas.book(other, 1)
    return holds


def _holds(quotas: Quotas, other: Claim, rule: str) -> bool:
    """True if a rule holds for the victim `other`, which is removed from `quotas`."""
    mine, theirs = quotas.ledger.parting(quotas.claim.queue, other.queue)
    if rule == FINAL:
        return _at_most(share(quotas, mine), share(quotas, theirs))
    quotas.book(other, 1)
    before = share(quotas, theirs)
    quotas.book(other, -1)
    return _below(share(quotas, mine), before)


class _VictimQueues:
    """Candidates by queue, and the order of the queues."""

    def __init__(self, quotas: Quotas, candidates: Iterable[Claim]) -> None:
        self.quotas = quotas
        self.waiting: dict[int, list[Claim]] = {}  # in reverse victim order
        self._below: dict[int, int] = {}  # number of candidates in a queue or below it
        for other in sorted(candidates, key=_order, reverse=True):
            self.waiting.setdefault(other.queue, []).append(other)
            self._count(other.queue, 1)

    def next(self) -> int | None:
        """The queue with the largest share, found from the top of the tree; None without a candidate."""
        return self._find(self.quotas.path[-1] if self.quotas.path else 0)

    def pop(self, queue: int, taken: Sequence[Claim] = ()) -> Claim:
        """The next candidate of `queue`; if those `taken` before did not suffice, one that suffices alone."""
        self._count(queue, -1)
        line = self.waiting[queue]
        alone = self._alone(line, taken) if taken and taken[-1].queue != queue else None
        return line.pop() if alone is None else line.pop(alone)

    def _alone(self, line: Sequence[Claim], taken: Sequence[Claim]) -> int | None:
        """Position of the smallest gang of the lowest priority that suffices without those `taken`; None: none does."""
        quotas = self.quotas
        for other in taken:
            quotas.book(other, 1)
        found = None
        for at in range(len(line) - 1, -1, -1):
            if line[at].priority != line[-1].priority:
                break
            if line[at].gpus + quotas.free_before() + EPSILON < quotas.claim.gpus:
                continue
            quotas.book(line[at], -1)
            found = at if quotas.allows() else None
            quotas.book(line[at], 1)
            break
        for other in taken:
            quotas.book(other, -1)
        return found

    def _count(self, queue: int, more: int) -> None:
        for each in self.quotas.ledger.paths[queue]:
            self._below[each] = self._below.get(each, 0) + more

    def _find(self, queue: int) -> int | None:
        """The next victim queue at or below `queue`; a cohort that does not borrow protects the queues below it."""
        quotas = self.quotas
        options = [
            each
            for each in quotas.ledger.children[queue]
            if self._below.get(each) and (each in quotas.path or quotas.borrows(each))
        ]
        for each in sorted(options, key=self._key):
            found = self._find(each)
            if found is not None:
                return found
        return queue if self.waiting.get(queue) else None

    def _key(self, queue: int) -> tuple[float, ...]:
        """Sort key: largest share first; then a cohort before a queue, then the queue with the first victim."""
        unweighted, amount = share(self.quotas, queue)
        head = (1.0, *_order(self.waiting[queue][-1])) if self.waiting.get(queue) else (0.0, float(queue))
        return (-float(unweighted), -round(amount, 9), *head)


def _order(other: Claim) -> tuple[float, ...]:
    """Sort key of victims inside a queue: lowest priority, smallest, youngest."""
    priority, *rest = victim_order(other)
    return (priority, other.gpus, *rest)
