"""The ledger of disruptions, and cool-downs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.times import Time

CONTRACT_WINDOW_S = 3600.0
"""Window (s) of the bound on contracts for one beneficiary (core/guards/contract.py)."""


@dataclass(frozen=True, slots=True)
class Disruption:
    """One entry of the budget ledger."""

    at_s: Time
    workload: str
    tenant: str
    nodes: tuple[str, ...]
    contract: bool
    uid: str = ""
    proposal_id: str = ""
    gpus: float = 0.0  # taken; shares and instances count as their part
    beneficiary: str = ""  # uid of the waiting work in its favour; "" for none


@dataclass(frozen=True, slots=True)
class BudgetMemory:
    """What was taken from work lately (core/effects/disruption.py)."""

    disrupted: tuple[Disruption, ...] = ()
    cooled_until_s: Mapping[str, Time] = field(
        default_factory=dict
    )  # uid -> no new reservation or disruption before this time
