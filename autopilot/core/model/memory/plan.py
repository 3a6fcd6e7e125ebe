"""What the last plan intended, and what it found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.records import Reservation
from autopilot.core.model.times import Time


@dataclass(frozen=True, slots=True)
class Condition:
    """A state of a workload, by uid, or of a queue, by name."""

    kind: ConditionKind
    uid: str
    incarnation: int = -1  # -1: it does not end with an incarnation


@dataclass(frozen=True, slots=True)
class Noted:
    """A condition, and the start of its present unbroken time, as far as observed."""

    condition: Condition
    since_s: Time


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """Intentions of the last tick: nothing of it has happened in the cluster."""

    reservations: tuple[Reservation, ...] = ()
    advance: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # advance reservation -> its nodes
    proposed_since_s: Mapping[str, Time] = field(default_factory=dict)  # key of a disruptive proposal -> first seen
    conditions: tuple[Noted, ...] = ()  # those in force at the last tick
