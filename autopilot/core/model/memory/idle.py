"""The memory of idle work: its evidence over hours, the steps taken, the record of owners, and a score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from autopilot.core.model.times import Time


class IdleStep(StrEnum):
    """The last step of the ladder for one workload. A step counts once it is done."""

    SEEN = "seen"
    NOTIFIED = "notified"  # its owner has the notice
    MARKED = "marked"  # it may be suspended; the mark lives here, never in the owner's object
    SUSPENDED = "suspended"
    RETURNED = "returned"  # its owner resumed it, and it waits for GPUs


@dataclass(frozen=True, slots=True)
class IdleRecord:
    """One idle workload (core/idle/follow.py).

    `entities` are its GPUs and instances. After the deletion of its object the record waits for a new object of the
    same owner on the same GPUs: a new name does not escape.
    """

    owner: str
    entities: tuple[str, ...]
    gpus: float
    since_s: Time  # start of its idleness
    seen_s: Time  # newest look at it idle
    estimated: bool
    step: IdleStep = IdleStep.SEEN
    step_s: Time = -inf  # time of this step
    gone_s: Time = inf  # start of the absence of its object


@dataclass(frozen=True, slots=True)
class IdleOwner:
    """The suspensions of one owner (a tenant's user) and their effects."""

    suspensions: int = 0
    returns: int = 0
    early_returns: int = 0  # within `idle.early_s` of the suspension
    freed_gpu_s: float = 0.0  # between suspension and return
    waited_gpu_s: float = 0.0  # between return and running again
    last_s: Time = -inf  # the newest of these events


@dataclass(frozen=True, slots=True)
class ShrunkService:
    """A service under a ceiling: the replicas before it, and the course of the ceiling."""

    owner: str
    gpus: float  # given up by it
    had: int  # replicas before
    generation: int  # of the service: a change by its owner ends the ceiling
    since_s: Time = inf  # first sight of the ceiling
    returned_s: Time = inf  # start of the return of the replicas


@dataclass(frozen=True, slots=True)
class SizeRecord:
    """Under-used work (core/idle/sizing.py): its highest use in any window."""

    since_s: Time
    gpus: float  # held by it
    most_gpus: float = 0.0  # SM activity x GPUs
    most_mib: float = 0.0


@dataclass(frozen=True, slots=True)
class IdleMemory:
    """All of it. Records by uid, owners by "<tenant>/<user>", GPU-seconds by tenant and day."""

    records: Mapping[str, IdleRecord] = field(default_factory=dict)
    owners: Mapping[str, IdleOwner] = field(default_factory=dict)
    # tenant -> (day, GPU-seconds held idle inside the guarantee of its queue, and above it)
    held_gpu_s: Mapping[str, tuple[tuple[int, float, float], ...]] = field(default_factory=dict)
    sizes: Mapping[str, SizeRecord] = field(default_factory=dict)
    shrunk: Mapping[str, ShrunkService] = field(default_factory=dict)  # by uid of the service
    doubted_s: Mapping[str, Time] = field(default_factory=dict)  # by node: the newest look at contradicted counters
    look_s: Time = -inf  # the newest look at the telemetry of all work, on its grid
    hour_s: Time = -inf  # when the newest look that was the first of an hour was made
