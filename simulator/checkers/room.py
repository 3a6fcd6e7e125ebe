"""Room that was made for foreseen replicas is kept for its dwell time, and reversed at most once within an hour.

Room is made where a replica that no load needs starts on GPUs that a weighed eviction took. Two things reverse it: the
floor of the service falls, or the evicted job runs again and is evicted for such a replica again. A floor may fall at
once while a service lacks replicas that its load needs.
"""

from __future__ import annotations

from math import inf

from simulator.checkers.base import World, weighed
from simulator.checkers.replicas import Replicas
from simulator.world.facts import Decided, Evicting, Floored, Started


class Room(Replicas):
    """Follows every GPU from an evicted job to a foreseen replica, and the floor of its service."""

    name = "room"

    def __init__(self, world: World) -> None:
        """No room was made yet."""
        super().__init__(world)
        self._on: dict[int, tuple[int, ...]] = {}  # job -> GPUs that it holds
        self._decided_s: dict[str, float] = {}  # evictions that were decided and have not happened
        self._taken: dict[int, tuple[int, float]] = {}  # GPU -> (job evicted from it, when that was decided)
        self._stopped_s: dict[int, float] = {}  # job -> when it was last evicted for a foreseen replica
        self._made_s: dict[int, float] = {}  # service -> when room was last made for it
        self._returned_s: dict[int, float] = {}  # service -> when its floor first fell after that

    def on_decided(self, fact: Decided) -> None:
        """The time of a decision counts, not that of a late effect."""
        if fact.kind == "evict":
            self._decided_s.setdefault(fact.effect, fact.at_s)

    def on_evicting(self, fact: Evicting) -> None:
        """Its GPUs are taken for the next job on them."""
        at_s = self._decided_s.pop(fact.effect, fact.at_s)
        if weighed(fact):
            self._taken.update(dict.fromkeys(self._on.get(fact.job, ()), (fact.job, at_s)))

    def on_started(self, fact: Started) -> None:
        """A replica beyond the need of its service: the jobs before it made room."""
        service = self.jobs.service[fact.job]
        foreseen = service >= 0 and self._serving.get(service, 0) >= self._needed.get(service, inf)
        super().on_started(fact)
        self._on[fact.job] = fact.gpus
        for job, at_s in sorted({self._taken.pop(gpu) for gpu in fact.gpus if gpu in self._taken}):
            if foreseen and job != fact.job:
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
        """A floor that falls returns the room."""
        falls = fact.replicas < self._standing(fact.service, fact.at_s)
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
