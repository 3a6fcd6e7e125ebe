"""How work shares a GPU, and what is learned of pairs that did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Mechanism(StrEnum):
    """What divides a GPU between programs. The values are those of the tables of measured pairs."""

    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MIG = "mig"


class Pair(NamedTuple):
    """One kind of work beside another (core/model/kinds.py), in this direction; `other` is "" for a MIG instance."""

    own: str
    other: str
    mechanism: Mechanism
    gpu_model: str


@dataclass(frozen=True, slots=True)
class Colocation:
    """What the serving model adds to the rule of core/sharing/colocation.py, by pair: relative rate, -1 to 1."""

    model: str
    made_s: float
    corrections: Mapping[Pair, float]


RULE = Colocation("rule", float("-inf"), {})
"""The rule alone: what serves until a model has passed its gate."""
