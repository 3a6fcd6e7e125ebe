"""What an action hands to the planner, and the one thing that it may call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autopilot.core.model.records import Evidence
from autopilot.core.placement.shapes import Fit
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.tracking.replicas import Ahead


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
    """An action's wish in rows; the planner turns it into a Proposal and asks the guards.

    `at` is the position among what is pending (-1 for work that is not), `row` the workload; -1 where the wish is
    about a service: its row is `service`, the floor `replicas`, and `ahead` the forecast behind it.
    """

    action: str
    kind: str  # admit | land | grow | reserve | evict | scale
    at: int
    row: int
    fit: Fit | None
    start_s: float
    nodes: tuple[str, ...]
    benefit_gpu_s: float
    cost_gpu_s: float
    evidence: tuple[Evidence, ...]
    evictions: tuple[Eviction, ...] = ()
    contract: bool = False  # the victims were promised to give way
    needed_gpus: int = 0  # of all gangs that start on what is taken; 0: this one alone
    service: int = -1
    replicas: int = 0
    until_s: float = 0.0  # when that floor lapses by itself
    ahead: Ahead | None = None
    by_telemetry: bool = False  # it rests on what was measured of its victims
    resent: str = ""  # proposal that it comes from again: its own entries in the ledger do not count

    @property
    def victims(self) -> tuple[int, ...]:
        """Rows that lose something."""
        return tuple(give.row for give in self.evictions)


Submit = Callable[[Draft], bool]
"""Hand a draft to the planner. True: it stands on the what-if (accepted, or held by its mode alone)."""

Propose = Callable[[Context, Submit], None]
"""An action: look at the context and submit drafts, best first."""
