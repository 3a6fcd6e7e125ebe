"""Drafts, handed by an action to the planner, and `Submit`, the one function open to an action.

A draft is a proposal in row numbers. A deed with nothing to place or take is a `VerbDraft`. The others have a class in
the file of the deed (core/capabilities/verbs.py has the table). The planner and the guards ask the members of `Draft`,
and never look at the class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from autopilot.core.model.errors import InvariantError
from autopilot.core.model.objects import PlannedCut, SubjectKind, Victim
from autopilot.core.model.promises import Beneficiary
from autopilot.core.model.records import Change, Code, Evidence, Proposal
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.model.stops import StopReason
from autopilot.core.placement.shapes import Fit
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.planning.foresight import Ahead
from autopilot.core.planning.shown import shown_whole


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of proposal of an action for one reason: its words, and the consequences of the reason.

    `words` is a format string (autopilot/explain/cases.py names the fields). `contract` is the reason for victims to
    leave by contract, which waives blast_radius, min_runtime, stops, hysteresis and budget; "" for a weighed proposal.
    """

    action: str
    kind: str  # of the deed
    reason: str = ""  # tells proposals of one kind apart; "" where an action has one reason only
    words: str = ""
    takes: StopReason = StopReason.PREEMPT  # of the effects on victims
    contract: str = ""
    exempt: frozenset[Code] = frozenset()  # refusals that do not apply to it
    fills_gap: bool = False  # the work that it starts leaves when a reservation is due
    by_telemetry: bool = False  # it relies on what was measured on the GPUs of its victims

    @property
    def key(self) -> tuple[str, str, str]:
        """Its name in records."""
        return self.action, self.kind, self.reason


@dataclass(frozen=True, slots=True)
class NoteCase:
    """One kind of note of an action, with its words: a format string (autopilot/explain/notes.py).

    `stands_s`: it may be repeated this late, and stands until then.
    """

    code: str
    words: str
    stands_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Eviction:
    """The loss of one running gang: all it holds (evict), some members (shrink), or its place (move)."""

    row: int
    how: str = "evict"  # evict | shrink | move
    keeps: Layout | None = None  # after a shrink: what it goes on with; after a move: where
    gpus: int = 0
    price_gpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Cutting:
    """The GPUs with a change of MIG geometry by a draft, at once or after a drain."""

    pool: str
    scope: str  # instance | gpu | node: where nothing may run meanwhile
    rows: tuple[int, ...]  # GPUs that take no other work
    cuts: tuple[PlannedCut, ...]
    drains: bool = False  # it waits until nothing runs there


Gain = tuple[Beneficiary, float, float]
"""A beneficiary, the GPUs that it gets, and how long it runs."""


class Outlook(Protocol):
    """Gains of work, against the plan without a draft."""

    def of_start(self, row: int, layout: Layout) -> tuple[list[Gain], str]:
        """The gain of the starting gang, or the reason for an unknown gain."""

    def of_instances(self, serves: Sequence[tuple[int, float]]) -> tuple[list[Gain], str]:
        """The gains of the requests served by new instances, or the reason for unknown gains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The members of every draft, asked by the planner and the guards."""

    case: Case
    row: int  # of its object, in the table of such objects
    benefit_gpu_s: float
    cost_gpu_s: float
    evidence: tuple[Evidence, ...]
    resent: str = ""  # proposal that it comes from again: its own entries in the ledger do not count

    @property
    def kind(self) -> str:
        """Kind of the deed."""
        return self.case.kind

    @property
    def deed(self) -> type[Change] | Change:
        """The traits of every deed of this kind."""
        return Change

    @property
    def about(self) -> SubjectKind:
        """The table of its object."""
        return self.deed.about

    @property
    def action(self) -> str:
        """Name of the proposing action."""
        return self.case.action

    @property
    def contract(self) -> bool:
        """True if the victims leave by contract."""
        return bool(self.case.contract)

    @property
    def workload_row(self) -> int | None:
        """The row of its workload; None for a draft about another object."""
        return self.row if self.about == SubjectKind.WORKLOAD else None

    @property
    def service_row(self) -> int | None:
        """The row of its service; None for a draft about another object."""
        return self.row if self.about == SubjectKind.SERVICE else None

    @property
    def waiting_row(self) -> int | None:
        """The gang that waits for it: if it does not stand, the gang waits for that reason."""
        return None

    @property
    def placed(self) -> Fit | None:
        """The place of the work that it starts or widens."""
        return None

    @property
    def widens(self) -> bool:
        """True if running work gets the place beside its own."""
        return False

    @property
    def taken(self) -> tuple[Eviction, ...]:
        """Its evictions of running work."""
        return ()

    @property
    def gained_gpus(self) -> int | None:
        """GPUs that start on the taken ones; None: those of its place, or else all those requested by its workload."""
        return None

    @property
    def foreseen(self) -> Ahead | None:
        """The forecast behind it."""
        return None

    @property
    def victims(self) -> tuple[int, ...]:
        """Rows with a loss."""
        taken = self.taken
        return tuple([give.row for give in taken]) if taken else ()

    def cutting(self, snapshot: ClusterSnapshot) -> Cutting | None:
        """The GPUs with a change of MIG geometry."""
        return None

    def change(self, ctx: Context) -> Change:
        """The content of the proposal, in names."""
        raise InvariantError(f"the planner has no proposal for a {type(self).__name__}")

    def shown(self, change: Change, snapshot: ClusterSnapshot) -> str:
        """The parts of the plan that an approval is bound to, beside its object: victims and places."""
        return shown_whole(change, contract=self.contract)

    def stand(self, ctx: Context, proposal: Proposal, *, accepted: bool) -> tuple[Victim, ...]:
        """Apply it to the what-if and the quota ledger. Returns work already leaving that must be gone too."""
        return ()

    def gains(self, outlook: Outlook) -> tuple[list[Gain], str] | None:
        """Its promised gains, or the reason for unknown ones; None without a promise."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbDraft(Draft):
    """The complete deed, as the proposal shows it and the instruction sends it."""

    verb: Change
    ahead: Ahead | None = None  # the forecast behind it

    @property
    def kind(self) -> str:
        """Kind of the deed."""
        return self.verb.kind

    @property
    def deed(self) -> Change:
        """The deed itself."""
        return self.verb

    @property
    def foreseen(self) -> Ahead | None:
        """The forecast behind it."""
        return self.ahead

    def change(self, ctx: Context) -> Change:
        """The deed itself."""
        return self.verb

    def shown(self, change: Change, snapshot: ClusterSnapshot) -> str:
        """The words of the deed."""
        return self.verb.shown(self.row, snapshot)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingDraft(Draft):
    """For a waiting gang."""

    ahead: Ahead | None = None  # the forecast that calls for it

    @property
    def waiting_row(self) -> int:
        """The gang."""
        return self.row

    @property
    def foreseen(self) -> Ahead | None:
        """The forecast of its load."""
        return self.ahead


def moves_of(evictions: Sequence[Eviction]) -> dict[int, Layout]:
    """New places of moving victims, by row."""
    return {give.row: give.keeps for give in evictions if give.how == "move" and give.keeps is not None}


Submit = Callable[[Draft], bool]
"""Hand a draft to the planner. True: it stands on the what-if (accepted, or held by its mode alone)."""

Propose = Callable[[Context, Submit], None]
"""An action: look at the context and submit drafts, best first."""
