"""Cohorts with fair shares: what is borrowed is divided by weight, and taken back from whoever borrows most.

The quota arithmetic is that of rules/cohort.py. The share of a queue (or of a cohort) is the number of GPUs
that it uses above its own quota, over its weight; without weight any borrowing is infinitely much. Two queues
are compared where their paths part. Kueue compares the same (pkg/cache/scheduler/fair_sharing.go,
pkg/scheduler/preemption/fairsharing), scaled by what can be lent at that place, which is equal for both.

Who gives: always the one with the largest share at the time, level by level from the top of the tree; in it the
lowest priority first, then the smallest gang (the donor stays as near to its share as it can), then the youngest.
Where the first choice does not suffice, a gang of the next donor that suffices alone goes before smaller ones.
Nothing is taken from a queue, or through a cohort, that no longer borrows.
 - A newcomer whose queue stays within its own quota may take from any borrower.
 - `final_share`: the newcomer's share is then at most what the donor's still is after the loss.
 - `initial_share`, where that does not suffice: the newcomer's share is then below what the donor's was before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import Displace
from autopilot.core.quota.ledger import EPSILON, QuotaLedger
from autopilot.core.rules import cohort
from autopilot.core.rules.base import Claim, Fits, Refusal, Target
from autopilot.core.rules.cohort import Quotas, barred, kept_gpus, mercy, why_not
from autopilot.core.rules.trial import Trial

NAME = "cohort-fair"

FINAL, INITIAL = "final_share", "initial_share"
RULES = (FINAL, INITIAL)
"""The rules of shares, in the order in which they are tried (Kueue: fairSharing.preemptionStrategies)."""

Share = tuple[bool, float]
"""(borrows without weight, GPUs above its quota over its weight): the larger one borrows more."""

may_start = cohort.may_start


def targets(
    ledger: QuotaLedger, claim: Claim, running: Sequence[Claim], room: Fits, rules: Sequence[str] = RULES
) -> tuple[Target, ...] | Refusal:
    """Whom the newcomer displaces by its share, and in its own queue as `within_queue` says; () when it needs nobody.

    `rules`: one or both of RULES, tried in that order. Raises `InputError` for another.
    """
    if not rules or not set(rules) <= set(RULES):
        raise InputError(f"rules of shares {', '.join(rules) or '(none)'}: write {' or '.join(RULES)}, or both")
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
    """As for classic cohorts; here a queue that reclaims at all may displace others though it borrows."""
    return kept_gpus(ledger, claim, in_cohort=Displace(int(ledger.queues.reclaim[claim.queue])))


def head_key(ledger: QuotaLedger, claim: Claim) -> tuple[float, ...]:
    """Order among the heads of all queues: shares after its start from the top of the tree down, priority, submit
    time.
    """
    quotas = Quotas(ledger, claim)
    shares = [share(quotas, queue) for queue in reversed(quotas.path[:-1])]
    depth = max((len(path) for path in ledger.paths), default=1) - 1
    shares += [(False, 0.0)] * (depth - len(shares))
    flat = [float(part) for each in shares for part in each]
    return (*flat, -float(claim.priority), claim.submit_s)


def share(quotas: Quotas, queue: int) -> Share:
    """The share of a queue or cohort as the books of `quotas` stand, in the kind where it is largest."""
    above = max((tree.over(queue) for tree in quotas.trees.values()), default=0.0)
    weight = float(quotas.ledger.queues.weight[queue])
    return (False, above / weight) if weight > 0 else (above > 0, above)


def _at_most(one: Share, other: Share) -> bool:
    return one[0] < other[0] or (one[0] == other[0] and one[1] <= other[1] + EPSILON)


def _below(one: Share, other: Share) -> bool:
    return not _at_most(other, one)


def _search(trial: Trial, quotas: Quotas, rivals: Sequence[Claim], rules: Sequence[str]) -> bool:
    """Find victims among `rivals` and leave them in `trial`; False, and nothing taken, when there are none."""
    by_rule: dict[int, str] = {}
    candidates = [other for other in rivals if barred(quotas, other) is None]
    if not trial.fewest(_in_order(quotas, candidates, rules, by_rule)):
        return False
    # what must go on holding once some are put back: by final_share one statement for each donor side
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
    """Victims in order, each judged by the books as they are once those before it were taken.

    `by_rule` notes the rule by which a gang was taken; gangs of its own queue, and what a newcomer within its
    own quota takes, need none.
    """
    entitled = not quotas.borrows(quotas.claim.queue)
    donors = _Donors(quotas, candidates)
    refused: list[Claim] = []
    taken: list[Claim] = []
    while (queue := donors.next()) is not None:
        if queue == quotas.claim.queue or entitled:
            taken.append(donors.pop(queue, taken if queue != quotas.claim.queue else ()))
            yield taken[-1]
            continue
        while donors.waiting.get(queue):
            other = donors.pop(queue)
            if _would_hold(quotas, other, rules[0]):
                by_rule[other.row] = rules[0]
                yield other
                break
            refused.append(other)
    if INITIAL not in rules[1:]:
        return
    donors = _Donors(quotas, refused)
    while (queue := donors.next()) is not None:
        other = donors.pop(queue)
        if _would_hold(quotas, other, INITIAL):
            by_rule[other.row] = INITIAL
            yield other


def _would_hold(quotas: Quotas, other: Claim, rule: str) -> bool:
    """Does a rule allow to take `other` next?"""
    quotas.book(other, -1)
    holds = _holds(quotas, other, rule)
    quotas.book(other, 1)
    return holds


def _holds(quotas: Quotas, other: Claim, rule: str) -> bool:
    """Does a rule hold for `other`, which is taken?"""
    mine, theirs = quotas.ledger.parting(quotas.claim.queue, other.queue)
    if rule == FINAL:
        return _at_most(share(quotas, mine), share(quotas, theirs))
    quotas.book(other, 1)
    before = share(quotas, theirs)
    quotas.book(other, -1)
    return _below(share(quotas, mine), before)


class _Donors:
    """Who may give, by queue, and which queue is next."""

    def __init__(self, quotas: Quotas, candidates: Iterable[Claim]) -> None:
        self.quotas = quotas
        self.waiting: dict[int, list[Claim]] = {}  # the next to give stands last
        self._below: dict[int, int] = {}  # how many wait in a queue or below it
        for other in sorted(candidates, key=_order, reverse=True):
            self.waiting.setdefault(other.queue, []).append(other)
            self._count(other.queue, 1)

    def next(self) -> int | None:
        """The queue with the largest share, found from the top of the tree; None when nobody may give."""
        return self._find(self.quotas.path[-1] if self.quotas.path else 0)

    def pop(self, queue: int, taken: Sequence[Claim] = ()) -> Claim:
        """The next gang of `queue`; where others were `taken` in vain, one of its class that suffices alone."""
        self._count(queue, -1)
        line = self.waiting[queue]
        alone = self._alone(line, taken) if taken and taken[-1].queue != queue else None
        return line.pop() if alone is None else line.pop(alone)

    def _alone(self, line: Sequence[Claim], taken: Sequence[Claim]) -> int | None:
        """Place of the smallest gang of the lowest priority for which all that were taken could stay."""
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
        """The next queue to give at or below `queue`; a cohort that does not borrow shields those below it."""
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
        """Largest share first; among equals a cohort before a queue, then the queue whose next gang goes first."""
        unweighted, amount = share(self.quotas, queue)
        head = (1.0, *_order(self.waiting[queue][-1])) if self.waiting.get(queue) else (0.0, float(queue))
        return (-float(unweighted), -round(amount, 9), *head)


def _order(other: Claim) -> tuple[float, ...]:
    """Sort key of victims inside a queue: lowest priority, smallest, youngest."""
    priority, *rest = mercy(other)
    return (priority, other.gpus, *rest)
