"""Trial preemption: remove gangs one by one until the newcomer fits, then put back those that it does not need.

Shared by the rule sets that name victims in an order (cohorts, elastic quotas). Each brings its quota arithmetic as a
`Ledger` that includes the newcomer, and its order as an iterator. Each preemption only adds quota and room, so the
search can double its steps and then bisect the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf, isnan
from typing import Protocol

from autopilot.core.quota.ledger import EPSILON, QuotaLedger
from autopilot.core.quota.rules.base import Claim, Fits, Target


class Ledger(Protocol):
    """A working copy of quotas that includes the newcomer."""

    def book(self, other: Claim, sign: int) -> None:
        """Remove a running gang (-1) or put it back (+1)."""
        ...

    def allows(self) -> bool:
        """True if the newcomer is within its quotas."""
        ...


class Limits:
    """What the hard limits along the newcomer's path leave, including the newcomer."""

    def __init__(self, ledger: QuotaLedger, claim: Claim) -> None:
        path = (*ledger.paths[claim.queue], 0)
        self._paths = ledger.paths
        self._left = {
            (kind, queue): ledger.limit[kind][queue] - ledger.use[kind][queue] - claim.gpus
            for kind in claim.kinds
            for queue in path
            if ledger.limit[kind][queue] < inf
        }

    def book(self, other: Claim, sign: int) -> None:
        """Remove a running gang (-1) or put it back (+1)."""
        for kind in other.kinds if self._left else ():
            for queue in (*self._paths[other.queue], 0):
                if (kind, queue) in self._left:
                    self._left[kind, queue] -= sign * other.gpus

    def allow(self) -> bool:
        """True if no limit is exceeded."""
        return all(left >= -EPSILON for left in self._left.values())


class Trial:
    """The gangs preempted so far, with their ledger and the room that they free."""

    def __init__(self, trial_ledger: Ledger, room: Fits) -> None:
        self.trial_ledger, self.room = trial_ledger, room
        self.taken: list[Claim] = []
        self.lacked_room = False  # at some point the quotas sufficed and the room did not

    def fits(self) -> bool:
        """True if the newcomer fits: quotas are checked first, because the check for room is expensive."""
        if not self.trial_ledger.allows():
            return False
        found = self.room(self.answer())
        self.lacked_room |= not found and bool(self.taken)
        return found

    def answer(self) -> tuple[Target, ...]:
        """The preempted gangs, in the order of preemption."""
        return _whole(self.taken)

    def target(self, other: Claim) -> None:
        """Preempt one more gang as a whole."""
        self.taken.append(other)
        self.trial_ledger.book(other, -1)

    def give_back(self, first: int) -> None:
        """Put back all gangs from position `first` on."""
        while len(self.taken) > first:
            self.trial_ledger.book(self.taken.pop(), 1)

    def fewest(self, order: Iterable[Claim]) -> bool:
        """Preempt the shortest prefix of `order` that makes the newcomer fit; False, without a change, if none does.

        `order` may read the ledger: its next item is requested only after the previous one was preempted.
        """
        few, ask_at = len(self.taken), 0  # `few` preemptions do not suffice
        for other in order:
            self.target(other)
            if not self.trial_ledger.allows():
                few = len(self.taken)
            elif len(self.taken) >= ask_at:
                if self.fits():
                    break
                few = len(self.taken)
                ask_at = 2 * few
        else:
            if few == len(self.taken) or not self.fits():
                self.give_back(0)
                return False
        enough = len(self.taken)
        while enough - few > 1:  # quotas suffice from few + 1 on: only the room is checked
            middle = (few + enough) // 2
            if self.room(_whole(self.taken[:middle])):
                enough = middle
            else:
                few = middle
        self.give_back(enough)
        return True

    def spare(self, allowed: Callable[[], bool] = lambda: True, *, last: bool = False) -> None:
        """Put back gangs that the newcomer does not need, from the last but one to the first, if `allowed`.

        With `last`, the last one is tried too, because a condition was relaxed since. Several gangs are put back
        together where all of them can be, which gives the same result as one after the other.
        """
        self._spare(0, len(self.taken) - (not last), allowed)

    def _spare(self, first: int, end: int, allowed: Callable[[], bool]) -> None:
        if first >= end:
            return
        others = self.taken[first:end]
        del self.taken[first:end]
        self._book(others, 1)
        if allowed() and self.fits():
            return
        self.taken[first:first] = others
        self._book(others, -1)
        if end - first > 1:
            middle = (first + end) // 2
            self._spare(middle, end, allowed)
            self._spare(first, middle, allowed)

    def _book(self, others: Iterable[Claim], sign: int) -> None:
        for other in others:
            self.trial_ledger.book(other, sign)


def _whole(claims: Sequence[Claim]) -> tuple[Target, ...]:
    return tuple(Target(other.row, other.gpus, whole=True) for other in claims)


def started_s(claim: Claim) -> float:
    """Start of a gang; a gang that is still starting counts as the youngest."""
    return inf if isnan(claim.start_s) else claim.start_s
