"""The declared protection of work, as a checker sees it, and its extent.

Protected work counts against the guarantee of its queue, for any kind of protection. Work that started protected comes
first, then late work, the earliest first: it was declared protected while it ran, or did not fit at its start by
another controller. The part of late and opted-out work above the guarantee is lent. Amounts are thousandths of a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from simulator.checkers.base import World
from simulator.checkers.owners import Owners, held_milli
from simulator.world.facts import Declared, Started

STARTED, NEW, LATE = 0, 1, 2


class Declarations:
    """The protection of each job with GPUs, and its start."""

    def __init__(self, world: World, owners: Owners) -> None:
        """No work yet."""
        gpus, nodes = world.inventory.gpus, world.inventory.nodes
        self._model_of: list[int] = nodes.gpu_model[gpus.node].tolist()
        self._world, self._owners = world, owners
        self._out = set(world.rules.excluded)
        self._turn: dict[int, tuple[int, int]] = {}  # STARTED, NEW or LATE, and a number that grows
        self._unprotected: set[int] = set()  # ran without protection since their start
        self._number = 0

    def _guarantees(self) -> list[list[int]]:
        """By queue and model: its guarantee, or the sum of those below it if larger."""
        owners = self._owners
        found = [list(owed) for owed in owners.guarantee]
        below = [[0] * len(owed) for owed in found]
        for queue in sorted(range(len(found)), key=lambda each: -len(owners.paths[each])):  # the lowest first
            found[queue] = list(map(max, found[queue], below[queue]))
            for above in owners.paths[queue][1:2]:
                below[above] = list(map(sum, zip(below[above], found[queue], strict=True)))
        return found

    def protected(self, job: int) -> bool:
        """True if its owner, or its class, asks for protection now."""
        jobs = self._world.jobs
        sheltered = jobs.slo_class[job] in self._world.rules.sheltered_classes
        return sheltered or job in self._out or not jobs.preemptible[job]

    def out(self, job: int) -> bool:
        """True if it opted out."""
        return job in self._out

    def late(self, job: int) -> bool:
        """True if it was declared protected while it ran, or did not fit at its start by another controller."""
        return self._turn.get(job, (STARTED, 0))[0] == LATE

    def started(self, fact: Started, held: Mapping[int, Started]) -> None:
        """It holds GPUs, or goes on with more or fewer. `held`: with this."""
        job = fact.job
        if job not in self._turn and job not in self._unprotected:
            self._note(job)
            if job in self._turn and not fact.effect:  # the controller did not start it
                number = self._turn[job][1]
                self._turn[job] = (NEW, number)
                self._turn[job] = (LATE if job in self.lent(held) else STARTED, number)

    def stopped(self, job: int) -> None:
        """It holds none."""
        self._turn.pop(job, None)
        self._unprotected.discard(job)

    def declared(self, fact: Declared, *, holds: bool) -> None:
        """Its owner declares something else."""
        (self._out.add if fact.excluded else self._out.discard)(fact.job)
        if holds:
            self._note(fact.job)

    def _note(self, job: int) -> None:
        if not self.protected(job):
            self._turn.pop(job, None)
            self._unprotected.add(job)
        elif job not in self._turn:
            self._number += 1
            self._turn[job] = (LATE if job in self._unprotected else STARTED, self._number)

    def lent(self, held: Mapping[int, Started]) -> set[int]:
        """Protected jobs with GPUs beyond the guarantees of their queues."""
        owners, taken, guarantee = self._owners, Counter[tuple[int, int]](), self._guarantees()
        found = set()
        for job in sorted(self._turn.keys() & held.keys(), key=self._turn.__getitem__) if owners.promised else ():
            each = held_milli(self._world.jobs.shape_of(job), held[job])
            width: Counter[int] = Counter()
            for gpu in held[job].gpus:
                width[self._model_of[gpu]] += each
                width[-1] += each
            needs = {
                (queue, model): milli for queue in owners.paths[owners.queue(job)] for model, milli in width.items()
            }
            fixed = self._turn[job][0] == STARTED and job not in self._out
            if fixed or all(taken[key] + milli <= guarantee[key[0]][key[1]] for key, milli in needs.items()):
                taken.update(needs)
            else:
                found.add(job)
        return found
