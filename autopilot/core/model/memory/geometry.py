"""Changes of MIG geometry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.records import Geometry
from autopilot.core.model.times import Time


@dataclass(frozen=True, slots=True)
class RecutRecord:
    """The latest change of the geometry of a GPU (states: core/geometry/follow.py). None: not in MIG mode."""

    pool: str
    before: Geometry | None
    after: Geometry | None
    since_s: Time  # start of this state
    deadline_s: Time
    state: str = "changing"  # draining | changing | beside | other | settled | quarantined
    scope: str = "instance"  # instance | gpu | node: what changes together
    began: bool = False  # its node reported a change under way
    starts_s: tuple[Time, ...] = ()  # of all changes of this GPU within the last hour
    reason: str = ""  # of a quarantine
    seen: Geometry | None = None  # while quarantined: the geometry of the latest lists in agreement
    views: int = 0  # number of these lists
    viewed_s: Time = float("-inf")  # time of the latest of them
    turned_s: Time = float("-inf")  # time of an earlier change of MIG mode


@dataclass(frozen=True, slots=True)
class GeometryMemory:
    """Changes of geometry (core/geometry/follow.py)."""

    recuts: Mapping[str, RecutRecord] = field(default_factory=dict)  # by UUID of the GPU
