"""Every MIG geometry is legal, recomputed from the facts of the GPU model; work gets the requested profile.

A change of geometry starts from the present geometry, ends with the reported one, and is the only one of its
GPU. No work starts on a whole GPU that changes. If the engine stops a GPU or node for a change, nothing runs there
at its begin, and nothing starts before its end.
"""

from __future__ import annotations

from collections import Counter

from autopilot.core.hardware.mig import find_gpu_model
from simulator.checkers.base import Checker, World
from simulator.world.facts import Recut, Recutting, Started, Stopped, Why

Cuts = tuple[tuple[int, str, int], ...]


class Geometry(Checker):
    """Slices of one GPU never overlap, start at the driver's starts, and stay within the counts."""

    name = "geometry"

    def __init__(self, world: World) -> None:
        """Take the geometries of the inventory, and check them too."""
        super().__init__(world)
        inventory, table = world.inventory, world.inventory.instances
        models = [find_gpu_model(name) for name in inventory.names.gpu_models]
        self._model = [models[inventory.nodes.gpu_model[node]] for node in inventory.gpus.node]
        self._profile: dict[int, str] = {}
        self._rows: dict[int, list[int]] = {}
        self._present: dict[int, set[tuple[str, int]]] = {}
        self._changing: set[int] = set()
        self._node = inventory.gpus.node.tolist()
        self._held: dict[int, tuple[int, ...]] = {}  # GPUs by job
        self._stopped: dict[int, frozenset[int]] = {}  # by GPU that changes: those that its engine stops
        cuts: dict[int, list[tuple[int, str, int]]] = {}
        for row, gpu in enumerate(table.gpu.tolist()):
            entry = (row, inventory.names.profiles[table.profile[row]], int(table.start[row]))
            cuts.setdefault(gpu, []).append(entry)
        for gpu, instances in cuts.items():
            self.on_recut(Recut(0.0, gpu, tuple(instances)))

    def on_recut(self, fact: Recut) -> None:
        """Judge the new geometry and record its instances."""
        self.checked += 1
        for row in self._rows.get(fact.gpu, []):
            self._profile.pop(row, None)
        self._rows[fact.gpu] = [row for row, _, _ in fact.instances]
        self._profile.update({row: profile for row, profile, _ in fact.instances})
        self._present[fact.gpu] = {(profile, start) for _, profile, start in fact.instances}
        reason = self._fault(fact.gpu, fact.instances)
        if reason:
            self.violate(fact.at_s, self.gpu(fact.gpu), reason)

    def on_recutting(self, fact: Recutting) -> None:
        """Judge the start or the end of a change."""
        self.checked += 1
        if fact.begins == (fact.gpu in self._changing):
            wrong = (
                "begins a second change of geometry" if fact.begins else "ends a change of geometry that never began"
            )
            self.violate(fact.at_s, self.gpu(fact.gpu), wrong)
        (self._changing.add if fact.begins else self._changing.discard)(fact.gpu)
        if fact.begins and fact.scope != "instance":
            self._stops(fact)
        elif not fact.begins:
            self._stopped.pop(fact.gpu, None)
        if set(fact.before if fact.begins else fact.after) != self._present.get(fact.gpu, set()):
            when = "starts from" if fact.begins else "ends with"
            self.violate(fact.at_s, self.gpu(fact.gpu), f"{when} a geometry that it does not have")

    def _stops(self, fact: Recutting) -> None:
        """Nothing may run on GPUs with all clients stopped by the engine."""
        node = self._node[fact.gpu]
        same = [gpu for gpu, each in enumerate(self._node) if each == node]
        self._stopped[fact.gpu] = frozenset(same if fact.scope == "node" else (fact.gpu,))
        for job, gpus in sorted(self._held.items()):
            if not self._stopped[fact.gpu].isdisjoint(gpus):
                self.violate(
                    fact.at_s, self.gpu(fact.gpu), f"is cut anew while {self.job(job)} runs on its {fact.scope}"
                )

    def on_stopped(self, fact: Stopped) -> None:
        """It holds nothing any more."""
        if fact.why != Why.CUT:
            self._held.pop(fact.job, None)

    def _fault(self, gpu: int, instances: Cuts) -> str:
        model = self._model[gpu]
        if model is None:
            return "is partitioned although its model has no MIG" if instances else ""
        facts = {profile.name: profile for profile in model.profiles}
        taken = 0
        counts = Counter(profile for _, profile, _ in instances)
        for _, name, start in instances:
            profile = facts.get(name)
            if profile is None or start not in profile.starts:
                return f"has an instance {name} at slice {start}, which is not a legal placement"
            mask = ((1 << profile.memory_slices) - 1) << start
            if taken & mask:
                return f"has an instance {name} at slice {start} that overlaps another"
            taken |= mask
        if any(count > facts[name].max_instances for name, count in counts.items()):
            return "has more instances of a profile than the model allows"
        if sum(facts[name].media_extension for name in counts.elements()) > 1:
            return "has two instances with the media extension"
        return ""

    def on_started(self, fact: Started) -> None:
        """Work gets existing instances of its profile, and no whole GPU in a change."""
        self._held[fact.job] = fact.gpus
        for gpu, stopped in self._stopped.items():
            if not stopped.isdisjoint(fact.gpus):
                self.violate(fact.at_s, self.job(fact.job), f"started where the engine stops all for {self.gpu(gpu)}")
        if not fact.instances:
            for gpu in self._changing.intersection(fact.gpus):
                self.violate(fact.at_s, self.job(fact.job), f"started on {self.gpu(gpu)}, whose geometry changes")
            return
        self.checked += 1
        wanted = self.jobs.shape_of(fact.job).profile
        for row in fact.instances:
            if self._profile.get(row) != wanted:
                self.violate(fact.at_s, self.job(fact.job), f"instance {row} is not a {wanted}")
