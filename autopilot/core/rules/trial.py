"""Taking gangs away on paper, one after the other, until a newcomer fits; then giving back whom it does not need.

Shared by the rule sets that name victims in an order (cohorts, elastic quotas). Each brings its own quota
arithmetic as a `Ledger`, with the newcomer booked on it, and its own order as an iterator. Quotas and room only
get wider with every taking, which lets the search double its steps and then halve the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf, isnan
from typing import Protocol

from autopilot.core.quota.ledger import EPSILON, QuotaLedger
from autopilot.core.rules.base import Claim, Fits, Target


class Ledger(Protocol):
    """A working copy of quotas on which the newcomer is booked."""

    def book(self, other: Claim, sign: int) -> None:
        """Take a running gang off (-1) or put it back (+1)."""
        ...

    def allows(self) -> bool:
        """Is the newcomer, as booked now, inside its quotas?"""
        ...


class Limits:
    """Hard limits along the newcomer's path with it booked: what each of them leaves."""

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
        """Take a running gang off (-1) or put it back (+1)."""
        for kind in other.kinds if self._left else ():
            for queue in (*self._paths[other.queue], 0):
                if (kind, queue) in self._left:
                    self._left[kind, queue] -= sign * other.gpus

    def allow(self) -> bool:
        """True when no limit is exceeded."""
        return all(left >= -EPSILON for left in self._left.values())


class Trial:
    """The gangs that are taken so far, on a ledger and asked of the room."""

    def __init__(self, trial_ledger: Ledger, room: Fits) -> None:
        self.trial_ledger, self.room = trial_ledger, room
        self.taken: list[Claim] = []
        self.lacked_room = False  # quotas sufficed after some taking, and the room did not

    def fits(self) -> bool:
        """Quotas first: asking for room is dear."""
        if not self.trial_ledger.allows():
            return False
        found = self.room(self.answer())
        self.lacked_room |= not found and bool(self.taken)
        return found

    def answer(self) -> tuple[Target, ...]:
        """What is taken, in the order in which it was."""
        return _whole(self.taken)

    def target(self, other: Claim) -> None:
        """Take one more gang, whole."""
        self.taken.append(other)
        self.trial_ledger.book(other, -1)

    def give_back(self, first: int) -> None:
        """Give back all that was taken from position `first` on."""
        while len(self.taken) > first:
            self.trial_ledger.book(self.taken.pop(), 1)

    def fewest(self, order: Iterable[Claim]) -> bool:
        """Take the shortest beginning of `order` that makes the newcomer fit; False, and nothing taken, when none does.

        `order` may look at the ledger: it is asked for the next only after the one before was taken.
        """
        few, ask_at = len(self.taken), 0  # `few` takings do not suffice
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
        while enough - few > 1:  # quotas suffice from few + 1 on: only the room is asked
            middle = (few + enough) // 2
            if self.room(_whole(self.taken[:middle])):
                enough = middle
            else:
                few = middle
        self.give_back(enough)
        return True

    def spare(self, allowed: Callable[[], bool] = lambda: True, *, last: bool = False) -> None:
        """Give back whom the newcomer does not need, from the last but one to the first, as far as `allowed`.

        With `last` the last one too: something has become easier since it was taken. Many go back at once where they
        all can, which is the same as one after the other.
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
    """When it started; a gang that is still starting is the youngest of all."""
    return inf if isnan(claim.start_s) else claim.start_s
