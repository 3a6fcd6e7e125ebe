"""Who had each GPU and MIG instance last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from autopilot.core.model.times import Time


@dataclass(frozen=True, slots=True)
class LastHolder:
    """The work that a complete view showed last on a GPU or MIG instance."""

    tenants: tuple[str, ...]  # sorted; several where they shared it
    across: bool  # all of it stated that it shares with other tenants
    left_s: Time = inf  # when it may still have been there; inf: it is there now


@dataclass(frozen=True, slots=True)
class HoldersMemory:
    """By UUID of the GPU, or by id of the instance (core/effects/scrubbing.py). What is not here is unknown."""

    last: Mapping[str, LastHolder] = field(default_factory=dict)
