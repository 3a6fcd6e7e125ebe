"""Errors of GPUs, and nodes cordoned for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.times import Time


@dataclass(frozen=True, slots=True)
class CordonRecord:
    """A node under a cordon of the controller, or under way to one (core/recovery/follow_cordons.py)."""

    since_s: Time
    seen: bool = False  # a view showed it cordoned
    opened: bool = False  # a person opened it since


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """The gravest XID of a GPU in one boot of its node (core/recovery/follow_errors.py)."""

    xid: int
    node: str
    boot: str


@dataclass(frozen=True, slots=True)
class RecoveryMemory:
    """Broken hardware (core/recovery/follow_cordons.py, core/recovery/follow_errors.py)."""

    cordons: Mapping[str, CordonRecord] = field(default_factory=dict)  # by name of the node
    gpu_errors: Mapping[str, ErrorRecord] = field(default_factory=dict)  # by UUID of the GPU
