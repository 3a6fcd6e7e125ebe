"""What a capability does with the memory in a tick, and what it is given for that.

Theory of operation. A capability owns a slice of the memory. In a tick, `reconcile` lets each of them in turn follow
what the observation shows (`absorb`), plans on the memory that results, lets each keep what was decided (`commit`), and
asks each when its slice could change the decision without a new event (`timers`). The table of capabilities and the
reasons for its order are in core/capabilities/memory.py. Each function has the same shape: a memory and what it is
given, to a memory in which only slices of its own differ. What one finds in a tick and a later one needs is a field of
`Tick`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.budget import Disruption
from autopilot.core.model.memory.effects import InFlight
from autopilot.core.model.memory.halt import Failure
from autopilot.core.model.memory.plan import Noted
from autopilot.core.model.memory.starts import PipelinedStart
from autopilot.core.model.policy import Policy
from autopilot.core.model.promises import Promise, Realised
from autopilot.core.model.records import Instruction, Loss, Note, Observation, Outcome, Plan


@dataclass(slots=True)
class Tick:
    """What `absorb` is given, and what capabilities find for those after them."""

    before: ControllerMemory  # as it was before anything of this tick but its commands and outcomes
    observation: Observation
    policy: Policy
    review_s: float = float("-inf")  # start of the review that this tick belongs to
    blind: bool = False  # clock or view are not trusted: outcomes and commands count, absence does not
    resumed: bool = False  # a person resumed, and knows of the failures up to now
    failed: list[InFlight] = field(default_factory=list)  # effects; a further one of the same object is left out
    failures: list[Failure] = field(default_factory=list)  # those that may lead to a pause
    declined: list[Instruction] = field(default_factory=list)  # by work that cannot save
    losses: tuple[Loss, ...] = ()
    realised: tuple[Realised, ...] = ()
    notes: list[Note] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        """The time of the tick."""
        return self.observation.now_s


@dataclass(frozen=True, slots=True)
class Planned:
    """What `commit` and `timers` are given: the plan of the tick, and what is done of it."""

    observation: Observation
    policy: Policy
    plan: Plan
    effects: tuple[InFlight, ...]  # issued now, in the order of their proposals
    stops: tuple[Instruction, ...]  # those of them that take GPUs, in their turns at the store
    starts: tuple[PipelinedStart, ...]  # that wait for victims
    disruptions: tuple[Disruption, ...]
    promises: tuple[Promise, ...]
    released: tuple[str, ...]  # uids of gangs with a reservation that ended without a start
    conditions: tuple[Noted, ...]
    advance: Mapping[str, tuple[str, ...]]  # advance reservation -> its nodes
    drained: frozenset[str]  # GPUs whose drain is over
    unneeded: tuple[str, ...]  # nodes
    part_gpus: Mapping[str, float]  # of queues that share time
    wishes_s: Mapping[str, float]  # key of each disruptive proposal that is held -> how long it must last

    @property
    def now_s(self) -> float:
        """The time of the tick."""
        return self.observation.now_s


@dataclass(frozen=True, slots=True)
class Capability:
    """One row of the table. A function that is None has nothing to do for this capability."""

    name: str
    owns: tuple[str, ...]  # slices that its functions may change
    place: str  # why it stands where it does
    settle: Callable[[ControllerMemory, tuple[Outcome, ...], float, Policy], ControllerMemory] | None = None
    absorb: Callable[[ControllerMemory, Tick], ControllerMemory] | None = None
    blind: bool = False  # `absorb` also runs in a blind tick
    commit: Callable[[ControllerMemory, Planned], ControllerMemory] | None = None
    timers: Callable[[ControllerMemory, Planned], Iterable[float]] | None = None
    notes: Callable[[ControllerMemory, ControllerMemory, Policy], tuple[Note, ...]] | None = None  # before, after
