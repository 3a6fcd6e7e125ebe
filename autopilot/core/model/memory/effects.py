"""Effects under way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.records import Instruction
from autopilot.core.model.times import Time


@dataclass(frozen=True, slots=True)
class InFlight:
    """An action between its instruction and its end (states: core/effects/lifecycle.py)."""

    instruction: Instruction
    state: str
    since_s: Time
    action: str
    tenant: str
    cost_gpu_s: float
    contract: bool
    attempts: int = 1
    benefit_gpu_s: float = 0.0
    digest: str = ""  # of the proposal: its approval also holds for retries
    shape: str = ""  # digest of the request at the decision (core/model/identity.py)
    kind: str = ""  # of the proposal
    reason: str = ""  # of the proposal


@dataclass(frozen=True, slots=True)
class EffectsMemory:
    """Effects by id (core/effects/lifecycle.py)."""

    in_flight: Mapping[str, InFlight] = field(default_factory=dict)
    # uid of an object for whose own sake the cluster refused an effect -> no new one before this time
    refused_until_s: Mapping[str, Time] = field(default_factory=dict)
