"""Facts of changes that stop a GPU or node, and of cordons: with a bug in each."""

from __future__ import annotations

from simulator.world.facts import Cordoned, Fact, Recutting
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
    (
        "gpu-errors",
        "was cordoned without an error that asks for its restart",
        [Cordoned(5.0, 0, True, "e1")],
    ),
    ("gpu-errors", "the autopilot had not cordoned it", [Cordoned(5.0, 0, False, "e1")]),
    ("modes", "is cordoned or opened although recover", [Cordoned(5.0, 0, True, "e1")]),
    ("effects", "cordon: effect 'e1' has no", [Cordoned(5.0, 0, True, "e1")]),
]
