"""What a proposal would change: one class for each kind, with the fields that this kind has.

`Change` is a plain class, so that a codec selects the class by the field `kind` (autopilot/variants.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from autopilot.core.model.objects import Evidence, Geometry, PlannedCut, SideEffect, Slot, Victim

START = "start"
"""The wish of a gang that is to start."""


class Change:
    """What every change answers."""

    __slots__ = ()

    kind: str  # as records name it

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All slots that the workload holds afterwards, where it starts or grows."""
        return ()

    @property
    def victims(self) -> tuple[Victim, ...]:
        """Work that loses GPUs or its place."""
        return ()

    @property
    def side_effects(self) -> tuple[SideEffect, ...]:
        """What it takes from work that waits."""
        return ()

    @property
    def score_terms(self) -> tuple[Evidence, ...]:
        """Terms of the placement score."""
        return ()

    @property
    def wish(self) -> str:
        """What a person wishes for: equal for changes that differ in how they bring it about."""
        return self.kind

    @property
    def size(self) -> float:
        """GPUs that work holds afterwards, replicas or nodes; inf where these do not count."""
        return float(len(self.slots)) or inf

    @property
    def exact(self) -> bool:
        """True where another plan is another wish."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitChange(Change):
    """Start a gang now."""

    slots: tuple[Slot, ...] = field()
    score_terms: tuple[Evidence, ...] = ()
    side_effects: tuple[SideEffect, ...] = ()
    kind: Literal["admit"] = field(default="admit", init=False)

    @property
    def wish(self) -> str:
        """With or without victims, the gang starts."""
        return START


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineChange(Change):
    """Start a gang once its victims, and others that leave already, are gone."""

    slots: tuple[Slot, ...] = field()
    victims: tuple[Victim, ...] = field()
    score_terms: tuple[Evidence, ...] = ()
    side_effects: tuple[SideEffect, ...] = ()
    kind: Literal["pipeline"] = field(default="pipeline", init=False)

    @property
    def wish(self) -> str:
        """With or without victims, the gang starts."""
        return START


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowChange(Change):
    """Widen a running gang."""

    slots: tuple[Slot, ...] = field()
    score_terms: tuple[Evidence, ...] = ()
    kind: Literal["grow"] = field(default="grow", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveChange(Change):
    """Promise a start to a gang that does not fit yet."""

    start_s: float
    kind: Literal["reserve"] = field(default="reserve", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictChange(Change):
    """Take GPUs from running work."""

    victims: tuple[Victim, ...] = field()
    gone_s: float | None = None  # when the GPUs are taken away, whatever is decided
    kind: Literal["evict"] = field(default="evict", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveChange(Change):
    """Move running gangs: each stops, and continues in another place."""

    victims: tuple[Victim, ...] = field()
    kind: Literal["move"] = field(default="move", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleChange(Change):
    """Set the floor of a service, or give it back."""

    replicas: int  # 0 gives the floor back
    until_s: float  # when the floor lapses
    kind: Literal["scale"] = field(default="scale", init=False)

    @property
    def wish(self) -> str:
        """To raise a floor and to give it back are two wishes."""
        return "raise" if self.replicas else "give_back"

    @property
    def size(self) -> float:
        """Its replicas."""
        return float(self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingChange(Change):
    """Bound the replicas of an idle service, or end that."""

    replicas: int  # -1 ends it
    until_s: float  # when it lapses
    had: int  # replicas that it held before the first ceiling
    gpus: float  # that it gives up
    owner: str
    kind: Literal["ceiling"] = field(default="ceiling", init=False)

    @property
    def wish(self) -> str:
        """To set a ceiling and to end it are two wishes."""
        return "bound" if self.replicas >= 0 else "unbound"

    @property
    def exact(self) -> bool:
        """Another ceiling is another wish."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RecutChange(Change):
    """Change the MIG geometry of a GPU; None: not in MIG mode."""

    pool: str
    before: Geometry | None = field()
    after: Geometry | None = field()
    scope: str = field()  # instance | gpu | node: what stops meanwhile
    node: str = field()
    index: int = field()  # of the GPU on its node
    kind: Literal["recut"] = field(default="recut", init=False)

    @property
    def exact(self) -> bool:
        """Another geometry is another wish."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainChange(Change):
    """Keep new work off GPUs until nothing runs on them and they can be cut; some of their work moves."""

    pool: str
    scope: str  # gpu | node
    gpus: tuple[str, ...] = field()  # UUIDs that take no new work
    cuts: tuple[PlannedCut, ...] = field()
    victims: tuple[Victim, ...] = field()
    until_s: float  # when it is given up
    kind: Literal["drain"] = field(default="drain", init=False)

    @property
    def exact(self) -> bool:
        """Another geometry is another wish."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyChange(Change):
    """Notify the owner of running work that it does nothing."""

    gpus: float  # that it holds
    idle_s: float  # for how long it has done nothing
    grace_s: float  # before the next step
    kind: Literal["notify"] = field(default="notify", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkChange(Change):
    """Mark idle work as open to suspension, in memory."""

    kind: Literal["mark"] = field(default="mark", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonChange(Change):
    """Keep every scheduler off a node, or let them use it again."""

    on: bool
    kind: Literal["cordon"] = field(default="cordon", init=False)

    @property
    def wish(self) -> str:
        """To close a node and to open it are two wishes."""
        return "cordon" if self.on else "uncordon"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionChange(Change):
    """Ask for nodes for a gang that waits."""

    pool: str
    nodes: int
    kind: Literal["provision"] = field(default="provision", init=False)

    @property
    def size(self) -> float:
        """Its nodes."""
        return float(self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferChange(Change):
    """Offer an idle node back, or take that back."""

    on: bool
    kind: Literal["offer"] = field(default="offer", init=False)

    @property
    def wish(self) -> str:
        """To offer a node and to take it back are two wishes."""
        return "offer" if self.on else "keep"


CHANGES: Mapping[str, type[Change]] = {
    "admit": AdmitChange,
    "pipeline": PipelineChange,
    "grow": GrowChange,
    "reserve": ReserveChange,
    "evict": EvictChange,
    "move": MoveChange,
    "scale": ScaleChange,
    "ceiling": CeilingChange,
    "recut": RecutChange,
    "drain": DrainChange,
    "cordon": CordonChange,
    "provision": ProvisionChange,
    "offer": OfferChange,
    "notify": NotifyChange,
    "mark": MarkChange,
}
"""The kinds of proposals. A new kind is a class above and a row here."""
