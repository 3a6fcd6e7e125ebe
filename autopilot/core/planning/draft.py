"""What an action hands to the planner, and the one thing that it may call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autopilot.core.model.records import Code, Evidence
from autopilot.core.placement.shapes import Fit
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.tracking.replicas import Ahead


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of proposal that an action makes for one reason: its words, and what follows from the reason.

    `words` is a format string (autopilot/explain/cases.py names the fields). `contract` says why the victims leave by
    contract, which waives blast_radius, min_runtime, hysteresis and budget; "" where the proposal is weighed.
    """

    action: str
    kind: str  # admit | pipeline | grow | reserve | evict | scale
    reason: str = ""  # tells proposals of one kind apart; "" where an action has one reason only
    words: str = ""
    takes: str = "preempt"  # Instruction.reason of the effects on victims
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
    """One kind of note that an action makes, with its words: a format string (autopilot/explain/notes.py)."""

    code: str
    words: str


@dataclass(frozen=True, slots=True)
class Eviction:
    """What one running gang gives up: all it holds (evict), some members (shrink), or its place (move)."""

    row: int
    how: str = "evict"  # evict | shrink | move
    keeps: Layout | None = None  # after a shrink: what it goes on with; after a move: where
    gpus: int = 0
    price_gpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposal in rows; the planner turns it into a Proposal and asks the guards.

    `at` is the position among what is pending (-1 for work that is not), `row` the workload; -1 where the proposal is
    about a service: its row is `service`, the floor `replicas`, and `ahead` the forecast behind it.
    """

    case: Case
    at: int
    row: int
    fit: Fit | None
    start_s: float
    nodes: tuple[str, ...]
    benefit_gpu_s: float
    cost_gpu_s: float
    evidence: tuple[Evidence, ...]
    evictions: tuple[Eviction, ...] = ()
    needed_gpus: int = 0  # of all gangs that start on what is taken; 0: this one alone
    service: int = -1
    replicas: int = 0
    until_s: float = 0.0  # when that floor lapses by itself
    ahead: Ahead | None = None
    resent: str = ""  # proposal that it comes from again: its own entries in the ledger do not count

    @property
    def action(self) -> str:
        """Name of the action that proposes it."""
        return self.case.action

    @property
    def kind(self) -> str:
        """Kind of the proposal."""
        return self.case.kind

    @property
    def contract(self) -> bool:
        """True where the victims leave by contract."""
        return bool(self.case.contract)

    @property
    def victims(self) -> tuple[int, ...]:
        """Rows that lose something."""
        return tuple(give.row for give in self.evictions)


Submit = Callable[[Draft], bool]
"""Hand a draft to the planner. True: it stands on the what-if (accepted, or held by its mode alone)."""

Propose = Callable[[Context, Submit], None]
"""An action: look at the context and submit drafts, best first."""
