"""State of the controller between two decisions, beyond the view of the cluster.

Each capability has a slice: a frozen record in its own file, beside the records in it. `ControllerMemory` joins them.
`reconcile` lets each capability follow the observation in turn (core/capabilities/memory.py). A field in seconds is
a `Time`, which moves when the clock is set, or a `Duration` (core/model/times.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autopilot.core.model.memory.budget import BudgetMemory
from autopilot.core.model.memory.effects import EffectsMemory
from autopilot.core.model.memory.geometry import GeometryMemory
from autopilot.core.model.memory.halt import HaltMemory
from autopilot.core.model.memory.holders import HoldersMemory
from autopilot.core.model.memory.idle import IdleMemory
from autopilot.core.model.memory.intake import IntakeMemory
from autopilot.core.model.memory.losses import LossesMemory
from autopilot.core.model.memory.neighbours import NeighboursMemory
from autopilot.core.model.memory.nodes import NodesMemory
from autopilot.core.model.memory.people import PeopleMemory
from autopilot.core.model.memory.plan import PlanMemory
from autopilot.core.model.memory.profiles import ProfilesMemory
from autopilot.core.model.memory.recovery import RecoveryMemory
from autopilot.core.model.memory.replicas import ReplicasMemory
from autopilot.core.model.memory.sharing import SharingMemory
from autopilot.core.model.memory.spending import SpendingMemory
from autopilot.core.model.memory.starts import StartsMemory
from autopilot.core.model.memory.trust import TrustMemory
from autopilot.core.model.memory.use import UseMemory
from autopilot.core.model.records import Decision, Instruction
from autopilot.core.model.times import Time


@dataclass(frozen=True, slots=True)
class ControllerMemory:
    """The whole of it: small, persisted and versioned."""

    schema: int = 6
    edition: int = 1  # of the shipped policies when this installation began (autopilot/policies/editions.py)
    tick: int = -1
    now_s: Time = float("-inf")
    fence: int = 0
    wake_at_s: Time = float("-inf")
    effects: EffectsMemory = field(default_factory=EffectsMemory)
    starts: StartsMemory = field(default_factory=StartsMemory)
    plan: PlanMemory = field(default_factory=PlanMemory)
    budget: BudgetMemory = field(default_factory=BudgetMemory)
    people: PeopleMemory = field(default_factory=PeopleMemory)
    halt: HaltMemory = field(default_factory=HaltMemory)
    use: UseMemory = field(default_factory=UseMemory)
    spending: SpendingMemory = field(default_factory=SpendingMemory)
    replicas: ReplicasMemory = field(default_factory=ReplicasMemory)
    losses: LossesMemory = field(default_factory=LossesMemory)
    geometry: GeometryMemory = field(default_factory=GeometryMemory)
    recovery: RecoveryMemory = field(default_factory=RecoveryMemory)
    nodes: NodesMemory = field(default_factory=NodesMemory)
    trust: TrustMemory = field(default_factory=TrustMemory)
    idle: IdleMemory = field(default_factory=IdleMemory)
    intake: IntakeMemory = field(default_factory=IntakeMemory)
    profiles: ProfilesMemory = field(default_factory=ProfilesMemory)
    holders: HoldersMemory = field(default_factory=HoldersMemory)
    sharing: SharingMemory = field(default_factory=SharingMemory)
    neighbours: NeighboursMemory = field(default_factory=NeighboursMemory)


@dataclass(frozen=True, slots=True)
class Step:
    """The result of reconcile()."""

    memory: ControllerMemory
    decision: Decision
    instructions: tuple[Instruction, ...]
    wake_at_s: float
