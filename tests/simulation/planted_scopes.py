"""Facts of changes that stop a GPU or node, and of cordons: with a bug in each."""

from __future__ import annotations

from simulator.world.facts import Cordoned, Fact, Recutting
from tests.simulation.fact_builders import recut, started

THREES = (("3g.40gb", 0), ("3g.40gb", 4))
SEVEN = (("7g.80gb", 0),)


def turned(at_s: float, *, back_s: float, on: bool) -> list[Fact]:
    """GPU 24 turns MIG mode off, and on again with another geometry, or the other way round; each takes 60 s."""
    first, then = (((), SEVEN), (THREES, ())) if on else ((THREES, ()), ((), SEVEN))
    facts = [recut(24, at_s, *first), recut(24, at_s + 60.0, *first, ends=True), recut(24, at_s + 60.0 + back_s, *then)]
    return [fact._replace(turns=True) for fact in facts]


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
    ("regeometry-rate", "turns MIG mode back 3599 s after", turned(10.0, back_s=3599.0, on=False)),
    ("regeometry-rate", "turns MIG mode back 3599 s after", turned(10.0, back_s=3599.0, on=True)),
    ("modes", "is cordoned or opened although recover", [Cordoned(5.0, 0, True, "e1")]),
    ("effects", "cordon: effect 'e1' has no", [Cordoned(5.0, 0, True, "e1")]),
]

SCOPES_FINE: list[tuple[str, list[Fact]]] = [
    ("regeometry-rate", turned(10.0, back_s=3600.0, on=on)) for on in (False, True)
]
