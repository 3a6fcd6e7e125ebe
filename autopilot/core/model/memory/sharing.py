"""Nodes that were turned to another way of sharing, and shared ones that nobody uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.times import Time


@dataclass(frozen=True, slots=True)
class SharingMemory:
    """By uid of the node (core/sharing/follow_turns.py)."""

    turned_s: Mapping[str, Time] = field(default_factory=dict)  # the latest request to turn it
    unused_s: Mapping[str, Time] = field(default_factory=dict)  # since when nobody is on a shared node
