"""Facts of services that are scaled down: with a bug in each, and without one."""

from __future__ import annotations

from simulator.world.facts import Decided, Fact, Scaled
from tests.simulation.fact_builders import ceiled

CEILINGS: list[tuple[str, str, list[Fact]]] = [
    ("ceilings", "scaled down to 0, its owner keeps 1 replica", [ceiled(0, wakes=True)]),
    ("ceilings", "no signal would wake it", [ceiled(0, least=0)]),
    ("ceilings", "while it has requests", [ceiled(1, busy=True)]),
    ("ceilings", "for 3601 s (at most 3600 s)", [ceiled(1, 10.0, 3611.0)]),
    ("ceilings", "is scaled to 2 replicas, its ceiling is 1", [ceiled(1), Scaled(20.0, 0, 2, 2, 0)]),
    ("modes", "shrink_idle may not act on its own", [ceiled(1)]),
    ("effects", "no accepted decision", [ceiled(1, effect="e1")]),
]

CEILINGS_FINE: list[tuple[str, list[Fact]]] = [
    ("effects", [Decided(1.0, "e1", "ceiling", 0), ceiled(1, effect="e1")]),
    ("ceilings", [ceiled(1), Scaled(20.0, 0, 1, 1, 0), ceiled(-1, 30.0, 30.0, busy=True), Scaled(40.0, 0, 2, 2, 0)]),
    ("ceilings", [ceiled(0, least=0, wakes=True), Scaled(1000.0, 0, 2, 2, 0)]),
]
