"""What the search for places asks of every kind of capacity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autopilot.core.model.policy.bounds import PlacementWeights
from autopilot.core.model.snapshot import F64, I32
from autopilot.core.placement.shapes import Fit, Miss, Shape
from autopilot.core.placement.whatif import WhatIf


@dataclass(frozen=True, slots=True)
class Wanted:
    """A gang of equal members, and where it may go.

    `room` [nodes]: whole GPUs for the gang. `node_end_s` [nodes] and `end_s` (predicted ends, s) feed the drain term of
    the score. `apart` [nodes]: a price of each node in favour of other work, taken off its score. `barred`: rows of
    instances held for others.
    """

    shape: Shape
    room: I32
    weights: PlacementWeights
    memory_mib_of_model: F64
    node_end_s: F64 | None
    end_s: float
    apart: F64 | None
    barred: I32 | None


@dataclass(frozen=True, slots=True)
class Team:
    """A gang of differing members, with its limits.

    `members`: rows of MemberTable. `may_be(gpus)`: True if quota allows a start at this width.
    """

    row: int
    members: Sequence[int]
    may_be: Callable[[int], bool]
    memory_mib_of_model: F64
    spread: bool  # the emptiest node first


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of capacity: the requests that it serves, and the two searches. Ties go to the lowest row."""

    name: str
    serves: Callable[[Shape], bool]
    find: Callable[[WhatIf, Wanted], Fit | Miss]
    find_members: Callable[[WhatIf, Team, I32], Fit | Miss]


def joined_labels(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The labels of two selectors."""
    return tuple(sorted({*one, *other})) if other else one
