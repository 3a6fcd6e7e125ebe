"""Checkers: invariants of every run, recomputed from the facts, independent of the deciding policy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simulator.checkers.advance import Advance
from simulator.checkers.base import Checker, Rules, Violation, World
from simulator.checkers.blast_radius import BlastRadius
from simulator.checkers.budgets import Budgets
from simulator.checkers.capacity import Capacity
from simulator.checkers.ceilings import Ceilings
from simulator.checkers.conservation import Booked, Conservation
from simulator.checkers.effects import Effects
from simulator.checkers.flapping import Flapping
from simulator.checkers.floors import Floors
from simulator.checkers.gangs import Gangs
from simulator.checkers.geometry import Geometry
from simulator.checkers.gpu_errors import Errors
from simulator.checkers.guarantees import Guarantees
from simulator.checkers.healthy import Healthy
from simulator.checkers.limits import Limits
from simulator.checkers.min_runtime import MinRuntime
from simulator.checkers.modes import Modes
from simulator.checkers.moves_ahead import MovesAhead
from simulator.checkers.mps_clients import MpsClients
from simulator.checkers.needed import Needed
from simulator.checkers.nodes import Nodes
from simulator.checkers.notices import Notices
from simulator.checkers.order import Order
from simulator.checkers.preemption_rate import PreemptionRate
from simulator.checkers.protected import Protected
from simulator.checkers.regeometry_rate import RegeometryRate
from simulator.checkers.room import Room
from simulator.checkers.shared_count import SharedCount
from simulator.checkers.shared_memory import SharedMemory
from simulator.checkers.shared_trust import SharedTrust
from simulator.checkers.slo import Slo
from simulator.checkers.turned_nodes import TurnedNodes

__all__ = ["CHECKERS", "PHYSICAL", "CheckerSet", "Rules", "Violation", "World"]

CHECKERS: dict[str, type[Checker]] = {
    checker.name: checker
    for checker in (
        Capacity,
        Geometry,
        Gangs,
        Order,
        Nodes,
        Protected,
        Conservation,
        MinRuntime,
        Budgets,
        PreemptionRate,
        BlastRadius,
        Needed,
        Flapping,
        Slo,
        Limits,
        Errors,
        Healthy,
        Advance,
        Floors,
        Ceilings,
        Room,
        Guarantees,
        RegeometryRate,
        Effects,
        Modes,
        MovesAhead,
        Notices,
        SharedTrust,
        SharedCount,
        SharedMemory,
        TurnedNodes,
        MpsClients,
    )
}

PHYSICAL = ("capacity", "geometry", "gangs", "order", "nodes", "protected", "conservation")
"""Checkers that hold for any policy; the others hold for the autopilot's policy."""


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of all checkers together."""

    checked: int
    violations: tuple[Violation, ...]


class CheckerSet:
    """Some checkers on one run."""

    def __init__(self, world: World, names: Iterable[str] = PHYSICAL) -> None:
        """`names` are keys of CHECKERS."""
        self.checkers = [CHECKERS[name](world) for name in names]

    def close(self, end_s: float, capacity: int, idle: int, by_tenant: tuple[Booked, ...]) -> Found:
        """End the run: compare with the accounts (integers of simulator/running/accounting.py) and collect the
        violations.
        """
        for checker in self.checkers:
            if isinstance(checker, Conservation):
                checker.compare(end_s, capacity, idle, by_tenant)
            checker.at_end(end_s)
        violations = sorted((v for c in self.checkers for v in c.violations), key=lambda v: v.at_s)
        return Found(sum(checker.checked for checker in self.checkers), tuple(violations))
