"""What an action hands to the planner, and the one thing that it may call.

A draft is a proposal in row numbers. There is one class for each kind, with the fields that this kind has. Guards read
any draft through the properties of `Draft`, and look at the class only where a rule is about one kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from autopilot.core.model.objects import PlannedCut
from autopilot.core.model.operations import StopReason
from autopilot.core.model.records import Code, Evidence, Geometry
from autopilot.core.placement.shapes import Fit
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.tracking.replicas import Ahead


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of proposal that an action makes for one reason: its words, and what follows from the reason.

    `words` is a format string (autopilot/explain/cases.py names the fields). `contract` says why the victims leave by
    contract, which waives blast_radius, min_runtime, stops, hysteresis and budget; "" where the proposal is weighed.
    """

    action: str
    kind: str  # admit | pipeline | grow | reserve | evict | move | notify | mark | scale | recut | drain | cordon
    # | provision | offer | ceiling
    reason: str = ""  # tells proposals of one kind apart; "" where an action has one reason only
    words: str = ""
    takes: StopReason = StopReason.PREEMPT  # of the effects on victims
    contract: str = ""
    exempt: frozenset[Code] = frozenset()  # refusals that do not apply to it
    fills_gap: bool = False  # the work that it starts leaves when a reservation is due
    by_telemetry: bool = False  # it relies on what was measured on the GPUs of its victims

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it in records."""
        return self.action, self.kind, self.reason


@dataclass(frozen=True, slots=True)
class NoteCase:
    """One kind of note that an action makes, with its words: a format string (autopilot/explain/notes.py).

    `stands_s`: it may be repeated this late, and stands until then.
    """

    code: str
    words: str
    stands_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Eviction:
    """What one running gang gives up: all it holds (evict), some members (shrink), or its place (move)."""

    row: int
    how: str = "evict"  # evict | shrink | move
    keeps: Layout | None = None  # after a shrink: what it goes on with; after a move: where
    gpus: int = 0
    price_gpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What every draft has, and what the planner and the guards ask any draft."""

    kind: ClassVar[str]

    case: Case
    benefit_gpu_s: float
    cost_gpu_s: float
    evidence: tuple[Evidence, ...]
    resent: str = ""  # proposal that it comes from again: its own entries in the ledger do not count

    @property
    def action(self) -> str:
        """Name of the action that proposes it."""
        return self.case.action

    @property
    def contract(self) -> bool:
        """True where the victims leave by contract."""
        return bool(self.case.contract)

    @property
    def workload_row(self) -> int | None:
        """The workload that it is about; None where it is about another object."""
        return None

    @property
    def placed(self) -> Fit | None:
        """The place of the work that it starts or widens."""
        return None

    @property
    def taken(self) -> tuple[Eviction, ...]:
        """What it takes from running work."""
        return ()

    @property
    def gained_gpus(self) -> int | None:
        """GPUs that start on what is taken; None: those of its place, or else all that its workload requests."""
        return None

    @property
    def foreseen(self) -> Ahead | None:
        """The forecast that it relies on."""
        return None

    @property
    def victims(self) -> tuple[int, ...]:
        """Rows that lose something."""
        taken = self.taken
        return tuple([give.row for give in taken]) if taken else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadDraft(Draft):
    """About one workload."""

    row: int

    @property
    def workload_row(self) -> int:
        """The workload."""
        return self.row


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingDraft(WorkloadDraft):
    """For a gang that waits. If it does not stand, that is why the gang waits."""

    ahead: Ahead | None = None  # the forecast that calls for it

    @property
    def foreseen(self) -> Ahead | None:
        """The forecast of its load."""
        return self.ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitDraft(WaitingDraft):
    """Start a gang now."""

    kind: ClassVar[str] = "admit"

    fit: Fit

    @property
    def placed(self) -> Fit:
        """Where it starts."""
        return self.fit


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDraft(WaitingDraft):
    """Start a gang once its victims, and others that leave already, are gone."""

    kind: ClassVar[str] = "pipeline"

    fit: Fit
    evictions: tuple[Eviction, ...]
    needed_gpus: int | None = None  # of all gangs that start on what is taken; None: this one alone

    @property
    def placed(self) -> Fit:
        """Where it starts."""
        return self.fit

    @property
    def taken(self) -> tuple[Eviction, ...]:
        """What its victims give up."""
        return self.evictions

    @property
    def gained_gpus(self) -> int | None:
        """GPUs of all gangs that start there, where several do."""
        return self.needed_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowDraft(WorkloadDraft):
    """Widen a running gang by `fit`."""

    kind: ClassVar[str] = "grow"

    fit: Fit

    @property
    def placed(self) -> Fit:
        """The additional members."""
        return self.fit


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveDraft(WaitingDraft):
    """Promise a start to a gang that does not fit yet."""

    kind: ClassVar[str] = "reserve"

    start_s: float  # the promised start
    nodes: tuple[str, ...]  # on which room is held


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictDraft(WorkloadDraft):
    """Take GPUs from running work: for the workload of `row`, or from that workload for its own sake."""

    kind: ClassVar[str] = "evict"

    evictions: tuple[Eviction, ...]
    nodes: tuple[str, ...] = ()  # reserved ones that it clears
    gone_s: float | None = None  # when the GPUs are taken away, whatever is decided
    needed_gpus: int | None = None  # that start on what is taken; None: all that the workload requests

    @property
    def taken(self) -> tuple[Eviction, ...]:
        """What the victims give up."""
        return self.evictions

    @property
    def gained_gpus(self) -> int | None:
        """GPUs that start there, where that is known."""
        return self.needed_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveDraft(WorkloadDraft):
    """Move running gangs, of which `row` is the first, so that `cleared_gpus` become usable together."""

    kind: ClassVar[str] = "move"

    moves: tuple[Eviction, ...]
    cleared_gpus: int

    @property
    def taken(self) -> tuple[Eviction, ...]:
        """The gangs that move."""
        return self.moves

    @property
    def gained_gpus(self) -> int:
        """GPUs that become usable together."""
        return self.cleared_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyDraft(WorkloadDraft):
    """Notify the owner of running work that it does nothing."""

    kind: ClassVar[str] = "notify"

    gpus: float  # that it holds
    idle_s: float  # for how long it has done nothing
    grace_s: float  # before the next step


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkDraft(WorkloadDraft):
    """Mark idle work as open to suspension. The mark lives in memory; nothing is sent."""

    kind: ClassVar[str] = "mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDraft(Draft):
    """Set the floor of a service, or give it back."""

    kind: ClassVar[str] = "scale"

    service: int  # row
    replicas: int  # 0 gives the floor back
    until_s: float  # when the floor lapses by itself
    ahead: Ahead | None  # the forecast behind it; None: a floor is given back without one

    @property
    def foreseen(self) -> Ahead | None:
        """The forecast of its load."""
        return self.ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingDraft(Draft):
    """Bound the replicas of an idle service, or end that."""

    kind: ClassVar[str] = "ceiling"

    service: int  # row
    replicas: int  # -1 ends it
    until_s: float  # when it lapses by itself
    had: int  # replicas before it
    gpus: float  # that it frees
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecutDraft(Draft):
    """Change the MIG geometry of one GPU; None: not in MIG mode."""

    kind: ClassVar[str] = "recut"

    gpu: int  # row
    pool: str
    before: Geometry | None
    after: Geometry | None
    scope: str = "instance"  # instance | gpu | node: where nothing may run meanwhile
    serves: tuple[tuple[int, float], ...] = ()  # waiting work (row), and the part of a GPU of each of its instances


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainDraft(Draft):
    """Keep new work off the GPUs `rows` until nothing runs there; some work there moves. `gpu` is the first row."""

    kind: ClassVar[str] = "drain"

    gpu: int  # row
    rows: tuple[int, ...]
    uuids: frozenset[str]  # of `rows`
    node: int  # row
    pool: str
    scope: str  # gpu | node
    cuts: tuple[PlannedCut, ...]
    until_s: float  # when it is given up
    moves: tuple[Eviction, ...] = ()

    @property
    def taken(self) -> tuple[Eviction, ...]:
        """The gangs that move."""
        return self.moves

    @property
    def gained_gpus(self) -> int:
        """GPUs that can be cut."""
        return len(self.cuts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonDraft(Draft):
    """Keep every scheduler off a node, or let them use it again."""

    kind: ClassVar[str] = "cordon"

    node: int  # row
    on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionDraft(WorkloadDraft):
    """Ask for nodes for a gang that waits. It has no place yet, and waits on."""

    kind: ClassVar[str] = "provision"

    pool: str
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferDraft(Draft):
    """Offer an idle node back, or take that back."""

    kind: ClassVar[str] = "offer"

    node: int  # row
    on: bool


def stop_draft(
    ctx: Context,
    row: int,
    case: Case,
    *why: Evidence,
    cost_gpu_s: float,
    gone_s: float | None = None,
) -> EvictDraft:
    """Stop one gang whole. It is worth the use of its GPUs up to the horizon."""
    held = len(ctx.whatif.layout_of(row))
    return EvictDraft(
        case=case,
        row=row,
        benefit_gpu_s=held * ctx.policy.horizon_s,
        cost_gpu_s=cost_gpu_s,
        evidence=(*why, Evidence("gpus", held, "GPUs freed")),
        evictions=(Eviction(row, "evict", None, held, cost_gpu_s),),
        gone_s=gone_s,
    )


Submit = Callable[[Draft], bool]
"""Hand a draft to the planner. True: it stands on the what-if (accepted, or held by its mode alone)."""

Propose = Callable[[Context, Submit], None]
"""An action: look at the context and submit drafts, best first."""
