"""Work that waits at a step boundary because it was asked to: it keeps its GPUs and memory, and does nothing.

Work that saves on request has the helper that takes such requests. A pause ends by itself, as the helper ends it, and
by a stop of the work. The time of the step under way is left out: a pause begins at once.
"""

from __future__ import annotations

from math import inf

from autopilot.core.model.snapshot import State
from simulator.world.allocation import Refusal
from simulator.world.facts import Paused
from simulator.world.gains import END, Gaining
from simulator.world.physics import up_to_grid

RESUME = 8
"""Kind of the event that a pause ends by itself, for the engine."""


class Pauses:
    """The paused work of one cluster."""

    def __init__(self, cluster: Gaining) -> None:
        """Nothing is paused."""
        self._cluster = cluster
        self._until_s: dict[int, float] = {}
        self._due_s: dict[int, float] = {}  # end of work that was paused, on whole GPUs

    def begin(
        self, job: int, seconds: float, now_s: float, *, effect: str = "", incarnation: int | None = None
    ) -> Refusal | None:
        """Pause running work for `seconds` from now, in place of an earlier request."""
        cluster = self._cluster
        if cluster.state[job] != State.RUNNING:
            return Refusal.NOT_HOLDING
        if incarnation is not None and incarnation != cluster.incarnation[job]:
            return Refusal.OTHER_INCARNATION
        if job in cluster.leaving:
            return Refusal.LEAVING
        if job in cluster.stale:
            return Refusal.STALE
        if not cluster.jobs.saves_on_request[job] or cluster.jobs.service[job] >= 0:
            return Refusal.NO_HELPER
        self._until_s[job] = until_s = up_to_grid(now_s + seconds)
        cluster.schedule(until_s, RESUME, job, cluster.incarnation[job])
        again = job in cluster.paused
        cluster.paused.setdefault(job, now_s)
        cluster.publish(Paused(now_s, job, True, effect))
        if not again:
            cluster.halted(job, now_s)
        return None

    def end(self, job: int, now_s: float, *, effect: str = "", incarnation: int | None = None) -> Refusal | None:
        """Go on."""
        cluster = self._cluster
        if job not in cluster.paused:
            return Refusal.NOT_PAUSED
        if incarnation is not None and incarnation != cluster.incarnation[job]:
            return Refusal.OTHER_INCARNATION
        since_s = cluster.paused.pop(job)
        del self._until_s[job]
        if cluster.paced_s(job, now_s) is None:
            cluster.waited_s[job] = cluster.waited_s.get(job, 0.0) + now_s - since_s
            self._due_s[job] = due_s = cluster.ready_s[job] + cluster.waited_s[job] + cluster.left_s(job)
            if due_s < inf:
                cluster.schedule(due_s, END, job, cluster.incarnation[job])
        cluster.publish(Paused(now_s, job, False, effect))
        cluster.halted(job, now_s)
        return None

    def over(self, job: int, now_s: float, incarnation: int) -> bool:
        """A pause ends by itself; False if it was asked for again, or has ended."""
        if self._cluster.incarnation[job] != incarnation or now_s < self._until_s.get(job, now_s + 1.0):
            return False
        return self.end(job, now_s) is None

    def goes_on(self, job: int, now_s: float) -> bool:
        """True where the end of the work comes later, because it is or was paused."""
        return job in self._cluster.paused or now_s < self._due_s.get(job, now_s)

    def left(self, job: int) -> None:
        """It left its GPUs."""
        self._cluster.paused.pop(job, None)
        self._cluster.waited_s.pop(job, None)
        self._until_s.pop(job, None)
        self._due_s.pop(job, None)
