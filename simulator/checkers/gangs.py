"""A gang starts whole or not at all, on hardware open to it, and is resized by whole members."""

from __future__ import annotations

from collections import Counter

from autopilot.core.model.units import counted
from simulator.checkers.base import Checker, World
from simulator.world.facts import Started, Stopped, Why


class Gangs(Checker):
    """All members at once (or at least `min_gpus` of an elastic gang), each on one node, of an allowed model.

    A resized gang keeps some of its GPUs, or all of them and gets more.
    """

    name = "gangs"

    def __init__(self, world: World) -> None:
        """Precompute the constants."""
        super().__init__(world)
        self._node_of: list[int] = world.inventory.gpus.node.tolist()
        self._model_of: list[int] = world.inventory.nodes.gpu_model.tolist()
        self._held: dict[int, tuple[int, ...]] = {}
        self._resizing: set[int] = set()

    def on_stopped(self, fact: Stopped) -> None:
        """Remember the GPUs of a continuing gang."""
        if fact.why == Why.RESIZE:
            self._resizing.add(fact.job)
        else:
            self._held.pop(fact.job, None)

    def on_started(self, fact: Started) -> None:
        """Compare the allocation with the request, and with the previous allocation."""
        self.checked += 1
        if fact.job in self._resizing:
            self._resized(fact)
        self._held[fact.job] = fact.gpus
        shape = self.jobs.shapes[self.jobs.shape[fact.job]]
        got = len(fact.instances) if shape.profile else len(fact.gpus)
        if got != shape.gpus and not (shape.whole and shape.min_gpus <= got < shape.gpus):
            self.violate(fact.at_s, self.job(fact.job), f"started with {got} of its {counted(shape.gpus, 'GPU')}")
        if got > 1 and shape.whole:
            self._members(fact, shape.per_member)
        if shape.models:
            for gpu in fact.gpus:
                if not shape.models >> self._model_of[self._node_of[gpu]] & 1:
                    self.violate(fact.at_s, self.job(fact.job), f"{self.gpu(gpu)} is of a model that it may not use")

    def _resized(self, fact: Started) -> None:
        self._resizing.discard(fact.job)
        was, now = set(self._held.get(fact.job, ())), set(fact.gpus)
        if not (was < now or now < was):
            kept = len(was & now)
            self.violate(
                fact.at_s,
                self.job(fact.job),
                f"was resized from {len(was)} to {counted(len(now), 'GPU')} and kept {kept} of them: "
                "neither a growth nor a shrink",
            )

    def _members(self, fact: Started, per_member: int) -> None:
        counts = Counter(self._node_of[gpu] for gpu in fact.gpus)
        full = sum(count // per_member for count in counts.values())
        odd = [count % per_member for count in counts.values() if count % per_member]
        rest = len(fact.gpus) % per_member
        if full != len(fact.gpus) // per_member or odd != [rest] * bool(rest):
            self.violate(fact.at_s, self.job(fact.job), f"a member of {counted(per_member, 'GPU')} is split over nodes")
