"""Disruption budgets hold in every window, wherever it starts, and concurrently; only weighed evictions are counted."""

from __future__ import annotations

from collections import deque

from simulator.checkers.base import Checker, World, weighed
from simulator.world.facts import Evicting, Started, Stopped


class Budgets(Checker):
    """Counts disruptions in the window ending at each one: if all of these hold, every window does."""

    name = "budgets"

    def __init__(self, world: World) -> None:
        """No disruptions yet."""
        super().__init__(world)
        self._node_of: list[int] = world.inventory.gpus.node.tolist()
        self._nodes: dict[int, tuple[int, ...]] = {}
        self._times: dict[tuple[str, int], deque[float]] = {}
        self._leaving: set[int] = set()

    def on_started(self, fact: Started) -> None:
        """Remember its nodes."""
        self._nodes[fact.job] = tuple(dict.fromkeys(self._node_of[gpu] for gpu in fact.gpus))

    def on_evicting(self, fact: Evicting) -> None:
        """Count it against every applicable budget."""
        if not weighed(fact):
            return
        self.checked += 1
        rules, tenant = self.world.rules, self.jobs.tenant[fact.job]
        self._spend(fact, "cluster", 0, rules.per_cluster, "the cluster")
        self._spend(fact, "tenant", tenant, rules.per_tenant, f"tenant {self.jobs.tenants[tenant]}")
        for node in self._nodes.get(fact.job, ()):
            self._spend(fact, "node", node, rules.per_node, self.node(node))
        self._leaving.add(fact.job)
        if rules.concurrent is not None and len(self._leaving) > rules.concurrent:
            under_way = len(self._leaving)
            self.violate(
                fact.at_s,
                "the cluster",
                f"{under_way} disruptions under way at once, the limit is {rules.concurrent}",
            )

    def on_stopped(self, fact: Stopped) -> None:
        """It has left."""
        self._leaving.discard(fact.job)

    def _spend(self, fact: Evicting, kind: str, key: int, limit: int | None, whose: str) -> None:
        if limit is None:
            return
        window_s = self.world.rules.window_s
        times = self._times.setdefault((kind, key), deque())
        times.append(fact.at_s)
        while times[0] <= fact.at_s - window_s:
            times.popleft()
        if len(times) > limit:
            self.violate(fact.at_s, whose, f"{len(times)} disruptions within {window_s:g} s, the limit is {limit}")
