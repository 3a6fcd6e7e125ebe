"""No work starts before it was submitted or after it has ended; resized work continues at once."""

from __future__ import annotations

from simulator.checkers.base import Checker, World
from simulator.world.facts import Resumed, Started, Stopped, Submitted, Why

_GONE = (Why.END, Why.FAIL, Why.RETIRE, Why.SUSPEND, Why.PARK)


class Order(Checker):
    """The life cycle of each job: submitted, started, stopped, ..., ended."""

    name = "order"

    def __init__(self, world: World) -> None:
        """No work yet."""
        super().__init__(world)
        self._waiting: set[int] = set()
        self._at_s = 0.0
        self._resizing: dict[int, float] = {}  # work that continues -> the instant at which it must

    def on_submitted(self, fact: Submitted) -> None:
        """It may start from now on."""
        self._waiting.add(fact.job)
        if fact.at_s < self.jobs.submit_s[fact.job]:
            self.violate(fact.at_s, self.job(fact.job), "was in the queue before its submit time")

    def on_started(self, fact: Started) -> None:
        """It must have been waiting, or continue at the instant of its resize."""
        self.checked += 1
        resized_s = self._resizing.pop(fact.job, None)
        if resized_s is not None and resized_s != fact.at_s:
            self.violate(
                fact.at_s,
                self.job(fact.job),
                f"held nothing for {fact.at_s - resized_s:g} s during its resize",
            )
        if fact.at_s < self._at_s:
            self.violate(fact.at_s, self.job(fact.job), f"time went back from {self._at_s:g} s")
        self._at_s = fact.at_s
        if fact.job not in self._waiting or fact.at_s < self.jobs.submit_s[fact.job]:
            self.violate(fact.at_s, self.job(fact.job), "started without waiting in the queue")
        self._waiting.discard(fact.job)

    def on_stopped(self, fact: Stopped) -> None:
        """It waits again unless it has ended."""
        if fact.why == Why.RESIZE:
            self._resizing[fact.job] = fact.at_s
        if fact.why not in _GONE and fact.why != Why.CUT:
            self._waiting.add(fact.job)

    def on_resumed(self, fact: Resumed) -> None:
        """Parked work waits again."""
        self._waiting.add(fact.job)

    def at_end(self, end_s: float) -> None:
        """No job is left in the middle of a resize."""
        for job, at_s in self._resizing.items():
            self.violate(end_s, self.job(job), f"was resized at {at_s:g} s and never continued")
