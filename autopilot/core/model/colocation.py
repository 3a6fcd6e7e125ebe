"""How work shares a GPU, and what is learned of pairs that did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from autopilot.core.model.objects import Sharing


class Mechanism(StrEnum):
    """What divides a GPU between programs. The values are those of the tables of measured pairs."""

    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MIG = "mig"


MECHANISMS = {Sharing.TIME_SLICING: Mechanism.TIME_SLICING, Sharing.MPS: Mechanism.MPS}
"""Of nodes that software shares."""


class Pair(NamedTuple):
    """One kind of work beside another (core/model/kinds.py), in this direction; `other` is "" for a MIG instance."""

    own: str
    other: str
    mechanism: Mechanism
    gpu_model: str


@dataclass(frozen=True, slots=True)
class Colocation:
    """What the serving model adds to the relative rates of the rule of core/sharing/colocation.py.

    `weights`, by mechanism and model of GPU, multiply the use of the work, that of the other, and their product: they
    hold for kinds that were never seen. `corrections` are what a pair keeps beyond them.
    """

    model: str
    made_s: float
    corrections: Mapping[Pair, float]
    weights: Mapping[tuple[Mechanism, str], tuple[float, float, float]] = field(default_factory=dict)

    def added(self, pair: Pair, own_use: float, other_use: float) -> float:
        """What is added to the rate of the first of a pair with these uses, 0 to 1."""
        own, other, both = self.weights.get((pair.mechanism, pair.gpu_model), (0.0, 0.0, 0.0))
        learned = own * own_use + other * other_use + both * own_use * other_use
        return learned + self.corrections.get(pair, 0.0)


RULE = Colocation("rule", float("-inf"), {})
"""The rule alone: what serves until a model has passed its gate."""
