"""Facts of changes of MIG geometry that stop a GPU or node: with a bug in each."""

from __future__ import annotations

from simulator.world.facts import Fact, Recutting
from tests.simulation.fact_builders import started

THREES = (("3g.40gb", 0), ("3g.40gb", 4))

SCOPES: list[tuple[str, str, list[Fact]]] = [
    (
        "geometry",
        "is cut anew while job job-0 runs on its node",
        [started(0, [1]), Recutting(15.0, 0, True, (), THREES, "", "node")],
    ),
    (
        "geometry",
        "is cut anew while job job-0 runs on its gpu",
        [started(0, [0]), Recutting(15.0, 0, True, (), THREES, "", "gpu")],
    ),
    (
        "geometry",
        "started where the engine stops all for",
        [Recutting(5.0, 0, True, (), THREES, "", "node"), started(0, [1])],
    ),
]
