"""Owners of interactive work: their absences, and their acts at the return.

The schedule of an owner begins with the first start of the work and follows `simulator.signals.owners.absences`. During
an absence the GPUs do nothing. An owner who returns to parked work resumes it: it waits for GPUs again. An owner who
does not return gives parked work up after the run time of the job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from simulator.running.engine import Engine
from simulator.signals.behaviours import KINDS, Archetype
from simulator.signals.owners import absences
from simulator.world.cluster import Cluster
from simulator.world.facts import Resumed, Started, Stopped, Why, Withdrawn

Listener = Callable[[int, float, bool], None]
"""Called with (job, time, whether its owner is away from then on)."""


@dataclass(frozen=True, slots=True)
class Absence:
    """One absence of the owner of a job; `to_s` is inf without a return within the run time of the job."""

    job: int
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Suspension:
    """Parked work, until its owner resumes it or gives it up; `to_s` is inf while it is parked."""

    job: int
    from_s: float
    to_s: float = inf
    returned: bool = False


class Owners:
    """Observes a cluster, and acts for the owners of its interactive work."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        """All owners are there."""
        self._cluster, self._seed = cluster, seed
        self._engine: Engine | None = None
        self._met: set[int] = set()
        self._ends_s: dict[int, float] = {}  # when an owner gives parked work up
        self.away: set[int] = set()
        self.absences: list[Absence] = []
        self.suspensions: list[Suspension] = []
        self._parked: dict[int, int] = {}  # job -> its entry in `suspensions`
        self.listeners: list[Listener] = []
        cluster.observe(self)

    def arm(self, engine: Engine) -> None:
        """The engine calls owners back at their times."""
        self._engine = engine

    def on_started(self, fact: Started) -> None:
        """The first start of a job begins the schedule of its owner."""
        jobs = self._cluster.jobs
        if fact.job in self._met or KINDS.get(jobs.kind[fact.job]) != Archetype.INTERMITTENT:
            return
        self._met.add(fact.job)
        begin_s, length_s = fact.at_s, jobs.duration_s[fact.job]
        for from_s, to_s in absences(self._seed, jobs.id[fact.job], length_s):
            absence = Absence(fact.job, begin_s + from_s, begin_s + to_s)
            self.absences.append(absence)
            self._at(absence.from_s, partial(self._leave, fact.job))
            if to_s < inf:
                self._at(absence.to_s, partial(self._return, fact.job))
        self._ends_s[fact.job] = begin_s + length_s
        self._at(begin_s + length_s, partial(self._give_up, fact.job))

    def on_stopped(self, fact: Stopped) -> None:
        """Ended work has no absent owner; work parked after the return of its owner is resumed at once."""
        if fact.why == Why.PARK:
            self._parked[fact.job] = len(self.suspensions)
            self.suspensions.append(Suspension(fact.job, fact.at_s))
        if fact.why == Why.PARK and fact.job not in self.away:
            self._at(fact.at_s, partial(self._return, fact.job))
        elif fact.why == Why.PARK and fact.at_s >= self._ends_s.get(fact.job, inf):
            self._at(fact.at_s, partial(self._give_up, fact.job))
        if fact.why not in {Why.CUT, Why.RESIZE} and self._cluster.state[fact.job] > 0:
            self.away.discard(fact.job)

    def on_resumed(self, fact: Resumed) -> None:
        """The suspension is over."""
        self._end(fact.job, fact.at_s, returned=True)

    def on_withdrawn(self, fact: Withdrawn) -> None:
        """Parked work was given up."""
        self._end(fact.job, fact.at_s, returned=False)

    def _end(self, job: int, at_s: float, *, returned: bool) -> None:
        at = self._parked.pop(job, None)
        if at is not None:
            self.suspensions[at] = replace(self.suspensions[at], to_s=at_s, returned=returned)

    def _at(self, at_s: float, act: Callable[[float], None]) -> None:
        if self._engine is not None:
            self._engine.at(at_s, act)

    def _leave(self, job: int, now_s: float) -> None:
        if self._cluster.state[job] in range(4):
            self.away.add(job)
            for each in self.listeners:
                each(job, now_s, True)

    def _return(self, job: int, now_s: float) -> None:
        self.away.discard(job)
        self._cluster.resume(job, now_s)
        for each in self.listeners:
            each(job, now_s, False)

    def _give_up(self, job: int, now_s: float) -> None:
        if job in self._cluster.parked:
            self._cluster.retire(job, now_s)
