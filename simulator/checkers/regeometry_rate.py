"""MIG geometries are semi-static: few changes of a pool in an hour, a dwell time for each GPU, and no way back.

A GPU with MIG mode turned on or off does not turn it back, for any geometry: not from A to whole to B either.

Counts only changes started by an effect of the controller.
"""

from __future__ import annotations

from simulator.checkers.base import Checker, World
from simulator.world.facts import Recutting

HOUR_S = 3600.0
Cuts = frozenset[tuple[str, int]]


class RegeometryRate(Checker):
    """Tracks the begin and end of changes, the last geometry of each GPU, and the switches of its MIG mode."""

    name = "regeometry-rate"

    def __init__(self, world: World) -> None:
        """No changes yet."""
        super().__init__(world)
        self._pool = world.inventory.nodes.pool[world.inventory.gpus.node].tolist()
        self._begun_s: dict[int, list[float]] = {}
        self._ended_s: dict[int, float] = {}
        self._left: dict[int, tuple[Cuts, float]] = {}
        self._turned_s: dict[int, float] = {}

    def on_recutting(self, fact: Recutting) -> None:
        """Judge the begin; remember the end."""
        if not fact.begins:
            self._ended_s[fact.gpu] = fact.at_s
            if fact.before != fact.after:
                self._left[fact.gpu] = frozenset(fact.before), fact.at_s
            if fact.turns:
                self._turned_s[fact.gpu] = fact.at_s
            return
        rules = self.world.rules
        if not fact.effect or rules.recuts_per_hour is None:
            return
        self.checked += 1
        begun_s = self._begun_s.setdefault(self._pool[fact.gpu], [])
        begun_s[:] = [*(at_s for at_s in begun_s if at_s + HOUR_S > fact.at_s), fact.at_s]
        if len(begun_s) > rules.recuts_per_hour:
            pool = self.world.inventory.names.pools[self._pool[fact.gpu]]
            counts = f"{len(begun_s)} changes of MIG geometry within an hour (limit {rules.recuts_per_hour})"
            self.violate(fact.at_s, f"pool {pool}", counts)
        kept_s = fact.at_s - self._ended_s.get(fact.gpu, float("-inf"))
        if kept_s < rules.recut_dwell_s:
            kept = f"is cut again {kept_s:g} s after its last change (dwell {rules.recut_dwell_s:g} s)"
            self.violate(fact.at_s, self.gpu(fact.gpu), kept)
        left, left_s = self._left.get(fact.gpu, (None, float("-inf")))
        if left == frozenset(fact.after) and fact.at_s - left_s < rules.recut_return_s:
            ago_s = fact.at_s - left_s
            self.violate(fact.at_s, self.gpu(fact.gpu), f"returns to the geometry that it left {ago_s:g} s ago")
        turned_s = fact.at_s - self._turned_s.get(fact.gpu, float("-inf"))
        if fact.turns and turned_s < rules.recut_return_s:
            self.violate(fact.at_s, self.gpu(fact.gpu), f"turns MIG mode back {turned_s:g} s after it turned it")
