"""GPU time that tenants spent, by day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.times import Day, Time


@dataclass(frozen=True, slots=True)
class SpendingMemory:
    """By tenant (core/recovery/follow_spending.py)."""

    spent_gpu_s: Mapping[str, tuple[tuple[Day, float], ...]] = field(default_factory=dict)  # (day, GPU-seconds used)
    spending_gpus: Mapping[str, float] = field(default_factory=dict)  # held since `spent_until_s`
    spent_until_s: Time = float("-inf")
