"""No work is stopped for a job able to start without it, on GPUs already leaving for the job.

Judged are the plain stops of one instant for one beneficiary, in the name of its instructions, by contract or weighed.
The work that was told to leave for the same beneficiary earlier and is still there counts, until the wait for it has
ended or it has exceeded its grace period: it may then be gone for good. Work that moves is no victim here: it may have
to make way for another one that moves. Checked are beneficiaries on whole GPUs whose only requirement is a GPU model,
and that are no replicas: room for replicas is made for several at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from autopilot.core.model.units import counted
from simulator.checkers.base import Checker, World
from simulator.checkers.floor import Floor
from simulator.checkers.owners import least_gpus, sole_model
from simulator.world.facts import Evicting, GpuChanged, NodeChanged, Recut, Started, Stopped, Turned, Why

FOR = re.compile(r"\d+/pipeline-(?P<name>.+)-[0-9a-f]{8}/")
"""The instructions of a proposal that starts work in the place of other work begin so."""


@dataclass(frozen=True, slots=True)
class _Leaver:
    """Work told to leave for a beneficiary."""

    at_s: float
    name: str  # of the beneficiary
    stops: bool  # it does not move
    gpus: tuple[int, ...]


class Needed(Checker):
    """Follows victims from their eviction until they have left, by beneficiary."""

    name = "needed"

    def __init__(self, world: World) -> None:
        """Nothing leaves yet."""
        super().__init__(world)
        self._models = len(world.inventory.names.gpu_models)
        self._floor = Floor(world.inventory)
        self._held: dict[int, Started] = {}
        self._leaving: dict[int, _Leaver] = {}
        self._new: list[int] = []  # victims of this instant
        self._over: set[int] = set()  # those that leave without a start that needs them, once this instant is judged
        self._now_s = 0.0

    def on_evicting(self, fact: Evicting) -> None:
        """It leaves from now on; the instant is judged after its end."""
        self._advance(fact.at_s)
        found = FOR.match(fact.effect)
        if found is None or fact.ahead or fact.drain or fact.job not in self._held:
            return
        gpus = self._held[fact.job].gpus
        self._leaving[fact.job] = _Leaver(fact.at_s, found["name"], fact.why == Why.PREEMPT, gpus)
        self._new.append(fact.job)

    def on_started(self, fact: Started) -> None:
        """It waits for no victim any more."""
        self._advance(fact.at_s)
        self._held[fact.job], name = fact, self.jobs.id[fact.job]
        self._over |= {job for job, each in self._leaving.items() if each.name == name or job == fact.job}

    def on_stopped(self, fact: Stopped) -> None:
        """It has left."""
        self._advance(fact.at_s)
        self._over.add(fact.job)
        self._held.pop(fact.job, None)

    def on_node(self, fact: NodeChanged) -> None:
        """A node takes work, or takes none."""
        self._advance(fact.at_s)
        self._floor.node(fact)

    def on_gpu(self, fact: GpuChanged) -> None:
        """A GPU is usable, or is not."""
        self._advance(fact.at_s)
        self._floor.gpu(fact)

    def on_recut(self, fact: Recut) -> None:
        """A GPU is whole, or is not."""
        self._advance(fact.at_s)
        self._floor.recut(fact)

    def on_turned(self, fact: Turned) -> None:
        """Its GPUs are given out by shares, or whole again."""
        self._advance(fact.at_s)
        self._floor.turned(fact)

    def at_end(self, end_s: float) -> None:
        """Judge the last instant."""
        self._advance(end_s + 1.0)

    def _advance(self, at_s: float) -> None:
        """Judge the instant of the facts so far, once it is over."""
        if at_s <= self._now_s:
            return
        self._judge()
        self._leaving = {job: each for job, each in self._leaving.items() if job not in self._over}
        self._over.clear()
        self._now_s = at_s

    def _judge(self) -> None:
        new, self._new = self._new, []
        for name in dict.fromkeys(self._leaving[job].name for job in new):
            mine = [job for job in new if self._leaving[job].name == name]
            if all(self._leaving[job].stops for job in mine):
                self._judge_for(name, mine)

    def _judge_for(self, name: str, victims: Iterable[int]) -> None:
        beneficiary = self.jobs.id.index(name) if name in self.jobs.id else -1
        if beneficiary < 0 or self.jobs.service[beneficiary] >= 0:
            return
        shape = self.jobs.shape_of(beneficiary)
        model = sole_model(shape, self._models)
        if model is None:
            return
        rules = self.world.rules
        awaited_s = self._now_s - min(rules.landing_s, rules.grace_s or rules.landing_s)
        leaving = [
            job
            for job, each in self._leaving.items()
            if each.name == name and (each.at_s >= awaited_s or each.at_s == self._now_s)
        ]
        for victim in victims:
            self.checked += 1
            others = set(leaving) - {victim}
            given = {gpu for job in others for gpu in self._leaving[job].gpus}
            given -= {gpu for job, each in self._held.items() if job not in others for gpu in each.gpus}  # shared ones
            room = self._floor.idle(gpu for gpu in range(len(self._floor.node_of)) if gpu not in given)
            if self._floor.put(room, least_gpus(shape), shape.per_member, model):
                told = counted(len(others), "other gang leaves|other gangs leave")
                self.violate(
                    self._now_s,
                    self.job(victim),
                    f"stopped for job {name}, which can start on {counted(least_gpus(shape), 'GPU')} without it: "
                    f"{told} for that job already, with {counted(len(given), 'GPU')}",
                )
                return
