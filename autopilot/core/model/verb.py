"""What any code may ask of any deed, without knowledge of its kind.

A deed (admit a gang, cordon a node) is a `Verb`. A proposal shows it as a `Change`, an instruction sends it as an
`Operation`. A deed with the same fields in both is a `Deed`, one class of both. The class of each deed and all
behaviour of its kind stand in its file; core/capabilities/verbs.py has the table. Every member here has a harmless
default, so that a file states what differs. Lower layers ask these members and never the class.

All four are plain classes, so that a codec selects the class by the field `kind` (autopilot/records/variants.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from autopilot.core.model.errors import invariant
from autopilot.core.model.objects import Evidence, Scrub, SideEffect, Slot, Subject, SubjectKind, Victim
from autopilot.core.model.policy import Policy
from autopilot.core.model.snapshot import ClusterSnapshot, ServiceTable
from autopilot.core.model.stops import Save, StopReason

if TYPE_CHECKING:  # memory holds proposals and instructions, which hold verbs
    from autopilot.core.model.memory.geometry import RecutRecord
    from autopilot.core.model.memory.idle import ShrunkService

START = "start"
"""The wish of a gang that is to start."""


class World(Protocol):
    """The objects of effects as one tick shows them."""

    @property
    def snapshot(self) -> ClusterSnapshot:
        """The newest view."""

    @property
    def rows(self) -> Mapping[str, int]:
        """Rows of workloads by uid."""

    def deleted(self, service: Subject) -> bool:
        """Whether a service without a row was deleted: no gap of the view may be about it."""


class Verb:
    """What every deed answers."""

    __slots__ = ()

    kind: str  # as records and actuators name it
    about: ClassVar[SubjectKind] = SubjectKind.WORKLOAD
    starts_now: ClassVar[bool] = False  # its gang starts at once
    cuts_gpu: ClassVar[bool] = False  # it changes the MIG geometry of a GPU
    uncapped: ClassVar[bool] = False  # an action that breaks its promises may go on with it

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All slots that the workload holds afterwards, where it starts, grows or shrinks."""
        return ()

    @property
    def scrub(self) -> Scrub | None:
        """What of its slots must be scrubbed, or verified to be, before it starts work there."""
        return None

    @property
    def replicas(self) -> int | None:
        """The bound that it sets on the replicas of a service."""
        return None

    @property
    def closes(self) -> bool | None:
        """Whether it closes its node to every scheduler (True) or opens it; None: neither."""
        return None

    @property
    def offers(self) -> bool | None:
        """Whether it offers its node back (True) or takes that back; None: neither."""
        return None

    def deadline_s(self, policy: Policy) -> float:
        """Seconds within which its effect comes about."""
        return policy.limits.deadline_s


class Change(Verb):
    """A deed as a proposal shows it."""

    __slots__ = ()

    exact: ClassVar[bool] = False  # another plan is another wish
    only_holds: ClassVar[bool] = False  # it holds room, and does nothing
    marks: ClassVar[bool] = False  # it marks idle work as open to suspension
    asks_nodes: ClassVar[bool] = False  # it asks an autoscaler for nodes
    unsent: ClassVar[bool] = False  # no instruction to its own object follows at once
    brings_itself: ClassVar[bool] = False  # its own gang starts once the victims have left
    renewable: ClassVar[bool] = False  # to repeat it is no other act

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
    def gone_s(self) -> float | None:
        """When the GPUs are taken away, whatever is decided."""
        return None

    @property
    def start_s(self) -> float | None:
        """The start that it promises."""
        return None

    @property
    def waits_for_victims(self) -> bool:
        """True where something starts once the victims have left: the gang itself, or victims that move."""
        return False

    def beneficiary(self, subject: Subject) -> Subject:
        """Whose start memory keeps while the victims leave."""
        return subject

    def operation(self, *, fills_gap: bool) -> Operation | None:
        """What is asked of the object itself, beside what its victims are asked for. None: nothing is sent."""
        return None

    def lowers(self, uid: str, services: ServiceTable) -> bool | None:
        """Whether it takes replicas from its service (True) or gives them back; None: neither."""
        return None

    def shrunk(self, subject: Subject) -> ShrunkService | None:
        """What memory keeps of a service that it scales down."""
        return None

    def recorded(
        self, recuts: Mapping[str, RecutRecord], uid: str, now_s: float, deadline_s: float
    ) -> Mapping[str, RecutRecord]:
        """The records of changes of geometry with those that it begins. `uid` is its object."""
        return recuts

    def whose(self, subject: Subject) -> str:
        """What it is about, in words; "" where the subject says that."""
        return ""

    def shown(self, row: int, snapshot: ClusterSnapshot) -> str:
        """What an approval of it is bound to, beside its object (row)."""
        return "|"


class Operation(Verb):
    """A deed as an instruction asks it of an actuator."""

    __slots__ = ()

    stops: ClassVar[bool] = False  # it takes all that its workload holds
    continues: ClassVar[bool] = False  # its workload goes on, on exactly its slots
    leaves_alone: ClassVar[bool] = False  # its workload may be planned meanwhile
    notifies: ClassVar[bool] = False  # it notifies the owner of idle work
    sets_floor: ClassVar[bool] = False  # it keeps a service at a number of replicas or more
    bounds: ClassVar[bool] = False  # it bounds the replicas of an idle service
    planned_anew: ClassVar[bool] = False  # it is not sent again as it was: what there is then decides

    @property
    def takes(self) -> StopReason | None:
        """Why it takes GPUs from running work; None: it takes none."""
        return None

    @property
    def grace_s(self) -> float:
        """Time to write a checkpoint before the work is stopped."""
        return 0.0

    @property
    def save(self) -> Save | None:
        """How it treats work without a fresh checkpoint; None: it stops none."""
        return None

    @property
    def needs_room(self) -> bool:
        """True where it puts work on GPUs."""
        return False

    @property
    def quota_from(self) -> Mapping[str, str]:
        """Waiting work whose quota a start may take: names by uid."""
        return {}

    @property
    def asked_nodes(self) -> tuple[str, int] | None:
        """The pool and the number of the nodes that it asks for."""
        return None

    @property
    def as_change(self) -> Change | None:
        """The same deed as a proposal shows it; None where that has other fields."""
        return None

    def unsaved(self) -> Operation:
        """The same without time to save."""
        return self

    def at_last(self, effects: Iterable[SideEffect], scrub: Scrub | None) -> Operation:
        """The same with what is known when its victims have left: the quota that it takes, and what to scrub."""
        return self

    def seen(self, subject: Subject, world: World) -> bool:
        """True if the view shows its result. By default: its workload is gone, or another run of it."""
        row = world.rows.get(subject.uid)
        return row is None or int(world.snapshot.workloads.incarnation[row]) != subject.revision

    def told(self, place: str) -> str:
        """What it does to its workload, in words. `place`: its slots."""
        return f"stopped ({self.takes or 'evicted'})"


class Deed(Change, Operation):
    """A deed with the same fields in a proposal and in its instruction."""

    __slots__ = ()

    @property
    def as_change(self) -> Change:
        """Itself."""
        return self

    def operation(self, *, fills_gap: bool) -> Operation:
        """Itself."""
        return self


Kind = TypeVar("Kind", bound=Verb)


def asked(verb: Verb, kind: type[Kind]) -> Kind:
    """The deed as the class that a lever handles. Raises `InvariantError` for another."""
    invariant(isinstance(verb, kind), f"a {kind.__name__} is carried out, and not a {type(verb).__name__}")
    return verb  # type: ignore[return-value]
