"""What an action hands to the planner, and the one thing that it may call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autopilot.core.context import Context
from autopilot.core.placement import Spot
from autopilot.core.records import Evidence


@dataclass(frozen=True, slots=True)
class Draft:
    """An action's wish in rows; the planner turns it into a Proposal and asks the guards.

    `at` is the position in the order of service (-1 for work that is not pending), `row` the
    workload; `victims` are rows that lose everything they hold.
    """

    action: str
    kind: str  # admit | reserve | evict
    at: int
    row: int
    spot: Spot | None
    start_s: float
    nodes: tuple[str, ...]
    benefit_gpu_s: float
    cost_gpu_s: float
    evidence: tuple[Evidence, ...]
    victims: tuple[int, ...] = ()
    contract: bool = False  # the victims were promised to give way


Submit = Callable[[Draft], bool]
"""Hand a draft to the planner. True: it stands on the what-if (accepted, or held by its mode alone)."""

Propose = Callable[[Context, Submit], None]
"""An action: look at the context and submit drafts, best first."""
