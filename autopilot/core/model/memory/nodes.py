"""Nodes that are offered back, and requests for more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.times import Time


@dataclass(frozen=True, slots=True)
class NodesMemory:
    """Nodes too many and too few (core/nodes/follow_idle_nodes.py, core/nodes/follow_requests.py)."""

    idle_nodes_s: Mapping[str, Time] = field(default_factory=dict)  # node fit for an offer -> start of its idleness
    offered_s: Mapping[str, Time] = field(default_factory=dict)  # node -> time of its offer
    requested_s: Mapping[str, Time] = field(default_factory=dict)  # uid -> time of the last request for nodes
