"""What an instruction asks of an actuator: one class for each kind, with the fields that this kind has.

`Operation` is a plain class, so that a codec selects the class by the field `kind` (autopilot/variants.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from autopilot.core.model.objects import Geometry, Slot


class StopReason(StrEnum):
    """Why GPUs are taken from running work. It decides what its owner sees and what becomes of the work."""

    PREEMPT = "preempt"  # for other work, weighed
    RECLAIM = "reclaim"  # it holds what another queue is owed
    MOVE = "move"  # it continues in another place, weighed
    MOVE_AHEAD = "move-ahead"  # it continues in another place, for work that is only expected
    DRAIN = "drain"  # it continues in another place, so that its GPU or node can be cut anew
    RECLAIM_MOVE = "reclaim-move"  # it continues in another place, by contract
    BACKFILL = "backfill"  # the reservation that it started before is due
    RECOVER = "recover"  # it cannot continue where it is
    RESTART = "restart"  # it hangs, and starts again
    SUSPEND = "suspend"  # it stays away until a person lets it continue
    IDLE = "idle"  # it does nothing: it waits until its owner resumes it

    @property
    def by_contract(self) -> bool:
        """True where the work started on the condition that this may happen, or cannot continue."""
        return self in _BY_CONTRACT

    @property
    def continues_elsewhere(self) -> bool:
        """True where the work has a new place already."""
        return self in _MOVES

    @property
    def for_itself(self) -> bool:
        """True where the work is stopped for its own sake: it is broken or hangs."""
        return self in _FOR_ITSELF

    @property
    def for_others(self) -> bool:
        """True where the work makes room for other work. Idle work and work past its limit leave room by themselves."""
        return self not in _OWN


_BY_CONTRACT = frozenset(
    {StopReason.RECLAIM, StopReason.RECLAIM_MOVE, StopReason.BACKFILL, StopReason.RECOVER, StopReason.SUSPEND}
)
_MOVES = frozenset({StopReason.MOVE, StopReason.MOVE_AHEAD, StopReason.DRAIN, StopReason.RECLAIM_MOVE})
_FOR_ITSELF = frozenset({StopReason.RECOVER, StopReason.RESTART})
_OWN = _FOR_ITSELF | {StopReason.SUSPEND, StopReason.IDLE}


class Save(StrEnum):
    """How an eviction treats a gang that has no fresh checkpoint at the end of its grace."""

    TRY = "try"  # it is stopped and loses its progress since the last checkpoint
    MUST = "must"  # it keeps its place, and the effect is declined
    SKIP = "skip"  # it is stopped immediately: the store has no turn for it within the grace


class Operation:
    """What every operation answers."""

    __slots__ = ()

    kind: str  # as records and actuators name it

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots that the workload holds afterwards."""
        return ()

    @property
    def takes(self) -> StopReason | None:
        """Why it takes GPUs from running work; None: it takes none."""
        return None

    @property
    def needs_room(self) -> bool:
        """True where it puts work on GPUs."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitOperation(Operation):
    """Start a workload."""

    slots: tuple[Slot, ...] = field()
    backfill: bool = False  # it leaves when a reservation is due
    moved: bool = False  # it was stopped to start here
    quota_from: Mapping[str, str] = field(default_factory=dict)  # waiting work whose quota it may take: names by uid
    kind: Literal["admit"] = field(default="admit", init=False)

    @property
    def needs_room(self) -> bool:
        """It starts."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictOperation(Operation):
    """Stop a workload."""

    reason: StopReason
    grace_s: float  # time to write a checkpoint before the work is stopped
    save: Save = Save.TRY
    kind: Literal["evict"] = field(default="evict", init=False)

    @property
    def takes(self) -> StopReason:
        """All that the workload holds."""
        return self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeOperation(Operation):
    """Continue on exactly `slots`."""

    slots: tuple[Slot, ...] = field()
    reason: StopReason | None = None  # why it shrinks; None: it grows
    kind: Literal["resize"] = field(default="resize", init=False)

    @property
    def takes(self) -> StopReason | None:
        """The members that a gang gives up."""
        return self.reason

    @property
    def needs_room(self) -> bool:
        """It grows."""
        return self.reason is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOperation(Operation):
    """A service has at least `replicas` until `until_s`."""

    replicas: int  # 0: no floor
    until_s: float
    kind: Literal["scale"] = field(default="scale", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingOperation(Operation):
    """An idle service has at most `replicas` until `until_s`; then it has those of its owner again."""

    replicas: int  # -1: no ceiling
    until_s: float
    kind: Literal["ceiling"] = field(default="ceiling", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecutOperation(Operation):
    """Change the MIG geometry of a GPU. None stands for MIG mode off. Instances in use are never destroyed."""

    before: Geometry | None = field()  # precondition: the present geometry
    after: Geometry | None = field()
    scope: str = field()  # instance | gpu | node: where nothing may run meanwhile
    node: str = field()
    index: int = field()  # of the GPU on its node
    kind: Literal["recut"] = field(default="recut", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyOperation(Operation):
    """Notify the owner of a workload that it does nothing. It is done when the owner has the notice."""

    gpus: float  # that it holds
    idle_s: float  # for how long it has done nothing
    grace_s: float  # before the next step
    kind: Literal["notify"] = field(default="notify", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonOperation(Operation):
    """Keep every scheduler off a node, or end that. Work on it is left alone, and so is the cordon of others."""

    on: bool
    reason: str  # for people
    kind: Literal["cordon"] = field(default="cordon", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionOperation(Operation):
    """Ask the autoscaler of the cluster for the nodes of a gang that waits. It is done when the gang has started."""

    pool: str
    nodes: int  # that it needs beside those that there are
    provisioning_class: str  # of the request
    kind: Literal["provision"] = field(default="provision", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferOperation(Operation):
    """Mark an idle node as one that may be removed, or take that back. Nothing else happens to it."""

    on: bool
    reason: str  # for people
    kind: Literal["offer"] = field(default="offer", init=False)


OPERATIONS: Mapping[str, type[Operation]] = {
    "admit": AdmitOperation,
    "evict": EvictOperation,
    "resize": ResizeOperation,
    "scale": ScaleOperation,
    "ceiling": CeilingOperation,
    "recut": RecutOperation,
    "cordon": CordonOperation,
    "provision": ProvisionOperation,
    "offer": OfferOperation,
    "notify": NotifyOperation,
}
"""The kinds of instructions. A new kind is a class above and a row here."""

PLANNED_ANEW = (CeilingOperation, RecutOperation, CordonOperation, ProvisionOperation, OfferOperation)
"""Operations that are not sent again as they were: what there is then decides."""
