"""Room made for foreseen replicas is kept for its dwell time, and reversed at most once within an hour.

Room is made where a replica that no load needs, neither at its start nor at the eviction, starts in the place of
weighed evictions. Two things reverse it: the floor of the service falls or lapses, or the evicted job runs again and is
evicted for such a replica again. A floor may fall at once while a service lacks replicas for its load.
"""

from __future__ import annotations

import re
from math import inf

from simulator.checkers.base import World, weighed
from simulator.checkers.replicas import Replicas
from simulator.world.facts import Decided, Evicting, Floored, Started

_PROPOSAL = re.compile(r"\d+/(.+?-[0-9a-f]{8})(?:/|$)")


class Room(Replicas):
    """Follows each proposal from its evictions to the start of a foreseen replica, and the floor of its service."""

    name = "room"

    def __init__(self, world: World) -> None:
        """No room was made yet."""
        super().__init__(world)
        self._decided_s: dict[str, float] = {}  # evictions that were decided and have not happened
        # proposal -> jobs evicted for it, with the time of the decision, and the services that lacked nothing then
        self._evicted: dict[str, tuple[dict[int, float], frozenset[int]]] = {}
        self._stopped_s: dict[int, float] = {}  # job -> when it was last evicted for a foreseen replica
        self._made_s: dict[int, float] = {}  # service -> when room was last made for it
        self._returned_s: dict[int, float] = {}  # service -> when its floor first fell after that

    def on_decided(self, fact: Decided) -> None:
        """The time of a decision counts, not the time of a late effect."""
        if fact.kind == "evict":
            self._decided_s.setdefault(fact.effect, fact.at_s)

    def on_evicting(self, fact: Evicting) -> None:
        """Remember the proposal behind its eviction."""
        at_s, proposal = self._decided_s.pop(fact.effect, fact.at_s), _proposal(fact.effect)
        if weighed(fact) and proposal:
            served = frozenset(each for each in self._needed if not self._lacks(each))
            jobs, before = self._evicted.get(proposal, ({}, served))
            self._evicted[proposal] = ({**jobs, fact.job: at_s}, before & served)

    def on_started(self, fact: Started) -> None:
        """A replica beyond the need of its service: the jobs evicted for its proposal made room."""
        service = self.jobs.service[fact.job]
        jobs, served = self._evicted.get(_proposal(fact.effect), ({}, frozenset[int]()))
        foreseen = service in served and not self._lacks(service)
        super().on_started(fact)
        for job, at_s in jobs.items() if foreseen else ():
            self._made(fact.at_s, service, job, at_s)

    def _made(self, now_s: float, service: int, job: int, at_s: float) -> None:
        """`job` was evicted at `at_s` for a replica of `service`."""
        self.checked += 1
        within_s, ago_s = self.world.rules.room_reversal_s, at_s - self._stopped_s.get(job, -inf)
        if within_s is not None and 0.0 < ago_s < within_s:
            self.violate(
                now_s,
                self.job(job),
                f"was evicted for a foreseen replica {ago_s:g} s after the time before (limit {within_s:g} s)",
            )
        self._stopped_s[job] = at_s
        self._made_s[service] = max(self._made_s.get(service, -inf), at_s)

    def on_floored(self, fact: Floored) -> None:
        """A falling floor returns the room."""
        falls = fact.replicas < self._standing(fact.service, fact.at_s)
        self._lapse(fact.service, fact.at_s)
        self._floor[fact.service] = fact
        made_s, returned_s = self._made_s.get(fact.service, -inf), self._returned_s.get(fact.service, -inf)
        if not falls or made_s <= returned_s:
            return
        self.checked += 1
        rules, subject = self.world.rules, f"service {fact.service}"
        self._returned_s[fact.service] = fact.at_s
        if self._any_lacks():
            return
        if rules.room_dwell_s is not None and fact.at_s - made_s < rules.room_dwell_s:
            kept_s = fact.at_s - made_s
            self.violate(fact.at_s, subject, f"returned its room after {kept_s:g} s (dwell {rules.room_dwell_s:g} s)")
        if rules.room_reversal_s is not None and fact.at_s - returned_s < rules.room_reversal_s:
            ago_s = fact.at_s - returned_s
            self.violate(
                fact.at_s,
                subject,
                f"returned its room {ago_s:g} s after the time before (limit {rules.room_reversal_s:g} s)",
            )

    def _lapse(self, service: int, now_s: float) -> None:
        """A floor left unrenewed returned the room at the end of its lease; the lease may end at any time."""
        made_s, returned_s = self._made_s.get(service, -inf), self._returned_s.get(service, -inf)
        ended_s = self._floor[service].until_s if service in self._floor else inf
        if returned_s < made_s < ended_s <= now_s:
            self._returned_s[service] = ended_s


def _proposal(effect: str) -> str:
    """The proposal in the id of an effect: `tick/proposal`, with or without `/` and more."""
    found = _PROPOSAL.match(effect)
    return found[1] if found else ""
