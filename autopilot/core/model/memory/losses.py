"""Stops with a loss still unknown, and how often work was stopped or saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.times import Time


@dataclass(frozen=True, slots=True)
class Stop:
    """An eviction or shrink with a loss still unknown (core/planning/losses.py)."""

    instruction_id: str
    proposal_id: str
    workload: str
    incarnation: int
    tenant: str
    at_s: Time
    gpus: float  # held before the stop
    expected_gpu_s: float
    worst_gpu_s: float
    asked: bool  # a checkpoint was requested before the stop
    uid: str = ""
    weighed: bool = False  # for other work, by weight; a shrink is none


@dataclass(frozen=True, slots=True)
class LossesMemory:
    """Stops and answers to requests for checkpoints (core/planning/losses.py)."""

    stops: tuple[Stop, ...] = ()
    weighed_stops: Mapping[str, int] = field(default_factory=dict)  # uid -> number of its stops for other work
    # checkpoint requests: (made, answered by a checkpoint)
    tenant_saves: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    workload_saves: Mapping[str, tuple[float, float]] = field(default_factory=dict)
